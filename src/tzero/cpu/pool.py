"""Builds and loads the thread pool; loads and unloads the shared objects of kernels.

Enters: the C sources in ``runtime/``, a kernel's binary. Leaves: the pool's entry points, a loaded
library. It must not know arguments, grids or Triton's protocol.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tzero import locks
from tzero.cpu import toolchain

__all__ = ["RUNTIME", "Pool", "Program", "Status", "load", "open_object"]

RUNTIME = Path(__file__).parent / "runtime"
"""Directory of the headers that generated C includes."""

# Return values of tz_run; see pool.h.
DONE, RAISED, NO_MEMORY, NO_THREADS, TOO_WIDE = range(5)
MAX_COOPERATIVE = 4096

# Serialises building and loading the pool, so that each happens once.
_loading = locks.lock()


class Program(ctypes.Structure):
    """``tz_program`` of pool.h."""

    _fields_ = (
        ("scratch", ctypes.c_size_t),
        ("work", ctypes.c_int64),
        ("cooperative", ctypes.c_int32),
    )


class Status(ctypes.Structure):
    """``tz_status`` of launch.h."""

    _fields_ = (
        ("raised", ctypes.c_int32),
        ("site", ctypes.c_int32),
        ("param", ctypes.c_int32),
        ("pid", ctypes.c_int32 * 3),
        ("offset", ctypes.c_int64),
    )


class Pool:
    """The entry points of pool.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        # No argtypes, which would cost a conversion object per argument: callers pass only what
        # ctypes accepts directly (references, bytes, None).
        self.run_packed: Any = library.tz_run_packed
        address = ctypes.cast(library.tz_run_packed, ctypes.c_void_p).value
        assert address is not None
        self.run_packed_address = address
        self.workers: Any = library.tz_workers
        self._last_status = library.tz_last_status
        self._last_status.restype = ctypes.POINTER(Status)

    def last_status(self) -> Status:
        """The status of the calling thread's latest launch."""
        status: Status = self._last_status().contents
        return status


def load(directory: Path) -> Pool:
    """The pool, built at first use and kept in ``directory`` for later processes."""
    with _loading:
        return _load(directory)


@functools.cache
def _load(directory: Path) -> Pool:
    compiler = toolchain.find()
    texts = [(RUNTIME / name).read_bytes() for name in ("launch.h", "pool.h", "pool.c")]
    digest = hashlib.sha256(b"\0".join([compiler.fingerprint.encode(), *texts])).hexdigest()
    path = directory / f"pool-{digest}.so"
    if not _is_whole(path):
        _build(compiler, path)
    # RTLD_GLOBAL lets kernels resolve math functions through the pool's libm. Linking each kernel
    # with libm would add 5 ms to its compile time.
    return Pool(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))


def _is_whole(path: Path) -> bool:
    """Whether the file exists and ends in the digest of its contents. Loading a damaged object
    would crash the process instead of raising."""
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(stored[:-32]).digest() == stored[-32:]


def _build(compiler: toolchain.Toolchain, path: Path) -> None:
    source = (RUNTIME / "pool.c").read_text(encoding="utf-8")
    # libm is for the kernels; the pool does not use it: see _load.
    flags = ("-pthread", "-Wl,--no-as-needed", "-lm") if sys.platform == "linux" else ("-pthread",)
    binary = compiler.build(source, "pool", [RUNTIME], flags, optimization=2)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix="pool-", suffix=".tmp")
    with os.fdopen(descriptor, "wb") as file:
        file.write(binary + hashlib.sha256(binary).digest())
    os.replace(name, path)  # atomic: other processes see the whole file or none


def open_object(binary: bytes, directory: Path) -> ctypes.CDLL:
    """Load a shared object from memory through a temporary file in ``directory``.

    A memfd would not do: the loader identifies objects by path, and ``/proc/self/fd/N`` repeats
    when a descriptor is reused.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=directory, prefix="kernel-", suffix=".so")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(binary)
        return ctypes.CDLL(name)
    finally:
        os.unlink(name)


def close_object(library: ctypes.CDLL) -> None:
    """Unload a kernel's shared object; no launch of it may be running or follow."""
    if _dlclose(ctypes.c_void_p(library._handle)) != 0:
        raise OSError(f"dlclose failed for {library._name}")


_dlclose = ctypes.CDLL(None).dlclose
