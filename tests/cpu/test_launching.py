"""Launching through Triton: threads, forks, the GIL, tuning, hooks, warm-up and caches."""

from __future__ import annotations

import faulthandler
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cpu import libdevice as cpu_libdevice

from bench import kernels
from tests.cpu.cases import survives
from tests.cpu.childprocess import run_program
from tzero import settings

BLOCK = 1024


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Set torch's number of threads, and restore it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# -- threads --------------------------------------------------------------------------------------


@triton.jit
def crowd_kernel(live_ptr, peak_ptr, x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Counts how many programs are inside it at once."""
    inside = tl.atomic_add(live_ptr, 1) + 1
    tl.atomic_max(peak_ptr, inside)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    for _ in range(40):
        x = tl.exp(tl.sin(x)) * 0.25
    tl.store(out_ptr + at, x)
    tl.atomic_add(live_ptr, -1)


def crowd(programs: int) -> int:
    live, peak = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    x = torch.randn(programs * 4096)
    crowd_kernel[(programs,)](live, peak, x, torch.empty_like(x), BLOCK=4096)
    assert live.item() == 0
    return int(peak.item())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_grid_runs_on_as_many_threads_as_torch_has(
    threads: Callable[[int], None], count: int
) -> None:
    threads(count)
    # A thread runs its programs one after the other, so at most `count` are inside at once. On a
    # busy machine it may take a few tries until all threads are.
    peaks = [crowd(128)]
    while max(peaks) < count and len(peaks) < 50:
        peaks.append(crowd(128))
    assert max(peaks) == count


def test_small_grids_stay_on_the_calling_thread(tmp_path: Path) -> None:
    program = """
        import torch
        from bench import kernels
        from tzero.cpu import pool, triton_compat

        torch.set_num_threads(2)
        workers = pool.load(triton_compat.cache_directory()).workers
        x, y = torch.ones(64), torch.ones(64)
        for block in (16, 64):
            assert kernels.add(x, y, block=block).eq(2).all()
        print(workers())
        large = torch.ones(1 << 22)
        kernels.add(large, large, out=large)
        print(workers())
    """
    assert run_program(tmp_path, program).stdout.split() == ["0", "1"]


@triton.jit
def wait_for_flag_kernel(flag_ptr, seen_ptr, limit):
    seen = 0
    rounds = 0
    while (seen == 0) & (rounds < limit):
        seen = tl.atomic_add(flag_ptr, 0)
        rounds += 1
    tl.store(seen_ptr, seen)


def test_other_python_threads_run_during_a_launch() -> None:
    flag, seen = (torch.zeros(1, dtype=torch.int32) for _ in range(2))
    wait_for_flag_kernel[(1,)](flag, seen, 1)
    started = threading.Event()

    def raise_flag() -> None:
        started.wait()
        flag.fill_(1)

    helper = threading.Thread(target=raise_flag)
    helper.start()
    started.set()
    # Only the other Python thread can end this wait early, and it needs the GIL.
    wait_for_flag_kernel[(1,)](flag, seen, 500_000_000)
    helper.join()
    assert seen.item() == 1


@triton.jit
def power_kernel(x_ptr, out_ptr, n, POWER: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = x
    for _ in tl.static_range(POWER - 1):
        y = y * x
    tl.store(out_ptr + at, y, mask=at < n)


def test_many_python_threads_compile_and_launch_at_once() -> None:
    def work(index: int) -> None:
        power = index % 4 + 1
        x = torch.rand(20_000 + index)
        for _ in range(20):
            out = torch.zeros_like(x)
            grid = (triton.cdiv(x.numel(), BLOCK),)
            power_kernel[grid](x, out, x.numel(), POWER=power, BLOCK=BLOCK)
            torch.testing.assert_close(out, x**power)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, i) for i in range(16)]:
            done.result(timeout=120)


# -- forks ----------------------------------------------------------------------------------------


def with_deadline(work: Callable[[], None]) -> Callable[[], None]:
    """The work; if it hangs, the process exits with every thread's traceback."""

    def run() -> None:
        faulthandler.dump_traceback_later(60, exit=True, file=sys.__stderr__)
        work()
        faulthandler.cancel_dump_traceback_later()

    return run


class LargeAdd:
    """A launch on several threads, without torch's own threads, which would hang in a child."""

    def __init__(self) -> None:
        self.x, self.out = torch.ones(1 << 21), torch.zeros(1 << 21)

    def __call__(self) -> None:
        before = self.out[::4097].clone()
        kernels.add(self.x, self.out, self.out)
        assert torch.equal(self.out[::4097], before + 1)


def test_forked_child_launches_after_its_parent_did(threads: Callable[[int], None]) -> None:
    threads(2)
    add = LargeAdd()
    add()
    survives(with_deadline(add))
    add()


def test_forked_child_compiles_after_its_parent_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    add = LargeAdd()
    add()

    def compile_and_fork_again() -> None:
        x = torch.arange(50.0)
        assert torch.equal(kernels.add(x, x, block=128), x + x)
        survives(add)

    survives(with_deadline(compile_and_fork_again))


def test_fork_while_other_threads_launch() -> None:
    stop = threading.Event()

    def launch_until_stopped(add: LargeAdd) -> None:
        while not stop.is_set():
            add()

    adds = [LargeAdd() for _ in range(3)]
    adds[2]()
    helpers = [threading.Thread(target=launch_until_stopped, args=(add,)) for add in adds[:2]]
    for helper in helpers:
        helper.start()
    try:
        for _ in range(5):
            survives(with_deadline(adds[2]))
    finally:
        stop.set()
        for helper in helpers:
            helper.join()


# -- tuning and hooks -----------------------------------------------------------------------------


def test_autotune_times_every_configuration_and_keeps_the_result_right() -> None:
    timed: list[int] = []

    def note(arguments: dict[str, Any]) -> None:
        timed.append(arguments["BLOCK"])

    configs = [triton.Config({"BLOCK": b}, num_warps=2, pre_hook=note) for b in (64, 256)]
    tuned = triton.autotune(configs, key=["n"], reset_to_zero=["out_ptr"])(accumulate_kernel)
    x, out = torch.randn(3000), torch.zeros(3000)
    tuned[lambda meta: (triton.cdiv(3000, meta["BLOCK"]),)](x, out, 3000)
    torch.testing.assert_close(out, x)
    assert set(timed) == {64, 256}
    assert tuned.best_config in configs
    count = len(timed)
    tuned[lambda meta: (triton.cdiv(3000, meta["BLOCK"]),)](x, out, 3000)
    torch.testing.assert_close(out, 2 * x)
    assert len(timed) == count + 1


@triton.jit
def accumulate_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    total = tl.load(out_ptr + at, mask=mask) + tl.load(x_ptr + at, mask=mask)
    tl.store(out_ptr + at, total, mask=mask)


@triton.autotune(
    [triton.Config({"SCALE": 1}), triton.Config({"SCALE": 2})], key=[], restore_value=["x_ptr"]
)
@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def tuned_in_place_kernel(x_ptr, n, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


def test_heuristics_and_restored_values() -> None:
    x = torch.arange(100.0)
    tuned_in_place_kernel[(1,)](x, 100)
    assert torch.equal(x, torch.arange(100.0) + 1)


@triton.jit
def hooked_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)


def test_launch_hooks_run_around_the_kernel() -> None:
    x = torch.zeros(16)
    seen: list[tuple[str, str, float]] = []
    runtime = triton.knobs.runtime

    def enter(metadata: Any) -> None:
        seen.append(("enter", metadata.get()["name"], x[0].item()))

    def leave(metadata: Any) -> None:
        seen.append(("exit", metadata.get()["name"], x[0].item()))

    hooked_kernel[(1,)](x, BLOCK=16)
    runtime.launch_enter_hook.add(enter)
    runtime.launch_exit_hook.add(leave)
    try:
        hooked_kernel[(1,)](x, BLOCK=16)
    finally:
        runtime.launch_enter_hook.remove(enter)
        runtime.launch_exit_hook.remove(leave)
    hooked_kernel[(1,)](x, BLOCK=16)
    assert seen == [("enter", "hooked_kernel", 1.0), ("exit", "hooked_kernel", 2.0)]


def test_pre_run_hooks_see_the_arguments() -> None:
    seen: list[tuple[Any, ...]] = []

    def hook(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs["BLOCK"]))

    x = torch.zeros(16)
    hooked_kernel.add_pre_run_hook(hook)
    try:
        hooked_kernel[(1,)](x, BLOCK=16)
    finally:
        hooked_kernel.pre_run_hooks.remove(hook)
    assert len(seen) == 1
    assert seen[0][0][0] is x
    assert seen[0][1] == 16


