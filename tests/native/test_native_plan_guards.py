"""When a plan is replayed natively, and when it is not: arguments, world, modes."""
# ruff: noqa: F401, F811 (fixtures are imported, and go by their names as parameters)

from __future__ import annotations

from collections.abc import Callable
from types import CellType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tzero
from tests.native.native_plans import (
    N,
    Stub,
    _add,
    add_kernel,
    added,
    adding,
    launch,
    native,
    plan,
    scale_kernel,
    slot,
    warm,
    xy,
)
from tzero import events, settings
from tzero.plans.plan import Allocate, Constant, Scalar, Tensor
from tzero.reading.guards import Check, Equal, Same

# -- guards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Same, Equal, Check])
@pytest.mark.parametrize("in_cell", [False, True])
def test_a_guard_that_fails_is_a_miss(add_kernel: Any, xy: Any, kind: Any, in_cell: bool) -> None:
    where: Any = CellType(1000) if in_cell else {"NAME": 1000}

    def put(value: Any) -> None:
        if in_cell:
            where.cell_contents = value
        else:
            where["NAME"] = value

    def made(x, y):
        now = where.cell_contents if in_cell else where["NAME"]
        check = [lambda given: given == now] if kind is Check else []
        guard = kind("the name", where, "NAME", now, *check)
        return adding(add_kernel, guards=(guard,))

    kernel = Stub(lambda x, y: x + y, made)
    warm(kernel, *xy)
    kernel(*xy)
    assert kernel.misses == 0
    put(int("1000"))  # another object, and equal
    kernel(*xy)
    assert kernel.misses == (kind is Same)
    put(1001)
    assert torch.equal(kernel(*xy), xy[0] + xy[1])
    assert kernel.misses == 1 + (kind is Same)
    kernel(*xy)
    assert kernel.misses == 1 + (kind is Same)
    assert kernel._count() == 1
    if in_cell:
        del where.cell_contents
    else:
        del where["NAME"]
    kernel.plan_of = lambda x, y: None
    kernel(*xy)
    assert kernel.misses == 2 + (kind is Same)
    assert kernel._count() == 0


def test_equal_numbers_of_another_type_do_not_pass_a_guard(add_kernel: Any, xy: Any) -> None:
    world: dict[str, Any] = {"NAME": 1}
    guard = Equal("NAME", world, "NAME", 1)
    kernel = Stub(lambda x, y: x + y, lambda x, y: adding(add_kernel, guards=(guard,)))
    warm(kernel, *xy)
    world["NAME"] = True
    kernel(*xy)
    assert kernel.misses == 1


def test_a_guard_that_raises_raises(add_kernel: Any, xy: Any) -> None:
    broken = [False]

    def check(now: Any) -> bool:
        if broken[0]:
            raise RuntimeError("broken")
        return True

    guard = Check("NAME", {"NAME": 1}, "NAME", 1, check)
    kernel = Stub(lambda x, y: x + y, lambda x, y: adding(add_kernel, guards=(guard,)))
    warm(kernel, *xy)
    broken[0] = True
    with pytest.raises(RuntimeError, match="broken"):
        kernel(*xy)
    broken[0] = False
    assert torch.equal(kernel(*xy), xy[0] + xy[1])


def test_a_tensor_in_a_global_is_read_where_it_is(add_kernel: Any) -> None:
    weight = torch.rand(N)
    world = {"weight": weight}

    def made(x):
        guard = Same("weight", world, "weight", world["weight"])
        steps = (Allocate(2, 1), launch(add_kernel, 0, 1, 2, Constant(N), None))
        slots = (
            slot("x", 0),
            slot("weight", guard=0, size=tuple(world["weight"].size())),
            slot("t"),
        )
        return plan(steps, slots, Tensor(2), ("x",), (guard,))

    kernel = Stub(lambda x: x + world["weight"], made)
    x = torch.rand(N)
    warm(kernel, x)
    weight.add_(1)
    assert torch.equal(kernel(x), x + weight)
    weight.set_(torch.rand(N))
    assert torch.equal(kernel(x), x + weight)
    assert kernel.misses == 0
    weight.set_(torch.rand(N)[:1].expand(N))
    kernel.plan_of = lambda x: None
    assert torch.equal(kernel(x), x + weight)
    assert kernel.misses == 1


