# mypy: allow-untyped-defs
"""Each guard of a native plan is needed: with it switched off, a call that it is for goes wrong.

A scenario makes a plan, changes one fact, and demands what the host function gives. It passes with
every guard in place, and fails without its own: by the answer, not by an error. Where a fact is
held by two guards, both are named, and both are off; each of them has a scenario of its own, too,
where there is one.

Without a scenario: `plan_alignment`, because a launch asks for the address again (`plan_aligned`),
and the CPU does not mind; the device and the stream, which are CUDA's.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tzero
from tests.launches.mutable_native import NATIVE, mutable
from tests.plans import kernels
from tests.plans.hosts import gathered, scaled
from tzero.arguments.key import Options

if torch.cuda.is_available():
    pytest.skip("children that fork, and kernels of the CPU", allow_module_level=True)


class NotWarm(Exception):
    """The plan was not native when a scenario wanted it to be; no proof of any guard."""


class Scenario(NamedTuple):
    """What fails without these guards."""

    name: str
    guards: tuple[str, ...]
    run: Callable[[Any], None]


SCENARIOS: list[Scenario] = []


def fails_without(*guards: str) -> Callable[[Any], Any]:
    """Add a function as a scenario; it is given what makes kernels."""

    def add(run: Any) -> Any:
        SCENARIOS.append(Scenario(run.__name__, guards, run))
        return run

    return add


def warm(kernel: Any, *args: Any) -> Any:
    """Call a kernel until native code has its plan."""
    for _ in range(2):
        result = kernel(*args)
    if not kernel._look(2, *args):
        raise NotWarm(kernel.explain(*args).refusal)
    return result


def same(found: Any, expected: Any) -> None:
    """Demand an answer."""
    assert repr(found) == repr(expected)


def tells_apart(make: Any, host: Any, one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """A plan for some arguments is none for others."""
    kernel = make(host)
    warm(kernel, *one)
    same(kernel(*other), host(*other))


X = torch.arange(4.0)

# -- what the arguments are ------------------------------------------------------------------------


def by_type(x):
    return scaled(x, 3.0 if isinstance(x, torch.nn.Parameter) else 2.0)


@fails_without("plan_tensor_type")
def a_parameter_is_no_tensor(make):
    tells_apart(make, by_type, (X,), (torch.nn.Parameter(X, requires_grad=False),))


def by_gradients(x):
    return scaled(x.detach(), 3.0 if x.requires_grad else 2.0)


@fails_without("plan_requires_grad")
def a_tensor_may_require_gradients(make):
    tells_apart(make, by_gradients, (X.clone(),), (X.clone().requires_grad_(),))


def twice(x):
    return scaled(x, 2.0)


@fails_without("plan_dtype")
def a_dtype_decides_the_binary(make):
    tells_apart(make, twice, (X,), (X.to(torch.int32),))


@fails_without("plan_sizes")
def sizes_decide_what_is_made(make):
    tells_apart(make, twice, (X,), (torch.arange(7.0),))


@fails_without("plan_strides")
def strides_decide_what_is_read(make):
    square = torch.arange(9.0).view(3, 3)
    tells_apart(make, gathered, (square,), (square.t(),))


def by_negation(x):
    return scaled(torch.ones(2), 3.0 if x.is_neg() else 2.0)


@fails_without("plan_keys")
def a_tensor_may_be_negated_lazily(make):
    tells_apart(make, by_negation, (X,), (torch._neg_view(X),))


def by_identity(x, y):
    return scaled(x, 3.0 if x is y else 2.0)


@fails_without("plan_same_tensor")
def one_tensor_twice_is_not_two(make):
    tells_apart(make, by_identity, (X, X.clone()), (X, X))


def by_identity_of_lists(x, one, other):
    return scaled(x, 3.0 if one is other else 2.0)


@fails_without("plan_same_container")
def one_list_twice_is_not_two(make):
    one = [1]
    tells_apart(make, by_identity_of_lists, (X, one, [1]), (X, one, one))


def by_kind(x, values):
    return scaled(x, 3.0 if isinstance(values, list) else 2.0)


@fails_without("plan_container")
def a_list_is_no_tuple(make):
    tells_apart(make, by_kind, (X, (1, 2)), (X, [1, 2]))


@triton.jit
def put_number(out, n):
    tl.store(out, n)


def passed_on(x, n):
    put_number[(1,)](x, n)
    return x.clone()


@fails_without("plan_class")
def a_number_that_is_one_is_compiled_in(make):
    tells_apart(make, passed_on, (X.clone(), 1), (X.clone(), 5))


def looked_at(x, n):
    return scaled(x, float(n))


@fails_without("plan_value")
def a_number_that_is_looked_at_counts(make):
    tells_apart(make, looked_at, (X, 2), (X, 3))


@fails_without("plan_text")
def a_text_counts(make):
    tells_apart(make, by_text, (X, "two"), (X, "three"))


def by_text(x, text):
    return scaled(x, {"two": 2.0, "three": 3.0}[text])


def by_names(x, numbers):
    return scaled(x, 2.0 if "a" in numbers else 3.0)


@fails_without("plan_text")
def the_names_in_a_dict_count(make):
    tells_apart(make, by_names, (X, {"a": 1}), (X, {"b": 1}))


def of_dtype(x, dtype):
    return scaled(torch.ones(2, dtype=dtype), 2.0)


@fails_without("plan_dtype_value")
def a_dtype_that_is_an_argument_counts(make):
    tells_apart(make, of_dtype, (X, torch.float32), (X, torch.float64))


# -- what torch and tzero are set to ---------------------------------------------------------------


def by_mode(x):
    return scaled(x, 3.0 if torch.is_grad_enabled() else 2.0)


@fails_without("plan_modes")
def gradients_may_be_off(make):
    kernel = make(by_mode)
    warm(kernel, X)
    with torch.no_grad():
        same(kernel(X), by_mode(X))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@fails_without("plan_functions_on")
def a_function_mode_sees_the_host_function(make):
    kernel = make(twice)
    warm(kernel, X)
    with Functions() as mode:
        kernel(X)
    assert mode.seen > 0


@fails_without("plan_keys_on", "plan_modes")
def a_dispatch_mode_sees_the_host_function(make):
    # The keys that are on are words of the plan, too, and allocating goes by torch.
    kernel = make(by_nothing_new)
    warm(kernel, X.clone())
    with Operators() as mode:
        kernel(X.clone())
    assert mode.seen > 1  # `clone` above is one


def by_nothing_new(x):
    y = x.view(2, 2)
    put_number[(1,)](y, 5)
    return x


inner: Any = None


def around(x):
    return scaled(inner(x), 2.0)


@fails_without("plan_recorders", "plan_functions_on", "plan_keys_on", "plan_modes")
def a_kernel_in_another_is_recorded_with_it(make):
    global inner  # the modes of a recording show, too
    inner = make(twice)
    warm(inner, X)
    outer = make(around)
    for _ in range(3):
        same(outer(X), X * 4)
    plan = outer.explain(X).plan
    assert plan is not None
    assert [type(step).__name__ for step in plan.steps].count("Launch") == 2


@fails_without("plan_quiet")
def who_measures_sees_calls(make):
    kernel = make(twice)
    warm(kernel, X)
    with tzero.measure.recording() as record:
        kernel(X)
    assert record.count("call", "twice") == 1


@fails_without("plan_unwatched")
def who_observes_sees_hits(make):
    kernel, seen = make(twice), []
    warm(kernel, X)
    with tzero.events.observe(seen.append):
        kernel(X)
    assert "hit" in [event.kind for event in seen]


# -- what the host function reads ------------------------------------------------------------------

FACTOR = 2.0
WEIGHT = torch.arange(6.0).view(2, 3)


def by_a_global(x):
    return scaled(x, FACTOR)


def change_the_global(make):
    global FACTOR
    kernel = make(by_a_global)
    warm(kernel, X)
    FACTOR = 3.0
    same(kernel(X), by_a_global(X))


@fails_without("plan_names")
def a_global_is_asked_for(make):
    change_the_global(make)


@fails_without("plan_versions")
def a_namespace_that_changed_is_asked_again(make):
    change_the_global(make)


def closing_over(factor):
    def host(x):
        return scaled(x, factor)

    def change(to):
        nonlocal factor
        factor = to

    return host, change


@fails_without("plan_names")
def a_closure_is_asked_for(make):
    host, change = closing_over(2.0)
    kernel = make(host)
    warm(kernel, X)
    change(3.0)
    same(kernel(X), host(X))


def by_a_weight(x):
    return gathered(WEIGHT)


@fails_without("plan_global_tensors")
def a_tensor_in_a_global_is_looked_at(make):
    kernel = make(by_a_weight)
    warm(kernel, X)
    WEIGHT.t_()
    same(kernel(X), by_a_weight(X))


def by_being_the_weight(x):
    return scaled(x, 3.0 if x is WEIGHT else 2.0)


@fails_without("plan_global_arguments")
def an_argument_may_be_a_tensor_of_a_global(make):
    kernel = make(by_being_the_weight)
    warm(kernel, WEIGHT.clone())
    same(kernel(WEIGHT), by_being_the_weight(WEIGHT))


TABLE = [2.0]


def by_being_the_table(x, table):
    return scaled(x, 3.0 if table is TABLE else TABLE[0])


@fails_without("plan_global_containers")
def an_argument_may_be_a_list_of_a_global(make):
    kernel = make(by_being_the_table)
    warm(kernel, X, [2.0])
    same(kernel(X, TABLE), by_being_the_table(X, TABLE))


# -- what the kernels are compiled with ------------------------------------------------------------


@fails_without("plan_knobs")
def a_hook_on_launches_is_called(make):
    kernel, seen = make(twice), []
    warm(kernel, X)
    triton.knobs.runtime.launch_enter_hook.add(seen.append)
    kernel(X)
    assert len(seen) == 1


@fails_without("plan_run_hooks")
def a_hook_on_the_kernel_is_called(make):
    kernel, seen = make(twice), []
    warm(kernel, X)
    kernels.scale.add_pre_run_hook(lambda *args, **kwargs: seen.append(args))
    kernel(X)
    assert len(seen) == 1


@triton.jit
def asserting(out, n):
    tl.device_assert(n < 100, "too much")
    tl.store(out, n)


def asserted(x, n):
    asserting[(1,)](x, n)
    return x.clone()


@fails_without("plan_attributes")
def the_debug_of_the_kernel_chooses_the_binary(make):
    kernel = make(asserted)
    warm(kernel, X.clone(), 200)
    asserting.debug = True
    with raising():
        kernel(X.clone(), 200)


class raising:
    """Demands that something is raised."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert kind is not None, "nothing was raised"
        return True


