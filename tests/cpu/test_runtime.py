"""The thread pool: grids, threads, forks, process exit, scratch memory, failed checks."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cpu.childprocess import run_program
from tests.cpu.handwritten import (
    COUNT,
    COUNTERS,
    FLAGS,
    MEET,
    MUCH,
    RAISE,
    RAISING,
    SCRATCH,
    SITES,
    WAIT,
    Kernel,
)
from tzero.cpu import pool, toolchain
from tzero.errors import KernelAssertion, OutOfBounds

PATH = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)


@pytest.fixture(autouse=True)
def threads() -> Iterator[Callable[[int], None]]:
    """Set torch's number of threads, and restore it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def in_background(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# ---- grids --------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(1, 1, 1), (7, 1, 1), (5, 4, 3), (1, 1, 1000), (9999, 1, 1)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_program_runs_once(
    grid: tuple[int, int, int], count: int, threads: Callable[[int], None]
) -> None:
    threads(count)
    counts = torch.zeros(math.prod(grid), dtype=torch.int32)
    where = torch.zeros(math.prod(grid), dtype=torch.int64)
    Kernel(COUNT, COUNTERS)(grid, counts, where)
    assert counts.eq(1).all()
    assert len(set(where.tolist())) <= count


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (4, 4, 0), (-1, 1, 1)])
def test_an_empty_grid_runs_nothing_and_still_calls_the_hooks(grid: tuple[int, int, int]) -> None:
    seen: list[str] = []
    counts, where = torch.zeros(16, dtype=torch.int32), torch.zeros(16, dtype=torch.int64)
    kernel = Kernel(COUNT, COUNTERS)
    kernel(
        grid, counts, where, enter=lambda _: seen.append("in"), exit=lambda _: seen.append("out")
    )
    assert not counts.any()
    assert seen == ["in", "out"]


@pytest.mark.parametrize(("programs", "work"), [(1, MUCH), (100, 1)])
def test_small_grids_stay_on_the_calling_thread(
    programs: int, work: int, threads: Callable[[int], None]
) -> None:
    threads(4)
    counts, where = torch.zeros(100, dtype=torch.int32), torch.zeros(100, dtype=torch.int64)
    Kernel(COUNT, COUNTERS, cpu_work=work)((programs, 1, 1), counts, where)
    assert where[:programs].eq(threading.get_native_id()).all()


def test_as_many_threads_as_torch_has_take_part(threads: Callable[[int], None]) -> None:
    """Also when the number changes from launch to launch."""
    kernel = Kernel(MEET, {"arrived": "*i32", "thread": "*i64"})
    for count in (2, 1, 5, 3, 8, 2):
        threads(count)
        where = torch.zeros(count, dtype=torch.int64)
        kernel((count, 1, 1), torch.zeros(1, dtype=torch.int32), where)
        assert len(set(where.tolist())) == count


def test_a_grid_of_more_programs_than_can_be_counted_is_an_error() -> None:
    with pytest.raises(ValueError, match="too many"):
        Kernel(COUNT, COUNTERS)((2**31 - 1,) * 3, None, None)


def test_a_grid_size_beyond_32_bits_is_an_error() -> None:
    with pytest.raises(OverflowError, match="test_kernel: the grid's y is 2147483648"):
        Kernel(COUNT, COUNTERS)((1, 2**31, 1), None, None)


# ---- several launches at once -------------------------------------------------------------------


def test_many_threads_launch_at_once(threads: Callable[[int], None]) -> None:
    threads(3)
    kernel = Kernel(COUNT, COUNTERS)

    def launch(seed: int) -> bool:
        right = True
        for step in range(60):
            programs = 1 + (seed * 31 + step * 7) % 50
            counts = torch.zeros(64, dtype=torch.int32)
            kernel((programs, 1, 1), counts, torch.zeros(64, dtype=torch.int64))
            right &= int(counts.sum()) == programs and bool(counts[:programs].eq(1).all())
        return right

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(launch, range(16)))


def test_a_launch_does_not_wait_for_another_and_the_gil_is_released(
    threads: Callable[[int], None],
) -> None:
    threads(2)
    begun, release = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    waiting = Kernel(WAIT, FLAGS)
    blocked = in_background(lambda: waiting((2, 1, 1), begun, release))
    while begun.item() < 2:  # this loop runs only while the other thread does not hold the GIL
        pass
    counts = torch.zeros(1000, dtype=torch.int32)
    Kernel(COUNT, COUNTERS)((1000, 1, 1), counts, torch.zeros(1000, dtype=torch.int64))
    assert counts.eq(1).all()
    assert blocked.is_alive()
    release.fill_(1)
    blocked.join(60)
    assert not blocked.is_alive()