def test_one_tensor_twice_is_another_situation(add_kernel: Any, xy: Any) -> None:
    same: list[bool] = []

    def made(x, y):
        same.append(x is y)
        return adding(add_kernel)

    kernel = Stub(lambda x, y: x + y, made)
    x, y = xy
    warm(kernel, x, y)
    assert torch.equal(kernel(x, x), x + x)
    assert same[-1] and kernel.misses == 1
    assert torch.equal(kernel(y, y), y + y)
    assert torch.equal(kernel(y, x), x + y)
    assert kernel.misses == 1


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda x: x.double(),
    "size": lambda x: x[:-1].clone(),
    "stride": lambda x: torch.rand(2 * N)[::2],
    "alignment": lambda x: torch.rand(N + 1)[1:],
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "parameter": lambda x: torch.nn.Parameter(x.clone()),
    "dimension": lambda x: x.view(1, N),
    "conj": lambda x: torch.zeros(N, dtype=torch.complex64).conj(),
    "neg": lambda x: torch._neg_view(x),
    "a number": lambda x: 3,
    "None": lambda x: None,
    "text": lambda x: "x",
    "bytes": lambda x: b"x",
    "a dtype": lambda x: torch.float32,
    "a list": lambda x: [x],
    "a tuple": lambda x: (x,),
    "a dict": lambda x: {"x": x},
    "a complex number": lambda x: 1j,
    "a size": lambda x: torch.Size([2]),
    "a device": lambda x: torch.device("cpu"),
    "a layout": lambda x: torch.strided,
    "a memory format": lambda x: torch.channels_last,
    "a constant": lambda x: tzero.ConstExpr(3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_an_argument_is_a_miss(xy: Any, change: str) -> None:
    kernel = Stub(lambda x, y: "host", lambda x, y: plan((), (), Constant("plan")))
    x, y = xy
    warm(kernel, x, y)
    assert kernel(x, y) == "plan"
    assert kernel(CHANGES[change](x), y) == "host"
    assert (kernel.misses, kernel.twins) == (1, 0)
    assert kernel(x, y) == "plan"


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(2).to_sparse(),
        torch._to_functional_tensor(torch.ones(2)),
        torch.empty(2, device="meta"),
        range(3),
        {1: 2},
        10**30,
        tzero.ConstExpr([3]),
        print,
        [[[[[[[[[[]]]]]]]]]],
        torch.device("xla"),
    ],
    ids=str,
)
def test_what_native_code_does_not_read_is_never_replayed_by_it(xy: Any, value: Any) -> None:
    kernel = Stub(lambda x, y: "host", lambda x, y: plan((), (), Constant("plan")))
    assert kernel(value, xy[1]) == kernel(value, xy[1]) == "host"
    assert kernel.misses + kernel.twins == 2
    assert kernel._count() == 0


VALUES = [
    *(1, True, 1.0, 0.0, -0.0, float("nan"), None, "1", b"1", 2**63, 2**62, torch.int8),
    *(1j, 0j, complex(0, -0.0), torch.Size([1]), torch.Size([1, 1]), (1,), torch.Size([])),
    *(torch.device("cpu"), torch.device("cpu", 0), torch.device("cuda", 0), torch.device("meta")),
    *(torch.strided, torch.sparse_csr, torch.preserve_format, torch.channels_last_3d),
]


def test_values_in_a_list_are_told_apart() -> None:
    kernel = Stub(
        lambda values: id(values[0]), lambda values: plan((), (), Constant(id(values[0])), ("v",))
    )
    for _ in range(3):
        answers = [kernel([value]) for value in VALUES]
    assert answers == [id(value) for value in VALUES]
    assert kernel._count() == len(VALUES)


def test_numbers_are_told_apart_as_triton_does() -> None:
    kernel = Stub(lambda n: None, lambda n: plan((), (), Scalar(0), ("n",)))
    warm(kernel, 3)
    for n in (5, 7, -3, 2**31 - 1):
        assert kernel(n) == n
    assert kernel.misses == 0
    for n in (1, 16, 2**31 + 1, 2**40 + 16, 2**63, True, 2.5, None):
        kernel(n)
    assert kernel.misses == 8
    for n in (1, 32, 2**31 + 3, 2**40 + 32, 2**63 + 16, False, 3.5, None):
        assert kernel(n) is n or kernel(n) == n
    assert kernel.misses == 8


def test_a_value_that_was_looked_at_counts_from_then_on() -> None:
    looked = [False]

    def made(n):
        by_value = frozenset([0]) if looked[0] else frozenset()
        return plan((), (), Constant(n) if looked[0] else Scalar(0), ("n",), by_value=by_value)

    kernel = Stub(lambda n: n, made)
    warm(kernel, 3)
    assert (kernel(5), kernel.misses, kernel._count()) == (5, 0, 1)
    looked[0] = True
    assert kernel(16) == 16
    assert (kernel.misses, kernel._count()) == (1, 1)  # what was kept is gone
    assert (kernel(16), kernel.misses) == (16, 1)
    assert (kernel(3), kernel(5), kernel(32)) == (3, 5, 32)
    assert (kernel.misses, kernel._count()) == (4, 4)
    assert (kernel(3), kernel(5), kernel(32), kernel.misses) == (3, 5, 32, 4)


