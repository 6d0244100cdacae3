"""What a whole call costs: key, guards, output, launch and result, for sums of 2, 8 and 16 tensors.

One host function is called directly (with Triton's own launch), through tzero at each tier, and as
the equivalent Helion kernel. The tensors are small, so mostly the call is timed. Other contenders
are torch's sum, torch.compile, on CUDA the replay of a graph, and the floor: a C loop around the
bare launch, into a given output.
"""

from __future__ import annotations

import collections
import functools
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import tzero
from bench import floor, kernels
from bench.measure import Call, Loop, calls_of
from bench.record import Target
from bench.rows.row import Case, Row
from tzero import settings

__all__ = ["ROWS"]

N = 4096
PROGRAMS = N // kernels.LAUNCH_BLOCK
COUNTS = (2, 8, 16)
SETS = 8
MANY = 10_000
TIERS = {"native": 2, "python": 1, "plain": 0}

FRESH = {2: 1.6, 8: 2.2, 16: 2.6}
POOLED = {2: 1.15, 8: 1.5, 16: 1.8}
"""The largest allowed ratios to the floor on CUDA: with a new output, and with a reused one."""


def _host(count: int) -> Callable[..., Tensor]:
    return {2: kernels.add2, 8: kernels.add8, 16: kernels.add16}[count]


def _kernel(count: int, tier: str, pool: bool = False, **options: Any) -> tzero.Kernel[Tensor]:
    with settings.override(tier=TIERS[tier], max_specializations=2 * MANY):
        return tzero.kernel(pool=pool, **options)(_host(count))


def _inputs(count: int, sets: int, device: str) -> list[list[Tensor]]:
    return [[torch.randn(N, device=device) for _ in range(count)] for _ in range(sets)]