def test_helpers_use_the_callers_denormal_mode(threads: Callable[[int], None]) -> None:
    body = MEET.replace("int64_t *thread;", "float *x;").replace("a->thread[p] = thread();", "")
    body = body.replace(
        "EACH_PROGRAM {", "EACH_PROGRAM { volatile float v = a->x[p]; a->x[p] = v * 0.5f;"
    )
    kernel = Kernel(body, {"arrived": "*i32", "x": "*fp32"})
    threads(3)
    for flush in (True, False, True):
        if not torch.set_flush_denormal(flush):
            pytest.skip("this CPU does not flush denormals")
        try:
            bits = torch.full((3,), 0x400000, dtype=torch.int32)
            kernel((3, 1, 1), torch.zeros(1, dtype=torch.int32), bits)
            assert bits.tolist() == [0 if flush else 0x200000] * 3
        finally:
            torch.set_flush_denormal(False)


CHILD = """
    import os, sys, threading, time
    import torch, triton
    from tests.cpu import handwritten as t

    torch.set_num_threads(3)
    kernel = t.Kernel(t.COUNT, t.COUNTERS)
    meet = t.Kernel(t.MEET, {"arrived": "*i32", "thread": "*i64"})

    def launch():
        counts = torch.zeros(500, dtype=torch.int32)
        kernel((500, 1, 1), counts, torch.zeros(500, dtype=torch.int64))
        assert counts.eq(1).all()

    def launch_on_three():
        where = torch.zeros(3, dtype=torch.int64)
        meet((3, 1, 1), torch.zeros(1, dtype=torch.int32), where)
        assert len(set(where.tolist())) == 3

    def in_child(work):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0, status
                return
            time.sleep(0.002)
        os.kill(child, 9)
        raise AssertionError("the child hangs")
"""


def test_a_forked_child_launches_on_threads_of_its_own(tmp_path: Path) -> None:
    program = (
        CHILD
        + """
    launch_on_three()
    in_child(launch_on_three)
    in_child(lambda: in_child(launch_on_three))
    launch_on_three()
    """
    )
    run_program(tmp_path, program, PYTHONPATH=PATH)


def test_a_child_forked_in_the_middle_of_launches_works(tmp_path: Path) -> None:
    program = (
        CHILD
        + """
    # A child forked while another thread is in torch's first call of an operator waits forever for
    # that operator's static variables.
    launch()
    launch_on_three()
    stop = False
    def launch_on_and_on():
        while not stop:
            launch()
    others = [threading.Thread(target=launch_on_and_on) for _ in range(3)]
    for other in others: other.start()
    try:
        for _ in range(40):
            in_child(launch_on_three)
    finally:
        stop = True
    for other in others: other.join()
    """
    )
    run_program(tmp_path, program, PYTHONPATH=PATH)