def test_a_constant_counts_by_value() -> None:
    def host(n: tzero.ConstExpr, text: tzero.ConstExpr = "a"):  # type: ignore[assignment]
        return (n, text)

    kernel = Stub(host, lambda n, text: plan((), (), Constant((n, text)), ("n", "text")))
    for _ in range(3):
        assert [kernel(3), kernel(5), kernel(3.0), kernel(3, "b")] == [
            *((3, "a"), (5, "a"), (3.0, "a"), (3, "b"))
        ]
        assert type(kernel(3.0)[0]) is float
    assert kernel._count() == 4
    for _ in range(2):
        assert type(kernel(tzero.ConstExpr(3))[0]) is tzero.ConstExpr  # not the plan of 3
        kernel((1, 2))
    assert (kernel.twins, kernel._count()) == (0, 5)


# -- torch's modes, and who listens ---------------------------------------------------------------


def test_modes_of_torch_are_told_apart(xy: Any) -> None:
    kernel = Stub(lambda x, y: "host", lambda x, y: plan((), (), Constant("plan")))
    warm(kernel, *xy)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert [kernel(*xy), kernel(*xy)] == ["host", "plan"]
    assert (kernel.misses, kernel._count()) == (2, 3)
    torch.use_deterministic_algorithms(True)
    try:
        assert [kernel(*xy), kernel(*xy)] == ["host", "plan"]
    finally:
        torch.use_deterministic_algorithms(False)
    assert (kernel(*xy), kernel.misses, kernel.twins) == ("plan", 3, 0)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.device("meta"),
        lambda: torch.overrides.BaseTorchFunctionMode(),
        _Mode,
        lambda: events.observe(lambda event: None),
        lambda: settings.override(verify=True),
    ],
    ids=["device", "function mode", "dispatch mode", "observer", "verify"],
)
def test_who_listens_is_served_by_the_twin(xy: Any, context: Any) -> None:
    kernel = Stub(lambda x, y: "host", lambda x, y: plan((), (), Constant("plan")))
    warm(kernel, *xy)
    with context():
        assert kernel(*xy) == "host"
    assert (kernel.misses, kernel.twins) == (0, 1)
    assert kernel(*xy) == "plan"


def test_a_transform_is_served_by_the_twin(xy: Any) -> None:
    kernel = Stub(lambda x, y: x + y, lambda x, y: plan((), (), Constant("plan")))
    warm(kernel, *xy)
    out = torch.vmap(lambda x: kernel(x, xy[1]))(torch.ones(2, N))
    assert torch.equal(out, 1 + xy[1].expand(2, N))
    assert kernel.twins == 1


def test_while_anyone_records_python_calls_and_launches(added: Stub, xy: Any) -> None:
    warm(added, *xy)
    native.recording(1)
    try:
        added(*xy)
    finally:
        native.recording(-1)
    assert added.twins == 1
    added(*xy)
    assert added.twins == 1


@pytest.mark.parametrize("spoil", ["debug", "hook", "cache"])
def test_a_kernel_that_cannot_be_launched_as_it_was(xy: Any, spoil: str) -> None:
    with settings.override(tier=2):
        mine = tzero.jit(_add)
    kernel = Stub(lambda x, y: x + y, lambda x, y: adding(mine))
    warm(kernel, *xy)
    kernel(*xy)
    assert kernel.twins == 0
    if spoil == "debug":
        mine.debug = not mine.debug
    elif spoil == "hook":
        mine.pre_run_hooks.append(lambda *args, **kwargs: None)
    else:
        mine.device_caches.clear()
    assert torch.equal(kernel(*xy), xy[0] + xy[1])
    # What Triton has dropped does not come back: that is recorded again.
    assert (kernel.misses, kernel.twins) == ((1, 0) if spoil == "cache" else (0, 1))


def test_a_kernel_of_tritons_own(xy: Any) -> None:
    import triton

    plain = triton.jit(_add)
    kernel = Stub(lambda x, y: x + y, lambda x, y: adding(plain))
    warm(kernel, *xy)
    assert torch.equal(kernel(*xy), xy[0] + xy[1])
    assert (kernel.misses, kernel.twins) == (0, 0)
    plain.pre_run_hooks.append(lambda *args, **kwargs: None)
    kernel(*xy)
    assert kernel.twins == 1
    plain.pre_run_hooks.clear()
    kernel(*xy)
    assert kernel.twins == 1
