"""Which failures pass: those of the machine, which say nothing about the config.

Enters: an exception, or how a process ended. Leaves: whether the same config may work the next
time. It must not know configs, nor where failures are remembered.

A config itself causes compile errors of its source, wrong results, exceptions of its run, crashes,
and needs more shared memory than there is. These come again and are remembered. Killed workers,
time-outs, full disks, memory that others use, and missing compilers pass.
"""

from __future__ import annotations

import re
import signal
from concurrent.futures import BrokenExecutor, CancelledError

import torch

from tzero.errors import (
    BackendMissing,
    CacheRefused,
    CompilerMissing,
    ToolchainMissing,
    WorkerDied,
)

__all__ = ["end_passes", "passes"]

_PASSING = (
    BackendMissing,
    BrokenExecutor,
    CacheRefused,
    CancelledError,
    CompilerMissing,
    MemoryError,
    OSError,  # time-outs too: CompileTimeout is one
    ToolchainMissing,
    WorkerDied,
    torch.OutOfMemoryError,
)

_WORDS = re.compile(
    # What compilers and drivers, which are other programs, say about the machine.
    r"no space left on device|disk quota exceeded|input/output error|read-only file system"
    r"|stale file handle|too many open files|resource temporarily unavailable"
    r"|file too large|file size limit exceeded"
    r"|cannot allocate memory|out of memory|virtual memory exhausted|std::bad_alloc"
    r"|\bkilled\b|timed out|ecc error",
    re.IGNORECASE,
)

_OWN_SIGNALS = (
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGTRAP,
)
"""Signals by which a process ends for what it did itself. SIGBUS is none: a full disk under mapped
memory sends it too."""


def passes(error: BaseException | None) -> bool:
    """Whether an exception, or what caused it, is a failure of the machine.

    >>> passes(OSError(28, "No space left on device")), passes(ValueError("BLOCK is 100"))
    (True, False)
    """
    while error is not None:
        if isinstance(error, _PASSING) or _WORDS.search(str(error)):
            return True
        error = error.__cause__
    return False


def end_passes(code: int | None) -> bool:
    """Whether a process with this exit code was ended from outside.

    >>> end_passes(-signal.SIGKILL), end_passes(-signal.SIGSEGV), end_passes(3)
    (True, False, False)
    """
    return code is None or (code < 0 and -code not in _OWN_SIGNALS)
