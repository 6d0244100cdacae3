# mypy: allow-untyped-decorators
"""Hot launches as CUDA graphs: results, order, streams, captures, memory, failures.

Every kernel here is hot from its first replay on. What decides and counts is tested without a GPU
in tests/native/test_graphs.py.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

import tzero
from tests import tiers
from tzero import _native as native
from tzero import events, settings

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


@triton.jit
def scale_kernel(x, out, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


def one(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


def five(x: Tensor, y: Tensor, by: float = 2.0) -> Tensor:
    n = x.numel()
    grid = (triton.cdiv(n, 1024),)
    between, out = torch.empty_like(x), torch.empty_like(x)
    add_kernel[grid](x, y, between, n, BLOCK=1024)
    scale_kernel[grid](between, out, n, by, BLOCK=1024)
    add_kernel[grid](out, y, between, n, BLOCK=1024)
    add_kernel[grid](between, x, out, n, BLOCK=1024)
    add_kernel[grid](out, between, out, n, BLOCK=1024)
    return out


def filled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    n = x.numel()
    grid = (triton.cdiv(n, 1024),)
    out, ones = torch.zeros(2 * n, device=x.device), torch.ones_like(x)
    add_kernel[grid](x, ones, out[n:], n, BLOCK=1024)
    add_kernel[grid](out[n:], y, out, n // 2, BLOCK=1024)
    return out, ones


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Launches, a function of torch, and launches again."""
    n = x.numel()
    grid = (triton.cdiv(n, 1024),)
    a, b = torch.empty_like(x), torch.empty_like(x)
    add_kernel[grid](x, y, a, n, BLOCK=1024)
    add_kernel[grid](a, y, b, n, BLOCK=1024)
    tripled = b * 3
    add_kernel[grid](tripled, a, b, n, BLOCK=1024)
    add_kernel[grid](b, x, a, n, BLOCK=1024)
    return a, tripled


def in_place(x: Tensor, y: Tensor) -> Tensor:
    """Changes its first argument before it needs memory."""
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, x, n, BLOCK=1024)
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


@triton.jit
def store_kernel(x, at):
    tl.store(x + at, 1.0)


def stored(x: Tensor, at: int) -> Tensor:
    store_kernel[(1,)](x, at)
    return x


HOSTS = [one, five, filled, mixed]

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    tiers.needs_cuda()
    tiers.can_replay(2)
    with settings.override(tier=2, graphs=2, graphs_after=1):
        native.drop_graphs()
        yield
    native.drop_graphs()
    tzero.pool.clear()


def pair(n: int = N) -> tuple[Tensor, Tensor]:
    return torch.randn(n, device="cuda"), torch.randn(n, device="cuda")


def warm(kernel: Any, *args: Any) -> None:
    for _ in range(4):
        kernel(*args)


def runs(kernel: Any, *args: Any) -> Any:
    """What `explain` says of the runs of a plan; of each the pieces of work, the reason for none,
    graphs, launches of them and nodes that were set."""
    return [(r.work, r.ended, r.graphs, r.launches, r.settings) for r in kernel.explain(*args).runs]


def launches(kernel: Any, *args: Any) -> int:
    return sum(r.launches for r in kernel.explain(*args).runs)


def same(given: Any, wanted: Any) -> None:
    torch.testing.assert_close(given, wanted, rtol=0, atol=0)


# -- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
@pytest.mark.parametrize("pool", [False, True], ids=["fresh", "pooled"])
def test_results_are_those_of_plain_launches(host: Any, pool: bool) -> None:
    kernel = tzero.kernel(pool=pool)(host)
    sets = [pair() for _ in range(4)]
    wanted = [host(*each) for each in sets]
    for _ in range(10):
        for given, expected in zip(sets, wanted, strict=True):
            same(kernel(*given), expected)
    assert launches(kernel, *sets[0]) >= 30


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
def test_results_that_are_kept_stay(host: Any) -> None:
    kernel = tzero.kernel(host)
    sets = [pair() for _ in range(40)]
    given = [kernel(*each) for each in sets]
    for each, result in zip(sets, given, strict=True):
        same(result, host(*each))
    assert launches(kernel, *sets[0]) >= 30


