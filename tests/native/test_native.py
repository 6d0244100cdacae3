"""The extension is built where it can be, matches the package, and is not needed to import it."""

from __future__ import annotations

import gc
import importlib
import shutil
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path

import pytest

import tzero


def why_it_cannot_be_built() -> str | None:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return "no C++ compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "no Python headers"
    return None


needs_native = pytest.mark.skipif(
    why_it_cannot_be_built() is not None, reason=f"not built: {why_it_cannot_be_built()}"
)


@needs_native
def test_the_extension_is_built_for_this_version() -> None:
    from tzero import _native

    assert _native.version() == tzero.__version__


@needs_native
def test_two_imports_do_not_share_state() -> None:
    first = importlib.import_module("tzero._native")
    del sys.modules["tzero._native"]
    second = importlib.import_module("tzero._native")
    assert first is not second
    gone = weakref.ref(second)
    sys.modules["tzero._native"] = first
    tzero.__dict__["_native"] = first
    del second
    gc.collect()
    assert gone() is None
    assert first.version() == tzero.__version__


def test_tzero_imports_without_the_extension() -> None:
    code = "import sys; sys.modules['tzero._native'] = None; import tzero, tzero.settings"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


_USED = """
import torch, tzero
from tzero.tune.select import Hint, Selector
assert tzero.kernel(lambda x: x)(torch.ones(2)).shape == (2,)
assert tzero.kernel(lambda x: x).tier == 0
assert Selector([Hint("a", [(2,)])]).nearest(((3,),)).variant == "a"
try:
    import tzero._native
except ModuleNotFoundError:
    print("without")
"""


def test_where_it_is_not_built_python_does_it_all(tmp_path: Path) -> None:
    package = Path(tzero.__file__).parent
    shutil.copytree(package, tmp_path / "tzero", ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    run = subprocess.run(
        [sys.executable, "-c", _USED], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "without\n"