def test_compile_hooks_fire_once_per_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def hook(**details: Any) -> None:
        names.append(details["fn"].name)

    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", hook)
    for _ in range(2):
        hooked_kernel[(1,)](torch.zeros(8), BLOCK=8)
    assert len(names) == 1
    assert names[0].endswith("hooked_kernel")


# -- warm-up and arguments ------------------------------------------------------------------------


@triton.jit
def scaled_kernel(x_ptr, out_ptr, n, scale=3.0, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * scale, mask=at < n)


def test_warmup_compiles_without_running() -> None:
    compiled = scaled_kernel.warmup(torch.float32, torch.float32, 100, 2.0, BLOCK=32, grid=(1,))
    assert {"ttir", "c", "so"} <= set(compiled.asm)
    assert "tz_kernel" in compiled.asm["c"]
    assert compiled.metadata.name == "scaled_kernel"
    x, out = torch.arange(100.0), torch.zeros(100)
    compiled[(4, 1, 1)](x, out, 100, 2.0, 32)
    assert torch.equal(out, x * 2)


def test_defaults_keywords_and_options_of_a_launch() -> None:
    x, out = torch.arange(100.0), torch.zeros(100)
    scaled_kernel[(2,)](x, out, 100)
    assert torch.equal(out, x * 3)
    scaled_kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](
        n=100, out_ptr=out, x_ptr=x, BLOCK=16, scale=-1.0, num_warps=8, num_stages=3
    )
    assert torch.equal(out, -x)
    kernel = scaled_kernel[(2,)](x, out, 100, num_ctas=1, enable_fp_fusion=False)
    assert kernel.name == "scaled_kernel"
    with pytest.raises(KeyError, match="no_such_option"):
        scaled_kernel[(2,)](x, out, 100, no_such_option=1)


