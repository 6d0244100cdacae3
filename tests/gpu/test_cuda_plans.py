"""Host functions that launch CUDA C++ are recorded and replayed at every tier, on the current
stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tiers
from tests.plans.tiers import Pair
from tzero.backends import cuda

pytestmark = pytest.mark.gpu

scale = cuda.kernel(
    """
extern "C" __global__ void scale(const float *x, float *out, int64_t n, float by) {
    int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) out[i] = by * x[i];
}
""",
    block=128,
)
SLEEP = 1_000_000_000


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TZERO_CACHE_DIR", str(folder))


tier = tiers.fixture(1, 2, cuda=True)


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    scale[(8,)](x, out, 1000, 2.0)
    return out


def in_odd_blocks(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    scale[(10,)](x, out, 1000, 2.0, block=100)
    return out


def in_flat_blocks(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    scale[(40,)](x, out, 1000, 2.0, block=(32, 2))
    return out


def passed_on(x: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty_like(x)
    scale[(8,)](x, out, 1000, by)
    return out


def numbers() -> torch.Tensor:
    return torch.arange(1000.0, device="cuda")


@pytest.mark.parametrize("host", [doubled, in_odd_blocks, in_flat_blocks])
def test_a_launch_of_a_cuda_kernel_is_replayed(tier: int, host: Callable[..., Any]) -> None:
    Pair(tier, host).replays(lambda: (numbers(),))


def test_a_number_that_is_passed_on_is_that_of_each_call(tier: int) -> None:
    made = Pair(tier, passed_on)
    assert made(numbers(), 2.0)
    for by in (3.5, -1.0):
        assert not made(numbers(), by), made.reasons()


def test_native_replays_of_cuda_kernels_are_native(tier: int) -> None:
    if tier != 2:
        pytest.skip("about native replays")
    made = Pair(tier, doubled)
    made.replays(lambda: (numbers(),))
    assert made.reasons() == []


def test_blocks_of_two_dimensions_are_replayed_by_python_and_that_is_said(tier: int) -> None:
    if tier != 2:
        pytest.skip("about native replays")
    made = Pair(tier, in_flat_blocks)
    made.replays(lambda: (numbers(),))
    assert any("replayed in Python" in reason for reason in made.reasons())


def test_a_replay_runs_on_the_stream_of_the_moment(tier: int) -> None:
    made, x = Pair(tier, passed_on), numbers()
    for by in (1.0, 2.0, 3.0):
        made(x, by)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        made.kernel(x, 1.0).cpu()
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    busy = torch.cuda.Event()
    busy.record()
    with torch.cuda.stream(side):
        assert made.kernel(x, 5.0).cpu()[2].item() == 10.0
    assert not busy.query(), "the first stream was done too early for this to prove anything"
