"""`tzero doctor` finds what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands.conftest import Command, facts
from tzero import versions
from tzero.commands import doctor
from tzero.errors import CompilerMissing


def found(command: Command, subject: str, code: int = 0) -> list[dict[str, str]]:
    return [
        each for each in facts(command("doctor", "--json", code=code)) if each["subject"] == subject
    ]


def test_a_machine_that_works_is_found_to_work(tzero_command: Command) -> None:
    states = {each["subject"]: each["state"] for each in facts(tzero_command("doctor", "--json"))}
    assert states["Triton"] == states["torch"] == states["disk cache"] == states["a call"] == "ok"
    assert "broken" not in states.values()
    text = tzero_command("doctor").stdout
    assert "replayed natively" in text and "tzero works" in text


def test_a_python_without_the_gil_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "is_free_threaded", lambda: True)
    (told,) = [each for each in doctor._versions() if each.subject == "Python"]
    assert told.state == "broken" and told.found.endswith(", built without the GIL")
    assert told.cure.startswith("Use the ordinary build of Python")


@pytest.mark.skipif(find_spec("tzero._native") is None, reason="the extension is not built")
def test_an_extension_of_another_version_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "TZERO", "99.0")
    monkeypatch.delitem(sys.modules, "tzero._native", raising=False)
    (told,) = doctor._extension()
    assert told.state == "broken" and "is not of this tzero, 99.0" in told.found
    assert told.cure.startswith("Reinstall tzero-runtime")


def test_another_cpu_backend_of_triton_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert [*doctor._backends()] == []
    info = tmp_path / "triton_cpu-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton-cpu\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[triton.backends]\ncpu = triton_cpu.backend\n")
    monkeypatch.syspath_prepend(tmp_path)
    (told,) = doctor._backends()
    assert told.state == "slow" and told.found.startswith("triton-cpu has a Triton backend")
    assert "Uninstall triton-cpu" in told.cure


def test_a_misspelt_variable_is_told_with_the_right_one(
    tzero_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZERO_TUNE_BUGET", "3")
    (told,) = (each for each in found(tzero_command, "settings") if each["state"] == "slow")
    assert "TZERO_TUNE_BUGET" in told["found"] and "TZERO_TUNE_BUDGET" in told["cure"]


def test_a_wrong_value_is_broken(tzero_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZERO_QUIESCE", "soon")
    told = facts(tzero_command("doctor", "--json", code=1))
    (broken,) = (each for each in told if each["state"] == "broken")
    assert broken["subject"] == "settings" and broken["cure"] == "Correct or unset TZERO_QUIESCE."


def test_a_variable_of_builds_is_no_mistake(
    tzero_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZERO_WERROR", "1")
    assert {each["state"] for each in found(tzero_command, "settings")} == {"ok"}


@pytest.mark.parametrize("name", ["TZERO_VERIFY", "CUDA_LAUNCH_BLOCKING"])
def test_what_slows_calls_down_is_told(
    tzero_command: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    told = [each for each in found(tzero_command, "settings") if each["state"] == "slow"]
    assert [name in each["found"] and name in each["cure"] for each in told] == [True]


def test_a_cache_that_others_can_write_to_is_told(tzero_command: Command, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    (told,) = found(tzero_command, "disk cache")
    assert told["state"] == "slow" and "chmod 700" in told["cure"]


def test_a_cache_that_cannot_be_made_is_told(
    tzero_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TZERO_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (told,) = found(tzero_command, "disk cache")
    assert told["state"] == "slow" and "TZERO_CACHE_DIR" in told["cure"]


def test_a_cache_of_triton_that_cannot_be_made_is_told_before_what_it_breaks(
    tzero_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tzero.adapters import triton_compile
    from tzero.commands import sample

    def call() -> None:
        raise PermissionError("what Triton would say")

    (tmp_path / "file").touch()
    there = str(tmp_path / "file" / "cache")
    monkeypatch.setattr(triton_compile, "cache_directory", lambda: there)
    monkeypatch.setattr(sample, "call", call)
    told = facts(tzero_command("doctor", "--json", code=1))
    cause, effect = (each for each in told if each["state"] == "broken")
    assert cause["subject"] == "Triton's cache" and "TRITON_CACHE_DIR" in cause["cure"]
    assert effect["subject"] == "a call" and effect["cure"] == "Mend what is said above first."


def test_an_old_triton_is_broken_with_what_to_install(
    tzero_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = versions.installed
    monkeypatch.setattr(
        versions, "installed", lambda name: "3.5.1" if name == "triton" else real(name)
    )
    (told,) = found(tzero_command, "Triton", code=1)
    assert told["state"] == "broken" and "pip install" in told["cure"]


def test_a_missing_compiler_is_broken_where_there_is_no_gpu(
    tzero_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tzero.cpu import toolchain

    def find() -> None:
        raise CompilerMissing(searched=["cc"])

    monkeypatch.setattr(toolchain, "find", find)
    (told,) = found(tzero_command, "C compiler", code=1)
    assert told["state"] == "broken" and "zig" in told["cure"]
    assert "does not work here" in tzero_command("doctor", code=1).stdout


def test_an_error_while_examining_is_a_finding_and_the_rest_is_examined(
    tzero_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tzero.commands import sample

    def call() -> None:
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(sample, "call", call)
    (told,) = found(tzero_command, "a call", code=1)
    assert told["found"] == "RuntimeError: the driver is gone"
