"""A config that crashes, hangs or takes all memory ends only its process; processes end with their
parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tzero import Config, events, settings
from tzero.arguments.host import Host, read_host
from tzero.errors import InvalidArgument
from tzero.launches.ahead import Precompiled, precompile_host
from tzero.tune import isolated
from tzero.tune.isolated import Isolated
from tzero.tune.trial import ReferenceFailed, as_written

FIRST = Config(BLOCK=64, does="")


@triton.jit
def doubled(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def hang(config: Config) -> None:
    Path(config.file).touch()
    while True:
        pass


def hang_with_child(config: Config) -> None:
    started = subprocess.Popen(["sleep", "1000"])
    written = Path(config.file + ".new")
    written.write_text(str(started.pid))
    written.rename(config.file)
    hang(config)


def tell(config: Config) -> None:
    raise ValueError(f"{settings.current().cpu_check} {torch.is_grad_enabled()} {os.getpid()}")


def leave(config: Config) -> None:
    os._exit(3)


def be_killed(config: Config) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def take_memory(config: Config) -> None:
    bytearray(1 << 62)


DEEDS: dict[str, Callable[[Config], None]] = {
    "": lambda config: None,
    "crash": lambda config: print(ctypes.string_at(0)),
    "hang": hang,
    "hang with child": hang_with_child,
    "leave": leave,
    "be killed": be_killed,
    "take memory": take_memory,
    "tell": tell,
}


def double(x: torch.Tensor, config: Config) -> torch.Tensor:
    DEEDS[config.does](config)
    doubled[(triton.cdiv(x.numel(), config.BLOCK),)](x, x.numel(), BLOCK=config.BLOCK)
    return x + ("wrong" in config)


def read(function: Callable[..., Any]) -> Host[Any]:
    return read_host(function, FIRST)


def does(what: str, block: int = 64, **more: Any) -> Config:
    return Config(BLOCK=block, does=what, **more)


def asked(bench: Isolated, config: Config) -> Any:
    return bench.outcome(config, budget=0.05, best=None)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # a zombie of another parent; one that the kernel is about to remove


def await_file(file: Path) -> None:
    while not file.exists():
        time.sleep(0.02)


def clock_after(file: Path) -> SimpleNamespace:
    """A clock that stands still until a candidate has written a file; then 10 s pass each time that
    it is read."""
    passed = [0.0]

    def monotonic() -> float:
        passed[0] += 10.0 * file.exists()
        return passed[0]

    return SimpleNamespace(monotonic=monotonic, sleep=time.sleep)


def await_end(pid: int) -> None:
    """Wait until a process has ended, without a limit: no machine is too slow."""
    while is_alive(pid):
        time.sleep(0.02)


@pytest.fixture(scope="module")
def bench() -> Iterator[Isolated]:
    """One for all tests that leave a process that answers; starting one takes seconds."""
    with settings.override(cpu_check=True), torch.no_grad():
        made = Isolated(read(double), (torch.ones(1000),), reference=FIRST, limit=60)
        asked(made, FIRST)
    with made:
        yield made


# -- candidates that leave the process running ----------------------------------------------------


def test_a_config_that_is_right_is_timed_and_one_process_times_them_all(bench: Isolated) -> None:
    found = [asked(bench, config) for config in (FIRST, does("", 128), does("", 256))]
    assert all(each.usable and each.samples > 0 for each in found)
    before = bench.pid
    assert asked(bench, does("", 512)).usable
    assert bench.pid == before != os.getpid()


def test_a_config_that_raises_or_is_wrong_has_a_problem_and_the_process_goes_on(
    bench: Isolated,
) -> None:
    before = bench.pid
    found = asked(bench, does("take memory"))
    assert found.problem.startswith("MemoryError") and found.passing
    assert asked(bench, does("", wrong=True)).problem.startswith("its results are wrong: result is")
    assert asked(bench, FIRST).usable and bench.pid == before


def test_a_config_that_is_slower_than_the_best_is_given_up(bench: Isolated) -> None:
    assert bench.outcome(FIRST, budget=10.0, best=1e-12).samples < 10


def test_the_process_has_the_settings_and_modes_of_its_parent(bench: Isolated) -> None:
    told = asked(bench, does("tell")).problem
    assert told == f"ValueError: True False {bench.pid}"
    assert not settings.current().cpu_check


def test_the_process_ignores_ctrl_c(bench: Isolated) -> None:
    before = bench.pid
    assert before is not None
    assert os.getpgid(before) == before != os.getpgid(0)  # a terminal does not send it SIGINT
    os.kill(before, signal.SIGINT)
    assert asked(bench, FIRST).usable and bench.pid == before


# -- candidates that end the process --------------------------------------------------------------


def test_an_interrupted_wait_ends_the_process_and_the_next_config_gets_a_new_one(
    bench: Isolated, tmp_path: Path
) -> None:
    assert asked(bench, FIRST).usable
    before, file = bench.pid, tmp_path / "begun"
    assert before is not None

    def interrupt() -> None:
        await_file(file)
        os.kill(os.getpid(), signal.SIGINT)

    stop = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        stop.start()
        asked(bench, does("hang", file=str(file)))
    stop.join()
    assert not Path(f"/proc/{before}").exists()
    assert asked(bench, FIRST).usable


@pytest.mark.parametrize(
    ("what", "problem", "passing"),
    [
        ("crash", "it crashed: killed by SIGSEGV", False),
        ("leave", "it crashed: it ended by itself with exit code 3", False),
        ("be killed", "it crashed: killed by SIGKILL (out of memory?)", True),
    ],
)
def test_a_crash_is_one_configs_problem_and_passes_if_another_process_killed_it(
    bench: Isolated, what: str, problem: str, passing: bool
) -> None:
    assert asked(bench, FIRST).usable
    before = bench.pid
    assert before is not None
    found = asked(bench, does(what))
    assert (found.problem, found.passing) == (problem, passing)
    assert not Path(f"/proc/{before}").exists()  # not even a zombie
    assert bench.pid is None


def test_a_hang_is_one_configs_problem_and_all_that_it_started_is_killed(
    bench: Isolated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(bench, FIRST).usable
    before, file = bench.pid, tmp_path / "pid"
    assert before is not None
    monkeypatch.setattr(bench, "_limit", 1.0)
    monkeypatch.setattr(isolated, "_POLL", 0.05)
    monkeypatch.setattr(isolated, "time", clock_after(file))
    found = asked(bench, does("hang with child", file=str(file)))
    assert found.problem == "it hung: no answer within 1.05 s"
    assert found.passing
    assert not Path(f"/proc/{before}").exists() and bench.pid is None
    await_end(int(file.read_text()))


def test_a_hang_takes_at_most_half_of_what_is_left_of_the_budget(
    bench: Isolated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(bench, FIRST).usable
    file = tmp_path / "begun"
    monkeypatch.setattr(bench, "_until", 20.0)
    monkeypatch.setattr(isolated, "_POLL", 0.05)
    monkeypatch.setattr(isolated, "time", clock_after(file))
    found = asked(bench, does("hang", file=str(file)))
    assert found.problem == (
        "it hung: no answer within 10 s, which is half of what was left of the budget"
    )
    assert found.passing


@pytest.mark.parametrize(("one_worked", "limit"), [(True, 2.0), (False, 10.0)])
def test_after_the_budget_a_candidate_still_gets_seconds_to_answer(
    bench: Isolated, monkeypatch: pytest.MonkeyPatch, one_worked: bool, limit: float
) -> None:
    monkeypatch.setattr(bench, "_until", 0.0)
    monkeypatch.setattr(bench, "_one_worked", one_worked)
    assert bench._limited(60.0) == limit
    assert bench._limited(0.5) == 0.5


def test_a_reference_that_crashes_is_reported_and_can_be_replaced() -> None:
    bench = Isolated(read(double), (torch.ones(9),), reference=does("take memory"))
    found = asked(bench, does("take memory"))
    assert found.problem.startswith("MemoryError") and found.passing
    bench.set_reference(does("crash"))
    assert asked(bench, does("crash")).problem == "it crashed: killed by SIGSEGV"
    with pytest.raises(ReferenceFailed, match="killed by SIGSEGV"):
        asked(bench, FIRST)
    bench.set_reference(FIRST)
    assert asked(bench, does("", 128)).usable
    assert asked(bench, does("", wrong=True)).problem.startswith("its results are wrong")
    last = bench.pid
    del bench  # without closing it
    assert last is not None and not Path(f"/proc/{last}").exists()


def test_candidates_are_timed_where_sigchld_is_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Isolated(read(double), (torch.ones(1000),), reference=FIRST) as bench:
            assert asked(bench, FIRST).usable
            found = asked(bench, does("crash", 128))
            assert found.problem == "it crashed: its exit code is unknown" and found.passing
            assert asked(bench, does("", 128)).usable
            last = bench.pid
        assert last is not None and not is_alive(last)
    finally:
        signal.signal(signal.SIGCHLD, before)


# -- what is sent to the process ------------------------------------------------------------------


def entries(root: Path) -> set[Path]:
    """The files of compiled kernels in a cache directory."""
    others = {"tuned", "stamps"}
    return {each for each in root.rglob("*") if each.is_file() and others.isdisjoint(each.parts)}


def test_a_closure_is_timed_and_its_compiled_kernels_come_from_the_cache(
    tmp_path: Path,
) -> None:
    @triton.jit
    def tripled(x_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + at, 3 * tl.load(x_ptr + at, mask=at < n), mask=at < n)

    def triple(x: torch.Tensor, config: Config) -> None:
        tripled[(triton.cdiv(x.numel(), config.BLOCK),)](x, x.numel(), BLOCK=config.BLOCK)

    x = torch.ones(1000)
    with settings.override(cache_dir=str(tmp_path), compile_workers=1):
        host, ahead = read(triple), Precompiled()
        for config in (FIRST, does("", 128)):
            precompile_host("triple", host.configured(triple, config), (x,), ahead)
        ahead.wait()
        compiled = entries(tmp_path)
        assert compiled
        with Isolated(host, (x,), reference=FIRST) as bench:
            assert asked(bench, FIRST).usable and asked(bench, does("", 128)).usable
            assert entries(tmp_path) == compiled
            assert asked(bench, does("", 256)).usable
            assert entries(tmp_path) > compiled  # that one was not compiled before
            last = bench.pid
    assert last is not None and not Path(f"/proc/{last}").exists()
    with pytest.raises(ValueError, match="this Isolated is closed"):
        asked(bench, FIRST)
    assert x.sum() == 1000


ANNOTATED = """
    from __future__ import annotations
    import torch
    import tzero
    from tzero import Config, ConstExpr

    def scaled(x: torch.Tensor, by: ConstExpr, *, config: Config) -> torch.Tensor:
        return x * by

    if __name__ == "__main__":
        kernel = tzero.kernel(configs=[Config(B=1), Config(B=2)])(scaled)
        found = kernel.autotune(torch.ones(10), 3, isolate=True, force=True)
        print([outcome.problem for outcome in found.outcomes.values()])