def test_numbers_are_set() -> None:
    kernel = tzero.kernel(five)
    x, y = pair()
    for by in (2.0, 3.0, 0.5, 0.5, -1.0, 2.0):
        same(kernel(x, y, by), five(x, y, by))
    assert launches(kernel, x, y, 2.0) >= 4


def test_grids_of_a_plan_over_sizes_are_set() -> None:
    kernel = tzero.kernel(static_shapes=False)(five)
    for n in (4096, 8192, 4096, 1024, 65536, 4096, 2048, 10240):
        for _ in range(2):
            x, y = pair(n)
            same(kernel(x, y), five(x, y))
    assert launches(kernel, x, y) >= 6


def test_sizes_of_other_binaries_have_other_graphs() -> None:
    kernel = tzero.kernel(static_shapes=False)(filled)
    for n in (4096, 4098, 16, 4096, 1, 4098, 2, 4096, 5, 4098, 4096):
        for _ in range(3):
            x, y = pair(n)
            same(kernel(x, y), filled(x, y))
    assert launches(kernel, *pair(4096)) >= 4


def test_a_launch_by_itself_becomes_a_graph() -> None:
    kernel = tzero.jit(add_kernel.fn)
    before = native.graphs()[2]
    sets = [(*pair(), torch.empty(N, device="cuda")) for _ in range(5)]
    for _ in range(4):
        for x, y, out in sets:
            out.zero_()
            kernel[(4,)](x, y, out, N, BLOCK=1024)
            same(out, x + y)
            kernel[(2,)](x, y, out, N, BLOCK=1024)
            kernel[(0,)](x, y, out, N, BLOCK=1024)
    assert native.graphs()[2] == before + 1


# -- order and streams ---------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
def test_a_graph_is_in_order_with_what_else_is_on_the_stream(host: Any) -> None:
    kernel = tzero.kernel(host)
    x, y = pair()
    warm(kernel, x, y)
    for _ in range(20):
        torch.cuda._sleep(100_000)
        x.normal_()
        result = kernel(x, y)
        kept = [each.clone() for each in (result if isinstance(result, tuple) else (result,))]
        expected = host(x, y)
        same(tuple(kept), expected if isinstance(expected, tuple) else (expected,))


def test_two_streams_overlap() -> None:
    kernel = tzero.kernel(five)
    x, y = pair()
    side = torch.cuda.Stream()
    expected = five(x, y)
    torch.cuda.synchronize()
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            warm(kernel, x, y)
    torch.cuda.synchronize()
    assert kernel.explain(x, y).runs[0].graphs == 2
    torch.cuda._sleep(SLEEP)
    busy = torch.cuda.Event()
    first = kernel(x, y)
    busy.record()
    with torch.cuda.stream(side):
        second = kernel(x, y)
        same(second.cpu(), expected.cpu())
    assert not busy.query(), "the first stream was done too early for this to prove anything"
    same(first, expected)


def test_many_streams_have_a_limited_number_of_graphs() -> None:
    kernel = tzero.kernel(five)
    x, y = pair()
    expected = five(x, y)
    torch.cuda.synchronize()
    for _ in range(3):
        for stream in [torch.cuda.Stream() for _ in range(12)]:
            with torch.cuda.stream(stream):
                result = kernel(x, y)
            stream.synchronize()
            same(result, expected)
    assert 0 < kernel.explain(x, y).runs[0].graphs <= 4


def test_threads_share_a_graph() -> None:
    kernel = tzero.kernel(five)
    sets = [pair() for _ in range(8)]
    wanted = [five(*each) for each in sets]
    torch.cuda.synchronize()
    wrong: list[object] = []

    def calls(k: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream() if k % 2 else torch.cuda.default_stream()):
                for _ in range(300):
                    result = kernel(*sets[k])
                    if not torch.equal(result, wanted[k]):
                        wrong.append(k)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=calls, args=(k,)) for k in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert launches(kernel, *sets[0]) > 100


# -- when launches stay plain --------------------------------------------------------------------


