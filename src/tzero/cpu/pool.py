"""Shared objects in this process: the thread pool's, and those of kernels.

Enters: the C text in ``runtime/``, a kernel's binary. Leaves: the pool's entry points, an address
to call. It must not know arguments, grids or Triton's protocol.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tzero.cpu import toolchain

__all__ = ["RUNTIME", "Pool", "Program", "Status", "load", "open_object"]

RUNTIME = Path(__file__).parent / "runtime"
"""Where the headers are that generated C includes."""

# The pool's outcomes; pool.h has their meaning.
DONE, RAISED, NO_MEMORY, NO_THREADS, TOO_WIDE = range(5)
MAX_COOPERATIVE = 4096

# Protects the building and loading of the pool: once is enough.
_loading = threading.Lock()


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
        # Without argtypes, and so without a conversion object per argument: callers pass what
        # ctypes takes as it is (references, bytes, None).
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
    # Global, so that kernels find the C maths functions through the pool's own libm: linking each
    # kernel with it takes 5 ms of its compile time.
    return Pool(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))


def _is_whole(path: Path) -> bool:
    """Whether the file is there and ends in the digest of what comes before it. Loading a damaged
    object would not raise, it would end the process."""
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(stored[:-32]).digest() == stored[-32:]


def _build(compiler: toolchain.Toolchain, path: Path) -> None:
    source = (RUNTIME / "pool.c").read_text(encoding="utf-8")
    # libm even though the pool itself needs none of it: see _load.
    flags = ("-pthread", "-Wl,--no-as-needed", "-lm") if sys.platform == "linux" else ("-pthread",)
    binary = compiler.build(source, "pool", [RUNTIME], flags, optimization=2)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix="pool-", suffix=".tmp")
    with os.fdopen(descriptor, "wb") as file:
        file.write(binary + hashlib.sha256(binary).digest())
    os.replace(name, path)  # another process sees all of it or none


def open_object(binary: bytes, directory: Path) -> ctypes.CDLL:
    """Load a shared object from memory, by way of a file in ``directory`` that is gone afterwards.

    Not through a memfd: the loader takes two objects for one when their paths are equal, and
    ``/proc/self/fd/N`` is, as soon as a descriptor is used again.
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
    """Unload a kernel's shared object. No launch of it may be running, and none may follow."""
    if _dlclose(ctypes.c_void_p(library._handle)) != 0:
        raise OSError(f"dlclose failed for {library._name}")


_dlclose = ctypes.CDLL(None).dlclose