"""


def test_names_that_only_annotations_use_are_not_missed_in_the_process(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(ANNOTATED))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.stdout == "['', '']\n", done.stderr


def test_a_module_that_the_process_cannot_import_is_reported() -> None:
    module = type(sys)("only_here")
    exec("def host(x, config):\n    return x", vars(module))
    sys.modules["only_here"] = module
    try:
        with Isolated(read(module.host), (torch.ones(3),), reference=FIRST) as bench:
            with pytest.raises(InvalidArgument, match=r"ModuleNotFoundError: .*only_here"):
                asked(bench, FIRST)
            assert bench.pid is None
    finally:
        del sys.modules["only_here"]


SCRIPT = """
    import ctypes
    import torch, triton, triton.language as tl
    from tzero import Config
    from tzero.arguments.host import read_host
    from tzero.tune.isolated import Isolated

    @triton.jit
    def filled(x_ptr, BLOCK: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), 5.0)

    def fill(x, config):
        if config.BLOCK == 8:
            print("hangs", flush=True)
            ctypes.PyDLL(None).pause()  # holds the GIL
        filled[(1,)](x, BLOCK=config.BLOCK)

    print("main", flush=True)
    first = Config(BLOCK=16)
    bench = Isolated(read_host(fill, first), (torch.ones(16),), reference=first)
    print(bench.outcome(first, budget=0.05, best=None).usable, bench.pid, flush=True)
    bench.outcome(Config(BLOCK=8), budget=0.05, best=None)
