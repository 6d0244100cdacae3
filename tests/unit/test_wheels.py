"""What `make wheels` makes: complete, small, and of use wherever it is installed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import tzero
from tests.native.test_native import needs_native, why_it_cannot_be_built
from tools import wheels
from tzero import UnsupportedVersion, versions

ROOT = Path(__file__).parents[2]


def run(*command: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables that would show it this checkout."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HOME")}
    return subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env={**env, **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )


def build_wheel(source: Path, into: Path, **variables: str) -> tuple[Path, str]:
    code = f"import setuptools.build_meta as build; build.build_wheel({str(into)!r})"
    done = run(sys.executable, "-c", code, cwd=source, **variables)
    assert done.returncode == 0, done.stderr
    (made,) = into.glob("*.whl")
    return made, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.source_distribution(sys.executable, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a folder")
    with tarfile.open(sdist) as held:
        held.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel from the sdist, compiled quickly instead of well."""
    if why_it_cannot_be_built() is not None:
        pytest.skip(f"not built: {why_it_cannot_be_built()}")
    return build_wheel(unpacked, tmp_path_factory.mktemp("wheel"), CFLAGS="-O0")[0]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, at a path with spaces, installed without a
    compiler; nobody may write there. torch comes from the environment of these tests."""
    folder = tmp_path_factory.mktemp("an environment")
    made = run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    assert made.returncode == 0, made.stderr
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps")
    done = run(*pip, "--no-index", wheel, cwd=folder, PATH=str(folder / "bin"))
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "site.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for each in (packages, *packages.rglob("*")):
        each.chmod(each.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    return python


def test_the_source_distribution_has_what_is_needed_to_build_and_test(unpacked: Path) -> None:
    for folder, pattern in (("native", "*.*"), ("src", "*.*"), ("tests/unit", "*.py")):
        every = {
            each.relative_to(ROOT)
            for each in (ROOT / folder).rglob(pattern)
            if each.is_file() and "__pycache__" not in each.parts and each.suffix != ".so"
            if not any(part.endswith(".egg-info") for part in each.parts)
        }
        assert every
        assert {str(each) for each in every if not (unpacked / each).exists()} == set()
    for name in ("LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt", "docs/index.md"):
        assert (unpacked / name).exists()
    assert not [*unpacked.rglob("*.so"), *unpacked.rglob("*.pyc")]


def test_a_wheel_is_small_and_has_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheels.problems_of(wheel) == []
    with zipfile.ZipFile(wheel) as held:
        names = set(held.namelist())
    assert {"tzero/py.typed", "tzero/_native.pyi"} <= names
    headers = {f"tzero/cpu/runtime/{each.name}" for each in _runtime()}
    assert headers and headers <= names
    assert {name.partition("/")[0] for name in names} == {"tzero", f"{_stem()}.dist-info"}


def _runtime() -> list[Path]:
    return [*(ROOT / "src/tzero/cpu/runtime").glob("*.[hc]")]


def _stem() -> str:
    return f"tzero_runtime-{tzero.__version__}"


@pytest.mark.parametrize("flags", [["-I"], ["-I", "-O"], ["-I", "-OO", "-B"]], ids=" ".join)
def test_an_installed_wheel_works(installed: Path, flags: list[str], tmp_path: Path) -> None:
    before = _files(installed)
    smoke = ROOT / "tools" / "wheel_smoke.py"
    done = run(installed, *flags, smoke, "kernel", cwd=tmp_path, TZERO_CPU="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("kernel works\n")
    assert _files(installed) == before


def _files(python: Path) -> set[Path]:
    return {each for each in python.parents[1].rglob("*") if "__pycache__" not in each.parts}


def test_an_extension_of_another_version_is_refused_in_one_sentence(
    installed: Path, tmp_path: Path
) -> None:
    (package,) = installed.parents[1].glob("lib/python*/site-packages/tzero")
    shutil.copytree(package, tmp_path / "tzero", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "tzero" / "versions.py"
    file.chmod(0o644)
    file.write_text(re.sub(r'^TZERO = ".*"', 'TZERO = "99.0"', file.read_text(), flags=re.M))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tzero; tzero.kernel(print)"
    done = run(installed, "-I", "-c", code, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        f"tzero.errors.UnsupportedVersion: The extension tzero._native {tzero.__version__} is not "
        "of this tzero, 99.0, but of another one: run `pip install --force-reinstall --no-deps "
        "tzero-runtime`, or in a checkout `python setup.py build_ext --inplace`."
    )


def test_without_a_compiler_the_rest_is_built_and_says_so(unpacked: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(unpacked, source, ignore=shutil.ignore_patterns("build"))
    missing = str(tmp_path / "no-compiler")
    made, said = build_wheel(source, tmp_path / "out", CC=missing, CXX=missing, LDCXXSHARED=missing)
    assert "tzero: the native extension was not built" in said
    assert "tzero works without it" in said
    assert wheels.problems_of(made) == [f"{made.name} has 0 extensions instead of one"]


# -- Pythons without the GIL -----------------------------------------------------------------------


def test_a_python_without_the_gil_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "abiflags", "t")
    with pytest.raises(UnsupportedVersion, match=r"^Python 3\.\d+\.\S+t is built without the GIL"):
        versions.require("python")
    monkeypatch.delitem(vars(tzero), "kernel", raising=False)  # as if nobody had used it yet
    with pytest.raises(UnsupportedVersion, match=r"use the ordinary build, python3\.\d+\.$"):
        tzero.kernel  # noqa: B018


def test_nothing_is_built_for_a_python_without_the_gil() -> None:
    code = (
        "import runpy, setuptools, sys, sysconfig; sysconfig.get_config_vars(); "
        "sys.abiflags = 't'; runpy.run_path('setup.py')"
    )
    done = run(sys.executable, "-c", code, cwd=ROOT)
    assert done.returncode == 1
    assert re.fullmatch(r"tzero relies on the GIL, which this Python 3\.\d+t .*\n", done.stderr)


def compiled(compiler: list[str], *flags: str, **variables: str) -> str:
    """What a compiler says of the extension's main file."""
    include = sysconfig.get_path("include")
    command = [*compiler, "-std=c++17", "-fsyntax-only", f"-I{include}", *flags]
    done = run(*command, ROOT / "native" / "module.cpp", cwd=ROOT, **variables)
    return done.stderr if done.returncode else ""