def _functions(count: int, device: str, only: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The named contenders, as functions of the tensors."""
    made: dict[str, Callable[[], Callable[..., Any]]] = {
        "native": lambda: _kernel(count, "native"),
        "pooled": lambda: _kernel(count, "native", pool=True),
        "python": lambda: _kernel(count, "python"),
        "plain": lambda: _kernel(count, "plain"),
        "triton": lambda: _host(count),
        "helion": lambda: _helion(count),
        "torch": lambda: torch.add,
        "torch.compile": lambda: torch.compile(_summed, dynamic=False),
    }
    there = importlib.util.find_spec("helion") is not None
    return {name: made[name]() for name in only if name != "helion" or there}


def _summed(*tensors: Tensor) -> Tensor:
    return functools.reduce(torch.add, tensors)


def _helion(count: int) -> Callable[..., Any]:
    from bench.helion_kernels import SUMS

    found: Callable[..., Any] = SUMS[count]
    return found


def _case(count: int, only: Sequence[str], sets: int = 1, device: str = "cpu") -> Case:
    inputs = _inputs(count, sets, device)
    functions = _functions(count, device, only)
    contenders: dict[str, Call] = {
        name: calls_of(function, inputs) for name, function in functions.items()
    }
    wanted = [torch.stack(tensors).sum(0) for tensors in inputs]

    def check() -> None:
        for name, function in functions.items():
            for _ in range(3):
                for tensors, total in zip(inputs, wanted, strict=True):
                    torch.testing.assert_close(function(*tensors), total, msg=name)

    contenders["floor"] = _floor(count, inputs[0], device)
    if device == "cuda":
        contenders["graph"] = _graph(count, inputs[0])
    return Case(contenders, check, settle=_settle(device))


def _settle(device: str) -> Call:
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def _floor(count: int, inputs: Sequence[Tensor], device: str) -> Loop:
    tensors = [*inputs, torch.empty(N, device=device)]
    compiled = kernels.SUMS[count][(PROGRAMS,)](*tensors, N, BLOCK=kernels.LAUNCH_BLOCK)
    make = floor.on_cuda if device == "cuda" else floor.on_cpu
    return make(compiled, PROGRAMS, [*tensors, N])


def _graph(count: int, inputs: Sequence[Tensor]) -> Call:
    host = _host(count)
    host(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        host(*inputs)
    replay: Call = graph.replay
    return replay


# -- several launches -----------------------------------------------------------------------------


def _five(device: str) -> Case:
    """A host function that makes five launches and allocates two tensors."""
    x, y = (torch.randn(N, device=device) for _ in range(2))
    with settings.override(tier=2):
        native = tzero.kernel(kernels.add_five)
    once = _floor(2, [x, y], device)
    geometry = ((N,), (1,), torch.float32)
    empty = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}")

    def launches_and_allocations(times: int) -> None:
        once.run(5 * times)
        collections.deque(itertools.starmap(empty, itertools.repeat(geometry, 2 * times)), maxlen=0)

    def check() -> None:
        for _ in range(3):
            torch.testing.assert_close(native(x, y), kernels.add_five(x, y))

    contenders: dict[str, Call] = {
        "native": calls_of(native, [[x, y]]),
        "triton": calls_of(kernels.add_five, [[x, y]]),
        "floor": Loop(launches_and_allocations),
    }
    if device == "cpu":
        contenders["floor, its tensors"] = _five_alike(x, y, empty, geometry)
    return Case(contenders, check, settle=_settle(device))


def _five_alike(x: Tensor, y: Tensor, empty: Any, geometry: Any) -> Loop:
    """The same launches as those of `add_five`, over as much memory, and its allocations. The floor
    has one launch five times, whose three tensors stay in the cache."""
    a, b = torch.empty(N), torch.empty(N)
    compiled = kernels.add_kernel[(PROGRAMS,)](x, y, a, N, BLOCK=kernels.LAUNCH_BLOCK)
    given = [(x, y, a), (a, x, b), (b, y, a), (a, x, b), (b, a, b)]
    each = floor.each_on_cpu(compiled, PROGRAMS, [[*tensors, N] for tensors in given])

    def run(times: int) -> None:
        each.run(times)
        collections.deque(itertools.starmap(empty, itertools.repeat(geometry, 2 * times)), maxlen=0)

    return Loop(run)


# -- many plans, and new ones ---------------------------------------------------------------------


def _planned(sizes: Sequence[int]) -> tzero.Kernel[Tensor]:
    """A kernel that has a plan for each of these sizes."""
    kernel = _kernel(2, "native", static_shapes=True)
    storage = torch.randn(2 * MANY)
    with settings.override(max_specializations=2 * MANY):
        for size in [*sizes, *sizes]:
            kernel(storage[:size], storage[:size])
    return kernel


def _entries() -> Case:
    x, y = torch.randn(64), torch.randn(64)
    many, one = _planned(range(64, 64 + MANY)), _planned([64])

    def check() -> None:
        assert many.stats().entries == MANY
        for kernel in (many, one):
            torch.testing.assert_close(kernel(x, y), x + y)

    return Case({"10,000": calls_of(many, [[x, y]]), "one": calls_of(one, [[x, y]])}, check)


def _miss() -> Case:
    """Calls with a size not seen before, which the compiled binary already covers, of a kernel that
    records each size."""
    kernel = _kernel(2, "native", static_shapes=True)
    storage = torch.randn(1 << 20)
    sizes = itertools.count(N, 16)

    def new_size() -> Tensor:
        size = next(sizes)
        return kernel(storage[:size], storage[:size])

    def check() -> None:
        misses = kernel.stats().misses
        torch.testing.assert_close(new_size(), 2 * storage[:N])
        assert kernel.stats().misses == misses + 1

    return Case({"native": new_size}, check, calls=1)


def _row(name: str, title: str, case: Callable[[], Case], **facts: Any) -> Row:
    facts = {"subject": "native", "unit": "us", "interpreted": False, **facts}
    return Row(name, title, case, **facts)


ROWS = (
    _row(
        "plan.torch.2",
        "Whole call adding 2 small tensors",
        functools.partial(
            _case, 2, ("native", "python", "plain", "triton", "torch", "torch.compile")
        ),
        baseline="torch",
        target=Target("ratio", 0.75),
        threads=1,
        seconds=20.0,
    ),
    _row(
        "plan.pooled.2",
        "Whole call, the output reused",
        functools.partial(_case, 2, ("pooled", "native", "torch")),
        subject="pooled",
        baseline="torch",
        threads=1,
    ),
    *(
        _row(
            f"plan.triton.{count}",
            f"Whole call adding {count} small tensors",
            functools.partial(_case, count, ("native", "python", "plain", "triton")),
            baseline="triton",
            target=Target("ratio", 1 / 6),
        )
        for count in COUNTS
    ),
    *(
        _row(
            f"plan.helion.{count}",
            f"Whole call adding {count} small tensors",
            functools.partial(_case, count, ("native", "helion")),
            baseline="helion",
            target=Target("ratio", 1 / 8),
            needs="helion",
        )
        for count in COUNTS
    ),
    *(
        _row(
            f"plan.cycling.{count}",
            f"Whole call, {SETS} sets of {count} tensors in turn",
            functools.partial(_case, count, ("native", "triton"), SETS),
            baseline="triton",
            target=Target("ratio", 1 / 6),
        )
        for count in COUNTS
    ),
    _row(
        "plan.launches.5",
        "Whole call that launches 5 kernels",
        functools.partial(_five, "cpu"),
        baseline="floor",
        target=Target("ratio", 1.1),
    ),
    _row(
        "plan.entries.10000",
        "Whole call with 10,000 plans cached",
        _entries,
        subject="10,000",
        baseline="one",
        target=Target("ratio", 1.15),
        seconds=20.0,
    ),
    _row(
        "plan.miss",
        "First call with a new size",
        _miss,
        baseline=None,
        target=Target("value", 1e-3),
    ),
    *(
        _row(
            f"cuda.plan.{count}",
            f"Whole call adding {count} small tensors on CUDA",
            functools.partial(
                _case,
                count,
                (
                    *("native", "python", "plain", "triton", "helion", "torch.compile"),
                    *(("torch",) if count == 2 else ()),
                ),
                1,
                "cuda",
            ),
            baseline="floor",
            target=Target("ratio", FRESH[count]),
            device="cuda",
            seconds=15.0,
        )
        for count in COUNTS
    ),
    *(
        _row(
            f"cuda.plan.{what}.{count}",
            f"Whole call, {title}, {count} tensors, on CUDA",
            functools.partial(_case, count, ("native", "pooled", "triton"), sets, "cuda"),
            subject=subject,
            baseline="floor",
            target=Target("ratio", targets[count]),
            device="cuda",
        )
        for what, subject, title, sets, targets in (
            ("pooled", "pooled", "the output reused", 1, POOLED),
            ("cycling", "native", f"{SETS} sets in turn", SETS, FRESH),
        )
        for count in COUNTS
    ),
    _row(
        "cuda.plan.launches.5",
        "Whole call that launches 5 kernels on CUDA",
        functools.partial(_five, "cuda"),
        baseline="floor",
        target=Target("ratio", 1.25),
        device="cuda",
    ),
)
