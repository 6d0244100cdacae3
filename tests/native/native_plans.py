"""What tests of native plans share: plans made by hand, and a kernel that replays them.

Enters: steps and slots. Leaves: a `Stub` that counts what it does in Python: calls that missed, and
calls that native code left to the twin.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TZERO_CPU", "1")
try:
    from tzero import _native as native
except ModuleNotFoundError:
    pytest.skip("the native extension is not built", allow_module_level=True)

import triton.language as tl

import tzero
from tzero import settings
from tzero.arguments.key import Options
from tzero.calls import native as native_plan
from tzero.plans.plan import Allocate, Constant, Launch, Plan, Slot, Tensor, Value
from tzero.plans.wrapper import resume
from tzero.reading.guards import Guard

if native_plan.available():
    pytest.skip(f"no native plans here: {native_plan.available()}", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("these launch on the CPU", allow_module_level=True)

CPU = torch.device("cpu")
N = 100
OUT = Tensor(2)


def _add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


def _scale(x, out, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


@pytest.fixture(scope="module")
def add_kernel() -> Any:
    with settings.override(tier=2):
        return tzero.jit(_add)


@pytest.fixture(scope="module")
def scale_kernel() -> Any:
    with settings.override(tier=2):
        return tzero.jit(_scale)


class Stub(native_plan.NativeKernel):  # type: ignore[misc, valid-type]
    """A kernel whose plans are made by hand. It counts what it does in Python."""

    plan_of: Callable[..., Plan | None]

    def __init__(self, function: Callable[..., Any], plan_of: Callable[..., Plan | None]) -> None:
        super().__init__(function, config=None, key=None, options=Options())
        self.plan_of = plan_of
        self.bound = SimpleNamespace(name="bound")
        self.misses = self.twins = 0
        self.resumed: list[int] = []

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self.twins += 1
        return self.function(*args, **kwargs)

    def _answer(self, args: Any, kwargs: Any) -> Any:
        self.misses += 1
        self._tick()
        result = self.function(*args, **kwargs)
        plan = self.plan_of(*self.ordered(args, kwargs))
        return result, plan and SimpleNamespace(plan=plan, bound=self.bound, variants=())

    def _lasts(self, planned: Any) -> bool:
        return True  # nobody chooses another config

    def _resume(self, plan: Plan, start: int, held: Any, given: Any) -> Any:
        self.resumed.append(start)
        return resume(plan, start, held, given)


native.enable_calls(Stub)


def slot(
    name: str,
    leaf: int | None = None,
    size: tuple[int, ...] = (N,),
    guard: int | None = None,
    dtype: torch.dtype = torch.float32,
    stride: tuple[int, ...] | None = None,
) -> Slot:
    strides = stride if stride is not None else torch.empty(size).stride()
    return Slot(name, dtype, CPU, size, tuple(strides), leaf, guard)


def plan(
    steps: tuple[Any, ...],
    slots: tuple[Slot, ...],
    result: Value,
    leaves: tuple[str, ...] = ("x", "y"),
    guards: tuple[Guard, ...] = (),
    by_value: frozenset[int] = frozenset(),
) -> Plan:
    return Plan("stub", leaves, by_value, guards, slots, steps, result)


def launch(kernel: Any, *values: Any, compiled: Any = None) -> Launch:
    """A launch over all elements; what Triton compiles for it is found by making it once."""
    args = tuple(Tensor(v) if type(v) is int else v for v in values[:-1])
    given = [torch.zeros(N) if isinstance(a, Tensor) else _sample(a) for a in args]
    made = compiled or kernel[(1,)](*given, BLOCK=128)
    return Launch(kernel, (1, 1, 1), (*args, Constant(128)), (), made, 1)


def _sample(value: Any) -> Any:
    return value.value if isinstance(value, Constant) else 2.5


def adding(kernel: Any, *, result: Value = OUT, guards: tuple[Guard, ...] = ()) -> Plan:
    steps = (Allocate(2, 1), launch(kernel, 0, 1, 2, Constant(N), None))
    return plan(steps, (slot("x", 0), slot("y", 1), slot("out")), result, guards=guards)


@pytest.fixture
def added(add_kernel: Any) -> Stub:
    return Stub(lambda x, y: x + y, lambda x, y: adding(add_kernel))


@pytest.fixture
def xy() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(N), torch.rand(N)


def warm(kernel: Stub, *args: Any) -> None:
    """Call until it hits: the first call of a process finds Triton without a driver."""
    for _ in range(3):
        kernel(*args)
    kernel.misses = kernel.twins = 0
