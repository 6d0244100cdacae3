"""The C compiler: finding one, what its fingerprint covers, and how it fails."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tzero import settings
from tzero.cpu import toolchain
from tzero.errors import CompilerFailed, CompilerMissing

ANSWER = "int answer(void) { return 42; }\n"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget probed compilers before and after each test."""
    toolchain._probe.cache_clear()
    yield
    toolchain._probe.cache_clear()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def real_compiler() -> str:
    found = next((p for n in ("gcc", "cc", "clang") if (p := shutil.which(n))), None)
    if found is None:
        pytest.skip("needs a C compiler on PATH")
    return found


def call(binary: bytes, folder: Path) -> int:
    path = folder / "answer.so"
    path.write_bytes(binary)
    result: int = ctypes.CDLL(str(path)).answer()
    return result


def test_compiles_c_to_a_loadable_object(tmp_path: Path) -> None:
    assert call(toolchain.find().build(ANSWER, "answer"), tmp_path) == 42


def test_include_directories_and_extra_flags_reach_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "number.h").write_text("#define NUMBER 40\n", encoding="utf-8")
    source = '#include "number.h"\nint answer(void) { return NUMBER + MORE; }\n'
    binary = toolchain.find().build(source, "answer", [tmp_path], ["-DMORE=2"])
    assert call(binary, tmp_path) == 42


def test_optimization_level_is_a_parameter(tmp_path: Path) -> None:
    source = "#ifdef __OPTIMIZE__\nint answer(void) { return 1; }\n#else\nint answer(void)"
    source += " { return 0; }\n#endif\n"
    for level, expected in ((0, 0), (3, 1)):
        folder = tmp_path / str(level)
        folder.mkdir()
        assert call(toolchain.find().build(source, "a", optimization=level), folder) == expected


def test_the_compiler_is_probed_once_per_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = script(tmp_path / "cc", f'echo run >> "{log}"; exec {real_compiler()} "$@"')
    with settings.override(cc=(str(compiler),)):
        first, second = toolchain.find(), toolchain.find()
    assert first is second
    assert log.read_text().split() == ["run"]


def test_a_compiler_with_arguments_is_run_with_them(tmp_path: Path) -> None:
    with settings.override(cc=(real_compiler(), "-DNUMBER=42")):
        binary = toolchain.find().build("int answer(void) { return NUMBER; }", "answer")
    assert call(binary, tmp_path) == 42


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with settings.override(cc=None), pytest.raises(CompilerMissing, match=r"tzero-runtime\[zig\]"):
        toolchain.find()


def test_a_named_compiler_that_is_not_there_is_named() -> None:
    command = ("no-such-compiler",)
    with settings.override(cc=command), pytest.raises(CompilerMissing, match="no-such-compiler"):
        toolchain.find()


def test_the_zig_wheel_serves_where_path_has_no_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert toolchain._locate(None) == (sys.executable, "-m", "ziglang", "cc")


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs the zig extra")
def test_zig_compiles(tmp_path: Path) -> None:
    with settings.override(cc=(sys.executable, "-m", "ziglang", "cc")):
        assert call(toolchain.find().build(ANSWER, "answer"), tmp_path) == 42


def test_search_prefers_gcc_then_cc_then_clang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("clang", "cc", "gcc"):
        expected = script(tmp_path / name, "exit 1")
        assert toolchain._locate(None) == (str(expected),)


