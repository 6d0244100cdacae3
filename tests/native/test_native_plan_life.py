"""Native plans: errors, references, threads, the table, and the class."""
# ruff: noqa: F401, F811 (fixtures are imported, and go by their names as parameters)

from __future__ import annotations

import copy
import functools
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch

import tzero
from tests.native.native_plans import (
    OUT,
    N,
    Stub,
    add_kernel,
    added,
    adding,
    native,
    plan,
    scale_kernel,
    slot,
    warm,
    xy,
)
from tests.plans.tiers import logged
from tzero import settings
from tzero.calls import native as native_plan
from tzero.launches.native import ParameterDescription
from tzero.plans.plan import Allocate, Call, Constant, Plan, Scalar, Slot, Tensor
from tzero.reading.guards import Same

# -- errors and ownership -------------------------------------------------------------------------


def failing(function: Callable[..., Any], made: Slot) -> Stub:
    call = Call(function, "torch.failing", (Tensor(0),), (), Tensor(2), 1)
    steps = (Allocate(1, 1), call)
    return Stub(lambda x: None, lambda x: plan(steps, (slot("x", 0), slot("t"), made), OUT, ("x",)))


def test_an_exception_of_a_call_is_the_callers() -> None:
    def function(x):
        raise KeyError("from torch")

    kernel, x = failing(function, slot("r")), torch.rand(N)
    kernel(x)
    before = sys.getrefcount(x)
    for _ in range(100):
        with pytest.raises(KeyError, match="from torch"):
            kernel(x)
    assert sys.getrefcount(x) == before


@pytest.mark.parametrize("given", [3, None, torch.ones(3), torch.ones(N).double(), [torch.ones(N)]])
def test_a_call_that_returns_something_else_is_an_error(given: Any) -> None:
    kernel, x = failing(lambda x: given, slot("r")), torch.rand(N)
    kernel(x)
    with pytest.raises(RuntimeError, match=r"torch\.failing"):
        kernel(x)


def test_calls_leave_no_references(added: Stub, xy: Any) -> None:
    warm(added, *xy)
    counts = [sys.getrefcount(each) for each in (*xy, added.bound)]
    outs = [added(*xy) for _ in range(1000)]
    assert len({out.data_ptr() for out in outs}) == 1000
    fresh = [object() for _ in outs]  # the list, the loop, and up to 3.13 the call
    assert {*map(sys.getrefcount, outs)} == {*map(sys.getrefcount, fresh)}
    gone = [weakref.ref(out) for out in outs]
    del outs
    gc.collect()
    assert not any(each() is not None for each in gone)
    assert [sys.getrefcount(each) for each in (*xy, added.bound)] == counts


def _given(made: Plan, *args: Any) -> Plan:
    return made


def test_a_kernel_with_plans_is_collected(add_kernel: Any, xy: Any) -> None:
    world: dict[str, Any] = {}
    world["it"] = None
    made = adding(add_kernel, guards=(Same("it", world, "it", None),))
    kernel = Stub(lambda x, y: x + y, functools.partial(_given, made))
    warm(kernel, *xy)
    world["kernel"] = kernel  # a circle through the guard's dict
    gone = weakref.ref(kernel)
    assert kernel._count() == 1
    del kernel, world, made
    gc.collect()
    assert gone() is None


def test_threads_share_plans(added: Stub, xy: Any) -> None:
    warm(added, *xy)
    wrong: list[str] = []

    def work(seed: int) -> None:
        x = torch.full((N,), float(seed))
        for k in range(2000):
            if not torch.equal(added(x, xy[1]), x + xy[1]):
                wrong.append("a result")
            if seed == 0 and k % 50 == 0:
                added._forget(None)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- the table ------------------------------------------------------------------------------------


def test_the_table_is_bounded_and_keeps_what_is_used() -> None:
    with settings.override(max_specializations=2):
        kernel = Stub(lambda v: v[0], lambda v: plan((), (), Constant(v[0]), ("v",)))
    for n in range(16):
        kernel([n])
    assert kernel._count() == 16
    assert kernel([0]) == 0  # used again, so it stays
    kernel.misses = 0
    for n in range(100, 115):
        kernel([n])
    assert kernel._count() == 16
    assert (kernel([0]), kernel.misses) == (0, 15)
    kernel([1])
    assert kernel.misses == 16


def test_bound_kernels_are_forgotten_one_by_one() -> None:
    kernel = Stub(lambda v: v[0], lambda v: plan((), (), Constant(v[0]), ("v",)))
    first, second = kernel.bound, SimpleNamespace(name="second")
    kernel([1])
    kernel([2])
    kernel.bound = second
    kernel([3])
    used = {bound.name: number for bound, number in kernel._used()}
    assert set(used) == {"bound", "second"}
    kernel([1])
    assert {b.name: n for b, n in kernel._used()}["bound"] > used["second"]
    kernel._forget(first)
    assert kernel._count() == 1 and kernel._used()[0][0] is second
    kernel._forget(None)
    assert kernel._count() == 0 and kernel._used() == []


def test_every_hit_takes_a_number_of_the_clock(added: Stub, xy: Any) -> None:
    warm(added, *xy)
    before = added._tick()
    for _ in range(5):
        added(*xy)
    assert added._tick() == before + 6


def test_a_plan_for_python_alone_goes_to_the_twin(add_kernel: Any, xy: Any) -> None:
    class Odd(dict):  # type: ignore[type-arg]
        pass

    guard = Same("a name", Odd(a=1), "a", 1)
    kernel = Stub(lambda x, y: x + y, lambda x, y: adding(add_kernel, guards=(guard,)))
    said: list[str] = []
    with logged(lambda event: said.append(event.reason)):
        kernel(*xy)
    assert said == ["replayed in Python: a name is in a Odd"] and kernel._count() == 1
    kernel(*xy)
    assert (kernel.misses, kernel.twins) == (1, 1)


