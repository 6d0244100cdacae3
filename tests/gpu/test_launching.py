"""Launches on a GPU: streams, graphs, devices, and options that only a GPU has. All tiers.

Tests that apply to every backend are in tests/launches, which also runs on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import _allocation

from tests import tiers
from tests.launches import kernels
from tests.launches.looking import restored, warm
from tests.launches.rows_arguments import floats, integers

pytestmark = pytest.mark.gpu

GRID = (1,)
SLEEP = 1_000_000_000
"""Cycles that keep a stream busy for a fraction of a second."""

Make = Callable[..., Any]


tier = tiers.fixture(0, 1, 2, check=tiers.can_launch, cuda=True)


@pytest.fixture
def make(tier: int) -> Iterator[Make]:
    """Makes kernels of a tier; knobs, hooks and driver are restored."""
    with restored():
        yield tiers.jit_maker(tier)


@contextmanager
def captured() -> Iterator[torch.cuda.CUDAGraph]:
    """Capture launches in a graph instead of running them."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        yield graph


# -- streams -------------------------------------------------------------------------------------


def test_a_launch_runs_on_the_stream_of_the_moment(make: Make) -> None:
    kernel, out = make(kernels.put), integers("cuda")
    warm(kernel, lambda: kernel[GRID](out, 7))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out.cpu()
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    busy = torch.cuda.Event()
    busy.record()
    for value in (9, 11, 13):
        with torch.cuda.stream(side):
            kernel[GRID](out, value)
            assert out.cpu()[0].item() == value
    assert not busy.query(), "the first stream was done too early for this to prove anything"


def test_a_launch_waits_for_what_is_before_it_on_its_stream(make: Make) -> None:
    kernel, out = make(kernels.put), integers("cuda")
    warm(kernel, lambda: kernel[GRID](out, 7))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kernel[GRID](out, 7)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    kernel[GRID](out, 9)  # on the busy stream again
    with torch.cuda.stream(side):
        assert out.cpu()[0].item() == 7
    torch.cuda.synchronize()
    assert out[0].item() == 9


def test_hooks_are_told_the_stream(make: Make) -> None:
    kernel, out = make(kernels.put), integers("cuda")
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen: list[int] = []
    knobs.runtime.launch_enter_hook.add(lambda metadata: seen.append(metadata.get()["stream"]))
    streams = [torch.cuda.Stream() for _ in range(3)]
    for stream in streams:
        with torch.cuda.stream(stream):
            kernel[GRID](out, 9)
    kernel[GRID](out, 9)
    assert seen == [stream.cuda_stream for stream in (*streams, torch.cuda.current_stream())]


# -- graphs --------------------------------------------------------------------------------------


def test_a_warm_launch_is_captured_and_replayed(make: Make) -> None:
    kernel, x = make(kernels.double), torch.ones(8, device="cuda")
    warm(kernel, lambda: kernel[GRID](x, 8))
    x.fill_(1.0)
    with captured() as graph:
        for _ in range(3):
            kernel[GRID](x, 8)
    assert x.tolist() == [1.0] * 8
    for power in (3, 6):
        graph.replay()
        assert x.tolist() == [2.0**power] * 8
    kernel[GRID](x, 8)
    assert x.tolist() == [2.0**7] * 8


def test_a_kernel_is_warmed_up_while_its_launches_are_captured(make: Make) -> None:
    kernel, x = make(kernels.double), torch.ones(8, device="cuda")
    kernel.warmup(x, 8, grid=GRID).run  # noqa: B018  (loaded: CUDA loads nothing during a capture)
    with captured() as graph:
        for _ in range(4):
            kernel[GRID](x, 8)
    assert x.tolist() == [1.0] * 8
    graph.replay()
    assert x.tolist() == [16.0] * 8
    kernel[GRID](x, 8)
    assert x.tolist() == [32.0] * 8


def test_other_specializations_are_captured_too(make: Make) -> None:
    kernel = make(kernels.fill)
    out = integers("cuda", 33)
    values = (1, 7, 16, 2**40)

    def launch() -> None:
        for offset in (1, 0):
            for value in values:
                kernel[GRID](out[offset:], value, 32, BLOCK=32)

    launch()
    out.zero_()
    with captured() as graph:
        launch()
    assert not out.any()
    graph.replay()
    assert out.tolist() == [2**40] * 33


# -- devices -------------------------------------------------------------------------------------


def test_a_switch_of_the_device_is_seen(make: Make) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    kernel = make(kernels.double)
    x, y = torch.ones(8, device="cuda:0"), torch.ones(8, device="cuda:1")
    first = warm(kernel, lambda: kernel[GRID](x, 8))
    with torch.cuda.device(1):
        second = warm(kernel, lambda: kernel[GRID](y, 8))
    assert first is not second
    assert kernel[GRID](x, 8) is first
    assert x.tolist() == [16.0] * 8 and y.tolist() == [8.0] * 8


