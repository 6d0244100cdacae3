"""The native module built a second time, with a switch for each guard.

Enters: native/*.cpp and a C++ compiler. Leaves: a module like `tzero._native` that also has
`guards_off(names)`. It is built once per content of native/, in build/mutable, and shared by all
test processes.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import tzero

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
BUILDS = ROOT / "build" / "mutable"


@functools.cache
def mutable() -> ModuleType | None:
    """The module; None without a compiler or Python's headers."""
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or ""]
    include = sysconfig.get_paths()["include"]
    if not compiler[0] or not (Path(include) / "Python.h").exists():
        return None
    flags = ["-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden", f"-I{include}"]
    macros = ["-DTZERO_MUTABLE", f'-DTZERO_VERSION="{tzero.__version__}"']
    target = _built([*compiler, *flags, *macros])
    spec = importlib.util.spec_from_file_location("tzero._native", target)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _built(command: Sequence[str]) -> Path:
    """The shared object for the present sources; compiled if no process has done so."""
    digest = _digest(command)
    target = BUILDS / digest / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    BUILDS.mkdir(parents=True, exist_ok=True)
    with open(BUILDS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process compiles, the others wait
        if not target.exists():
            for old in BUILDS.glob("*/"):
                shutil.rmtree(old)
            with tempfile.TemporaryDirectory(dir=BUILDS) as folder:
                made = _compiled(command, Path(folder))
                target.parent.mkdir()
                os.replace(made, target)
    return target


def _digest(command: Sequence[str]) -> str:
    """Of everything that decides the result: compiler, flags, sources and headers."""
    version = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
    found = hashlib.sha256(f"{shlex.join(command)}\n".encode() + version)
    for path in sorted([*NATIVE.glob("*.cpp"), *NATIVE.glob("*.h")]):
        text = path.read_bytes()
        found.update(f"{path.name} {len(text)}\n".encode() + text)
    return found.hexdigest()


def _compiled(command: Sequence[str], folder: Path) -> Path:
    sources = sorted(NATIVE.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for done in [
            threads.submit(_run, [*command, "-c", str(source), "-o", str(made)])
            for source, made in zip(sources, objects, strict=True)
        ]:
            done.result()
    target = folder / "_native.so"
    _run([*command, "-shared", *map(str, objects), "-o", str(target), "-ldl"])
    return target


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)
