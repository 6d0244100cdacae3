"""`tzero.install`: every launch does what it does without tzero, and is native."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.autotuner import Autotuner

import tzero
from tests.unit.test_locks import forked
from tzero.adapters import triton_entries
from tzero.api.install import Installed, KernelLaunches
from tzero.errors import InvalidArgument, InvalidKernel
from tzero.events import observe
from tzero.launches.python import PythonJit

pytestmark = pytest.mark.skipif(tzero.launches.tiers.tier() < 2, reason="about native launches")


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def entries() -> dict[str, Any]:
    return {key: vars(kind)[name] for key, (kind, name) in triton_entries.ENTRIES.items()}


@pytest.fixture
def installed() -> Iterator[None]:
    before = entries()
    tzero.install()
    yield
    tzero.uninstall()
    assert entries() == before


# -- kernels, new ones for each test ---------------------------------------------------------------


def _add(x, y, out, n, BLOCK: tl.constexpr, TIMES: tl.constexpr = 1):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total * TIMES, mask=inside)


def plain() -> Any:
    return triton.jit(_add)


CONFIGS = ({"BLOCK": 32}, {"BLOCK": 64})


def configs(**options: Any) -> list[Any]:
    return [triton.Config(dict(each), num_warps=4, **options) for each in CONFIGS]


def tuned(**options: Any) -> Any:
    return triton.autotune(configs(), key=["n"], **options)(plain())


def with_one_config() -> Any:
    return triton.autotune(configs()[:1], key=["n"])(plain())


def with_heuristics() -> Any:
    return triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["n"])})(plain())


def heuristics_around_tuner() -> Any:
    return triton.heuristics({"TIMES": lambda given: 1 + given["n"] // 1000})(tuned())


def tuner_around_heuristics() -> Any:
    inside = triton.heuristics({"TIMES": lambda given: 1 + given["BLOCK"] // 1000})(plain())
    return triton.autotune(configs(), key=["n"])(inside)


class Cached(Autotuner):
    """A subclass with a `run` of its own."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return super().run(*args, **kwargs)


def of_a_subclass() -> Any:
    made = tuned()
    made.__class__ = Cached
    return made


KINDS: dict[str, Callable[[], Any]] = {
    "plain": plain,
    "tuned": tuned,
    "with_one_config": with_one_config,
    "with_heuristics": with_heuristics,
    "heuristics_around_tuner": heuristics_around_tuner,
    "tuner_around_heuristics": tuner_around_heuristics,
    "of_a_subclass": of_a_subclass,
}


def launch(kernel: Any, n: int = 100, **named: Any) -> list[float]:
    x, out = torch.arange(float(n), device=DEVICE), torch.zeros(n, device=DEVICE)
    if kernel_is_plain(kernel):
        named = {"BLOCK": 32, **named}
    kernel[lambda given: (triton.cdiv(n, given["BLOCK"]),)](x, x, out, n, **named)
    return out.tolist()


def kernel_is_plain(kernel: Any) -> bool:
    return not hasattr(kernel, "fn") or isinstance(kernel, triton.JITFunction)


def innermost(kernel: Any) -> Any:
    while not isinstance(kernel, triton.JITFunction):
        kernel = kernel.fn
    return kernel


def counted(kernel: Any) -> Any:
    found = [each for each in tzero.launches.counted.launched() if each.kernel is innermost(kernel)]
    return found[0] if found else None


# -- what is launched ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_made_before", [True, False])
def test_launches_are_native_and_right(kind: str, is_made_before: bool) -> None:
    kernel = KINDS[kind]() if is_made_before else None
    if kernel is not None:
        launch(kernel)
    tzero.install()
    try:
        kernel = kernel or KINDS[kind]()
        for n in (100, 100, 64, 100, 16, 64):
            assert launch(kernel, n) == [2.0 * k for k in range(n)]
        before = counted(kernel)
        for n in (100, 64, 16):
            assert launch(kernel, n) == [2.0 * k for k in range(n)]
        after = counted(kernel)
    finally:
        tzero.uninstall()
    assert after.native - before.native == after.launches - before.launches == 3
    assert launch(kernel) == [2.0 * k for k in range(100)]
    assert counted(kernel).launches == after.launches