COMPILED_IN = tl.constexpr(2)


@triton.jit
def put_global(out):
    tl.store(out, COMPILED_IN)


def of_a_compiled_global(x):
    put_global[(1,)](x)
    return x.clone()


@fails_without("plan_globals")
def a_global_of_the_kernel_that_changed_is_an_error(make):
    global COMPILED_IN
    kernel = make(of_a_compiled_global)
    warm(kernel, X.clone())
    COMPILED_IN = tl.constexpr(3)
    with raising():
        kernel(X.clone())


@fails_without("plan_cache")
def a_binary_that_triton_has_dropped_is_not_launched(make):
    kernel = make(twice)
    warm(kernel, X)
    kernels.scale.device_caches.clear()
    kernel(X)
    assert kernels.scale.device_caches, "Triton was not asked for another"


# -- what steps lead to ----------------------------------------------------------------------------

NOW: dict[str, Any] = {"do": lambda x: None, "make": torch.clone}
_library = torch.library.Library("tzero_mutated", "DEF")
_library.define("act(Tensor(a!) x) -> ()")
_library.define("make(Tensor x) -> Tensor")
_library.impl("act", lambda x: NOW["do"](x), "CPU")
_library.impl("make", lambda x: NOW["make"](x), "CPU")
torch.library.register_fake("tzero_mutated::make", torch.empty_like, lib=_library)