"""


def test_the_main_module_is_not_run_again_and_a_hanging_process_ends_with_its_parent(
    tmp_path: Path,
) -> None:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "main\n"
        answer, pid = process.stdout.readline().split()
        assert answer == "True" and is_alive(int(pid))
        assert process.stdout.readline() == "hangs\n"
        process.kill()
        await_end(int(pid))
        assert process.stdout.read() == ""


# -- on a GPU -------------------------------------------------------------------------------------


@triton.jit
def strayed(x_ptr, far, BLOCK: tl.constexpr):
    tl.store(x_ptr + far + tl.arange(0, BLOCK), 1.0)


def stray(x: torch.Tensor, config: Config) -> None:
    strayed[(1,)](x, 1 << 45 if config.does == "stray" else 0, BLOCK=config.BLOCK)


@pytest.mark.gpu
def test_after_an_illegal_access_on_a_gpu_the_next_config_gets_a_new_process() -> None:
    x = torch.zeros(64, device="cuda")
    with Isolated(read(stray), (x,), reference=FIRST) as bench:
        assert asked(bench, FIRST).usable
        before = bench.pid
        assert "illegal" in asked(bench, does("stray")).problem
        assert bench.pid is None
        assert asked(bench, FIRST).usable and bench.pid != before
    torch.cuda.synchronize()
    assert x.sum() == 0


def test_a_process_that_the_exit_has_ended_is_not_ended_again() -> None:
    with Isolated(read(double), (torch.ones(1000),), reference=FIRST) as bench:
        assert asked(bench, FIRST).usable and bench._end is not None
        bench._end()  # as at exit, while another thread waits for an answer
        assert asked(bench, FIRST).passing and bench.pid is None


def unwatched(host: Host[Any], config: Config) -> Any:
    """How a search calls a function; it fails where an observer gets hits and launches."""

    def called(*args: Any) -> Any:
        with events.observe(lambda event: None):
            assert not events.watched(), "calls are watched"
        return as_written(host, config)(*args)

    return called


def test_observers_do_not_slow_down_what_is_timed() -> None:
    with Isolated(read(double), (torch.ones(8),), reference=FIRST, called=unwatched) as bench:
        assert asked(bench, FIRST).problem == ""


@pytest.mark.parametrize(("program", "code"), [("sleep 1000", None), ("exit 3", 3)])
def test_a_process_that_was_killed_for_taking_long_did_not_crash(
    program: str, code: int | None
) -> None:
    process = subprocess.Popen(["sh", "-c", program], process_group=0)
    mine, its = isolated.Pipe()
    its.close()
    child = isolated._Child(process, mine, os.open(os.devnull, os.O_RDONLY))
    assert child.end(0.05 if code is None else 60) == code
