"""What tests of plans over sizes share: descriptions made by hand, and a kernel that replays them.

Enters: formulas, and a plan that was described for one size. Leaves: a `SizedStub` that counts the
calls it makes in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.native.native_plans import Stub, native, plan, slot
from tzero.plans.describe import PlanDescription, describe
from tzero.plans.plan import Allocate, Constant, Launch, Plan, Tensor
from tzero.plans.sized_description import (
    SizedLaunchDescription,
    SizesDescription,
    VariantDescription,
)

BLOCK = 128
SIZE, STRIDE, NUMBER = (native.SIZE_SOURCES[name] for name in ("size", "stride", "number"))


class Written:
    """Formulas written down one after the other."""

    def __init__(self, *inputs: tuple[int, int, int], free: tuple[bool, ...] | None = None) -> None:
        self.inputs = inputs
        self.free = free or (True,) * len(inputs)
        self.nodes: list[tuple[int, int, int]] = []
        self.conditions: list[tuple[int, int, int, bool]] = []

    def constant(self, value: int) -> int:
        """The formula of a constant."""
        return self._add("constant", value, 0)

    def apply(self, operation: str, a: int, b: int = 0) -> int:
        """The formula of an operation on formulas."""
        return self._add(operation, a, b)

    def demand(self, comparison: str, left: int, right: int, truth: bool = True) -> None:
        """A condition."""
        self.conditions.append((native.SIZE_COMPARISONS[comparison], left, right, truth))

    def _add(self, operation: str, a: int, b: int) -> int:
        self.nodes.append((native.SIZE_OPERATIONS[operation], a, b))
        return len(self.inputs) + len(self.nodes) - 1

    def description(self, slots: Any, launches: Any) -> SizesDescription:
        """All of it."""
        return SizesDescription(
            self.inputs,
            self.free,
            tuple(self.nodes),
            tuple(self.conditions),
            tuple(slots),
            tuple(launches),
        )


class SizedStub(Stub):
    """A kernel whose descriptions are made by hand, for the arguments of a call."""

    by_value: tuple[bool, ...] = ()

    def __init__(
        self, function: Callable[..., Any], describe_for: Callable[..., PlanDescription | None]
    ) -> None:
        super().__init__(function, lambda *args: None)
        self.describe_for = describe_for

    def _missed(self, args: Any, kwargs: Any) -> Any:
        self.misses += 1
        self._tick()
        result = self.function(*args, **kwargs)
        description = self.describe_for(*args, **kwargs)
        if description is None:
            return result, None
        by_value = self.by_value or (False,) * len(self.host.parameters)
        return result, (self.bound, description, None, by_value, self._generation())


native.enable_calls(SizedStub)


def compiled_for(kernel: Any, n: int, tensors: int = 3) -> Any:
    """What Triton compiles for a launch with `n`; an integer of 32 bits or more."""
    given = [torch.zeros(BLOCK) for _ in range(tensors)]
    for _ in range(2):  # the first launch of a process finds Triton without a driver
        made = kernel[(0,)](*given, n, BLOCK=BLOCK)
    return made


def add_plan(kernel: Any, n: int) -> Plan:
    """``out = empty(n); add[(cdiv(n, BLOCK),)](x, y, out, n, BLOCK)``, as recorded for one size."""
    args = (Tensor(0), Tensor(1), Tensor(2), Constant(n), Constant(BLOCK))
    grid = (-(-n // BLOCK), 1, 1)
    steps = (Allocate(2, 1), Launch(kernel, grid, args, (), compiled_for(kernel, n), 1))
    slots = (slot("x", 0, size=(n,)), slot("y", 1, size=(n,)), slot("out", size=(n,)))
    return plan(steps, slots, Tensor(2))


def variant(found: PlanDescription, step: int, n: int, formula: int) -> VariantDescription:
    """The binary of a launch step, for sizes of the class of `n`, which is its only number."""
    launch = found.steps[step].details
    [move] = [m for m in launch.binary.moves if m.argument == len(launch.args) - 2] or [None]
    numbers = () if move is None else ((formula, move.type, move.offset),)
    return VariantDescription((native.size_class(n),), launch, numbers)


def add_description(kernel: Any, *sizes: int, written: Written | None = None, **more: Any) -> Any:
    """`add_plan` over sizes, with a binary for the class of each of these sizes."""
    these = written or Written((SIZE, 0, 0), (SIZE, 1, 0))
    one = these.constant(1)
    zero = these.constant(0)
    grid = these.apply("cdiv", 0, these.constant(BLOCK))
    these.demand("==", 0, 1)
    found = describe(native, add_plan(kernel, sizes[0]), **more)
    assert found is not None
    described = [describe(native, add_plan(kernel, n)) for n in sizes]
    variants = tuple(variant(d, 1, n, 0) for d, n in zip(described, sizes, strict=True) if d)
    launch = SizedLaunchDescription((grid, one, one), ((0, False),), variants)
    geometry = ((0,), (one,), zero)
    return found._replace(sizes=these.description([geometry] * 3, [launch]))


def adding(kernel: Any, *sizes: int, **more: Any) -> SizedStub:
    """A kernel that adds, with a plan for the classes of these sizes, which it got in its first
    calls."""
    made = SizedStub(total, lambda x, y: add_description(kernel, *sizes, **more))
    return settled(made, *pair(sizes[0]))


def total(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The host function of `add_plan`."""
    return x + y


def settled(kernel: SizedStub, *args: Any) -> SizedStub:
    """Call a kernel until native code has its plan."""
    for _ in range(3):
        kernel(*args)
    assert kernel._look(native.STAGES["guards"], *args)
    kernel.misses = kernel.twins = 0
    return kernel


def pair(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors to add."""
    return torch.rand(n), torch.rand(n)