def test_options_that_only_gpus_have_are_taken_and_change_nothing() -> None:
    x, out = torch.arange(100.0), torch.zeros(100)
    plain = scaled_kernel[(2,)](x, out, 100)
    given = {"waves_per_eu": 2, "matrix_instr_nonkdim": 16, "kpack": 2, "ptx_options": "-v"}
    kernel = scaled_kernel[(2,)](x, out, 100, **given)
    assert torch.equal(out, x * 3)
    assert kernel.hash == plain.hash, "the binary is the same"


@triton.jit
def powers_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, cpu_libdevice.exp2(tl.load(x_ptr + at)))


def test_functions_can_be_imported_from_where_other_cpu_backends_have_them() -> None:
    x, out = torch.arange(16.0), torch.zeros(16)
    powers_kernel[(1,)](x, out, 16)
    assert torch.equal(out, torch.exp2(x))


def test_one_kernel_specializes_on_arguments() -> None:
    whole = torch.arange(300.0)
    out = torch.zeros(100)
    for x in (whole[:100], whole[1:101], whole[3:103].double(), whole[:100].half()):
        for n in (1, 16, 100):
            out.zero_()
            scaled_kernel[(2,)](x, out, n, 1)
            assert torch.equal(out[:n], x[:n].float())
            assert not out[n:].any()


def test_tensors_that_require_gradients() -> None:
    x = torch.arange(100.0, requires_grad=True)
    out = torch.zeros(100)
    scaled_kernel[(2,)](x, out, 100)
    assert torch.equal(out, x.detach() * 3)


