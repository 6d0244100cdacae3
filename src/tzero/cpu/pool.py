"""Builds, keeps and loads the thread pool.

Enters: the C sources in ``runtime/``, a directory, or the object that a bundle has. Leaves: the
pool's entry points. It must not know arguments, grids or Triton's protocol.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import sys
from pathlib import Path
from typing import Any

from tzero import locks, ownership
from tzero.cpu import toolchain
from tzero.cpu.loading import open_object
from tzero.cpu.sealing import SETTING
from tzero.errors import CacheRefused

__all__ = ["RUNTIME", "Pool", "Program", "Status", "binary", "identity", "load", "offer"]

_logger = logging.getLogger("tzero")

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
    """The pool, built at first use and kept in the private ``directory`` for later processes."""
    with _loading:
        return _load(directory)


@functools.cache
def _load(directory: Path) -> Pool:
    # RTLD_GLOBAL lets kernels resolve math functions through the pool's libm. Linking each kernel
    # with libm would add 5 ms to its compile time.
    return Pool(open_object(binary(directory), "pool", ctypes.RTLD_GLOBAL))


_offered: bytes | None = None  # set once, by `offer`


def offer(binary: bytes) -> None:
    """Let `load` use an object that was built from the same sources for this machine, so that no
    compiler is needed. The caller has verified it."""
    global _offered
    if _offered is None:
        _offered = binary


@functools.cache
def identity() -> str:
    """A digest of the sources."""
    texts = [(RUNTIME / name).read_bytes() for name in ("launch.h", "pool.h", "pool.c")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def binary(directory: Path) -> bytes:
    """The object that is loaded: the one that was offered, or what the C compiler makes of the
    sources, kept in the private ``directory``."""
    if _offered is not None:
        return _offered
    compiler = toolchain.find()
    digest = hashlib.sha256(f"{compiler.fingerprint} {identity()}".encode()).hexdigest()
    name = f"pool-{digest}.so"
    found = _stored(directory, name)
    if found is None:
        found = _build(compiler)
        _store(directory, name, found)
    return found


def _stored(directory: Path, name: str) -> bytes | None:
    """The object, if the file exists, only this user can have written it, and it ends in the digest
    of its contents. Loading a damaged object would crash the process instead of raising."""
    try:
        stored = ownership.read_private(str(directory), name, SETTING)
    except (CacheRefused, OSError):
        return None  # `_store` warns
    if stored is None or hashlib.sha256(stored[:-32]).digest() != stored[-32:]:
        return None
    return stored[:-32]


def _store(directory: Path, name: str, binary: bytes) -> None:
    data = binary + hashlib.sha256(binary).digest()
    try:
        ownership.write_private(str(directory), name, data, SETTING)
    except (CacheRefused, OSError) as error:
        _logger.warning("The thread pool is compiled by each process: %s", error)


def _build(compiler: toolchain.Toolchain) -> bytes:
    source = (RUNTIME / "pool.c").read_text(encoding="utf-8")
    # libm is for the kernels; the pool does not use it: see _load.
    flags = ("-pthread", "-Wl,--no-as-needed", "-lm") if sys.platform == "linux" else ("-pthread",)
    return compiler.build(source, "pool", [RUNTIME], flags, optimization=2)
