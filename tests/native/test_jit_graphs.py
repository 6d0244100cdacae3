# mypy: allow-untyped-decorators
"""Launches of `tzero.jit` as CUDA graphs, on a stand-in for CUDA's driver.

The kernel takes addresses as integers: native launches of CUDA take no tensors of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.native.standin import Driver, driver, kernel_of, launched_by, on_cuda
from tests.native.test_graphs import HOT, LAUNCH, PLAIN, SET, N, one
from tzero import events, settings
from tzero.adapters.triton_launch import knobs
from tzero.errors import LaunchFailed

GRID = (2,)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kind: tl.constexpr = tl.pointer_type(tl.float32)
    total = tl.load(x.to(kind) + at, mask=at < n) + tl.load(y.to(kind) + at, mask=at < n)
    tl.store(out.to(kind) + at, total, mask=at < n)


@pytest.fixture
def cuda() -> Iterator[Driver]:
    found = driver()
    on_cuda().module.drop_graphs()
    found.use_stream(0)
    found.use_device(0)
    found.capture(0)
    found.calls()
    with settings.override(tier=2, graphs=1, graphs_after=HOT):
        yield found
    on_cuda().module.drop_graphs()


class Launcher:
    """Launches the kernel with tensors, and checks what it computes."""

    def __init__(self, **how: Any) -> None:
        self.kernel = launched_by(add, **how)
        self.x, self.y, self.out = torch.rand(N), torch.rand(N), torch.zeros(N)
        while not self.kernel.explain().runs:  # until Triton has compiled it
            assert driver().calls() == []
            self()
        driver().calls()

    def __call__(self, times: int = 1, grid: Any = GRID, x: Tensor | None = None) -> None:
        x = self.x if x is None else x
        for _ in range(times):
            self.out.zero_()
            given = [each.data_ptr() for each in (x, self.y, self.out)]
            self.kernel[grid](*given, N, BLOCK=128)
            assert torch.equal(self.out, x + self.y)

    @property
    def run(self) -> Any:
        (found,) = self.kernel.explain().runs
        return found


@pytest.fixture
def launch(cuda: Driver) -> Launcher:
    return Launcher()


def test_a_hot_launch_becomes_a_graph(cuda: Driver, launch: Launcher) -> None:
    launch(HOT - 1)  # one was made before
    made = cuda.calls()
    assert made[0] == PLAIN
    assert made[-1] == "cuGraphUpload"
    launch(2)
    assert cuda.calls() == [LAUNCH] * 2
    other = torch.rand(N)
    launch(x=other)
    assert cuda.calls() == [f"{SET} 0", LAUNCH]
    assert (launch.run.graphs, launch.run.launches, launch.run.settings) == (1, 3, 1)


def test_grids_are_set(cuda: Driver, launch: Launcher) -> None:
    launch(HOT + 1)
    launch(grid=(3,))
    assert cuda.latest_grid() == 3
    launch(grid=lambda meta: (4,))
    assert cuda.latest_grid() == 4


def test_explain_shows_the_graph_of_each_binary(cuda: Driver, launch: Launcher) -> None:
    assert str(launch.kernel.explain()) == (
        "add: 1 binary launched on CUDA\n  no CUDA graph of 1 yet: 1 call"
    )
    launch(HOT)
    assert "\n  a CUDA graph of 1: launched 1 time, " in str(launch.kernel.explain())
    with settings.override(graphs=0):
        assert "no CUDA graph of 1: TZERO_GRAPHS is 0" in str(launch.kernel.explain())


def test_news_of_an_evicted_graph_is_told_by_the_next_plain_launch(
    cuda: Driver, launch: Launcher
) -> None:
    other = kernel_of(one)
    x, y = torch.rand(N), torch.rand(N)
    launch(HOT + 1)
    seen: list[str] = []
    with events.observe(lambda event: seen.append(str(event)), calls=False):
        with settings.override(graphs_kept=0):
            launch()
        assert [each for each in seen if ": graph: " in each] == [
            "add: graph: no CUDA graph any more: the settings say so"
        ]
        launch(HOT)
        with settings.override(graphs_kept=1):
            for _ in range(HOT + 1):
                other(x, y)
    told = [each for each in seen if ": graph: " in each]
    assert told[-1] == "add: graph: no CUDA graph any more: others were used later"
    assert "others were used later; tried again after" in str(launch.kernel.explain())


def test_news_is_told_by_a_launch_that_fails(cuda: Driver, launch: Launcher) -> None:
    launch(HOT + 1)
    seen: list[str] = []
    cuda.fail("cuGraphLaunch", 2)
    observed = events.observe(lambda event: seen.append(str(event)), calls=False)
    with observed, pytest.raises(LaunchFailed):
        launch()
    assert any("no CUDA graph: cuGraphLaunch failed" in each for each in seen)
    launch(8 * HOT)
    assert launch.run.graphs == 1


def test_each_stream_has_a_graph(cuda: Driver, launch: Launcher) -> None:
    for stream in (7, 8):
        cuda.use_stream(stream)
        launch(HOT)
        cuda.calls()
        launch()
        assert cuda.calls() == [f"cuGraphLaunch stream {stream}"]
    assert launch.run.graphs == 2


def test_two_streams_and_one_graph_seldom_make_one(cuda: Driver, launch: Launcher) -> None:
    with settings.override(graphs_kept=1):
        for k in range(200):
            cuda.use_stream(7 + k % 2)
            launch()
    made = [call for call in cuda.calls() if call.startswith("cuGraphInstantiate")]
    assert len(made) <= 8


def test_a_graph_of_a_context_that_has_ended_is_not_launched(
    cuda: Driver, launch: Launcher
) -> None:
    launch(HOT + 1)
    cuda.calls()
    cuda.reset()
    launch()
    assert cuda.calls() == [PLAIN]
    assert on_cuda().module.graphs()[:2] == (0, 0)


def test_an_observer_gets_plain_launches_which_are_counted(cuda: Driver, launch: Launcher) -> None:
    launch(HOT + 1)
    cuda.calls()
    with events.observe(lambda event: None):
        launch(2)
    assert cuda.calls() == []
    assert launch.run.plainly["observed"] == 2


def test_a_hook_gets_plain_launches_which_are_counted(cuda: Driver, launch: Launcher) -> None:
    launch(HOT + 1)
    cuda.calls()
    seen: list[object] = []
    knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        launch()
    finally:
        knobs.runtime.launch_enter_hook.remove(seen.append)
    assert seen
    assert cuda.calls() == []
    assert launch.run.plainly["hooked"] == 1


def test_attributes_are_those_of_plain_launches(cuda: Driver) -> None:
    launch = Launcher(cluster=2)
    launch(HOT + 1)
    launches = [call for call in cuda.calls() if call.startswith("cuLaunchKernelEx")]
    assert len(launches) == HOT  # one was made before, one is captured
    assert all(call.endswith("grid 4 cluster 2 spread 1") for call in launches)
    launch(grid=(3,))
    assert cuda.latest_grid() == 6


def test_a_dependent_launch_is_no_graph(cuda: Driver) -> None:
    launch = Launcher(dependent=True)
    launch(4 * HOT)
    assert set(cuda.calls()) == {f"{PLAIN} dependent 1"}
    assert "programmatic dependent launch" in launch.run.ended
