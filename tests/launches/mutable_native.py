"""The native module built a second time, with a switch for each guard.

Enters: native/*.cpp and a C++ compiler. Leaves: a module like `tzero._native` that also has
`guards_off(names)`. It is built once in a process, in a directory that goes with it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import tzero

NATIVE = Path(__file__).parents[2] / "native"


@functools.cache
def mutable() -> ModuleType | None:
    """The module; None where there is no compiler or no header of Python's."""
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or ""]
    include = sysconfig.get_paths()["include"]
    if not compiler[0] or not (Path(include) / "Python.h").exists():
        return None
    directory = tempfile.TemporaryDirectory(prefix="tzero-mutable-")
    target = Path(directory.name) / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{include}"]
    macros = ["-DTZERO_MUTABLE", f'-DTZERO_VERSION="{tzero.__version__}"']
    sources = sorted(str(path) for path in NATIVE.glob("*.cpp"))
    subprocess.run([*compiler, *flags, *macros, *sources, "-o", str(target), "-ldl"], check=True)
    spec = importlib.util.spec_from_file_location("tzero._native", target)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__dict__["_directory"] = directory  # removed when the process ends
    return module
