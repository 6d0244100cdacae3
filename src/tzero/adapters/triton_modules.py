"""Adapts the C modules that Triton's CUDA driver compiles. Change this for a Triton with others.

Triton 3.6 compiles a module of driver functions, and one launcher for each signature of a kernel,
with the C compiler of the machine. Triton 3.9 compiles none.

Enters: signatures of kernels; where ready modules are found, and who is told of new ones. Leaves:
the source text of the modules, and modules built on a machine without CUDA. It must not know what a
bundle is. `tests/adapters/test_triton_modules.py` compares the source text with Triton's.
"""

from __future__ import annotations

import collections
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from triton.backends.nvidia import driver as nvidia
from triton.runtime import build as building

from tzero import scratch, settings
from tzero.adapters import triton_driver
from tzero.events import Event, emit

__all__ = ["FAILURES", "build", "needed", "replace", "sources", "suffix"]

FAILURES = (OSError, RuntimeError, subprocess.CalledProcessError)
"""What `build` raises."""

_compile: Callable[..., ModuleType] | None = getattr(nvidia, "compile_module_from_src", None)

Find = Callable[[str, str], bytes | None]
"""From the name and the source text of a module to its object, if there is one."""

Made = Callable[[str, str, bytes], None]
"""Told of the name, the source text and the object of a module that was compiled."""

Spare = Callable[[], str]
"""Why a module that is not ready shall not be compiled; empty if it shall."""

_FUNCTIONS = "cuda_utils"


def needed() -> bool:
    """Whether this Triton compiles modules for CUDA.

    >>> needed() in (True, False)
    True
    """
    return _compile is not None and hasattr(nvidia, "make_launcher")


def suffix() -> str:
    """The ending of this Python's extension modules: its version and platform.

    >>> suffix() == sysconfig.get_config_var("EXT_SUFFIX")
    True
    """
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def sources(types: Sequence[Any], descriptors: Any = None) -> list[tuple[str, str]]:
    """The name and source text of the modules that a kernel with arguments of these types needs.
    `descriptors` is what its metadata says about tensor descriptors."""
    functions = Path(nvidia.dirname, "driver.c").read_text()
    launcher = nvidia.make_launcher({}, dict(enumerate(types)), descriptors)
    return [(_FUNCTIONS, functions), ("__triton_launcher", launcher)]


def build(name: str, source: str) -> bytes:
    """Compile a module as Triton does, on a machine that may have no CUDA: it is linked with a
    library that has the names of the functions, in place of libcuda. Raises OSError, RuntimeError
    or ``CalledProcessError`` if that fails."""
    with scratch.folder("tzero-modules-") as folder:
        names = sorted(set(re.findall(r"\b(cu[A-Z]\w*)\s*\(", source)))
        stand_in = Path(folder, "cuda.c")
        stand_in.write_text("".join(f"void {each}(void) {{}}\n" for each in names))
        # With this name, and without any other: the module must ask for libcuda, not for this.
        (library,) = nvidia.libraries
        so = building._build("cuda", str(stand_in), folder, [], [], [], [f"-Wl,-soname,{library}"])
        os.rename(so, os.path.join(folder, library))
        text = Path(folder, f"{name}.c")
        text.write_text(source)
        include, libraries = nvidia.include_dirs, [library]
        so = building._build(name, str(text), folder, [folder], include, libraries, [])
        return Path(so).read_bytes()


def replace(find: Find, made: Made, spare: Spare) -> None:
    """Use modules that are ready, if `find` has them, instead of compiling; tell `made` of those
    that were compiled. Where `spare` says so, or no C compiler is found, functions in Python serve
    instead (`triton_driver`), with an event. Does nothing if this Triton compiles none."""
    if not needed():
        return
    make_launcher, told = nvidia.make_launcher, set[tuple[str, str]]()

    def make(constants: Any, signature: Any, descriptors: Any) -> str:
        source: str = make_launcher(constants, signature, descriptors)
        _latest.launcher = _Launcher(source, tuple(signature.values()), descriptors)
        return source

    def compile_module(src: str, name: str, *args: Any, **kwargs: Any) -> Any:
        def in_python(reason: str) -> Any:
            if (name, reason) not in told:  # each signature has a module of this name
                told.add((name, reason))
                emit(Event("cache", name, f"Python calls CUDA's driver in its place: {reason}"))
            return triton_driver.driver_functions() if launcher is None else launcher.in_python()

        launcher = _launcher_of(src)
        is_known = launcher is not None or name == _FUNCTIONS
        if launcher is not None and launcher.descriptors:
            # Its descriptors are those that the other module makes.
            is_known = nvidia.PyCUtensorMap is triton_driver.TensorMap
            if is_known:
                return in_python("so it makes tensor descriptors")
        found = find(name, src)
        if found is not None:
            try:
                return _loaded(name, found)
            except ImportError as error:
                emit(Event("cache", name, f"its module cannot be loaded: {error}"))
        reason = spare() if is_known else ""
        if reason:
            return in_python(reason)
        assert _compile is not None
        try:
            module = _compile(src, name, *args, **kwargs)
        except RuntimeError:
            if not is_known or _has_compiler():
                raise
            return in_python("there is no C compiler here")
        if module.__file__ is not None:
            made(name, src, Path(module.__file__).read_bytes())
        return module

    nvidia.make_launcher = make
    nvidia.compile_module_from_src = compile_module
    plain_directories = nvidia.library_dirs
    nvidia.library_dirs = lambda: _Directories(plain_directories)


class _Directories(collections.UserList[str]):
    """The directories of libraries for a module. Triton starts a program to find them: only for a
    module that is compiled."""

    def __init__(self, find: Callable[[], list[str]]) -> None:
        self._find = find

    @property
    def data(self) -> list[str]:  # type: ignore[override]
        return self._find()


class _Launcher(NamedTuple):
    """The text of a launcher, and what it was made from."""

    source: str
    types: tuple[Any, ...]
    descriptors: Any

    def in_python(self) -> Any:
        return triton_driver.launcher(self.types, self.descriptors)


class _Latest(threading.local):
    """The launcher whose text this thread has made last: it compiles it next."""

    launcher: _Launcher | None = None


_latest = _Latest()


def _launcher_of(source: str) -> _Launcher | None:
    latest = _latest.launcher
    return latest if latest is not None and latest.source == source else None


def _has_compiler() -> bool:
    """Whether Triton finds a C compiler."""
    return any(map(shutil.which, filter(None, (settings.variables().get("CC"), "gcc", "clang"))))


def _loaded(name: str, binary: bytes) -> ModuleType:
    """Import an extension module from its bytes, through a file in a private directory."""
    with scratch.folder("tzero-modules-") as folder:
        path = Path(folder, f"{name}{suffix()}")
        path.write_bytes(binary)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
