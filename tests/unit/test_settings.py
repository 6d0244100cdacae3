"""Settings are read once and checked; overrides end with their blocks."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import threading
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tzero import settings
from tzero.errors import InvalidSetting
from tzero.settings import Settings


def test_an_empty_environment_gives_the_defaults() -> None:
    assert settings.read({}) == Settings(cpu=None, cpu_check=False, cc=None)


@pytest.mark.parametrize(
    ("environ", "field", "value"),
    [
        ({"TZERO_CPU": ""}, "cpu", None),
        ({"TZERO_CPU": "0"}, "cpu", False),
        ({"TZERO_CPU": " 1 "}, "cpu", True),
        ({"TZERO_CPU_CHECK": ""}, "cpu_check", False),
        ({"TZERO_CPU_CHECK": "0"}, "cpu_check", False),
        ({"TZERO_CPU_CHECK": "1"}, "cpu_check", True),
        ({"TZERO_CC": "ccache gcc -m64"}, "cc", ("ccache", "gcc", "-m64")),
        ({"TZERO_CC": "'/opt/my tools/cc'"}, "cc", ("/opt/my tools/cc",)),
        ({"CC": "clang"}, "cc", ("clang",)),
        ({"TZERO_MAX_SPECIALIZATIONS": "7"}, "max_specializations", 7),
        ({"TZERO_MAX_SPECIALIZATIONS": " "}, "max_specializations", 1024),
        ({"TZERO_CC": "gcc", "CC": "clang"}, "cc", ("gcc",)),
        ({"TZERO_CC": "", "CC": "clang"}, "cc", ("clang",)),
        ({"TZERO_CC": " ", "CC": ""}, "cc", None),
        ({"TZERO_COMPILE_WORKERS": "3"}, "compile_workers", 3),
        ({"TZERO_COMPILE_WORKERS": ""}, "compile_workers", None),
        ({"TZERO_MACHINE_WORKERS": "96"}, "machine_workers", 96),
        ({"TZERO_START_METHOD": "fork"}, "start_method", "fork"),
        ({"TZERO_COMPILE_TIMEOUT": "0"}, "compile_timeout", 0),
        ({"TZERO_COMPILE_MEMORY": "512"}, "compile_memory", 512),
        ({"TZERO_QUIESCE": "1"}, "quiesce", 1),
        ({"TZERO_QUIET": "1"}, "quiet", True),
        ({"TZERO_CACHE": "0"}, "cache", False),
        ({"TZERO_CACHE": ""}, "cache", True),
        ({"TZERO_CACHE_DIR": "/tmp/a b"}, "cache_dir", "/tmp/a b"),
        ({"TZERO_CACHE_LIMIT": "10"}, "cache_limit", 10),
        ({"TZERO_REMOTE_CACHE": "redis://host"}, "remote_cache", "redis://host"),
        ({"TZERO_CACHE_KEY": "secret"}, "cache_key", "secret"),
        ({"TZERO_BUNDLE": "app.tzb"}, "bundle", "app.tzb"),
        ({"TZERO_COLLECT": "/tmp/used"}, "collect", "/tmp/used"),
    ],
)
def test_a_variable_sets_its_field(environ: dict[str, str], field: str, value: object) -> None:
    assert settings.read(environ) == dataclasses.replace(Settings(), **{field: value})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("TZERO_CPU", "yes", "'1' (always)"),
        ("TZERO_CPU_CHECK", "2", "'1' (on)"),
        ("TZERO_CC", "gcc 'unclosed", "a command"),
        ("CC", 'gcc "', "a command"),
        ("TZERO_MAX_SPECIALIZATIONS", "0", "a whole number"),
        ("TZERO_MAX_SPECIALIZATIONS", "-3", "a whole number"),
        ("TZERO_MAX_SPECIALIZATIONS", "many", "a whole number"),
        ("TZERO_MAX_SPECIALIZATIONS", "\N{SUPERSCRIPT TWO}", "a whole number"),
        ("TZERO_COMPILE_WORKERS", "0", "one per core"),
        ("TZERO_MACHINE_WORKERS", "0", "one per core"),
        ("TZERO_START_METHOD", "magic", "'spawn'"),
        ("TZERO_COMPILE_TIMEOUT", "-1", "seconds"),
        ("TZERO_COMPILE_MEMORY", "1G", "MiB"),
        ("TZERO_QUIESCE", "0", "seconds"),
        ("TZERO_CACHE", "yes", "'0' (off)"),
        ("TZERO_CACHE_LIMIT", "0", "MiB"),
    ],
)
def test_a_wrong_value_names_variable_value_and_what_is_allowed(
    name: str, value: str, allowed: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        settings.read({name: value})
    assert (caught.value.name, caught.value.value) == (name, value)
    assert name in str(caught.value) and repr(value) in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "is_url"),
    [
        ("TZERO_REMOTE_CACHE", "redis://:pass word@host/0", True),
        ("TZERO_REMOTE_CACHE", "s3://bucket/tzero", True),
        ("TZERO_REMOTE_CACHE", "simplecache::s3://bucket", True),
        ("TZERO_REMOTE_CACHE", "file:///data", True),
        ("TZERO_REMOTE_CACHE", "c10d", True),
        ("TZERO_REMOTE_CACHE", "redis:localhost", False),
        ("TZERO_REMOTE_CACHE", "localhost:6379", False),
        ("TZERO_REMOTE_CACHE", "/data", False),
        ("TZERO_REMOTE_CACHE", "file:/data", False),
        ("TZERO_REMOTE_CACHE", "file://data/tzero", False),
        ("TZERO_FLEET", "file:///data", True),
        ("TZERO_FLEET", "file://data/tzero", False),
        ("TZERO_FLEET", "redis:localhost", False),
    ],
)
def test_a_place_that_processes_share_is_a_url_and_no_name_of_a_directory(
    name: str, text: str, is_url: bool
) -> None:
    with nullcontext() if is_url else pytest.raises(InvalidSetting, match="file:///data"):
        settings.read({name: text})


@pytest.mark.parametrize(
    "changes", [{"cpu": "1"}, {"cpu": 1}, {"cpu_check": None}, {"cc": "gcc"}, {"cc": ()}]
)
def test_an_override_with_a_wrong_value_raises_and_changes_nothing(
    changes: dict[str, Any],
) -> None:
    before = settings.current()
    with pytest.raises(InvalidSetting, match=next(iter(changes))), settings.override(**changes):
        pass
    assert settings.current() == before


def test_an_override_of_an_unknown_field_raises() -> None:
    changes: Any = {"no_such_setting": True}
    with pytest.raises(TypeError, match="no_such_setting"), settings.override(**changes):
        pass


def test_overrides_nest_and_end() -> None:
    before = settings.current()
    with settings.override(cpu=True, cpu_check=True) as outer:
        assert (outer.cpu, outer.cpu_check) == (True, True)
        with settings.override(cpu=False):
            assert (settings.current().cpu, settings.current().cpu_check) == (False, True)
        assert settings.current() == outer
    assert settings.current() == before


def test_an_override_ends_when_its_block_raises() -> None:
    before = settings.current()
    with pytest.raises(KeyError), settings.override(cpu_check=not before.cpu_check):
        raise KeyError
    assert settings.current() == before


def test_overlapping_overrides_undo_only_their_own_changes() -> None:
    before = settings.current()
    first, second = settings.override(cpu=True), settings.override(cc=("gcc",))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert settings.current() == dataclasses.replace(before, cc=("gcc",))
    second.__exit__(None, None, None)
    assert settings.current() == before


def test_other_threads_see_an_override() -> None:
    seen: list[Settings] = []
    with settings.override(cc=("some", "compiler")):
        thread = threading.Thread(target=lambda: seen.append(settings.current()))
        thread.start()
        thread.join()
    assert [each.cc for each in seen] == [("some", "compiler")]


def test_settings_are_immutable_and_hashable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().cpu = True  # type: ignore[misc]
    assert not hasattr(Settings(), "__dict__")
    assert hash(Settings()) == hash(Settings())


def in_a_fresh_process(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=60
    )


def test_the_environment_is_read_once_at_first_use() -> None:
    code = (
        "import os; from tzero import settings\n"
        "os.environ['TZERO_CPU_CHECK'] = '1'; print(settings.current().cpu_check)\n"
        "os.environ['TZERO_CPU_CHECK'] = '0'; print(settings.current().cpu_check)\n"
        "with settings.override(cpu=True): print(settings.current().cpu_check)\n"
    )
    assert in_a_fresh_process(code).stdout.split() == ["True", "True", "True"]


def test_a_wrong_environment_raises_at_first_use_not_at_import() -> None:
    done = in_a_fresh_process(
        "from tzero import settings; print('imported'); settings.current()", TZERO_CPU="perhaps"
    )
    assert done.stdout.strip() == "imported"
    assert "InvalidSetting: TZERO_CPU is 'perhaps'" in done.stderr


def test_a_wrong_environment_ends_an_import_of_triton_with_one_short_traceback() -> None:
    done = in_a_fresh_process("import triton", TZERO_CPU="perhaps")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1 and "Malformed" not in done.stderr
    assert "settings.py" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("tzero.errors.InvalidSetting: TZERO_CPU is")


def test_now_sees_a_change_that_current_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = settings.current().quiesce
    monkeypatch.setenv("TZERO_QUIESCE", str(kept + 5))
    assert settings.current().quiesce == kept
    assert settings.now().quiesce == kept + 5
    with settings.override(quiesce=3):
        assert settings.now().quiesce == 3


def test_a_secret_is_not_in_the_repr() -> None:
    assert "hush" not in repr(Settings(cache_key="hush"))
    assert "hush" not in repr(Settings(remote_cache="redis://me:hu#hush@host"))


def test_a_secret_is_not_in_an_error() -> None:
    for name in ("cache_key", "remote_cache"):
        with pytest.raises(InvalidSetting, match=name) as caught:
            Settings(**{name: b"hush"})
        assert "hush" not in str(caught.value) and "bytes" in str(caught.value)


def test_every_setting_says_what_it_does() -> None:
    (declared,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(declared, ast.ClassDef)
    told = {
        field.target.id
        for field, text in pairwise(declared.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
    }
    assert told == {field.name for field in dataclasses.fields(Settings)}


def test_the_pages_name_every_variable_and_no_other() -> None:
    root = Path(__file__).parents[2]
    pages = [*(root / "docs").glob("*.md"), root / "README.md"]
    named = {name for page in pages for name in re.findall(r"\bTZERO_[A-Z_]+", page.read_text())}
    fields = {f"TZERO_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    building = set(re.findall(r'environ\.get\("(\w+)"', (root / "setup.py").read_text()))
    assert named - building == fields


@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_a_setting_accepts_its_default_and_rejects_other_types(
    field: dataclasses.Field[Any],
) -> None:
    assert getattr(Settings(**{field.name: field.default}), field.name) == field.default
    with pytest.raises(InvalidSetting, match=field.name):
        Settings(**{field.name: object()})