def acting(x):
    torch.ops.tzero_mutated.act(x)
    return scaled(x, 2.0)


@fails_without("plan_asked_again")
def a_hook_may_come_in_the_middle(make):
    kernel, x, seen = make(acting), X.clone(), []
    warm(kernel, x)
    NOW["do"] = lambda _: kernels.scale.add_pre_run_hook(lambda *args, **kw: seen.append(args))
    kernel(x)
    assert len(seen) == 1


@fails_without("plan_addresses")
def memory_may_be_another_in_the_middle(make):
    kernel, x, old, new = make(acting), X.clone(), [], X + 10

    def move(tensor):
        old.append(tensor.untyped_storage())
        tensor.data = new

    warm(kernel, x)
    NOW["do"] = move
    same(kernel(x), scaled(new, 2.0))


@fails_without("plan_aligned")
def memory_may_be_aligned_otherwise_in_the_middle(make):
    kernel, x, resumed = make(acting), X.clone(), []
    warm(kernel, x)

    def resume(*args):
        resumed.append(args)
        return type(kernel)._resume(kernel, *args)

    kernel._resume = resume
    other = torch.arange(5.0)[1:]

    def move(tensor):
        tensor.data = other

    NOW["do"] = move
    same(kernel(x), scaled(other.clone(), 2.0))
    assert len(resumed) == 1


def of_what_is_made(x):
    return scaled(torch.ops.tzero_mutated.make(x), 2.0)


def makes_something_else(make, how):
    kernel = make(of_what_is_made)
    warm(kernel, X)
    NOW["make"] = how
    with raising():
        kernel(X)


@fails_without("plan_result")
def a_function_may_return_another_dtype(make):
    makes_something_else(make, lambda x: x.to(torch.int32))


@fails_without("plan_result")
def a_function_may_return_what_it_is_given(make):
    makes_something_else(make, lambda x: x)