def test_triton_testing_benchmarks_a_kernel() -> None:
    x, out = torch.arange(100.0), torch.zeros(100)
    calls = 0

    def once() -> None:
        nonlocal calls
        calls += 1
        scaled_kernel[(2,)](x, out, 100)

    time = triton.testing.do_bench(once, warmup=1, rep=3)
    assert time > 0
    assert calls > 3


def test_kernel_whose_source_lives_in_memory() -> None:
    source = (
        "import triton\nimport triton.language as tl\n\n"
        "@triton.jit\ndef kernel(x_ptr):\n    tl.store(x_ptr, tl.load(x_ptr) + 41)\n"
    )
    name = "<a kernel made of text>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "made_of_text"}
    exec(compile(source, name, "exec"), scope)
    x = torch.ones(1)
    scope["kernel"][(1,)](x)
    assert x.item() == 42


def test_changed_global_is_tritons_error() -> None:
    x = torch.zeros(1)
    global_kernel[(1,)](x)
    assert x.item() == 5
    global FACTOR
    before, FACTOR = FACTOR, tl.constexpr(6)
    try:
        with pytest.raises(RuntimeError, match="FACTOR has changed"):
            global_kernel[(1,)](x)
    finally:
        FACTOR = before


FACTOR = tl.constexpr(5)


@triton.jit
def global_kernel(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + FACTOR)


# -- caches and activation ------------------------------------------------------------------------

MAIN = """
    import torch, triton, triton.language as tl

    @triton.jit
    def small_kernel(x_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)

    if __name__ == "__main__":
        x = torch.zeros(16)
        small_kernel[(1,)](x, BLOCK=16)
        assert x.eq(1).all()
"""


def add_one(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 1)


class LoggedCompiler:
    """A compiler that logs each of its runs."""

    def __init__(self, folder: Path, name: str = "logged-cc") -> None:
        self.log = folder / "log"
        self.path = folder / name
        self.path.write_text(f'#!/bin/sh\necho "$@" >> "{self.log}"\nexec cc "$@"\n')
        self.path.chmod(0o755)
        self.log.write_text("")

    def built(self, kernel: str) -> int:
        """How often a kernel was compiled since the last call."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return sum("-shared" in line and f"{kernel}.c" in line for line in lines)


def test_second_process_compiles_nothing(tmp_path: Path) -> None:
    compiler = LoggedCompiler(tmp_path)
    run_program(tmp_path, MAIN, TZERO_CC=str(compiler.path))
    assert compiler.built("small_kernel") == 1
    run_program(tmp_path, MAIN, TZERO_CC=str(compiler.path))
    assert "-shared" not in compiler.log.read_text()


def test_compiled_kernels_are_keyed_by_compiler_flags_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton_cache"))
    compiler, other = LoggedCompiler(tmp_path), LoggedCompiler(tmp_path, "other-cc")

    def built(*command: str | Path, **more: Any) -> int:
        x = torch.zeros(1)
        with settings.override(cc=tuple(map(str, command)), **more):
            triton.jit(add_one)[(1,)](x)  # a new function: not in Triton's cache in memory
        assert x.item() == 1
        return compiler.built("add_one")

    assert built(compiler.path) == 1
    assert built(compiler.path) == 0
    assert built(compiler.path, "-DOTHER_FLAGS") == 1
    assert built(other.path) == 1
    assert built(compiler.path, cpu_check=True) == 1
    assert built(compiler.path) == 0


def test_backend_can_be_turned_off(tmp_path: Path) -> None:
    program = """
        import triton
        try:
            print(triton.runtime.driver.active.get_current_target().backend)
        except RuntimeError as error:
            print(error)
    """
    assert triton.runtime.driver.active.get_current_target().backend == "cpu"
    off = run_program(tmp_path, program, fresh=True, TZERO_CPU="0").stdout
    assert "0 active drivers" in off or off.strip() in ("cuda", "hip")
