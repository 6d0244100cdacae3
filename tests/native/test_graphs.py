# mypy: allow-untyped-decorators
"""What decides and counts about CUDA graphs, on a stand-in for CUDA's driver.

tests/gpu/test_graphs.py has the real driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.native.standin import Driver, driver, kernel_of, on_cuda
from tzero import events, settings
from tzero.adapters import torch_profilers
from tzero.cpu import toolchain
from tzero.errors import LaunchFailed

N = 200
HOT = 3
BLOCK = 128


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def scale(x, out, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


def one(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add[(triton.cdiv(n, 128),)](x, y, out, n, BLOCK=128)
    return out


def three(x: Tensor, y: Tensor, by: float = 2.0) -> Tensor:
    a, b = torch.empty_like(x), torch.zeros_like(x)
    n = x.numel()
    grid = (triton.cdiv(n, 128),)
    add[grid](x, y, a, n, BLOCK=128)
    add[grid](a, b, b, n, BLOCK=128)
    scale[grid](b, a, n, by, BLOCK=128)
    return a


def mixed(x: Tensor, y: Tensor) -> Tensor:
    a, n = torch.empty_like(x), x.numel()
    grid = (triton.cdiv(n, 128),)
    add[grid](x, y, a, n, BLOCK=128)
    add[grid](a, y, a, n, BLOCK=128)
    b = a * 3
    add[grid](b, a, b, n, BLOCK=128)
    add[grid](b, x, b, n, BLOCK=128)
    return b


def launch_of(made: int) -> list[str]:
    return [f"cuLaunchKernelEx stream {made} grid 2"]


PLAIN = "cuLaunchKernelEx stream 0 grid 2"
FILL = "cuMemsetAsync"
SET = "cuGraphExecKernelNodeSetParams"
LAUNCH = "cuGraphLaunch stream 0"


@pytest.fixture
def cuda() -> Iterator[Driver]:
    found = driver()
    on_cuda().module.drop_graphs()
    found.use_stream(0)
    found.capture(0)
    found.calls()
    with settings.override(tier=2, graphs=1, graphs_after=HOT):
        yield found
    on_cuda().module.drop_graphs()
    assert found.alive() == 0


@pytest.fixture
def xy() -> tuple[Tensor, Tensor]:
    return torch.rand(N), torch.rand(N)


def warm(kernel: Any, *args: Any, calls: int = HOT + 1) -> None:
    """Call until the next call launches a graph: the first call records."""
    for _ in range(calls):
        kernel(*args)


def kinds(calls: list[str]) -> list[str]:
    return [call.split()[0] for call in calls]


# -- what becomes a graph --------------------------------------------------------------------------


def test_the_third_replay_makes_a_graph_and_the_fourth_launches_it(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    expected = three(*xy)
    kernel(*xy)
    assert cuda.calls() == []  # recorded, on the CPU
    for _ in range(HOT - 1):
        kernel(*xy)
        assert cuda.calls() == [FILL, PLAIN, PLAIN, PLAIN]
    assert torch.equal(kernel(*xy), expected)
    made = kinds(cuda.calls())
    assert made[:4] == [FILL, *["cuLaunchKernelEx"] * 3]  # the call itself, then what is captured
    assert made[4:] == [
        *(["cuStreamCreate"] if "cuStreamCreate" in made else []),
        *("cuStreamBeginCapture", FILL, *["cuLaunchKernelEx"] * 3, "cuStreamEndCapture"),
        *("cuGraphInstantiate", "cuGraphUpload"),
    ]
    assert torch.equal(kernel(*xy), expected)
    assert kinds(cuda.calls())[-1] == "cuGraphLaunch"
    run = kernel.explain(*xy).runs[0]
    assert (run.work, run.graphs, run.launches, run.ended) == (4, 1, 1, "")


def test_only_what_differs_is_set(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    x, y = xy
    keep = [kernel(x, y) for _ in range(HOT + 2)]
    cuda.calls()
    kept = kernel(x, y)
    first = cuda.calls()
    assert first[-1] == LAUNCH
    # The new tensors: `b` is freed and made again at the same place, or not; `a` is kept.
    assert f"{SET} 3" in first
    other = torch.rand(N)
    del kept
    kernel(other, y)
    assert f"{SET} 1" in cuda.calls()
    assert len(keep) == HOT + 2
    run = kernel.explain(x, y).runs[0]
    assert run.settings <= 4 * run.launches


def test_the_same_pointers_set_nothing(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(one, pool=True)
    if not on_cuda().module.rings():
        pytest.skip("no rings here")
    warm(kernel, *xy, calls=HOT + 3)
    cuda.calls()
    for _ in range(5):
        kernel(*xy)
    assert cuda.calls() == [LAUNCH] * 5


def test_results_follow_arguments_and_numbers(cuda: Driver) -> None:
    kernel = kernel_of(three)
    for k in range(20):
        x, y = torch.rand(N), torch.rand(N)
        by = float(k % 3) + 0.5
        assert torch.equal(kernel(x, y, by), three(x, y, by))
    assert kernel.explain(x, y, 0.5).runs[0].launches >= 15


def test_a_function_of_torch_ends_a_run(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(mixed)
    expected = mixed(*xy)
    warm(kernel, *xy)
    cuda.calls()
    assert torch.equal(kernel(*xy), expected)
    assert [call for call in cuda.calls() if "SetParams" not in call] == [LAUNCH, LAUNCH]
    assert [run.work for run in kernel.explain(*xy).runs] == [2, 2]


def test_sizes_are_set_too(cuda: Driver) -> None:
    kernel = kernel_of(three, over_sizes=True)
    for n in (200, 300, 200, 256, 300, 200, 264, 1024, 200, 300, 200, 300):
        for _ in range(HOT):
            x, y = torch.rand(n), torch.rand(n)
            assert torch.equal(kernel(x, y), three(x, y)), n
    assert sum(call == LAUNCH for call in cuda.calls()) > 10


# -- plain launches, and why -------------------------------------------------------------------


def plain_calls(cuda: Driver, kernel: Any, *args: Any) -> bool:
    cuda.calls()
    kernel(*args)
    return not any("Graph" in call for call in cuda.calls())


def test_a_stream_that_captures_gets_plain_launches(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    cuda.capture(1)
    assert plain_calls(cuda, kernel, *xy)
    cuda.capture(0)
    assert not plain_calls(cuda, kernel, *xy)
    run = kernel.explain(*xy).runs[0]
    assert run.plainly["capturing"] == 1
    assert "plain 1 time (capturing)" in str(kernel.explain(*xy))


def test_no_graph_is_made_on_a_stream_that_captures(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    cuda.capture(1)
    warm(kernel, *xy, calls=5 * HOT)
    assert "cuStreamBeginCapture" not in cuda.calls()
    cuda.capture(0)
    warm(kernel, *xy)
    assert LAUNCH in cuda.calls()


def test_profilers_get_plain_launches(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert plain_calls(cuda, kernel, *xy)
    assert not plain_calls(cuda, kernel, *xy)


def test_profilers_without_callbacks_get_plain_launches(cuda: Driver, xy: Any) -> None:
    """One that looks at the GPU alone has none."""
    kernel = kernel_of(three)
    warm(kernel, *xy)
    torch.autograd.profiler._set_is_profiler_enabled(True)
    try:
        assert plain_calls(cuda, kernel, *xy)
    finally:
        torch.autograd.profiler._set_is_profiler_enabled(False)
    assert not plain_calls(cuda, kernel, *xy)


def test_proton_gets_plain_launches(cuda: Driver, xy: Any) -> None:
    flags = pytest.importorskip("triton.profiler.flags").flags
    kernel = kernel_of(three)
    warm(kernel, *xy)
    flags.profiling_on = True
    try:
        assert plain_calls(cuda, kernel, *xy)
    finally:
        flags.profiling_on = False
    assert not plain_calls(cuda, kernel, *xy)
    assert kernel.explain(*xy).runs[0].plainly["profiled"] == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"graphs": 0}, "TZERO_GRAPHS is 0"),
        ({"graphs_kept": 0}, "TZERO_GRAPHS_KEPT is 0"),
        ({"graphs_memory": 0}, "TZERO_GRAPHS_MEMORY is 0"),
    ],
    ids=str,
)
def test_settings_turn_graphs_off(cuda: Driver, xy: Any, changes: Any, said: str) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    assert cuda.alive() == 2
    with settings.override(**changes):
        assert plain_calls(cuda, kernel, *xy) is False  # it destroys the graph
        assert cuda.alive() == 0
        assert plain_calls(cuda, kernel, *xy)
        assert said in kernel.explain(*xy).runs[0].ended
    warm(kernel, *xy)
    assert not plain_calls(cuda, kernel, *xy)


def test_a_tool_that_watches_launches_turns_graphs_off(cuda: Driver, xy: Any) -> None:
    from tzero.launches import graphs

    module: Any = on_cuda().module
    facts = {"settings": vars(settings._held), "tell": graphs._tell, "modules": {}}
    facts["profilers"] = torch_profilers.switches()
    try:
        module.configure_graphs(**facts, watched=lambda: "CUDA_LAUNCH_BLOCKING")
        kernel = kernel_of(three)
        warm(kernel, *xy, calls=4 * HOT)
        assert cuda.alive() == 0
        assert "CUDA_LAUNCH_BLOCKING is set" in str(kernel.explain(*xy))
        with settings.override(graphs=2):
            warm(kernel, *xy)
            assert cuda.alive() == 2
    finally:
        graphs.configure(module)


@pytest.mark.parametrize(
    ("variable", "value", "watches"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", True),
        ("CUDA_LAUNCH_BLOCKING", "0", False),
        ("CUDA_INJECTION64_PATH", "/somewhere/lib.so", True),
        ("CUDBG_APICLIENT_PID", "17", True),
    ],
)
def test_the_environment_says_what_watches(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, watches: bool
) -> None:
    before = settings.launches_watched_by()
    monkeypatch.setenv(variable, value)
    assert (settings.launches_watched_by() == variable) == watches or before


def test_a_tool_that_is_in_the_process_turns_graphs_off(tmp_path: Path) -> None:
    """In a process of its own: it has a library of the sanitizer's name."""
    library = tmp_path / "libsanitizer-collection.so"
    library.write_bytes(toolchain.find().build("int nothing;", "nothing", [], (), 0))
    program = f"""
import ctypes, torch
ctypes.CDLL({str(library)!r})
from tests.native.standin import driver, kernel_of
from tests.native.test_graphs import three
from tzero import settings
x, y = torch.rand(200), torch.rand(200)
driver()
with settings.override(tier=2, graphs=1, graphs_after=1):
    kernel = kernel_of(three)
    for _ in range(5):
        assert torch.equal(kernel(x, y), three(x, y))
    print(kernel.explain(x, y).runs[0].ended)
"""
    environment = {**os.environ, "TZERO_CPU": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.stdout.strip() == "compute-sanitizer is attached", done.stderr


def test_work_without_programs_is_launched_plainly(cuda: Driver) -> None:
    kernel = kernel_of(halved, over_sizes=True)
    for n in (200, 300, 200, 300, 200, 0, 200, 0, 300):
        for _ in range(HOT):
            x = torch.rand(n)
            assert torch.equal(kernel(x), halved(x))


def halved(x: Tensor) -> Tensor:
    out, n = torch.zeros_like(x), x.numel()
    scale[(triton.cdiv(n, 128),)](x, out, n, 0.5, BLOCK=128)
    return out


# -- streams, threads and what is kept -------------------------------------------------------------


def test_each_stream_has_a_graph(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    expected = three(*xy)
    for stream in (7, 8, 7, 8):
        cuda.use_stream(stream)
        warm(kernel, *xy)
        cuda.calls()
        assert torch.equal(kernel(*xy), expected)
        assert cuda.calls()[-1] == f"cuGraphLaunch stream {stream}"
    assert kernel.explain(*xy).runs[0].graphs == 2
    for stream in range(20, 40):
        cuda.use_stream(stream)
        warm(kernel, *xy)
    assert kernel.explain(*xy).runs[0].graphs == 4


def test_a_limited_number_is_kept(cuda: Driver, xy: Any) -> None:
    kernels = [kernel_of(three), kernel_of(mixed), kernel_of(one)]
    with settings.override(graphs_kept=2):
        for kernel in kernels:
            warm(kernel, *xy)
        assert cuda.alive() == 2 * 2
        assert kernels[0].explain(*xy).runs[0].graphs == 0
        assert kernels[2].explain(*xy).runs[0].graphs == 1
        assert torch.equal(kernels[0](*xy), three(*xy))


def test_a_limited_number_of_bytes_is_kept(cuda: Driver, xy: Any) -> None:
    kernels = [kernel_of(three) for _ in range(12)]
    with settings.override(graphs_memory=1):
        for kernel in kernels:
            warm(kernel, *xy)
        count, size, *_ = on_cuda().module.graphs()
        assert 1 < count < 12
        assert size <= 1 << 20
        assert kernels[-1].explain(*xy).runs[0].graphs == 1


def test_numbers_without_end_are_no_limit(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    with settings.override(graphs_memory=1 << 44):  # in bytes it has 65 bits
        warm(kernel, *xy)
        assert kernel.explain(*xy).runs[0].graphs == 1


def test_a_graph_that_is_made_while_all_are_dropped_is_dropped_too(cuda: Driver, xy: Any) -> None:
    kernel, other = kernel_of(three), kernel_of(one)
    warm(kernel, *xy, calls=HOT)
    warm(other, *xy)
    alive = cuda.alive()
    cuda.slow("cuGraphInstantiate", 0.3)
    thread = threading.Thread(target=kernel, args=xy)
    thread.start()
    time.sleep(0.1)
    on_cuda().module.drop_graphs()
    assert cuda.alive() < alive + 1
    thread.join()
    assert on_cuda().module.graphs()[:2] == (0, 0)
    warm(kernel, *xy)
    assert kernel.explain(*xy).runs[0].graphs == 1


def test_lower_limits_hold_at_once(cuda: Driver, xy: Any) -> None:
    kernels = [kernel_of(three), kernel_of(mixed)]
    for kernel in kernels:
        warm(kernel, *xy)
    assert on_cuda().module.graphs()[0] == 3
    with settings.override(graphs_kept=1):
        kernels[0](*xy)
        assert on_cuda().module.graphs()[0] == 1


def test_what_ends_is_destroyed(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    assert cuda.alive() == 2
    kernel.reset()
    assert cuda.alive() == 0
    warm(kernel, *xy)
    assert cuda.alive() == 2
    kernel._forget(None)
    assert cuda.alive() == 0
    assert on_cuda().module.graphs()[:2] == (0, 0)


def test_what_was_made_before_a_reset_of_the_device_is_left_alone(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    cuda.calls()
    cuda.reset()
    kernel.reset()
    assert cuda.calls() == []
    assert on_cuda().module.graphs()[:2] == (0, 0)


def test_a_forked_child_does_not_call_the_driver(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy)
    cuda.calls()
    child = os.fork()
    if child == 0:
        kernel._forget(None)
        os._exit(len(cuda.calls()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(kernel(*xy), three(*xy))


def test_threads_do_not_share_a_launch(cuda: Driver) -> None:
    kernel = kernel_of(three)
    wrong: list[object] = []

    def calls(seed: int) -> None:
        x = torch.full((N,), float(seed))
        for _ in range(500):
            if kernel(x, x)[0] != 4.0 * seed:
                wrong.append(seed)

    threads = [threading.Thread(target=calls, args=(k + 1,)) for k in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_calls_inside_a_call_are_plain(cuda: Driver, xy: Any) -> None:
    """A finalizer that an allocation runs may call the same kernel."""
    kernel = kernel_of(three)
    expected = three(*xy)
    warm(kernel, *xy)

    inner: list[bool] = []

    class Ends:
        def __del__(self) -> None:
            inner.append(torch.equal(kernel(*xy), expected))

    import gc

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            cycle = Ends()
            cycle.itself = cycle  # type: ignore[attr-defined]
            del cycle
            assert torch.equal(kernel(*xy), expected)
    finally:
        gc.set_threshold(*threshold)
    assert inner
    assert all(inner)


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphUpload"),
    ],
)
def test_a_graph_that_cannot_be_made_leaves_plain_launches(
    cuda: Driver, xy: Any, name: str
) -> None:
    kernel = kernel_of(three)
    expected = three(*xy)
    cuda.fail(name)
    warm(kernel, *xy, calls=4 * HOT)
    assert torch.equal(kernel(*xy), expected)
    assert plain_calls(cuda, kernel, *xy)
    assert name in kernel.explain(*xy).runs[0].ended
    assert "CUDA_ERROR_STANDIN" in str(kernel.explain(*xy))


def test_a_graph_is_tried_again_after_a_lack_of_memory(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    cuda.fail("cuGraphInstantiate", 2)
    warm(kernel, *xy, calls=4 * HOT)
    assert kernel.explain(*xy).runs[0].graphs == 0
    warm(kernel, *xy, calls=9 * HOT)
    assert kernel.explain(*xy).runs[0].graphs == 1


def test_parameters_that_cannot_be_set_leave_plain_launches(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    x, y = xy
    warm(kernel, x, y, calls=HOT + 3)
    other = torch.rand(N)
    cuda.fail(SET)
    assert torch.equal(kernel(other, y), three(other, y))
    assert cuda.alive() == 0
    assert plain_calls(cuda, kernel, x, y)
    assert SET in kernel.explain(x, y).runs[0].ended


def test_a_failed_launch_is_reported_as_a_plain_one_is(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy, calls=HOT + 3)
    cuda.fail("cuGraphLaunch")
    with pytest.raises(LaunchFailed, match="CUDA_ERROR_STANDIN"):
        kernel(*xy)
    assert torch.equal(kernel(*xy), three(*xy))
    assert plain_calls(cuda, kernel, *xy)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_failed_plain_launch_ends_the_call(cuda: Driver, xy: Any, after: int) -> None:
    kernel = kernel_of(three)
    warm(kernel, *xy, calls=HOT)
    cuda.fail("cuLaunchKernelEx", 999, after)
    with pytest.raises(LaunchFailed):  # in the call that would make the graph
        kernel(*xy)
    assert torch.equal(kernel(*xy), three(*xy))
    assert kernel.explain(*xy).runs[0].graphs == 0
    warm(kernel, *xy)
    assert kernel.explain(*xy).runs[0].graphs == 1


# -- what is told --------------------------------------------------------------------------------


def test_events_tell_of_graphs(cuda: Driver, xy: Any) -> None:
    seen: list[str] = []
    with events.observe(lambda event: seen.append(str(event)), calls=False):
        kernel = kernel_of(three)
        warm(kernel, *xy)
        with settings.override(graphs_kept=1):
            warm(kernel_of(one), *xy)
        with settings.override(graphs=0):
            kernel(*xy)
            warm(kernel_of(one), *xy)
    told = [each for each in seen if ": graph: " in each]
    assert told[:3] == [
        "three: graph: 4 launches and fills are one CUDA graph",
        "one: graph: 1 launch is one CUDA graph",
        "three: graph: no CUDA graph any more: others were used later",
    ]
    assert told[3:] == ["one: graph: no CUDA graph any more: the settings say so"]


def test_explain_shows_how_far_a_plan_is(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(three)
    kernel(*xy)
    kernel(*xy)
    assert "no CUDA graph of 4 yet: 1 call" in str(kernel.explain(*xy))
    warm(kernel, *xy)
    assert "a CUDA graph of 4: launched" in str(kernel.explain(*xy))
