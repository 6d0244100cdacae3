# mypy: allow-untyped-decorators
"""Tuning on a GPU: configs that the device cannot run, streams, graphs, choosing by size.

Tests that apply to every device are in tests/tune.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import tzero
from tzero import Config, settings
from tzero.cache.disk import Disk
from tzero.tune import tuner
from tzero.tune.records import Memory

pytestmark = pytest.mark.gpu


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    column = (tl.program_id(1) * BN + tl.arange(0, BN))[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        at = start + tl.arange(0, BK)
        x = tl.load(a + row * K + at[None, :], mask=(row < M) & (at[None, :] < K), other=0.0)
        y = tl.load(b + at[:, None] * N + column, mask=(at[:, None] < K) & (column < N), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + row * N + column, total, mask=(row < M) & (column < N))


def product(a: Tensor, b: Tensor, config: Config) -> Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=torch.float32, device=a.device)
    grid = (triton.cdiv(m, config.BM), triton.cdiv(n, config.BN))
    matmul_kernel[grid](a, b, c, m, n, k, **config)
    return c


SMALL = Config(BM=16, BN=16, BK=16, num_warps=1)
LARGE = Config(BM=64, BN=64, BK=32, num_warps=4)
HUGE = Config(BM=256, BN=256, BK=256, num_warps=8, num_stages=4)  # too large for any SM


@pytest.fixture(autouse=True)
def _own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Memory, "of", lambda settings: Memory(Disk(str(tmp_path / "tuned"))))
    monkeypatch.setattr(tuner, "EACH", 0.05)
    yield


def inputs(size: int = 512) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(size, size, device="cuda", dtype=torch.float16),
        torch.randn(size, size, device="cuda", dtype=torch.float16),
    )


def check(made: tzero.Kernel[Tensor], a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(made(a, b), a.float() @ b.float(), rtol=1e-2, atol=1e-1)


@pytest.mark.parametrize("tier", [0, 1, 2])
def test_the_faster_of_two_is_found(tier: int) -> None:
    with settings.override(tier=tier):
        made = tzero.kernel(configs=[SMALL, LARGE])(product)
    a, b = inputs(1024)
    for _ in range(3):
        check(made, a, b)
    assert made.bind(a, b).config == LARGE  # by far: it reads a quarter as much


def test_a_config_that_asks_for_too_much_costs_only_itself() -> None:
    made = tzero.kernel(configs=[HUGE, SMALL])(product)
    a, b = inputs()
    check(made, a, b)
    assert made.bind(a, b).config == SMALL
    (found,) = made.tuning.searches.values()
    assert "OutOfResources" in found.outcomes[HUGE].problem


def test_it_is_tuned_on_another_stream_as_well() -> None:
    made = tzero.kernel(configs=[SMALL, LARGE])(product)
    a, b = inputs()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        c = made(a, b)
    stream.synchronize()
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=1e-1)


def test_nothing_is_timed_while_a_graph_is_captured() -> None:
    made = tzero.kernel(configs=[SMALL, LARGE])(product)
    a, b = inputs()
    product(a, b, SMALL)  # compiled and loaded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = made(a, b)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=1e-1)
    assert made.tuning.searches == {}
    check(made, a, b)
    assert made.bind(a, b).choice.how == "tuned"  # type: ignore[union-attr]


def test_configs_are_chosen_by_size() -> None:
    made = tzero.kernel(configs=[SMALL, LARGE], static_shapes=False, size_hints=[32, 1024])(product)
    for size in (24, 900, 24, 900):
        check(made, *inputs(size))
    assert made.explain(*inputs(900)).config == LARGE
    assert "nearest" in str(made.explain(*inputs(900)))


def test_what_is_shipped_names_the_class_of_the_device(tmp_path: Path) -> None:
    made = tzero.kernel(configs=[SMALL, LARGE])(product)
    made(*inputs())
    major, minor = torch.cuda.get_device_capability()
    (entry,) = tzero.ship(tmp_path / "pretuned.json", [made]).entries
    assert entry.hardware == f"cuda:sm_{major}{minor}"


def test_a_new_shape_is_tuned_in_the_background_while_graphs_are_captured() -> None:
    with settings.override(tune_when="background"):
        made = tzero.kernel(configs=[SMALL, LARGE])(product)
        check(made, *inputs(1024))
        a, b = inputs(768)
        with tzero.pause_tuning():
            check(made, a, b)
            bound = made.bind(a, b)
            assert bound.choice is not None and bound.choice.how == "nearest"
        x = torch.zeros(1000, device="cuda")
        captured = 0
        while not tzero.wait_for_tuning(0.02):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # a copy to the host meanwhile would be an error
                x.add_(1)
            graph.replay()
            captured += 1
        torch.cuda.synchronize()
        assert captured and x[0].item() == captured
        assert bound.choice.how == "tuned" and "in the background" in bound.choice.why
        assert bound.config == LARGE
        check(made, a, b)