def test_a_capture_gets_plain_launches() -> None:
    kernel = tzero.kernel(five)
    x, y = pair()
    expected = five(x, y)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        warm(kernel, x, y)
    torch.cuda.synchronize()
    before = launches(kernel, x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = kernel(x, y)
    assert launches(kernel, x, y) == before
    assert kernel.explain(x, y).runs[0].plainly["capturing"] >= 1
    native.drop_graphs()  # the capture holds nothing of it
    result.zero_()
    graph.replay()
    same(result, expected)
    warm(kernel, x, y)
    same(kernel(x, y), expected)
    assert launches(kernel, x, y) > before


def test_a_graph_is_made_while_another_thread_captures() -> None:
    kernel = tzero.jit(add_kernel.fn)
    x, y = pair()
    out, z = torch.zeros_like(x), torch.zeros(8, device="cuda")
    with settings.override(graphs=0):
        kernel[(4,)](x, y, out, N, BLOCK=1024)
    torch.cuda.synchronize()
    captures, made = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def capture() -> None:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                z.add_(1)
                captures.set()
                made.wait(60)
                z.add_(1)
            graph.replay()
        except BaseException as error:
            failed.append(error)
        finally:
            captures.set()

    before = native.graphs()[2]
    side = torch.cuda.Stream()
    thread = threading.Thread(target=capture)
    thread.start()
    captures.wait(60)
    try:
        with torch.cuda.stream(side):
            for _ in range(3):
                kernel[(4,)](x, y, x, N, BLOCK=1024)
    finally:
        made.set()
        thread.join()
    assert not failed
    torch.cuda.synchronize()
    assert native.graphs()[2] == before + 1
    torch.testing.assert_close(x, out + 2 * y)
    assert z.tolist() == [2.0] * 8


def test_profilers_see_plain_launches() -> None:
    kernel = tzero.kernel(five)
    x, y = pair()
    warm(kernel, x, y)
    with settings.override(graphs=1):
        if native.graphs()[4]:
            pytest.skip(f"no graphs here: {native.graphs()[4]}")
        warm(kernel, x, y)
        before = launches(kernel, x, y)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            kernel(x, y)
            torch.cuda.synchronize()
        assert launches(kernel, x, y) == before
        names = [event.name for event in profile.events()]
        assert sum("cuLaunchKernel" in name for name in names) >= 5, names
        kernel(x, y)
        assert launches(kernel, x, y) == before + 1


def test_launch_hooks_are_told_of_each_launch() -> None:
    kernel = tzero.kernel(five)
    x, y = pair()
    warm(kernel, x, y)
    seen: list[str] = []

    def note(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    knobs.runtime.launch_enter_hook.add(note)
    try:
        same(kernel(x, y), five(x, y))
    finally:
        knobs.runtime.launch_enter_hook.remove(note)
    assert len(seen) == 10, seen


def test_the_setting_ends_all_graphs() -> None:
    kernel = tzero.kernel(five)
    x, y = pair()
    warm(kernel, x, y)
    assert native.graphs()[0] == 1
    with settings.override(graphs=0):
        same(kernel(x, y), five(x, y))
        assert native.graphs()[0] == 0
        assert "TZERO_GRAPHS" in str(kernel.explain(x, y))
    warm(kernel, x, y)
    assert native.graphs()[0] == 1


# -- what is kept --------------------------------------------------------------------------------


def test_the_least_recently_used_graph_is_dropped() -> None:
    kernels = [tzero.kernel(lambda x, y: five(x, y)) for _ in range(5)]
    x, y = pair()
    expected = five(x, y)
    with settings.override(graphs_kept=2):
        for _ in range(3):
            for kernel in kernels:
                warm(kernel, x, y)
                same(kernel(x, y), expected)
                assert native.graphs()[0] <= 2
    with settings.override(graphs_kept=1):
        kernels[0](x, y)
        assert native.graphs()[0] == 1


def test_reset_drops_graphs() -> None:
    kernel = tzero.kernel(five)
    x, y = pair()
    warm(kernel, x, y)
    assert native.graphs()[0] == 1
    kernel.reset()
    assert native.graphs()[:2] == (0, 0)
    warm(kernel, x, y)
    assert native.graphs()[0] == 1
    del kernel
    import gc

    gc.collect()
    assert native.graphs()[:2] == (0, 0)


def test_events_tell_what_becomes_a_graph() -> None:
    seen: list[events.Event] = []
    kernel = tzero.kernel(five)
    x, y = pair()
    with events.observe(seen.append, calls=False):
        warm(kernel, x, y)
        with settings.override(graphs=0):
            warm(kernel, x, y)
    told = [str(each) for each in seen if each.kind == "graph"]
    assert told == [
        "five: graph: 5 launches and fills are one CUDA graph",
        "five: graph: no CUDA graph any more: the settings say so",
    ], seen


def calls_without_growth(count: int) -> None:
    kernel = tzero.kernel(five)
    pooled = tzero.kernel(pool=True)(five)
    sets = [pair() for _ in range(8)]
    for given in sets:
        warm(kernel, *given)
        warm(pooled, *given)

    def calls(times: int) -> tuple[int, int, tuple[int, ...]]:
        """Call each of them; the device's free memory, torch's, and what is kept."""
        for k in range(times):
            kernel(*sets[k & 7])
            pooled(*sets[k & 7])
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated(), native.graphs()[:3]

    before, lost = calls(count // 20), []  # the driver's own queues grow in the first calls
    for _ in range(4):  # other processes may take memory of the device meanwhile
        after = calls(count // 8)
        assert after[1:] == before[1:]
        lost.append(before[0] - after[0])
        before = after
    assert min(lost) < 1 << 20, lost
    same(kernel(*sets[0]), five(*sets[0]))


def test_calls_do_not_grow() -> None:
    calls_without_growth(20_000)


@pytest.mark.soak
def test_a_million_calls_do_not_grow() -> None:
    calls_without_growth(1_000_000)


# -- failures ------------------------------------------------------------------------------------


def test_no_memory_and_recovery() -> None:
    kernel, host = tzero.kernel(in_place), in_place
    x, y = pair(1 << 20)
    x.zero_()
    y.fill_(1)
    warm(kernel, x, y)
    assert launches(kernel, x, y) >= 1
    before = float(x[0])
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            held = [kernel(x, y) for _ in range(1 + free // x.nbytes)]
            del held
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    after = float(x[0])
    assert after > before  # the launch before the allocation was made, as it is plainly
    same(kernel(x, y), torch.full_like(x, after + 2))
    assert host(x, y)[0] == after + 3


def in_a_process(source: str, returns: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == returns, done.stdout + done.stderr
    return done.stdout


_PROGRAM = """
import os
os.environ.update(TZERO_GRAPHS="2", TZERO_GRAPHS_AFTER="1")
import torch, tzero
from tests.gpu.test_graphs import five, one, pair, warm, native
kernel = tzero.kernel(five)
launch = tzero.jit(__import__("tests.gpu.test_graphs", fromlist=["x"]).add_kernel.fn)
x, y = pair()
warm(kernel, x, y)
for _ in range(4):
    launch[(4,)](x, y, x.clone(), 4096, BLOCK=1024)
torch.cuda.synchronize()
assert native.graphs()[0] == 2, native.graphs()
"""


def test_a_process_ends_with_graphs() -> None:
    assert in_a_process(_PROGRAM + "print('end')").strip() == "end"


def test_a_forked_child_leaves_its_parents_graphs() -> None:
    program = """
child = os.fork()
if child == 0:
    kernel.reset()
    native.drop_graphs()
    del kernel, launch
    import gc
    gc.collect()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert torch.equal(kernel(x, y), five(x, y))
print(native.graphs()[0])
"""
    assert in_a_process(_PROGRAM + program).strip() == "2"


def test_a_reset_device_has_no_graphs_to_end() -> None:
    program = """
import ctypes
del x, y
library = ctypes.CDLL("libcudart.so.13") if os.path.exists("libcudart.so.13") else None
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuDevicePrimaryCtxReset_v2(0) == 0
kernel.reset()
native.drop_graphs()
assert native.graphs()[:2] == (0, 0)
print("reset", flush=True)
os._exit(0)
"""
    assert in_a_process(_PROGRAM + program).strip() == "reset"


def test_a_launch_that_fails_is_reported_as_a_plain_one() -> None:
    program = """
from tests.gpu.test_graphs import stored
broken = tzero.kernel(stored)
for _ in range(3):
    broken(x, 8)
torch.cuda.synchronize()
assert native.graphs()[0] == 3
broken(x, 1 << 60)
failed = []
for _ in range(3):
    try:
        torch.cuda.synchronize()
    except Exception as error:
        pass
    try:
        broken(x, 8)
    except Exception as error:
        failed.append(type(error).__name__)
print(failed, flush=True)
os._exit(0)
"""
    said = in_a_process(_PROGRAM + program)
    assert said.strip() == "['LaunchFailed', 'LaunchFailed', 'LaunchFailed']"
