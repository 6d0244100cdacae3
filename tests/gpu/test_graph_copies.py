# mypy: allow-untyped-decorators
"""Copies in CUDA graphs: results, sizes, order, memory that is shared, the driver's limits.

What decides which calls of torch are copies is tested without a GPU in
tests/native/test_graph_copies.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from torch import Tensor

import tzero
from tests.gpu.test_graphs import (
    add_kernel,
    forced,
    in_a_process,
    launches,
    pair,
    same,
    scale_kernel,
    warm,
)
from tzero import _native as native
from tzero import settings

__all__ = ["forced"]  # a fixture

pytestmark = pytest.mark.gpu


def launched(x: Tensor, y: Tensor, out: Tensor) -> None:
    n = y.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)


def before(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    kept = x.clone()
    launched(x, y, x)
    launched(x, kept, y)
    return kept, y


def between(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    out, kept = torch.empty_like(x), torch.empty_like(x)
    launched(x, y, out)
    kept.copy_(out)
    launched(out, kept, out)
    return out, kept


def after(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launched(x, y, out)
    launched(out, y, out)
    x.copy_(out)
    return out


def many(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Copies on both sides of each launch, and one after another."""
    n = y.numel()
    both = torch.zeros(2 * n, device=x.device)
    first, second = both[:n], both[n:]
    first.copy_(x)
    launched(first, y, second)
    out = torch.empty_like(x)
    out[:] = second
    y[...] = first
    launched(out, y, out)
    first.copy_(second)
    second.copy_(out)
    return both, out.clone(), y.to(y.dtype, copy=True)


HOSTS = {before: (3, 1), between: (3, 1), after: (3, 1), many: (10, 7)}
"""By host function: the pieces of work of its run, and how many of these are copies."""


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
@pytest.mark.parametrize("pool", [False, True], ids=["fresh", "pooled"])
def test_results_are_those_of_plain_calls(host: Any, pool: bool) -> None:
    kernel = tzero.kernel(pool=pool)(host)
    for _ in range(20):
        given = pair()
        copies = [each.clone() for each in given]
        same(kernel(*given), host(*copies))
        same(given, tuple(copies))
        assert [each._version for each in given] == [each._version for each in copies]
    made = kernel.explain(*given).runs
    assert [(run.work, run.copies, run.graphs, run.ended) for run in made] == [
        (*HOSTS[host], 1, "")
    ]
    assert made[0].launches >= 15
    assert dict(made[0].plainly) == dict.fromkeys(made[0].plainly, 0)


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
def test_results_that_are_kept_stay(host: Any) -> None:
    kernel = tzero.kernel(host)
    sets = [pair() for _ in range(40)]
    wanted = [host(*(each.clone() for each in given)) for given in sets]
    same([kernel(*given) for given in sets], wanted)
    assert launches(kernel, *sets[0]) >= 30


def test_explain_shows_the_copies() -> None:
    kernel = tzero.kernel(between)
    given = pair()
    warm(kernel, *given)
    assert "a CUDA graph of 3 (1 copy): launched" in str(kernel.explain(*given))


@pytest.mark.parametrize("host", [before, between, after], ids=lambda host: host.__name__)
def test_sizes_of_copies_are_set(host: Any) -> None:
    kernel = tzero.kernel(static_shapes=False)(host)
    for n in (4096, 8192, 4096, 1024, 65536, 0, 4096, 16, 2048, 10240, 1 << 22, 4112, 4096):
        for _ in range(3):
            given = pair(n)
            copies = [each.clone() for each in given]
            same(kernel(*given), host(*copies))
            same(given, tuple(copies))
    assert launches(kernel, *given) >= 12


def moved(x: Tensor, out: Tensor, number: Tensor) -> Tensor:
    scale_kernel[(1,)](number, number, 1, 2.0, BLOCK=16)
    out.copy_(x)
    scale_kernel[(1,)](number, number, 1, 2.0, BLOCK=16)
    return x.clone()


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.int64, torch.complex64]
)
def test_any_bytes_are_copied(dtype: torch.dtype) -> None:
    """Also at odd addresses."""
    kernel = tzero.kernel(static_shapes=False)(moved)
    number = torch.ones(1, device="cuda")
    memory = torch.randint(0, 2, (1 << 16,), device="cuda").to(dtype)
    target = torch.zeros_like(memory)
    for n, start, other in [(4096, 0, 0), (4096, 8, 16), (100, 3, 5), (101, 1, 2), (1 << 15, 7, 0)]:
        for _ in range(4):
            target.zero_()
            x, out = memory[start : start + n], target[other : other + n]
            same(kernel(x, out, number), x)
            same(out, x)
            assert target.count_nonzero() == x.count_nonzero()
        assert launches(kernel, x, out, number) >= 1


