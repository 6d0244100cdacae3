"""What runs in a worker process: one request in, one reply out.

Enters: a request, and how much memory it may take. Leaves: a `Reply`, small and plain: the bytes of
the artifact, or the failure as text, with the exception itself where it can travel; and when, where
and with how much memory. It must not know who asked, nor what the backends compile.

A worker leads a process group, so that whatever its compilers start ends with it; it ends when the
process that started it does; it ignores Ctrl-C, which is for that process to act on; and it sees no
GPU.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tzero import settings
from tzero.compile.backend import find
from tzero.compile.request import SCHEMA, Artifact, Request
from tzero.errors import CompileFailed

__all__ = [
    "Failure",
    "Reply",
    "begin",
    "end_with",
    "error_of",
    "failure_of",
    "inside",
    "is_pythons",
    "make",
    "run",
    "warm",
]

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
"""What keeps a worker's libraries from opening a GPU: it costs memory there, and time here."""

_MIB = 1 << 20


class Failure(NamedTuple):
    """Why a request could not be met, as it travels.

    >>> failure_of(NameError("BLOCK")).problem
    'NameError: BLOCK'
    """

    problem: str
    trace: str
    error: bytes | None
    """The exception, pickled; ``None`` where it cannot be."""


class Reply(NamedTuple):
    """What a worker answers.

    ::

        reply = run(request, memory=0)
        Artifact.decode(reply.payload)
    """

    payload: bytes | None
    failure: Failure | None
    pid: int
    thread: int
    start: int
    end: int
    resident: int
    """Bytes of memory that the worker holds now."""


class _Here:
    """What this process is, if it is a worker."""

    born: int | None = None  # bytes of data it had when it began
    log: int | None = None  # where it notes which request it is at, and how it crashed


def inside() -> bool:
    """Whether this process is a worker: then there is nobody to hand a request on to.

    >>> inside()
    False
    """
    return _Here.born is not None


