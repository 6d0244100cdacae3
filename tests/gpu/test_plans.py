# mypy: allow-untyped-decorators
"""Plans on a GPU: streams, graphs, memory, output pools. All tiers.

Tests that apply to every device are in tests/plans.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import tzero
from tests import tiers
from tzero import events

pytestmark = pytest.mark.gpu

N = 4096
SLEEP = 1_000_000_000
"""Cycles that keep a stream busy for a fraction of a second."""


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


def several(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Four launches, with a fill, a view and a torch function in between."""
    n = x.numel()
    grid = (triton.cdiv(n, 1024),)
    total, zero = torch.empty_like(x), torch.zeros(2 * n, device=x.device)
    add_kernel[grid](x, y, total, n, BLOCK=1024)
    add_kernel[grid](total, x, zero[n:], n, BLOCK=1024)
    tripled = total * 3
    add_kernel[grid](tripled, zero[n:], total, n, BLOCK=1024)
    add_kernel[grid](total, y, zero, n // 2, BLOCK=1024)
    return total, zero, tripled


def halves(x: Tensor) -> Tensor:
    out = torch.full_like(x, 7)
    add_kernel[(1,)](x, x, out, 16, BLOCK=1024)
    return out


Make = Callable[..., tzero.Kernel[Any]]


tier = tiers.fixture(1, 2, cuda=True)


@pytest.fixture
def make(tier: int) -> Iterator[Make]:
    """Makes kernels of a tier."""
    yield functools.partial(tiers.of_tier, tier)
    tzero.pool.clear()


def pair(n: int = N) -> tuple[Tensor, Tensor]:
    return torch.randn(n, device="cuda"), torch.randn(n, device="cuda")


def replayed(kernel: tzero.Kernel[Any], *args: Any) -> Any:
    """The result of a call that is known to be replayed."""
    seen: list[events.Event] = []
    with events.observe(seen.append):
        kernel(*args)
    assert [event.reason for event in seen if event.kind == "fallback"] == []
    kernel(*args)
    explanation = kernel.explain(*args)
    assert explanation.plan is not None and not explanation.refusal
    return kernel(*args)


@pytest.mark.parametrize("host", [add, several], ids=["one launch", "four"])
def test_a_replay_is_what_the_host_function_gives(make: Make, host: Callable[..., Any]) -> None:
    kernel = make(host)
    for n in (N, 1000, 16):
        x, y = pair(n)
        torch.testing.assert_close(replayed(kernel, x, y), host(x, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float32])
def test_a_fill_is_torchs_for_every_width(make: Make, dtype: torch.dtype) -> None:
    x = torch.randn(256, device="cuda").to(dtype)
    torch.testing.assert_close(replayed(make(halves), x), halves(x))


def test_a_replay_runs_on_the_stream_of_the_moment(make: Make) -> None:
    kernel, (x, y) = make(several), pair()
    wanted = replayed(kernel, x, y)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        replayed(kernel, x, y)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    busy = torch.cuda.Event()
    busy.record()
    with torch.cuda.stream(side):
        got = [tensor.cpu() for tensor in kernel(x, y)]
    assert not busy.query(), "the first stream was done too early for this to prove anything"
    torch.testing.assert_close(got, [tensor.cpu() for tensor in wanted])


def test_a_plan_of_several_launches_is_captured_in_a_graph(make: Make) -> None:
    kernel, (x, y) = make(several), pair()
    replayed(kernel, x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = kernel(x, y)
    for _ in range(3):
        x.copy_(torch.randn(N))
        y.copy_(torch.randn(N))
        graph.replay()
        torch.testing.assert_close(outputs, several(x, y))


def test_outputs_of_a_captured_graph_are_never_those_of_a_pool(make: Make) -> None:
    kernel, (x, y) = make(add, pool=True), pair()
    replayed(kernel, x, y)
    held = {kernel(x, y).data_ptr() for _ in range(4)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(x, y)
    assert out.data_ptr() not in held
    del out
    after = kernel(x, y)
    x.zero_()
    graph.replay()
    x.copy_(after - y)
    torch.testing.assert_close(after, x + y)


def test_an_output_goes_back_to_the_stream_it_was_on(make: Make) -> None:
    kernel, (x, y) = make(add, pool=True), pair()
    replayed(kernel, x, y)
    address = kernel(x, y).data_ptr()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert kernel(x, y).data_ptr() != address
    addresses = {kernel(x, y).data_ptr() for _ in range(4)}
    assert address in addresses


def test_outputs_are_made_by_torchs_allocator(make: Make) -> None:
    kernel, (x, y) = make(add), pair(1 << 20)
    replayed(kernel, x, y)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out = kernel(x, y)
    assert torch.cuda.memory_allocated() - before == out.numel() * 4
    del out
    assert torch.cuda.memory_allocated() == before


def test_a_device_that_is_not_the_current_one_is_tritons_to_answer_for(make: Make) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    kernel, (x, y) = make(add), pair()
    replayed(kernel, x, y)
    with torch.cuda.device(1):
        a, b = pair()
        torch.testing.assert_close(kernel(a, b), a + b)


def test_a_tensor_on_the_cpu_is_told_from_one_on_the_gpu(make: Make) -> None:
    kernel, (x, y) = make(add), pair()
    replayed(kernel, x, y)
    with pytest.raises(ValueError, match="cannot be accessed from Triton"):
        kernel(x, y.cpu())


def test_a_launch_that_the_driver_refuses_raises_and_the_next_call_works(make: Make) -> None:
    def launched(x: Tensor, rows: int) -> Tensor:
        out = torch.empty_like(x)
        add_kernel[(1,)](x, x, out, x.numel(), BLOCK=1024)
        add_kernel[(1, rows)](x, x, out, x.numel(), BLOCK=1024)
        return out

    kernel, (x, _) = make(launched), pair(1000)
    replayed(kernel, x, 3)
    for _ in range(3):
        with pytest.raises((tzero.LaunchFailed, RuntimeError)):
            kernel(x, 70_000)
    torch.testing.assert_close(kernel(x, 3), x + x)
