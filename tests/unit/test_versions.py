"""A package that is too old is refused in one sentence; one newer than tested warns once."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import tzero
from tzero import UnsupportedVersion, versions
from tzero.versions import SUPPORTED, order, require

Install = Callable[[str, str], Path]
ROWS = {row.package: row for row in SUPPORTED}


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Makes a package of this version appear installed, to whoever has the folder on its path."""

    def make(package: str, version: str) -> Path:
        info = tmp_path / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
        return tmp_path

    return make


def run(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    before = "".join(f"import sys; sys.path.insert(0, {str(path)!r})\n" for path in paths)
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", before + code],
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("3.5.1", "3.6"),
        ("3.9", "3.10"),
        ("2.13.0.dev2026", "2.13.0"),
        ("2.12.9", "2.13.0.dev2026"),
        ("2.10.0a0+b4e4ee8", "2.10"),
        ("3.6.0rc1", "3.6.0"),
        ("3.6.0-beta.2", "3.6.0"),
        ("1.9.9", "v2"),
    ],
)
def test_an_older_version_comes_first(older: str, newer: str) -> None:
    assert order(older) < order(newer)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2.13.0+cpu", "2.13"),
        ("3.6.0.post1", "3.6.0"),
        ("3.6.0.post1.dev2", "3.6.0"),
        ("3.6.0+cabcdef", "3.6"),
        ("3.6.0-custom", "3.6"),
        (" 3.6.0\n", "3.6"),
    ],
)
def test_how_a_release_was_built_does_not_count(one: str, other: str) -> None:
    assert order(one) == order(other)


def test_what_is_no_version_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="'main' does not start with a number"):
        order("main")


@pytest.mark.parametrize(
    ("package", "found"),
    [("triton", "3.5.1"), ("torch", "2.9.1+cpu"), ("torch", "2.10.0.dev2026")],
)
def test_public_names_say_which_package_is_too_old(
    package: str, found: str, install: Install
) -> None:
    done = run("import tzero; print('imported'); tzero.kernel", install(package, found))
    row = ROWS[package]
    assert done.stdout.strip() == "imported"
    assert done.stderr.splitlines()[-1] == (
        f"tzero.errors.UnsupportedVersion: {row.title} {found} is too old for tzero, which needs "
        f"{row.oldest} or newer: run `pip install 'torch>=2.10' 'triton>=3.6'`."
    )


def test_an_old_triton_can_be_imported_and_says_so_when_the_cpu_is_used() -> None:
    done = run(
        "import os; os.environ['TZERO_CPU'] = '1'\n"
        "import triton; triton.__version__ = '3.5.1'; print(*triton.backends.backends)\n"
        "try: triton.runtime.driver.active.utils\n"
        "except RuntimeError as error: print(type(error).__name__, error)\n"
    )
    first, second = done.stdout.splitlines()
    assert {"cpu", "nvidia"} <= set(first.split())
    assert second.startswith("UnsupportedVersion Triton 3.5.1 is too old for tzero")


def test_a_newer_version_warns_once_and_works(install: Install) -> None:
    code = (
        "import tzero; tzero.kernel; tzero.jit; tzero.Kernel\n"
        "import triton; triton.__version__ = '99.1'; tzero.precompile, tzero.specialize\n"
        "print('works')"
    )
    done = run(code, install("triton", "99.0.0.dev2026"))
    assert done.stdout.strip() == "works"
    found = re.findall(r"^(<string>:\d+): UserWarning: (Triton .*)", done.stderr, re.MULTILINE)
    assert len(found) == 1
    place, message = found[0]
    assert place == "<string>:2"
    assert "99.0.0.dev2026 is newer than 3.9" in message and "upgrade tzero-runtime" in message


def test_an_old_helion_is_refused_when_a_kernel_is_wrapped(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install("helion", "1.3.0"))
    for use in (tzero.helion.install, lambda: tzero.helion.wrap(object())):
        with pytest.raises(UnsupportedVersion, match=r"Helion 1\.3\.0.*'helion>=1\.4'"):
            use()


@pytest.mark.parametrize("found", ["3.9.7", "3.6.0+cpu", "3.8.0.post1", "a local build"])
def test_what_is_supported_or_has_no_number_passes(
    found: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.syspath_prepend(install("triton", found))
    monkeypatch.setattr(versions, "_warned", set())
    assert importlib.metadata.version("triton") == found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require("triton")


def test_the_versions_of_this_environment_are_supported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require(*(row.package for row in SUPPORTED))