@pytest.fixture(scope="module")
def exits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What processes write to stderr that exit while threads launch, by how they exit."""
    # The loops only launch: a thread inside torch itself can abort the process when Python ends.
    program = (
        CHILD
        + """
    def launch_on_and_on():
        counts, where = torch.zeros(500, dtype=torch.int32), torch.zeros(500, dtype=torch.int64)
        while True:
            kernel((500, 1, 1), counts, where)

    def start_launching():
        for _ in range(2):
            threading.Thread(target=launch_on_and_on, daemon=True).start()
        time.sleep(0.1)

    for end in (sys.exit, os._exit):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(f"{end.__name__}.txt", os.O_WRONLY | os.O_CREAT), 2)
            start_launching()
            end(0)
        assert os.waitpid(child, 0)[1] == 0, end
    start_launching()
    """
    )
    folder = tmp_path_factory.mktemp("exits")
    done = run_program(folder, program, PYTHONPATH=PATH)
    return {
        "pass": done.stderr,
        "sys.exit(0)": (folder / "exit.txt").read_text(),
        "os._exit(0)": (folder / "_exit.txt").read_text(),
    }


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "os._exit(0)"])
def test_the_process_ends_cleanly_while_threads_launch(exits: dict[str, str], ending: str) -> None:
    assert exits[ending] == ""


# ---- scratch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 64, 1000, 1 << 20])
def test_scratch_is_aligned_and_private_to_a_thread(
    size: int, threads: Callable[[int], None]
) -> None:
    threads(4)
    where = torch.zeros(40, dtype=torch.int64)
    kernel = Kernel(SCRATCH, {"where": "*i64", "size": "i64"}, cpu_scratch=size)
    kernel((40, 1, 1), where, size)
    assert where.remainder(64).eq(0).all()
    assert where.ne(0).all()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_very_large_scratch_is_given_back_after_the_launch(threads: Callable[[int], None]) -> None:
    threads(1)
    size = 256 << 20
    kernel = Kernel(SCRATCH, {"where": "*i64", "size": "i64"}, cpu_scratch=size)
    before = resident_bytes()
    kernel((1, 1, 1), torch.zeros(1, dtype=torch.int64), size)
    assert resident_bytes() - before < size // 2


@pytest.mark.parametrize("size", [1 << 62, 2**64 - 1])
@pytest.mark.parametrize("cooperative", [False, True])
def test_scratch_that_cannot_be_allocated_is_an_error(size: int, cooperative: bool) -> None:
    kernel = Kernel(COUNT, COUNTERS, cpu_scratch=size, launch_cooperative_grid=cooperative)
    counts, where = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(MemoryError, match=f"test_kernel: cannot allocate {size} bytes"):
        kernel((8, 1, 1), counts, where)
    assert not counts.any()


# ---- failed checks ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_a_false_assertion_raises_in_the_caller_and_stops_the_grid(
    count: int, threads: Callable[[int], None]
) -> None:
    threads(count)
    kernel = Kernel(RAISE, RAISING, cpu_sites=SITES)
    ran = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(KernelAssertion) as caught:
        kernel((10, 20, 100), ran, 0, 0)
    error = caught.value
    assert (error.message, error.kernel) == ("index < size", "test_kernel")
    assert (error.file, error.line) == ("model.py", 12)
    assert ran.item() <= count
    kernel((10, 20, 100), ran, 10**9, 0)  # and the next launch starts from a clean status


def test_the_failing_program_is_named() -> None:
    with pytest.raises(KernelAssertion) as caught:
        Kernel(RAISE, RAISING, cpu_sites=SITES, cpu_work=0)((3, 4, 5), torch.zeros(1), 31, 0)
    assert caught.value.program == (1, 2, 2)


def test_an_access_out_of_bounds_names_argument_offset_and_size() -> None:
    with pytest.raises(OutOfBounds) as caught:
        Kernel(RAISE, RAISING, cpu_sites=SITES)((1, 1, 1), torch.zeros(6), 0, 1)
    error = caught.value
    assert (error.argument, error.offset, error.size) == ("x_ptr", 1000, 6)
    assert (error.kernel, error.file, error.line) == ("test_kernel", "model.py", 13)


# ---- cooperative grids --------------------------------------------------------------------------


def test_all_programs_of_a_cooperative_grid_run_at_the_same_time(
    threads: Callable[[int], None],
) -> None:
    threads(1)
    where = torch.zeros(60, dtype=torch.int64)
    kernel = Kernel(MEET, {"arrived": "*i32", "thread": "*i64"}, launch_cooperative_grid=True)
    kernel((5, 4, 3), torch.zeros(1, dtype=torch.int32), where)
    assert len(set(where.tolist())) == 60


def test_a_cooperative_grid_that_is_too_large_is_an_error() -> None:
    kernel = Kernel(COUNT, COUNTERS, launch_cooperative_grid=True)
    with pytest.raises(ValueError, match=r"launch_cooperative_grid .* at most 4096"):
        kernel((4097, 1, 1), None, None)


def test_a_failed_check_in_a_cooperative_grid_raises() -> None:
    kernel = Kernel(RAISE, RAISING, cpu_sites=SITES, launch_cooperative_grid=True)
    with pytest.raises(KernelAssertion):
        kernel((8, 1, 1), torch.zeros(1), 0, 0)


# ---- the library --------------------------------------------------------------------------------


def test_the_pool_is_built_once_and_again_where_the_file_is_broken(tmp_path: Path) -> None:
    program = """
        import os, sys
        from pathlib import Path
        import triton
        from tzero import processes
        from tzero.cpu import pool

        objects = Path(sys.argv[0]).parent / "objects"

        def load():
            runs = []
            original = processes.run
            processes.run = lambda *a, **k: (runs.append(a), original(*a, **k))[1]
            assert pool.load(objects).workers() == 0
            print(sum("-shared" in command for command, in runs), flush=True)

        def load_in_a_new_process():
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    load()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0

        load_in_a_new_process()
        load_in_a_new_process()
        (stored,) = objects.iterdir()
        stored.write_bytes(stored.read_bytes()[:1000])
        load_in_a_new_process()
        load_in_a_new_process()
    """
    assert run_program(tmp_path, program, PYTHONPATH=PATH).stdout.split() == ["1", "0", "1", "0"]


def test_pool_c_compiles_without_warnings() -> None:
    warnings = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-pthread"]
    warnings.append("-Wno-ignored-optimization-argument")  # clang, about gcc's flags
    source = (pool.RUNTIME / "pool.c").read_text(encoding="utf-8")
    compiler = toolchain.find()
    loud = toolchain.Toolchain(
        command=compiler.command,
        version=compiler.version,
        flags=tuple(flag for flag in compiler.flags if flag != "-w"),
        linking=compiler.linking,
        features=compiler.features,
        fingerprint=compiler.fingerprint,
    )
    loud.build(source, "pool", [pool.RUNTIME], warnings, optimization=2)