def test_uninstall_restores_everything() -> None:
    before = entries()
    tzero.install()
    assert not set(map(id, entries().values())) & set(map(id, triton_entries.plain.values()))
    tzero.install("tests")
    tzero.uninstall()
    tzero.uninstall()
    assert entries() == before


def test_only_kernels_of_the_named_packages_are_launched() -> None:
    mine, other = plain(), plain()
    other.__module__ = "testsuite.kernels"
    tzero.install("tests")
    try:
        for kernel in (mine, other):
            for _ in range(3):
                launch(kernel)
        assert counted(mine).native == 2
        assert counted(other).launches == 0
        tzero.install("json", "__main__")
        launch(mine)
        assert counted(mine).launches == 3
        tzero.install()
        launch(mine)
        launch(other)
        assert counted(mine).launches == 4
        assert counted(other).launches == 1
    finally:
        tzero.uninstall()


def test_a_package_that_is_not_there_is_an_error() -> None:
    before = entries()
    with pytest.raises(InvalidArgument, match="there is no package 'flaa'"):
        tzero.install("flaa")
    assert entries() == before


@pytest.mark.parametrize("name", ["torch.nope", "tests.", ".tests", "", "a b", 5, None, "os.nope"])
def test_a_name_that_no_kernel_can_have_is_an_error(name: Any) -> None:
    before = entries()
    with pytest.raises(InvalidArgument, match="there is no package"):
        tzero.install(name)
    assert entries() == before


def test_a_module_in_a_package_may_be_named_before_it_is_imported() -> None:
    for name in ("__main__", "os.path", "tests.launches.kernels", "json.tool", "wsgiref.headers"):
        tzero.install(name)
        tzero.uninstall()
    assert "wsgiref" not in sys.modules


def test_a_program_that_has_replaced_run_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return triton_entries.plain["run"](self, *args, **kwargs)

    monkeypatch.setattr(triton.JITFunction, "run", run)
    kernel = plain()
    tzero.install()
    try:
        launch(kernel)
    finally:
        tzero.uninstall()
    assert calls == [kernel]
    assert triton.JITFunction.run is run


# -- what wrappers mean ----------------------------------------------------------------------------


def test_an_autotuner_whose_cache_is_changed_by_hand(installed: None) -> None:
    kernel = tuned()
    for _ in range(3):
        launch(kernel)
    (key,) = kernel.cache
    other = next(each for each in kernel.configs if each is not kernel.best_config)
    kernel.cache[key] = other
    launch(kernel)
    assert kernel.best_config is other
    other.kwargs["BLOCK"] = 16
    seen: list[int] = []
    x, out = torch.arange(64.0, device=DEVICE), torch.zeros(64, device=DEVICE)

    def grid(given: Any) -> tuple[int]:
        seen.append(given["BLOCK"])
        return (4,)

    kernel.cache[(64, *["torch.float32"] * 3)] = other
    kernel[grid](x, x, out, 64)
    assert seen == [16]
    assert out.tolist() == [2.0 * k for k in range(64)]
    kernel.cache.clear()
    launch(kernel)
    assert list(kernel.cache) == [key]


def test_the_hook_of_a_config_gets_all_arguments_and_may_change_the_config(installed: None) -> None:
    seen: list[Any] = []

    def hook(given: dict[str, Any]) -> None:
        seen.append((list(given), kernel.nargs and list(kernel.nargs), given["BLOCK"]))
        given["out"].fill_(-1.0)
        kernel.configs[0].kwargs["BLOCK"] = 128

    kernel = triton.autotune([triton.Config({"BLOCK": 32}, pre_hook=hook)], key=[])(plain())
    for _ in range(2):
        assert launch(kernel) == [2.0 * k for k in range(100)]
    tzero.uninstall()
    kernel.configs[0].kwargs["BLOCK"] = 32
    mine, seen = seen, []
    for _ in range(2):
        launch(kernel)
    assert seen == mine
    assert kernel.nargs is None
    tzero.install()