def test_a_tensor_of_the_cpu_is_refused_in_tritons_words(make: Make) -> None:
    kernel, x = make(kernels.double), torch.ones(8, device="cuda")
    binary = warm(kernel, lambda: kernel[GRID](x, 8))
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be accessed from Triton"):
            kernel[GRID](torch.ones(8), 8)
    assert kernel[GRID](x, 8) is binary
    assert x.tolist() == [16.0] * 8


def test_pinned_memory_of_the_cpu_is_taken_as_triton_takes_it(make: Make) -> None:
    kernel, x = make(kernels.double), torch.ones(8, device="cuda")
    warm(kernel, lambda: kernel[GRID](x, 8))
    pinned = torch.ones(8).pin_memory()
    kernel[GRID](pinned, 8)
    torch.cuda.synchronize()
    assert pinned.tolist() == [2.0] * 8


# -- options of a GPU ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("launch_cooperative_grid", True, "launch_cooperative_grid"),
        ("num_ctas", 2, "num_ctas"),
        ("launch_pdl", True, "launch_pdl"),
        ("maxnreg", 64, "maxnreg"),
    ],
)
def test_options_of_a_launch_reach_it(make: Make, option: str, value: Any, field: str) -> None:
    if option in ("num_ctas", "launch_pdl") and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip(f"{option} needs a device of capability 9.0")
    kernel = make(kernels.fill)
    out = integers("cuda", 64)
    plain = warm(kernel, lambda: kernel[(2,)](out, 7, 64, BLOCK=32))
    for number in (9, 11, 13):
        binary = kernel[(2,)](out, number, 64, BLOCK=32, **{option: value})
        assert out.tolist() == [number] * 64
        assert getattr(binary.metadata, field) == value
    assert kernel[(2,)](out, 7, 64, BLOCK=32) is plain
    assert out.tolist() == [7] * 64


def test_a_cooperative_grid_that_does_not_fit_is_refused(make: Make) -> None:
    kernel = make(kernels.count_programs)
    out = integers("cuda", 8)
    warm(kernel, lambda: kernel[(2,)](out, launch_cooperative_grid=True))
    with pytest.raises(RuntimeError):
        kernel[(1 << 24,)](out, launch_cooperative_grid=True)
    out.zero_()
    kernel[(2,)](out, launch_cooperative_grid=True)
    assert out.tolist() == [1, 2] + [0] * 6


def test_a_grid_beyond_the_devices_limits_is_refused(make: Make) -> None:
    kernel, out = make(kernels.put), integers("cuda")
    warm(kernel, lambda: kernel[GRID](out, 7))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            kernel[(1, 70_000)](out, 9)
    kernel[GRID](out, 11)
    assert out[0].item() == 11


def described_inside(source, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    made = tl.make_tensor_descriptor(source, [ROWS, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS])
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + at, made.load([0, 0]))


def test_scratch_comes_from_the_allocator_of_the_moment(make: Make) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("descriptors need scratch from capability 9.0 on")
    kernel = make(described_inside)
    source = torch.arange(256.0, device="cuda").reshape(16, 16)
    out = torch.zeros(16, 16, device="cuda")
    before = _allocation._allocator.get()
    asked: list[str] = []

    def allocator(name: str) -> Callable[..., torch.Tensor]:
        def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
            asked.append(name)
            return torch.empty(size, dtype=torch.int8, device="cuda")

        return allocate

    try:
        triton.set_allocator(allocator("first"))
        for _ in range(3):
            kernel[GRID](source, out, 16, 16)
        triton.set_allocator(allocator("second"))
        out.zero_()
        kernel[GRID](source, out, 16, 16)
        assert torch.equal(out, source)
        assert asked == ["first"] * 3 + ["second"]
        triton.set_allocator(_allocation._NULL_ALLOCATOR)
        with pytest.raises(RuntimeError, match="no allocator was set"):
            kernel[GRID](source, out, 16, 16)
    finally:
        triton.set_allocator(before)


def test_descriptors_made_by_the_host_are_encoded_anew(make: Make) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    kernel = make(kernels.descriptor)
    source = torch.arange(256.0, device="cuda").reshape(16, 16)
    out = floats("cuda", 256).reshape(16, 16)
    for k in range(4):
        descriptor = TensorDescriptor.from_tensor(source + k, [16, 16])
        kernel[GRID](descriptor, out, ROWS=16, COLUMNS=16)
        assert torch.equal(out, source + k)