@pytest.mark.parametrize(
    "path",
    [
        *("plain:second", "missing:second", "folder:second", "unreadable:second", "link:second"),
        *("dangling:second", ":second", "second/", "second:plain:second", "relative", "", None),
    ],
)
def test_a_compiler_is_searched_as_shutil_does(
    path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plain", "folder", "unreadable", "link", "dangling", "second", "relative"):
        (tmp_path / name).mkdir()
    for name in ("plain", "second", "relative"):
        script(tmp_path / name / "mycc", "exit 1")
    (tmp_path / "folder" / "mycc").mkdir()
    (tmp_path / "unreadable" / "mycc").write_text("not executable")
    (tmp_path / "link" / "mycc").symlink_to(tmp_path / "plain" / "mycc")
    (tmp_path / "dangling" / "mycc").symlink_to(tmp_path / "nothing")
    script(tmp_path / "mycc", "exit 1")  # found where PATH has an empty entry
    monkeypatch.chdir(tmp_path)
    if path is None:
        monkeypatch.delenv("PATH")
    else:
        places = [
            each if each in ("", "relative") else f"{tmp_path}/{each}"
            for each in path.split(os.pathsep)
        ]
        monkeypatch.setenv("PATH", os.pathsep.join(places))
    for name in ("mycc", "plain/mycc", str(tmp_path / "plain" / "mycc"), "no-such-compiler"):
        assert toolchain._which(name) == shutil.which(name)


def test_gnu_objects_are_linked_without_a_page_for_each_part(tmp_path: Path) -> None:
    found = toolchain.find()
    if not found.linking:
        pytest.skip("needs gcc and ELF")
    small = found.build(ANSWER, "answer")
    large = dataclasses.replace(found, linking=()).build(ANSWER, "answer")
    assert len(small) < len(large) - 4096
    assert call(small, tmp_path) == 42


def test_compilers_other_than_gcc_are_given_no_flags_for_its_linker(tmp_path: Path) -> None:
    """zig refuses them."""
    found = toolchain.find()
    posing = script(tmp_path / "cc", f'exec {real_compiler()} -D__clang__=1 "$@"')
    with settings.override(cc=(str(posing),)):
        other = toolchain.find()
    assert other.linking == ()
    assert other.fingerprint != found.fingerprint
    assert call(other.build(ANSWER, "answer"), tmp_path) == 42


def test_a_failing_compile_names_kernel_and_command_and_shows_the_output() -> None:
    with pytest.raises(CompilerFailed) as caught:
        toolchain.find().build("int f(void) { return missing_name; }", "softmax<fp32>")
    assert caught.value.kernel == "softmax<fp32>"
    assert "missing_name" in caught.value.output
    assert "-shared" in caught.value.command
    for part in ("softmax<fp32>", "missing_name", "-shared"):
        assert part in str(caught.value)


def test_a_compiler_that_does_not_work_is_an_error_with_its_output(tmp_path: Path) -> None:
    broken = script(tmp_path / "cc", "echo out of licences >&2; exit 3")
    command = (str(broken),)
    with settings.override(cc=command), pytest.raises(CompilerFailed, match="out of licences"):
        toolchain.find()


def test_a_compiler_that_vanishes_is_an_error(tmp_path: Path) -> None:
    compiler = script(tmp_path / "cc", f'exec {real_compiler()} "$@"')
    with settings.override(cc=(str(compiler),)):
        found = toolchain.find()
    compiler.unlink()
    with pytest.raises(CompilerFailed, match="No such file"):
        found.build(ANSWER, "answer")


def test_a_flag_the_compiler_does_not_know_is_left_out(tmp_path: Path) -> None:
    refuse = 'case " $* " in *" -march=native "*|*" -pipe "*) echo unknown >&2; exit 1;; esac'
    compiler = script(tmp_path / "cc", f'{refuse}\nexec {real_compiler()} "$@"')
    with settings.override(cc=(str(compiler),)):
        found = toolchain.find()
    assert "-march=native" not in found.flags
    assert "-pipe" not in found.flags
    assert "-fPIC" in found.flags
    assert call(found.build(ANSWER, "answer"), tmp_path) == 42


@pytest.mark.parametrize(
    "change",
    ["compiler arguments", "flags", "macros"],
)
def test_fingerprint_changes_with(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The macros contain the compiler's version and the machine's instruction sets."""
    compiler = real_compiler()
    with settings.override(cc=(compiler,)):
        before = toolchain.find().fingerprint
    toolchain._probe.cache_clear()
    command: tuple[str, ...] = (compiler,)
    if change == "compiler arguments":
        command = (compiler, "-g")
    elif change == "flags":
        monkeypatch.setattr(toolchain, "_FLAGS", (*toolchain._FLAGS, ("-fwrapv",)))
    else:
        command = (compiler, "-mno-avx2") if os.uname().machine == "x86_64" else (compiler, "-DA=1")
    with settings.override(cc=command):
        assert toolchain.find().fingerprint != before


def test_fingerprint_is_the_same_when_probed_again() -> None:
    before = toolchain.find().fingerprint
    toolchain._probe.cache_clear()
    assert toolchain.find().fingerprint == before


def test_a_bare_name_is_the_compiler_that_path_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, found = os.environ["PATH"], []
    for name, flags in (("one", ""), ("two", "-DNUMBER=2")):
        folder = tmp_path / name
        folder.mkdir()
        compiler = script(folder / "mycc", f'exec {real_compiler()} {flags} "$@"')
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{path}")
        with settings.override(cc=("mycc", "-g")):
            found.append(toolchain.find())
        assert found[-1].command == (str(compiler), "-g")
    assert found[0].fingerprint != found[1].fingerprint


def test_a_compiler_that_was_replaced_in_place_is_another(tmp_path: Path) -> None:
    """The macros are the same: a script that appends flags does not change them."""
    found = []
    for flags in ("", "-O0"):
        compiler = script(tmp_path / "cc", f'exec {real_compiler()} "$@" {flags}')
        with settings.override(cc=(str(compiler),)):
            found.append(toolchain.find().fingerprint)
            assert toolchain.find().fingerprint == found[-1]
    assert found[0] != found[1]


def rewritten(path: Path, texts: tuple[str, str], command: tuple[str, ...]) -> list[str]:
    """The fingerprints of a command before and after one of its files is written again in place,
    with the same size and modification time."""
    found = []
    for text in texts:
        time.sleep(0.02)  # longer than a tick of the file system's clock
        script(path, text)
        os.utime(path, ns=(0, 0))
        with settings.override(cc=command):
            found.append(toolchain.find().fingerprint)
    return found


def test_a_compiler_of_the_same_size_and_time_is_another(tmp_path: Path) -> None:
    cc = tmp_path / "cc"
    texts = (f'exec {real_compiler()} "$@" -O2', f'exec {real_compiler()} "$@" -O3')
    first, second = rewritten(cc, texts, (str(cc),))
    assert first != second


def test_the_compiler_that_a_wrapper_calls_is_in_the_fingerprint(tmp_path: Path) -> None:
    cc, wrapper = tmp_path / "cc", script(tmp_path / "wrapper", 'exec "$@"')
    texts = (f'exec {real_compiler()} "$@" -O2', f'exec {real_compiler()} "$@" -O3')
    first, second = rewritten(cc, texts, (str(wrapper), str(cc)))
    assert first != second


def test_the_content_of_a_compiler_file_is_in_the_fingerprint(tmp_path: Path) -> None:
    """Also if its size, time and macros are the same."""
    compiler, found = tmp_path / "cc", []
    for comment in ("# one", "# two"):
        script(compiler, f'{comment}\nexec {real_compiler()} "$@"')
        os.utime(compiler, ns=(0, 0))
        toolchain._probe.cache_clear()
        with settings.override(cc=(str(compiler),)):
            found.append(toolchain.find().fingerprint)
    assert found[0] != found[1]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/cpuinfo")
def test_features_are_those_of_this_machine() -> None:
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    if os.uname().machine != "x86_64":
        pytest.skip("names of x86 features")
    features = toolchain.find().features
    assert ("__AVX2__" in features) == (" avx2 " in cpuinfo)
    assert ("__FMA__" in features) == (" fma " in cpuinfo)


def test_threads_build_at_the_same_time(tmp_path: Path) -> None:
    results: dict[int, int] = {}

    def build(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        source = f"int answer(void) {{ return {number}; }}"
        results[number] = call(toolchain.find().build(source, "answer"), folder)

    threads = [threading.Thread(target=build, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: n for n in range(4)}