def test_a_copy_of_an_autotuner_has_its_own_attributes(installed: None) -> None:
    kernel = tuned()
    launch(kernel)
    other = copy.copy(kernel)
    other.cache = {}
    other.configs = [triton.Config({"BLOCK": 128})]
    launch(other)
    assert other.best_config.kwargs == {"BLOCK": 128}
    assert kernel.best_config.kwargs != {"BLOCK": 128}


def failing(kernel: Any, name: str) -> str:
    x = torch.zeros(8, device=DEVICE)
    cases: dict[str, Callable[[], Any]] = {
        "twice": lambda: kernel[(1,)](x, x, x, 8, n=8),
        "missing": lambda: kernel[(1,)](x, x),
        "unknown": lambda: kernel[(1,)](x, x, x, 8, BLOCK=32, colour="red"),
        "config": lambda: kernel[(1,)](x, x, x, 8, BLOCK=32),
        "grid": lambda: kernel[(1,)](x, x, x, 8, grid=(1,)),
        "no grid": lambda: kernel[None](x, x, x, 8),
        "too many": lambda: kernel[(1,)](x, x, x, 8, 32, 64, 128),
        "an object": lambda: kernel[(1,)](x, x, object(), 8),
        "unhashable": lambda: kernel[(1,)](x, x, x, [8]),
    }
    try:
        cases[name]()
    except Exception as error:
        return f"{type(error).__name__}: {error}".split(" at 0x")[0]
    return "nothing"


FAILURES = (
    *("twice", "missing", "unknown", "config", "grid", "no grid", "too many", "an object"),
    "unhashable",
)


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_triton(kind: str, name: str) -> None:
    kernel = KINDS[kind]()
    launch(kernel)
    expected = failing(kernel, name)
    tzero.install()
    try:
        for _ in range(3):
            launch(kernel)
            assert failing(kernel, name) == expected
    finally:
        tzero.uninstall()


def test_a_heuristic_may_replace_an_argument_that_is_given(installed: None) -> None:
    kernel = triton.heuristics({"n": lambda given: given["n"] - 1, "BLOCK": lambda given: 32})(
        plain()
    )
    x, out = torch.ones(32, device=DEVICE), torch.zeros(32, device=DEVICE)
    for _ in range(3):
        out.zero_()
        kernel[(1,)](x, x, out, n=9)
        assert out.sum() == 16.0


