"""What a call costs when its launches are one CUDA graph: 1, 5 and 20 launches of small kernels.

Compared with the floor, a C loop around as many bare launches, and the allocations where the call
makes tensors; beside it are the same calls with plain launches, a CUDA graph made by hand, which is
given no arguments, torch.compile with CUDA graphs, Triton, and the floor of a graph: a C loop that
launches one, without and with new parameters for each kernel.
"""

from __future__ import annotations

import collections
import functools
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
SETS = 8
NEVER = 1 << 40
HOSTS = {1: kernels.add2, 5: kernels.add_five, 20: kernels.add_twenty}
ALLOCATED = {1: 1, 5: 2, 20: 2}


def _inputs(sets: int) -> list[list[Tensor]]:
    return [[torch.randn(N, device="cuda") for _ in range(2)] for _ in range(sets)]


def _kernel(host: Callable[..., Any], pool: bool = False) -> Any:
    with settings.override(tier=2):
        return tzero.kernel(pool=pool)(host)


def plainly(loop: Loop) -> Loop:
    """Calls of a kernel that has no graph, which stay without one."""

    def run(times: int) -> None:
        with settings.override(graphs_after=NEVER):
            loop.run(times)

    return Loop(run)


def _compiled() -> Any:
    given = [torch.randn(N, device="cuda") for _ in range(2)]
    out = torch.empty(N, device="cuda")
    return kernels.add_kernel[(PROGRAMS,)](*given, out, N, BLOCK=kernels.LAUNCH_BLOCK)


def _floors(launches: int, allocations: int, inputs: Sequence[Tensor]) -> dict[str, Call]:
    out, other = (torch.empty(N, device="cuda") for _ in range(2))
    kernel, given = _compiled(), [*inputs, out, N]
    once = floor.on_cuda(kernel, PROGRAMS, given)
    geometry = ((N,), (1,), torch.float32)
    empty = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]

    def run(times: int) -> None:
        once.run(launches * times)
        made = itertools.starmap(empty, itertools.repeat(geometry, allocations * times))
        collections.deque(made, maxlen=0)

    graph = functools.partial(floor.graph_on_cuda, kernel, PROGRAMS, given, launches)
    return {
        "floor": Loop(run),
        "graph floor": graph(),
        "graph floor, all set": graph([*inputs, other, N]),
    }


def _by_hand(host: Callable[..., Any], inputs: Sequence[Tensor]) -> Call:
    host(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        host(*inputs)
    replay: Call = graph.replay
    return replay


def _compile(host: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(host, mode="reduce-overhead", dynamic=False)

    def call(*inputs: Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*inputs)

    return call


def _case(launches: int, pool: bool = False, sets: int = 1) -> Case:
    """Calls of a host function, as a graph and otherwise. With `pool` no tensor is allocated."""
    inputs, host = _inputs(sets), HOSTS[launches]
    ours, plain = _kernel(host, pool), _kernel(host, pool)
    contenders: dict[str, Call] = {
        "graph": calls_of(ours, inputs),
        "no graph": plainly(calls_of(plain, inputs)),
        "triton": calls_of(host, inputs),
        "by hand": _by_hand(host, inputs[0]),
        "torch.compile": calls_of(_compile(host), inputs),
        **_floors(launches, 0 if pool else ALLOCATED[launches], inputs[0]),
    }

    def check() -> None:
        for name in ("no graph", "graph", "triton", "torch.compile"):
            for _ in range(5):  # first, so that the plain one is not hot
                contenders[name]()
        for _ in range(64):
            for given in inputs:
                torch.testing.assert_close(ours(*given), host(*given))
        run = ours.explain(*inputs[0]).runs[0]
        assert run.graphs == 1 and run.launches > 0, ours.explain(*inputs[0])
        assert plain.explain(*inputs[0]).runs[0].graphs == 0

    return Case(contenders, check, settle=torch.cuda.synchronize)


def _launches(kernel: Any, tensors: Sequence[Tensor]) -> Loop:
    """Launches as a program makes them: in a loop, with every argument a local variable."""

    def run(times: int) -> None:
        x, y, out = tensors
        grid, block, n = (PROGRAMS,), kernels.LAUNCH_BLOCK, N
        for _ in range(times):
            kernel[grid](x, y, out, n, BLOCK=block)

    return Loop(run)


def _jit() -> Case:
    inputs = _inputs(1)[0]
    tensors = [*inputs, torch.empty(N, device="cuda")]
    with settings.override(tier=2):
        ours, plain = (tzero.jit(kernels.add_kernel) for _ in range(2))
    contenders: dict[str, Call] = {
        "graph": _launches(ours, tensors),
        "no graph": plainly(_launches(plain, tensors)),
        "triton": _launches(kernels.add_kernel, tensors),
        **_floors(1, 0, inputs),
    }

    def check() -> None:
        for name in ("no graph", "graph", "triton"):
            call = contenders[name]
            for _ in range(8 if name == "no graph" else 64):
                tensors[2].zero_()
                call()
                torch.testing.assert_close(tensors[2], inputs[0] + inputs[1])

    return Case(contenders, check, settle=torch.cuda.synchronize)


def _mixed() -> Case:
    """Calls of a plan of five launches, each after an operator of torch."""
    (x, y), out = _inputs(1)[0], torch.empty(N, device="cuda")
    ours, plain = (_kernel(kernels.add_five) for _ in range(2))

    def with_torch(kernel: Any) -> Loop:
        def run(times: int) -> None:
            for _ in range(times):
                torch.add(x, y, out=out)
                kernel(out, y)

        return Loop(run)

    contenders: dict[str, Call] = {
        "graph": with_torch(ours),
        "no graph": plainly(with_torch(plain)),
        "triton": with_torch(kernels.add_five),
    }

    def check() -> None:
        contenders["no graph"]()
        for _ in range(64):
            torch.testing.assert_close(ours(x, y), kernels.add_five(x, y))

    return Case(contenders, check, settle=torch.cuda.synchronize)


def _row(name: str, title: str, case: Callable[[], Case], target: float, **facts: Any) -> Row:
    facts = {"subject": "graph", "baseline": "floor", "unit": "us", "device": "cuda", **facts}
    return Row(
        f"cuda.graphs.{name}",
        title,
        case,
        target=Target("ratio", target),
        interpreted=False,
        **facts,
    )


ROWS = (
    _row("pooled.1", "Call of 1 launch, output reused", functools.partial(_case, 1, True), 0.90),
    _row("fresh.1", "Call of 1 launch, new output", functools.partial(_case, 1), 1.15),
    _row("jit.1", "Launch of tzero.jit", _jit, 0.95),
    _row("fresh.5", "Call of 5 launches, 2 new tensors", functools.partial(_case, 5), 0.45),
    _row("fresh.20", "Call of 20 launches, 2 new tensors", functools.partial(_case, 20), 0.35),
    _row(
        "cycling.1",
        f"Call of 1 launch, output reused, {SETS} sets in turn",
        functools.partial(_case, 1, True, SETS),
        0.95,
    ),
    _row(
        "cycling.5",
        f"Call of 5 launches, {SETS} sets in turn",
        functools.partial(_case, 5, False, SETS),
        0.50,
    ),
    _row(
        "mixed.5",
        "Call of 5 launches after each operator of torch",
        _mixed,
        1.0,
        baseline="no graph",
    ),
)