def begin(parent: int, log: str) -> None:
    """Make a worker of this process; ``parent`` started it, and made the file ``log`` for it.

    ::

        ProcessPoolExecutor(1, initializer=begin, initargs=(os.getpid(), path))
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked worker has its parent's handlers
    # It was started with the signal blocked, so that none came before it could be ignored.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.setpgid(0, 0)
    threading.Thread(target=end_with, args=(parent,), name="tzero-parent", daemon=True).start()
    _Here.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    os.unlink(log)  # both ends have it open, and nobody else needs its name
    faulthandler.enable(file=_Here.log)
    # loky replaces a worker that grew, also when it has just been handed work, and warns; the pool
    # looks at the size in each reply instead, between two requests.
    loky = importlib.import_module("loky.process_executor")
    loky._MAX_MEMORY_LEAK_SIZE = sys.maxsize  # type: ignore[attr-defined]
    _Here.born = _status("VmData:")


def end_with(parent: int) -> None:
    """End this process and all that it started when its parent is gone; it leads a process group.

    ::

        Thread(target=end_with, args=(parent,), daemon=True).start()
    """
    try:
        end = os.pidfd_open(parent)
    except OSError:  # gone already, or a kernel without them
        end = None
    poll = select.poll()
    if end is not None:
        poll.register(end, select.POLLIN)
    while os.getppid() == parent:
        poll.poll(None if end is not None else 500)
    os.killpg(0, signal.SIGKILL)


def warm(backends: Sequence[str]) -> list[tuple[str, str]]:
    """Import what these backends will need; the problems of those that could not.

    >>> warm([])
    []
    """
    problems = []
    with settings.applied(HIDDEN):
        for name in backends:
            try:
                backend = find(name)
                if backend.runs == "process" and hasattr(backend, "warm"):
                    backend.warm()
            except Exception as error:  # someone else's backend; it is told by whoever asked
                problems.append((name, f"{type(error).__name__}: {error}"))
    return problems


def run(request: Request, memory: int) -> Reply:
    """Meet a request in this worker, with so many MiB of memory; 0: all there is.

    ::

        executor.submit(run, request, settings.compile_memory)
    """
    if _Here.log is not None:
        os.ftruncate(_Here.log, 0)
        os.write(_Here.log, f"{request.digest}\n".encode())
    payload = failure = None
    start = time.perf_counter_ns()
    try:
        with settings.applied({**request.environment, **HIDDEN}), _limited(memory):
            payload = make(request)
    except MemoryError as error:
        failure = failure_of(error, _too_much(memory))
    except BaseException as error:  # also a sys.exit() of a compiler: it must not end the worker
        failure = failure_of(error)
    end = time.perf_counter_ns()
    here = os.getpid(), threading.get_native_id()
    return Reply(payload, failure, *here, start, end, _status("VmRSS:"))


def make(request: Request) -> bytes:
    """Meet a request in this process: the bytes of its artifact.

    ::

        Artifact.decode(make(request))
    """
    if request.schema != SCHEMA:
        raise CompileFailed(
            kernel=request.name,
            problem=f"its request has schema {request.schema}, and this process knows {SCHEMA}",
            trace="",
        )
    artifact = find(request.backend).compile(request)
    if not isinstance(artifact, Artifact):
        raise TypeError(f"the backend {request.backend!r} made {artifact!r}, which is no Artifact")
    try:
        return artifact.encode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"what the backend {request.backend!r} made cannot leave the process: {error}"
        ) from error


def failure_of(error: BaseException, more: str = "") -> Failure:
    """An exception, made ready to travel.

    >>> failure_of(ValueError("no"), "; really").problem
    'ValueError: no; really'
    """
    trace = "".join(traceback.format_exception(error))
    words = str(error)
    problem = type(error).__name__ + (f": {words}" if words else "") + more
    try:
        # A class may pickle and then refuse to be made again, so that is tried here.
        data = pickle.dumps(error)
        travels = type(pickle.loads(data)) is type(error)
    except Exception as refusal:
        return Failure(problem, f"{trace}(It cannot be pickled: {refusal})\n", None)
    return Failure(problem, trace, data if travels else None)


def error_of(failure: Failure, kernel: str, where: str) -> BaseException:
    """What the caller is to see of a failure.

    >>> failure = failure_of(NameError("BLOCK"))
    >>> error_of(failure, "add", "worker 7").__cause__
    NameError('BLOCK')
    """
    error: BaseException | None = None
    trace = failure.trace
    if failure.error is not None:
        try:
            error = pickle.loads(failure.error)
        except Exception as refusal:  # its class is not importable here, or refuses
            trace += f"(It could not be read in the main process: {refusal})\n"
    if error is not None and not is_pythons(error):
        error.add_note(f"While compiling {kernel} in {where}:\n{trace.rstrip()}")
        return error
    failed = CompileFailed(kernel=kernel, problem=failure.problem, trace=trace)
    failed.__cause__ = error
    return failed


def is_pythons(error: BaseException) -> bool:
    """Whether an exception is one of Python's own: it then says nothing of compiling, and goes
    into a `CompileFailed`. Those of tzero and of compilers are for the caller to catch.

    >>> is_pythons(KeyError()), is_pythons(CompileFailed(kernel="", problem="", trace=""))
    (True, False)
    """
    return type(error).__module__.partition(".")[0] in sys.stdlib_module_names


def _too_much(memory: int) -> str:
    return f"; it may take {memory} MiB (TZERO_COMPILE_MEMORY)" if memory else ""


@contextmanager
def _limited(memory: int) -> Iterator[None]:
    """Let allocations fail that go beyond this many MiB. What a forked worker was born with does
    not count: it is its parent's."""
    if not memory:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = (_Here.born or 0) + memory * _MIB
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status(field: str) -> int:
    """Bytes of memory, by their name in what the kernel says of this process."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        found = [int(line.split()[1]) for line in lines if line.startswith(field)]
    return 1024 * found[0] if found else 0