def test_a_hit_costs_the_same_among_ten_thousand() -> None:
    with settings.override(max_specializations=2000):
        kernel = Stub(lambda v: v[0], lambda v: plan((), (), Constant(v[0]), ("v",)))
    for n in range(10_000):
        kernel([n])
    assert kernel._count() == 10_000
    kernel.misses = 0
    assert [kernel([n]) for n in range(10_000)] == list(range(10_000))
    assert kernel.misses == 0


# -- the class ------------------------------------------------------------------------------------


def test_ways_to_call(added: Stub, xy: Any) -> None:
    warm(added, *xy)
    x, y = xy
    named = {"x": x, "y": y}
    calls = [
        functools.partial(added, x),
        functools.partial(added, x=x),
        lambda y: MethodType(added, x)(y),
        lambda y: added(*[x, y]),
        lambda y: added(**named),
        lambda y: next(map(added, [x], [y])),
    ]
    for call in calls:
        out = call(y=y) if isinstance(call, functools.partial) else call(y)
        assert torch.equal(out, x + y)
    assert (added.misses, added.twins) == (0, 0)
    with pytest.raises(TypeError):
        added(x)
    with pytest.raises(TypeError):
        added(x, y, z=1)


def test_parameters_may_be_named_as_run_names_its_own() -> None:
    kernel = Stub(
        lambda grid, warmup=2: None, lambda grid, warmup: plan((), (), Scalar(1), ("g", "w"))
    )
    warm(kernel, 3)
    assert (kernel(grid=3), kernel(3, warmup=7), kernel(warmup=9, grid=5)) == (2, 7, 9)
    assert kernel.misses == 0


def test_it_is_an_object_as_others_are(added: Stub) -> None:
    added.extra = 3
    assert vars(added)["extra"] == 3
    assert weakref.ref(added)() is added
    assert copy.copy(added) is added and copy.deepcopy(added) is added
    with pytest.raises(tzero.InvalidArgument):
        pickle.dumps(added)
    assert callable(added) and type(added).__call__ is Stub.__call__
    assert native_plan.NativeKernel.__call__ is tzero.calls.kernel.Kernel.__call__
    assert added.__wrapped__ is added.function


def test_a_kernel_is_prepared_once(added: Stub) -> None:
    with pytest.raises(RuntimeError, match="prepared"):
        added._prepare((), (), 1)


@pytest.mark.parametrize(
    "said",
    [None, (), (1,), (None, (), (), (), (), (9, 0, None, (), ())), (None, (), (), (), (1,), ())],
)
def test_a_description_that_makes_no_sense_is_an_error(said: Any) -> None:
    class Broken(native.Dispatching):  # type: ignore[misc, name-defined]
        def __call__(self, *args: Any) -> Any:
            return "twin"

        def _missed(self, args: Any, kwargs: Any) -> Any:
            return "missed", ("bound", said, None, (False,), self._generation())

    native.enable_calls(Broken)
    kernel = Broken()
    assert kernel(1) == "twin"
    kernel._prepare((ParameterDescription("n"),), (False,), 10)
    if said is None:
        assert [kernel(3), kernel(3)] == ["missed", "twin"]
    else:
        with pytest.raises((ValueError, TypeError)):
            kernel(3)


# -- fallbacks -------------------------------------------------------------------------------------


class Bound:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


class Falling(native.Dispatching):  # type: ignore[misc, name-defined]
    """A kernel that replays no call. Each key has a bound kernel, held by native code alone."""

    def __init__(self, most: int) -> None:
        self.bound: dict[torch.dtype, weakref.ref[Bound]] = {}
        self.settled: list[Any] = []
        self._prepare((ParameterDescription("x"),), (False,), most)

    def __call__(self, x: torch.Tensor) -> Any:
        raise AssertionError("the call goes to _missed, or falls back")

    def _missed(self, args: Any, kwargs: Any) -> Any:
        bound = Bound(args[0].dtype)
        self.bound[bound.dtype] = weakref.ref(bound)
        fallback = native_plan.FallbackDescription(bound, self.host, None, (), keyless=True)
        return self.host(*args), (bound, None, fallback, (False,), self._generation())

    def _settled(self, bound: Bound) -> None:
        self.settled.append(bound.dtype)

    def host(self, x: torch.Tensor) -> str:
        return str(x.dtype)

    def forget_all_after(self, dtype: torch.dtype) -> None:
        """Forget all calls as soon as the bound kernel of this dtype is released."""
        weakref.finalize(self.bound[dtype](), self._forget, None)


native.enable_calls(Falling)


def test_releasing_an_evicted_fallback_may_drop_the_one_that_was_just_added() -> None:
    kernel, x = Falling(most=1), torch.rand(N)
    kernel(x)
    kernel.forget_all_after(torch.float32)
    assert kernel(x.double()) == "torch.float64"
    assert kernel._count() == 0
    assert [ref() for ref in kernel.bound.values()] == [None, None]


def test_releasing_the_fallback_of_many_calls_may_drop_that_of_the_next() -> None:
    kernel, x = Falling(most=2), torch.rand(N)
    kernel(x.double())
    for _ in range(100):  # enough that calls like the latest are not looked up
        assert kernel(x) == "torch.float32"
    kernel._forget(kernel.bound[torch.float32]())
    assert kernel.bound[torch.float32]() is not None  # such calls still hold it
    kernel.forget_all_after(torch.float32)
    assert kernel._count() == 1
    assert kernel(x.double()) == "torch.float64"
    assert kernel._count() == 0 and kernel.settled == [torch.float64]
    assert kernel.bound[torch.float32]() is None