@needs_native
def test_the_extension_does_not_compile_without_the_gil() -> None:
    compiler = [next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))))]
    given = '-DTZERO_VERSION="0"'
    assert compiled(compiler, given) == ""
    assert "tzero relies on the GIL" in compiled(compiler, given, "-DPy_GIL_DISABLED=1")


@needs_native
@pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed")
def test_the_extension_does_not_compile_with_another_cpp_library_than_torch(
    tmp_path: Path,
) -> None:
    """One that does crashes when torch throws an exception through it."""
    zig = [sys.executable, "-m", "ziglang", "c++"]
    said = compiled(zig, '-DTZERO_VERSION="0"', ZIG_GLOBAL_CACHE_DIR=str(tmp_path))
    assert "libstdc++: use g++" in said


# -- the command -----------------------------------------------------------------------------------


def test_wheels_are_for_every_supported_python() -> None:
    first, *_, last = wheels.supported()
    assert (first, last) == (versions.SUPPORTED[0].oldest, versions.SUPPORTED[0].newest)


def test_this_python_can_build_and_another_version_cannot_be_it() -> None:
    version = "{}.{}".format(*sys.version_info)
    if why_it_cannot_be_built() is None:
        assert wheels.find(version, [sys.executable])[0] == wheels.Python(version, sys.executable)
    assert wheels.obstacle(sys.executable, "3.99") == f"is Python {version}"


def test_a_python_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    python, why = wheels.find("3.99", [sys.executable, str(tmp_path / "python")])
    assert python is None
    assert why == f"{tmp_path / 'python'} does not run"
    assert wheels.find("3.99", [])[1].startswith("no python3.99 was found: install it")


@pytest.mark.parametrize(
    ("tag", "is_for_all"),
    [
        ("manylinux_2_28_x86_64", True),
        ("manylinux_2_24_x86_64.manylinux_2_28_x86_64", True),
        ("manylinux_2_34_x86_64", False),
        ("linux_x86_64", False),
    ],
)
def test_a_wheel_that_old_systems_cannot_load_is_told(tag: str, is_for_all: bool) -> None:
    said = wheels.too_new(Path(f"tzero_runtime-1.0-cp311-cp311-{tag}.whl"))
    assert (said == "") == is_for_all


def test_a_wheel_with_symbols_or_without_an_extension_is_not_right(tmp_path: Path) -> None:
    made = tmp_path / "tzero.whl"
    with zipfile.ZipFile(made, "w") as held:
        held.writestr("tzero/_native.cpython-311.so", b"\x7fELF .symtab .debug_info")
    assert wheels.problems_of(made) == [
        "tzero/_native.cpython-311.so has .symtab",
        "tzero/_native.cpython-311.so has .debug_info",
    ]
    with zipfile.ZipFile(made, "w") as held:
        held.writestr("large", os.urandom(wheels.MOST_BYTES))
    assert [each.partition(" ")[2] for each in wheels.problems_of(made)] == [
        "has 0 extensions instead of one",
        f"has {made.stat().st_size:,} bytes, more than {wheels.MOST_BYTES:,}",
    ]
