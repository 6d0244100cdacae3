# mypy: allow-untyped-decorators
"""How often graphs are made, dropped and tried again, on a stand-in for CUDA's driver.

tests/native/test_graphs.py has what becomes a graph, and when launches are plain.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from tests.native.standin import Driver, driver, kernel_of, on_cuda
from tests.native.test_graphs import HOT, LAUNCH, PLAIN, SET, N, add, one, three, warm
from tzero import events, settings
from tzero.adapters import torch_profilers
from tzero.adapters.triton_launch import knobs
from tzero.errors import LaunchFailed

LACK = 2  # CUDA_ERROR_OUT_OF_MEMORY
PASSING = [1, LACK, 600, 900, 906]  # an invalid value, captures of others


@pytest.fixture
def cuda() -> Iterator[Driver]:
    found = driver()
    on_cuda().module.drop_graphs()
    found.use_stream(0)
    found.use_device(0)
    found.capture(0)
    found.calls()
    stale = found.stale()
    with settings.override(tier=2, graphs=1, graphs_after=HOT):
        yield found
    found.use_device(0)
    on_cuda().module.drop_graphs()
    assert found.alive() == 0
    assert found.stale() == stale


@pytest.fixture
def xy() -> tuple[Tensor, Tensor]:
    return torch.rand(N), torch.rand(N)


def count(calls: list[str], name: str) -> int:
    return sum(call.startswith(name) for call in calls)


def run_of(kernel: Any, *args: Any) -> Any:
    return kernel.explain(*args).runs[0]


# -- where there are more graphs than may be kept --------------------------------------------------


def test_two_streams_and_one_graph_seldom_make_one(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    with settings.override(graphs_kept=1):
        warm(kernel, *xy)
        cuda.calls()
        for k in range(300):
            cuda.use_stream(7 + k % 2)
            kernel(*xy)
        calls = cuda.calls()
    assert count(calls, "cuGraphInstantiate") <= 8
    assert count(calls, "cuGraphLaunch") > 100


def test_plans_and_streams_in_turn_seldom_make_a_graph(cuda: Driver, xy: Any) -> None:
    kernels = [kernel_of(three) for _ in range(3)]
    with settings.override(graphs_kept=5):
        for k in range(400):
            cuda.use_stream(7 + k % 2)
            for kernel in kernels:
                kernel(*xy)
        calls = cuda.calls()
    assert count(calls, "cuGraphInstantiate") < 1200 / (4 * HOT)
    assert count(calls, "cuGraphLaunch") > 600


def test_a_second_stream_gets_hot_by_its_own_calls(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    cuda.use_stream(9)
    cuda.calls()
    warm(kernel, *xy, calls=HOT - 1)
    assert "cuGraphInstantiate" not in cuda.calls()
    kernel(*xy)
    assert "cuGraphInstantiate" in cuda.calls()


def test_a_graph_that_lasted_is_missed_for_a_shorter_time(cuda: Driver, xy: Any) -> None:
    kernel, other = kernel_of(three), kernel_of(one)
    waits = []
    for lasting in (5, 1000):
        with settings.override(graphs_kept=1):
            warm(kernel, *xy, calls=300)
            for _ in range(lasting):
                kernel(*xy)
            warm(other, *xy, calls=300)
            assert run_of(kernel, *xy).graphs == 0
            waits.append(run_of(kernel, *xy).again)
    assert waits[0] == waits[1] == 8 * HOT  # both lasted


# -- a lack of memory, and other failures that may pass --------------------------------------------


def test_a_lack_of_memory_on_a_second_stream_is_seldom_tried(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    cuda.use_stream(9)
    cuda.calls()
    seen: list[str] = []
    with events.observe(lambda event: seen.append(str(event)), calls=False):
        for _ in range(50):
            cuda.fail("cuGraphInstantiate", LACK)
            kernel(*xy)
    cuda.fail("nothing")
    assert count(cuda.calls(), "cuStreamBeginCapture") <= 2
    told = [each for each in seen if ": graph: " in each]
    assert told[0].endswith("(out of memory); tried again after 24 calls")
    assert len(told) <= 2
    said = str(run_of(kernel, *xy))
    assert "a CUDA graph of 4: launched" in said
    assert "none on another stream: cuGraphInstantiate failed: CUDA_ERROR_OUT_OF_MEMORY" in said


@pytest.mark.parametrize("result", PASSING)
@pytest.mark.parametrize("name", ["cuStreamBeginCapture", "cuGraphInstantiate", "cuGraphUpload"])
def test_a_failure_that_may_pass_is_tried_again(
    cuda: Driver, xy: Any, name: str, result: int
) -> None:
    kernel = kernel_of(three)
    cuda.fail(name, result)
    warm(kernel, *xy)
    assert run_of(kernel, *xy).ended == ""
    assert name in run_of(kernel, *xy).lost
    warm(kernel, *xy, calls=8 * HOT)
    assert run_of(kernel, *xy).graphs == 1


def test_a_stream_that_cannot_be_made_is_reported_as_what_it_is(cuda: Driver, xy: Any) -> None:
    cuda.reset()  # so that a stream is made
    kernel, other = kernel_of(three), kernel_of(one)
    cuda.fail("cuStreamCreate", 999)
    warm(kernel, *xy)
    assert run_of(kernel, *xy).ended.startswith("cuStreamCreate failed: CUDA_ERROR_STANDIN")
    cuda.fail("cuStreamCreate", LACK)
    warm(other, *xy)
    assert run_of(other, *xy).lost.startswith("cuStreamCreate failed: CUDA_ERROR_OUT_OF_MEMORY")


@pytest.mark.parametrize("result", [1, LACK])
def test_a_graph_whose_launch_fails_once_is_made_again(cuda: Driver, xy: Any, result: int) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    cuda.fail("cuGraphLaunch", result)
    with pytest.raises(LaunchFailed):
        kernel(*xy)
    assert run_of(kernel, *xy).ended == ""
    warm(kernel, *xy, calls=8 * HOT)
    assert run_of(kernel, *xy).graphs == 1


def test_a_grid_that_no_device_takes_is_the_failure_of_its_call_alone(cuda: Driver) -> None:
    kernel = kernel_of(tall, over_sizes=True)
    x = torch.rand(N)
    for rows in (1, 2, 3, 2, 3):
        warm(kernel, x, rows)
    cuda.calls()
    with pytest.raises(LaunchFailed, match=r"with a grid of \(2, 70000, 1\)") as raised:
        kernel(x, 70000)
    assert raised.value.together == ()
    assert not any(call.startswith("cuGraph") for call in cuda.calls())
    assert torch.equal(kernel(x, 2), x + x)
    assert cuda.calls()[-1] == LAUNCH
    assert run_of(kernel, x, 2).plainly["outsized"] == 1


def tall(x: Tensor, rows: int) -> Tensor:
    out, n = torch.empty_like(x), x.numel()
    add[(triton.cdiv(n, 128), rows)](x, x, out, n, BLOCK=128)
    add[(triton.cdiv(n, 128),)](x, x, out, n, BLOCK=128)
    return out


def test_parameters_that_neither_way_takes_are_the_calls_own(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    x, y = xy
    warm(kernel, x, y, calls=HOT + 3)
    cuda.fail(SET, 999, then="cuLaunchKernelEx")
    with pytest.raises(LaunchFailed):
        kernel(torch.rand(N), y)
    assert run_of(kernel, x, y).graphs == 1
    other = torch.rand(N)
    assert torch.equal(kernel(other, y), three(other, y))


def test_an_error_of_a_graph_names_all_its_kernels(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    cuda.fail("cuGraphLaunch")
    with pytest.raises(
        LaunchFailed, match="one of a fill, add, add, scale in a CUDA graph"
    ) as raised:
        kernel(*xy)
    assert raised.value.kernel == "three"
    assert raised.value.together == ("a fill", "add", "add", "scale")


def test_an_error_of_a_graph_of_one_is_that_of_its_launch(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(one)
    warm(kernel, *xy)
    cuda.fail("cuGraphLaunch")
    with pytest.raises(LaunchFailed, match=r"with a grid of \(2, 1, 1\)") as raised:
        kernel(*xy)
    assert (raised.value.kernel, raised.value.together) == ("add", ())


# -- what is told ----------------------------------------------------------------------------------


def test_explain_says_that_a_graph_was_dropped_and_when_it_is_tried_again(
    cuda: Driver, xy: Any
) -> None:
    kernel, other = kernel_of(three), kernel_of(one)
    with settings.override(graphs_kept=1):
        warm(kernel, *xy, calls=10)
        warm(other, *xy, calls=10)
    run = run_of(kernel, *xy)
    assert run.launches > 0
    assert str(run) == (
        "no CUDA graph of 4: others were used later; tried again after 24 more calls"
    )
    kernel(*xy)
    assert run_of(kernel, *xy).again == 23
    warm(kernel, *xy, calls=23)
    assert str(run_of(kernel, *xy)).startswith("a CUDA graph of 4: launched")


def test_explain_says_that_there_was_no_memory(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    cuda.fail("cuGraphInstantiate", LACK)
    warm(kernel, *xy)
    assert str(run_of(kernel, *xy)) == (
        "no CUDA graph of 4: cuGraphInstantiate failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory); "
        "tried again after 24 more calls"
    )


def test_news_is_told_in_the_call_that_fails(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    seen: list[str] = []
    with events.observe(lambda event: seen.append(str(event)), calls=False):
        cuda.fail("cuGraphLaunch", LACK)
        with pytest.raises(LaunchFailed):
            kernel(*xy)
    assert any("no CUDA graph: cuGraphLaunch failed" in each for each in seen)


def test_observers_and_hooks_are_counted(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    cuda.calls()
    with events.observe(lambda event: None):
        warm(kernel, *xy, calls=2)
    knobs.runtime.launch_enter_hook.add(print_nothing)
    try:
        warm(kernel, *xy, calls=3)
    finally:
        knobs.runtime.launch_enter_hook.remove(print_nothing)
    assert cuda.calls() == []
    plainly = run_of(kernel, *xy).plainly
    assert (plainly["observed"], plainly["hooked"]) == (2, 3)
    kernel(*xy)
    assert LAUNCH in cuda.calls()


def print_nothing(metadata: object) -> None:
    """A launch hook."""


# -- contexts and devices --------------------------------------------------------------------------


def test_a_graph_of_a_context_that_has_ended_is_not_launched(cuda: Driver, xy: Any) -> None:
    kernels = [kernel_of(three), kernel_of(one)]
    for kernel in kernels:
        warm(kernel, *xy)
    cuda.calls()
    cuda.reset()
    assert torch.equal(kernels[0](*xy), three(*xy))
    assert PLAIN in cuda.calls()
    assert on_cuda().module.graphs()[:2] == (0, 0)  # the other one is not counted either
    assert "its CUDA context has ended" in str(run_of(kernels[0], *xy))
    warm(kernels[0], *xy)
    assert run_of(kernels[0], *xy).graphs == 1


def test_each_device_has_graphs_of_its_own(cuda: Driver, xy: Any) -> None:
    kernels = [kernel_of(three), kernel_of(three, device=1)]
    for device, kernel in enumerate(kernels):
        cuda.use_device(device)
        warm(kernel, *xy)
        cuda.calls()
        assert torch.equal(kernel(*xy), three(*xy))
        assert cuda.calls()[-1] == LAUNCH
    assert on_cuda().module.graphs()[0] == 2
    cuda.use_device(0)
    kernels[1](*xy)
    assert LAUNCH not in cuda.calls()
    assert on_cuda().module.graphs()[0] == 2  # it is only elsewhere
    cuda.use_device(1)
    kernels[1](*xy)
    assert LAUNCH in cuda.calls()


def test_a_reset_of_one_device_leaves_the_graphs_of_the_other(cuda: Driver, xy: Any) -> None:
    kernels = [kernel_of(three), kernel_of(three, device=1)]
    for device, kernel in enumerate(kernels):
        cuda.use_device(device)
        warm(kernel, *xy)
    assert cuda.alive() == 4
    cuda.reset()  # of device 1
    kernels[1](*xy)
    assert on_cuda().module.graphs()[0] == 1
    cuda.use_device(0)
    cuda.calls()
    kernels[0](*xy)
    assert LAUNCH in cuda.calls()
    assert cuda.alive() == 2


# -- how a graph is made ---------------------------------------------------------------------------


def test_a_private_stream_disturbs_no_capture_and_lets_other_threads_run(
    cuda: Driver, xy: Any
) -> None:
    cuda.reset()
    kernel = kernel_of(three)
    warm(kernel, *xy, calls=HOT)
    before = cuda.disturbing()
    cuda.slow("cuStreamCreate", 0.5)
    thread = threading.Thread(target=kernel, args=xy)
    thread.start()
    longest, last = 0.0, time.perf_counter()
    while thread.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert "cuStreamCreate" in cuda.calls()
    assert longest < 0.4
    assert cuda.disturbing() == before


def marked(x: Tensor) -> tuple[Tensor, Tensor]:
    out, n = torch.empty_like(x), x.numel()
    marks = torch.ones(n, dtype=torch.uint8)
    add[(triton.cdiv(n, 128),)](x, x, out, n, BLOCK=128)
    return out, marks


def test_a_fill_that_the_driver_keeps_in_larger_elements_is_whole(cuda: Driver) -> None:
    kernel = kernel_of(marked, over_sizes=True)
    cuda.widen(True)
    try:
        for n in (200, 300, 200, 300, 201, 203, 200, 201):
            x = torch.rand(n)
            for _ in range(HOT):
                out, marks = kernel(x)
                assert torch.equal(out, x + x)
                assert torch.equal(marks, torch.ones(n, dtype=torch.uint8)), n
        assert run_of(kernel, x).plainly["outsized"] > 0
        assert run_of(kernel, x).graphs == 1
    finally:
        cuda.widen(False)


# -- launch attributes -----------------------------------------------------------------------------


def test_attributes_are_those_of_plain_launches(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(one, cluster=2, cooperative=True)
    warm(kernel, *xy, calls=HOT)
    cuda.calls()
    kernel(*xy)
    launches = [call for call in cuda.calls() if call.startswith("cuLaunchKernelEx")]
    plain, captured = launches
    how = "grid 4 cooperative 1 cluster 2 spread 1"
    assert plain == f"cuLaunchKernelEx stream 0 {how}"
    assert captured.endswith(how)


def test_grids_of_clusters_are_set_in_blocks(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(one, cluster=2)
    warm(kernel, *xy)
    x, y = torch.rand(N), torch.rand(N)
    cuda.calls()
    assert torch.equal(kernel(x, y), one(x, y))
    assert f"{SET} 0" in cuda.calls()
    assert cuda.latest_grid() == 4


def test_a_dependent_launch_is_first_in_no_graph(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(one, dependent=True)
    warm(kernel, *xy, calls=4 * HOT)
    assert set(cuda.calls()) == {f"{PLAIN} dependent 1"}
    assert "may begin before the work ahead of it has ended" in run_of(kernel, *xy).ended


# -- what watches launches -------------------------------------------------------------------------


def configured(**changes: Any) -> None:
    from tzero.launches import graphs

    module: Any = on_cuda().module

    class Changed:
        def configure_graphs(self, **given: Any) -> None:
            module.configure_graphs(**{**given, **changes})

    graphs.configure(Changed())  # type: ignore[arg-type]


@pytest.fixture
def configure() -> Iterator[Any]:
    yield configured
    configured()


def test_variables_are_read_when_the_first_graph_is_made(
    cuda: Driver, xy: Any, configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")  # after tzero was imported
    kernel = kernel_of(three)
    warm(kernel, *xy, calls=4 * HOT)
    assert cuda.alive() == 0
    assert "CUDA_LAUNCH_BLOCKING is set" in str(run_of(kernel, *xy))


def test_what_cannot_be_told_watches(cuda: Driver, xy: Any, configure: Any) -> None:
    configure(watched=lambda: 1 / 0)
    kernel = kernel_of(three)
    warm(kernel, *xy, calls=4 * HOT)
    assert cuda.alive() == 0
    assert "cannot be told" in run_of(kernel, *xy).ended


def test_profilers_of_which_torch_says_nothing_may_be_on(
    cuda: Driver, xy: Any, configure: Any
) -> None:
    configure(profilers=None)
    kernel = kernel_of(three)
    warm(kernel, *xy, calls=4 * HOT)
    assert cuda.alive() == 0
    assert "does not say whether a profiler is on" in run_of(kernel, *xy).ended
    with settings.override(graphs=2):
        warm(kernel, *xy)
        assert cuda.alive() == 2


def test_a_profiler_that_is_on_at_the_start_is_looked_at_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", True)
    assert torch_profilers.switches() is vars(torch.autograd.profiler)
    monkeypatch.delattr(torch.autograd.profiler, "_is_profiler_enabled")
    assert torch_profilers.switches() is None


def test_graphs_may_end_while_profilers_are_looked_at(
    cuda: Driver, xy: Any, configure: Any
) -> None:
    """The flags of Proton are read as attributes, which may run any code."""
    asked: list[int] = []

    class Flags:
        @property
        def profiling_on(self) -> bool:
            asked.append(cuda.alive())
            on_cuda().module.drop_graphs()
            return False

    kernel = kernel_of(three)
    warm(kernel, *xy)
    assert cuda.alive() == 2
    configure(modules={"triton.profiler.flags": SimpleNamespace(flags=Flags())})
    for _ in range(4 * HOT):
        assert torch.equal(kernel(*xy), three(*xy))
    assert asked[0] == 2