@pytest.mark.parametrize("size", [(1 << 31) - 1, (1 << 31) + 5])
def test_copies_of_two_gibibytes(size: int) -> None:
    if torch.cuda.mem_get_info()[0] < 6 * size:
        pytest.skip("too little memory")
    kernel = tzero.kernel(moved)
    number = torch.ones(1, device="cuda")
    x = torch.full((size,), 3, dtype=torch.uint8, device="cuda")
    x[-1], x[1 << 30] = 7, 9
    for _ in range(4):
        out = torch.zeros_like(x)
        made = kernel(x, out, number)
        assert torch.equal(out, x)
        assert torch.equal(made, x)
        del made, out
    run = kernel.explain(x, torch.zeros_like(x), number).runs[0]
    assert run.ended == ""
    assert (run.plainly["outsized"] > 0) == (size >= 1 << 31)
    assert (run.launches > 0) == (size < 1 << 31)


# -- memory that is shared -------------------------------------------------------------------------


def overwritten(x: Tensor, y: Tensor) -> Tensor:
    launched(y, y, y)
    x.copy_(y)
    launched(x, y, x)
    return x


def test_overlapping_tensors_are_torchs() -> None:
    kernel = tzero.kernel(overwritten)
    x, y = pair()
    warm(kernel, x, y)
    memory = torch.randn(2 * x.numel(), device="cuda")
    n = x.numel()
    changed = memory.clone()
    changed[n // 2 : n // 2 + n] *= 2  # the launch ahead of the copy was made
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        kernel(memory[:n], memory[n // 2 : n // 2 + n])
    same(memory, changed)
    apart = memory[:n], memory[n:]
    copies = [each.clone() for each in apart]
    same(kernel(*apart), overwritten(*copies))
    same(memory, torch.cat(copies))
    assert kernel.explain(x, y).runs[0].plainly["interrupted"] == 1


def test_the_same_memory_of_another_owner_is_torchs() -> None:
    kernel = tzero.kernel(overwritten)
    x, y = pair()
    warm(kernel, x, y)
    other = torch.from_dlpack(x)
    assert other.untyped_storage()._cdata != x.untyped_storage()._cdata
    wanted = 4 * x
    same(kernel(x, other), wanted)
    assert kernel.explain(x, y).runs[0].plainly["interrupted"] == 1


def test_memory_that_is_mapped_piece_by_piece_is_copied() -> None:
    """With expandable segments torch's allocator maps its memory itself. The driver may refuse to
    set other addresses then, and the graph is made anew later."""
    program = """
import os
os.environ.update(TZERO_GRAPHS="2", TZERO_GRAPHS_AFTER="1")
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch, tzero
from tests.gpu.test_graph_copies import many, pair
kernel = tzero.kernel(static_shapes=False)(many)
for n in (4096, 1 << 20, 4096, 1 << 24, 1 << 20):
    for _ in range(4):
        given = pair(n)
        wanted = many(*(each.clone() for each in given))
        for one, other in zip(kernel(*given), wanted):
            assert torch.equal(one, other)
run = kernel.explain(*given).runs[0]
print(run.launches > 0, run.ended)
"""
    assert in_a_process(program).split() == ["True"]


# -- order, streams and captures -------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
def test_a_graph_is_in_order_with_what_else_is_on_the_stream(host: Any) -> None:
    kernel = tzero.kernel(host)
    x, y = pair()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm(kernel, x, y)
        for _ in range(10):
            torch.cuda._sleep(1_000_000)
            x.normal_()
            y.normal_()
            copies = x.clone(), y.clone()
            same(kernel(x, y), host(*copies))
    side.synchronize()


def test_a_capture_gets_plain_copies() -> None:
    kernel = tzero.kernel(between)
    x, y = pair()
    expected = between(x, y)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        warm(kernel, x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = kernel(x, y)
    assert kernel.explain(x, y).runs[0].plainly["capturing"] >= 1
    native.drop_graphs()
    for each in result:
        each.zero_()
    graph.replay()
    same(result, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_weights_are_changed_without_gradients(mode: Any) -> None:
    kernel = tzero.kernel(after)
    x, y = pair()
    weight = torch.nn.Parameter(x.clone())
    with mode():
        for k in range(6):
            wanted = after(x, y)
            same(kernel(weight, y), wanted)
            same(weight.detach(), x)
            assert weight._version == k + 1
        assert launches(kernel, weight, y) >= 3


def test_profilers_see_the_copies_of_torch() -> None:
    kernel = tzero.kernel(between)
    x, y = pair()
    with settings.override(graphs=1):
        warm(kernel, x, y)
        with torch.profiler.profile() as profile:
            kernel(x, y)
        assert sum(each.name == "aten::copy_" for each in profile.events()) == 1


def test_copies_alone_are_those_of_plain_calls() -> None:
    def alone(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        launched(x, y, out)
        doubled = (out * 2).clone() * 2
        launched(doubled, y, doubled)
        return doubled

    kernel = tzero.kernel(alone)
    for _ in range(6):
        given = pair()
        same(kernel(*given), alone(*given))
    assert [run.work for run in kernel.explain(*given).runs] == [1, 1]