# -- outputs that are used again -------------------------------------------------------------------


def pooled(make):
    kernel = make(twice, pool=True)
    for _ in range(2):
        warm(kernel, X)
    before = tzero.pool.stats().reused
    kernel(X)
    if tzero.pool.stats().reused == before:
        raise NotWarm("nothing is used again")
    return kernel


@fails_without("pool_names")
def an_output_that_is_held_stays(make):
    kernel = pooled(make)
    held = [kernel(X) for _ in range(6)]
    kernel(X + 1)
    assert len({each.data_ptr() for each in held}) == 6
    same(held, [twice(X)] * 6)


@fails_without("pool_uses")
def an_output_that_a_view_looks_at_stays(make):
    kernel = pooled(make)
    held = [kernel(X).data for _ in range(6)]
    kernel(X + 1)
    same(held, [twice(X)] * 6)


@fails_without("pool_words")
def an_output_of_another_geometry_is_not_used(make):
    kernel = pooled(make)
    for _ in range(6):
        found = kernel(X)
        same(found, twice(X))
        found.resize_(2)
        torch._C._autograd._unsafe_set_version_counter((found,), (0,))  # the words alone are other
        del found


@fails_without("pool_version")
def an_output_that_was_changed_is_not_used(make):
    kernel = pooled(make)
    for _ in range(6):
        found = kernel(X)
        assert found._version == 0
        found.add_(1)
        del found


@fails_without("pool_weak")
def an_output_that_someone_waits_for_is_not_used(make):
    kernel = pooled(make)
    known = [weakref.ref(kernel(X)) for _ in range(6)]
    found = kernel(X)
    assert not any(each() is found for each in known)


@fails_without("pool_attributes")
def an_output_with_attributes_is_not_used(make):
    kernel = pooled(make)
    for _ in range(6):
        found = kernel(X)
        assert not hasattr(found, "mine")
        found.mine = True
        del found


def first_only(x):
    out = torch.empty_like(x)
    put_number[(1,)](out, 5)
    return out


@fails_without("pool_deterministic")
def where_torch_is_deterministic_outputs_are_new(make):
    torch.use_deterministic_algorithms(True)
    kernel = make(first_only, pool=True)
    warm(kernel, X)
    for _ in range(6):
        found = kernel(X)
        assert found[1:].isnan().all()
        found.data.fill_(7.0)
        del found


# -- the rows --------------------------------------------------------------------------------------


@functools.cache
def kind_of(module: ModuleType) -> Any:
    """The class of kernels over a build of the native module."""
    from tzero.calls import native as native_plan

    return native_plan.make(module)


def maker(module: ModuleType) -> Callable[..., Any]:
    """What makes kernels over it."""

    def make(host: Any, pool: bool = False) -> Any:
        kind = kind_of(module)
        return kind(host, config=None, key=None, options=Options(), plans=True, pool=pool)

    return make


PASSES, FAILS, COLD, RAISES = range(4)


def in_a_child(run: Callable[[], None]) -> int:
    """How a scenario ends in a child process; what it changes stays there."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(60)
    status = RAISES
    try:
        run()
        status = PASSES
    except AssertionError:
        status = FAILS
    except NotWarm as error:
        print(f"not native: {error}", file=sys.stderr)
        status = COLD
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """The native module whose guards can be switched off."""
    found = mutable()
    if found is None:
        pytest.skip("the native module cannot be built a second time here")
    if kind_of(found).unavailable:
        pytest.skip(f"no native replay here: {kind_of(found).unavailable}")
    maker(found)(twice)(X)  # what a first recording imports, children need not
    return found


UNTESTED = {"plan_alignment"}


def test_every_guard_of_plans_has_a_scenario() -> None:
    words = (NATIVE / "guards.h").read_text().replace("(", " ").replace(")", " ").split()
    named = {word for word in words if word.startswith(("plan_", "pool_"))}
    claimed = {guard for each in SCENARIOS for guard in each.guards}
    assert named - UNTESTED == claimed


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[each.name for each in SCENARIOS])
def test_a_call_goes_wrong_without_its_guard(scenario: Scenario, module: ModuleType) -> None:
    def run() -> None:
        scenario.run(maker(module))

    assert in_a_child(run) == PASSES, "it fails with every guard in place"
    try:
        module.guards_off(frozenset(scenario.guards))
        assert in_a_child(run) == FAILS, f"without {scenario.guards} it does not"
        for guard in scenario.guards if len(scenario.guards) > 1 else ():
            module.guards_off(frozenset({guard}))
            assert in_a_child(run) == PASSES, f"{guard} alone is all it takes: name no other"
    finally:
        module.guards_off(frozenset())