def test_a_heuristic_that_raises_raises(installed: None) -> None:
    kernel = triton.heuristics({"BLOCK": lambda given: 1 // 0})(plain())
    with pytest.raises(ZeroDivisionError):
        launch(kernel)


# -- tzero.jit of what is around a kernel ----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_jit_of_a_wrapped_kernel_launches_natively(kind: str) -> None:
    before = entries()
    original = KINDS[kind]()
    kernel = tzero.jit(original)
    assert isinstance(kernel, type(original))
    for n in (100, 100, 64, 100):
        assert launch(kernel, n) == [2.0 * k for k in range(n)]
    assert kernel is not original
    assert isinstance(innermost(kernel), PythonJit)
    assert not isinstance(innermost(original), PythonJit)
    frames: list[str] = []

    def look(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and "triton" in frame.f_globals["__name__"]:
            frames.append(frame.f_code.co_name)

    sys.setprofile(look)
    try:
        launch(kernel)
    finally:
        sys.setprofile(None)
    own = {"cdiv", "next_power_of_2"}  # of grids and heuristics, and what these call
    own |= {"__call__", "_unwrap_if_constexpr", "<listcomp>", "<dictcomp>"}
    if kind == "of_a_subclass":  # its own `run` calls Triton's
        own |= {"run", "__get__", "get", "all_kwargs"}
    assert not set(frames) - own
    assert entries() == before
    assert launch(original) == [2.0 * k for k in range(100)]


def test_jit_of_an_autotuner_shares_what_is_tuned() -> None:
    original = tuned()
    launch(original)
    kernel = tzero.jit(original)
    assert kernel.cache is original.cache
    launch(kernel)
    assert len(original.cache) == 1
    with pytest.raises(InvalidKernel, match="debug came with it"):
        tzero.jit(original, debug=True)


# -- hooks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_attached_between_two_launches_are_called(kind: str, installed: None) -> None:
    kernel, seen = KINDS[kind](), []
    for _ in range(3):
        launch(kernel)

    def enter(metadata: Any) -> None:
        seen.append("enter")

    knobs.runtime.launch_enter_hook.add(enter)
    try:
        assert launch(kernel) == [2.0 * k for k in range(100)]
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
    launch(kernel)
    innermost(kernel).add_pre_run_hook(lambda *args, **kwargs: seen.append("run"))
    launch(kernel)
    assert seen == ["enter", "run"]


def test_why_triton_launches_is_an_event(installed: None) -> None:
    kernel, reasons = plain(), []
    launch(kernel)

    class Odd(int):
        pass

    x, out = torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    with observe(lambda event: reasons.append(event.reason)):
        kernel[(1,)](x, x, out, Odd(8), BLOCK=8)
    for _ in range(2):
        kernel[(1,)](x, x, out, Odd(8), BLOCK=8)
    left = counted(kernel).left
    why = next(filter(None, left))
    assert left == {"": 1, why: 2}  # the first launch was observed
    assert "type" in why
    found = [each.reasons for each in tzero.installed().kernels]
    assert {
        "the first launch with a binary": 1,
        "a hook, an observer or an error": 1,
        why: 2,
    } in found


# -- kernels ---------------------------------------------------------------------------------------


def test_two_kernels_of_one_name_and_one_defined_again(installed: None) -> None:
    def make(by: float) -> Any:
        def scale(x, BY: tl.constexpr):
            at = tl.arange(0, 8)
            tl.store(x + at, tl.load(x + at) * BY)

        kernel = triton.jit(scale)
        return lambda x: kernel[(1,)](x, by)

    one, other = make(2.0), make(3.0)
    for _ in range(3):
        x = torch.ones(8, device=DEVICE)
        one(x)
        other(x)
        assert x.tolist() == [6.0] * 8
    kernel = plain()
    launch(kernel)
    kernel._unsafe_update_src(kernel.src.replace("+ tl.load(y", "- tl.load(y"))
    kernel.hash = None
    kernel.device_caches.clear()
    assert launch(kernel) == [0.0] * 100


MANY = 100


def many_parameters() -> Any:
    names = ", ".join(f"n{k}" for k in range(MANY))
    total = " + ".join(f"n{k}" for k in range(MANY))
    text = f"def many(out, {names}):\n    tl.store(out, {total})\n"
    made: dict[str, Any] = {"tl": tl}
    path = Path(os.environ["PYTEST_TMP"]) / "many.py"
    path.write_text("import triton.language as tl\n" + text)
    exec(compile(path.read_text(), str(path), "exec"), made)
    return triton.jit(made["many"])


def test_a_kernel_with_a_hundred_parameters_is_launched_natively(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))
    kernel, out = many_parameters(), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for start in (2, 3, 4):
        kernel[(1,)](out, *(2 * k + 16 * start + 3 for k in range(MANY)))
        assert out.item() == sum(2 * k + 16 * start + 3 for k in range(MANY))
    assert counted(kernel).native == 2


# -- threads, forks, recordings --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_install_and_uninstall_while_threads_launch(kind: str) -> None:
    kernel, faults, stop = KINDS[kind](), [], threading.Event()
    expected = launch(kernel)

    def work() -> None:
        try:
            while not stop.is_set():
                assert launch(kernel) == expected
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            tzero.install()
            launch(kernel)
            tzero.uninstall()
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        for each in threads:
            each.join()
    assert not faults


@pytest.mark.skipif(DEVICE == "cuda", reason="a forked child cannot use CUDA")
def test_a_forked_child_launches_and_can_uninstall(installed: None) -> None:
    kernel = tuned()
    expected = launch(kernel)

    def child() -> bool:
        is_right = launch(kernel) == expected
        tzero.uninstall()
        return is_right and launch(kernel) == expected

    assert forked(child) == 0
    assert launch(kernel) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_host_functions_are_recorded_and_replayed_as_ever(kind: str, installed: None) -> None:
    kernel = KINDS[kind]()
    given = {"BLOCK": 32} if kernel_is_plain(kernel) else {}

    def host(x: Any) -> Any:
        out = torch.empty_like(x)
        kernel[(4,)](x, x, out, x.numel(), **given)
        return out

    replayed = tzero.kernel(host)
    for _ in range(5):
        x = torch.randn(100, device=DEVICE)
        assert torch.equal(replayed(x), x + x)
        assert torch.equal(host(x), x + x)
    assert replayed.stats().native_replays >= 2


# -- programs --------------------------------------------------------------------------------------

PROGRAM = """
import sys
import torch, triton, triton.language as tl

@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

if __name__ == "__main__":
    x = torch.ones(8, device="cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(40):
        double[(1,)](x, 4, BLOCK=8)
    print(sys.argv[1:], x.tolist() == [2.0 ** 40] * 4 + [1.0] * 4)
    sys.exit(5)
"""


@pytest.mark.parametrize("as_module", [True, False])
def test_a_program_runs_as_it_is(as_module: bool, tmp_path: Path) -> None:
    (tmp_path / "doubling.py").write_text(PROGRAM)
    target = ["-m", "doubling"] if as_module else [str(tmp_path / "doubling.py")]
    done = subprocess.run(
        [sys.executable, "-m", "tzero", "run", *target, "--steps", "-m"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("['--steps', '-m'] True\n", 5), done.stderr
    assert "40 launches of 1 kernel, 9" in done.stderr
    assert "__main__.double" in done.stderr


def test_a_program_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tzero", "run", "nowhere.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "there is no program 'nowhere.py'" in done.stderr


def test_a_kernel_with_its_grid_says_what_tritons_function_says(installed: None) -> None:
    def facts(on_grid: Any) -> Any:
        on_grid.mine = 5
        wrapped = functools.wraps(on_grid)(lambda: None)
        names = on_grid.__name__, on_grid.__qualname__, wrapped.__name__, on_grid.mine
        return str(inspect.signature(on_grid)), *names, hasattr(on_grid, "nothing")

    kernel = plain()
    native = kernel[(1,)]
    tzero.uninstall()
    assert type(native) is not type(kernel[(1,)])
    assert facts(native) == facts(kernel[(1,)])
    reference = weakref.ref(native)
    assert reference() is native
    del native
    assert reference() is None


def test_kernels_that_are_gone_stay_in_the_report(installed: None) -> None:
    def launch_a_new_one(times: int) -> None:
        kernel = plain()
        for _ in range(times):
            launch(kernel)

    def found() -> list[Any]:
        gc.collect()
        return [each for each in tzero.installed().kernels if each.kernel == "_add"]

    before = tzero.installed()
    launches = sum(each.launches for each in found())
    natives = sum(each.native for each in found())
    for times in (40, 60):
        launch_a_new_one(times)
    assert sum(each.launches for each in found()) == launches + 100
    assert sum(each.native for each in found()) >= natives + 90
    assert tzero.installed().launches == before.launches + 100
    assert tzero.installed().launches == before.launches + 100  # they are counted once


def test_the_report_says_when_nothing_is_installed() -> None:
    assert "tzero.install()" in str(Installed(None, ()))
    assert str(Installed((), ())) == "0 launches of 0 kernels, none native"


def test_a_launch_that_was_not_native_is_not_rounded_away() -> None:
    one = KernelLaunches("app", "f", 1000, 999, 1.0, {"the first launch with a binary": 1})
    assert str(Installed((), (one,))).startswith("1,000 launches of 1 kernel, 99% native")
