"""What an executor runs: one `Request` in, one `Answer` out, in any process on any machine.

Enters: a request, and who sent it. Leaves: an `Answer`: the bytes of the artifact, or why there is
none, and whether that may be otherwise elsewhere. It must not know which executor runs it, nor who
waits for the answer.

The digest of a request says which tools made its artifact. So another process compiles it only if
it has the same ones (`tzero.compile.backend.for_this_machine`). It compiles through its own
service, with its own caches. A thread of the process that asked compiles directly: the service of
that process waits for it.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import BrokenExecutor, CancelledError
from typing import NamedTuple

from tzero import locks
from tzero.compile import command, compilers, worker
from tzero.compile.backend import OtherTools, for_this_machine
from tzero.compile.request import Request
from tzero.compile.worker import Failure
from tzero.errors import (
    BackendMissing,
    CompileFailed,
    CompilerMissing,
    ToolchainMissing,
    WorkerDied,
)

__all__ = ["Answer", "compile_there", "failed", "is_passing", "place", "this_process"]

_PASSING = (
    BackendMissing,
    BrokenExecutor,
    CancelledError,
    CompilerMissing,
    ImportError,
    MemoryError,
    OSError,  # time-outs too: CompileTimeout is one
    OtherTools,
    ToolchainMissing,
    WorkerDied,
)

_token = os.urandom(8).hex()


class Answer(NamedTuple):
    """What comes back for one request: ``payload`` or ``failure``, the other is None.

    ::

        Artifact.decode(compile_there(request, this_process(), 600).payload)
    """

    payload: bytes | None
    """The encoded `Artifact`."""
    failure: Failure | None
    passing: bool
    """Whether the failure is one of the machine, so that another may compile it."""
    where: str
    """The host and process, for messages."""
    pid: int
    seconds: float


def this_process() -> str:
    """Identifies this process among all processes of all machines.

    >>> this_process() == this_process()
    True
    """
    return f"{_token} {os.getpid()}"


def _after_fork() -> None:
    global _token
    _token = os.urandom(8).hex()


locks.after_fork(_after_fork)


def compile_there(request: Request, sender: str, limit: int) -> Answer:
    """Compile a request that the process ``sender`` has sent; programs get ``limit`` seconds.

    ::

        executor.submit(compile_there, request, this_process(), 600)
    """
    from tzero.compile.service import service  # late: the service sends to executors

    start = time.perf_counter()
    try:
        if sender == this_process():
            with command.deadline(request.name, limit):
                payload = compilers.compile_in_process(request)
        else:
            payload = service().compile(for_this_machine(request)).encode()
    except Exception as error:
        return failed(error, start)
    return Answer(payload, None, False, place(), os.getpid(), time.perf_counter() - start)


def failed(error: BaseException, start: float) -> Answer:
    """The answer for a failure; ``start`` is when the work began.

    >>> failed(OSError("no space left on device"), time.perf_counter()).passing
    True
    """
    seconds = time.perf_counter() - start
    passing = is_passing(error)
    if isinstance(error, CompileFailed) and error.__cause__ is not None:
        error = error.__cause__  # a pickle has no cause; the process that asked wraps it again
    return Answer(None, worker.failure_of(error), passing, place(), os.getpid(), seconds)


def is_passing(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is one of the machine.

    >>> is_passing(ToolchainMissing(backend="hip", searched=["hipcc"], advice="Install it."))
    True
    >>> is_passing(SyntaxError("invalid syntax"))
    False
    """
    while error is not None:
        if isinstance(error, _PASSING):
            return True
        error = error.__cause__
    return False


def place() -> str:
    """Names this host and process, for messages.

    >>> str(os.getpid()) in place()
    True
    """
    return f"{os.uname().nodename}, process {os.getpid()}"
