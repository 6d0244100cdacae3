"""The code that runs in a worker process: one `Request` in, one `Reply` out.

Enters: a request, and a memory limit. Leaves: a `Reply`: the bytes of the artifact, or the failure
as text, with the pickled exception if it can be pickled; plus process, thread, times and memory. It
must not know who made the request, nor what the backends compile.

A worker leads its own process group, so that everything its compilers start ends with it. It ends
when its parent process ends. It ignores Ctrl-C, which the parent handles. It sees no GPU.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tzero import scratch, settings
from tzero.compile.backend import find
from tzero.compile.request import SCHEMA, Artifact, Request
from tzero.errors import CompileFailed

__all__ = [
    "CRASHES",
    "Failure",
    "Reply",
    "begin",
    "compile_to_bytes",
    "end_at_crashes",
    "end_with",
    "error_of",
    "failure_of",
    "inside",
    "is_stdlib_error",
    "run",
    "warm",
]

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
"""Environment of a worker: opening a GPU would cost GPU memory and time."""

CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals that a process causes itself."""

MOST_TEXT = 16 << 10
"""Characters that are kept of the beginning, and of the end, of an error's text."""

_MIB = 1 << 20


class Failure(NamedTuple):
    """Why a compile failed, in a form that can be pickled.

    >>> failure_of(NameError("BLOCK")).problem
    'NameError: BLOCK'
    """

    problem: str
    trace: str
    error: bytes | None
    """The pickled exception; ``None`` if it cannot be pickled."""


class Reply(NamedTuple):
    """What a worker sends back for one request: ``payload`` or ``failure``, the other is None.

    ::

        reply = run(request, memory=0)
        Artifact.decode(reply.payload)
    """

    payload: bytes | None
    """The encoded `Artifact`."""
    failure: Failure | None
    pid: int
    thread: int
    start: int
    end: int
    """Start and end are ``time.perf_counter_ns()``, which all processes of a machine share."""
    resident: int
    """Resident memory of the worker after the request, in bytes."""


class _State:
    """State of this process; both are None unless it is a worker."""

    initial_data: int | None = None  # bytes of data segment when it began
    log: int | None = None  # file for the digest of the current request, and for faulthandler


def inside() -> bool:
    """Whether this process is a worker. Workers compile everything themselves.

    >>> inside()
    False
    """
    return _State.initial_data is not None


def begin(parent: int, log: str) -> None:
    """Turn this process into a worker. ``parent`` is its parent's pid, ``log`` a file for crashes.

    ::

        ProcessPoolExecutor(1, initializer=begin, initargs=(os.getpid(), path))
    """
    gc.freeze()  # garbage that a fork inherits is its parent's: no finalizer of it may run here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked worker inherits handlers
    # The parent blocks SIGINT while it starts a worker (see `thread_pool`).
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.setpgid(0, 0)
    threading.Thread(target=end_with, args=(parent,), name="tzero-parent", daemon=True).start()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the parent may ignore it
    tempfile.tempdir = scratch.directory()  # whatever a compiler leaves there is swept
    _State.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    os.unlink(log)  # parent and worker have it open; the name is not needed any more
    end_at_crashes()
    faulthandler.enable(file=_State.log)
    # loky replaces a worker whose memory grew, even one that has just received work, and warns.
    # Disabled: `Slot` checks the memory in each reply instead, between requests.
    loky = importlib.import_module("loky.process_executor")
    loky._MAX_MEMORY_LEAK_SIZE = sys.maxsize  # type: ignore[attr-defined]
    _State.initial_data = _status("VmData:")


def end_at_crashes() -> None:
    """Let a crash end this process. LLVM installs signal handlers when it compiles, and a fork
    inherits them. Together with those of faulthandler they raise the signal again without end: a
    crash would look like a hang.

    ::

        end_at_crashes()
        faulthandler.enable()
    """
    faulthandler.disable()
    for name in CRASHES:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def end_with(parent: int) -> None:
    """Wait until the parent ends, then kill this process group. The process must lead its group.

    ::

        Thread(target=end_with, args=(parent,), daemon=True).start()
    """
    try:
        end = os.pidfd_open(parent)
    except OSError:  # the parent is gone, or the kernel has no pidfds
        end = None
    poll = select.poll()
    if end is not None:
        poll.register(end, select.POLLIN)
    while os.getppid() == parent:
        poll.poll(None if end is not None else 500)
    os.killpg(0, signal.SIGKILL)


def warm(backends: Sequence[str]) -> list[tuple[str, str]]:
    """Import what these backends need; return (backend, problem) for each that failed.

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
            except Exception as error:  # of any backend; the caller emits it as an event
                problems.append((name, f"{type(error).__name__}: {error}"))
    return problems


def run(request: Request, memory: int) -> Reply:
    """Compile a request in this worker with at most ``memory`` MiB more data; 0: no limit.

    ::

        executor.submit(run, request, settings.compile_memory)
    """
    if _State.log is not None:
        os.ftruncate(_State.log, 0)
        os.write(_State.log, f"{request.digest}\n".encode())
    payload = failure = None
    start = time.perf_counter_ns()
    try:
        with settings.applied(_environment(request)), _limited(memory):
            payload = compile_to_bytes(request)
    except MemoryError as error:
        failure = failure_of(error, _memory_hint(memory))
    except BaseException as error:  # also sys.exit() in a compiler, which must not end the worker
        failure = failure_of(error)
    end = time.perf_counter_ns()
    here = os.getpid(), threading.get_native_id()
    return Reply(payload, failure, *here, start, end, _status("VmRSS:"))


def _environment(request: Request) -> dict[str, str]:
    """The variables of the environment for one request."""
    # The compilers of a worker leave their temporary files where they are swept.
    own = {"TMPDIR": tempfile.gettempdir()} if inside() else {}
    return {**request.environment, **HIDDEN, **own}


def compile_to_bytes(request: Request) -> bytes:
    """Compile a request in this process; return the encoded artifact.

    ::

        Artifact.decode(compile_to_bytes(request))
    """
    if request.schema != SCHEMA:
        raise CompileFailed(
            kernel=request.name,
            problem=f"its request has schema {request.schema}, this process supports {SCHEMA}",
            trace="",
        )
    artifact = find(request.backend).compile(request)
    if not isinstance(artifact, Artifact):
        raise TypeError(f"the backend {request.backend!r} returned {artifact!r}, not an Artifact")
    try:
        return artifact.encode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the artifact of the backend {request.backend!r} cannot be encoded: {error}"
        ) from error


def failure_of(error: BaseException, more: str = "") -> Failure:
    """Describe an exception as a `Failure`; ``more`` is appended to its message.

    >>> failure_of(ValueError("no"), "; really").problem
    'ValueError: no; really'
    """
    trace = _cut("".join(traceback.format_exception(error)))
    whole = str(error)
    message = _cut(whole)
    problem = type(error).__name__ + (f": {message}" if message else "") + more
    if message is not whole:
        return Failure(problem, trace, None)
    try:
        # Some exceptions can be pickled but not unpickled, so try both here.
        data = pickle.dumps(error)
        survives = type(pickle.loads(data)) is type(error)
    except Exception as reason:
        return Failure(problem, f"{trace}(It cannot be pickled: {reason})\n", None)
    return Failure(problem, trace, data if survives else None)


def _cut(text: str) -> str:
    """The beginning and the end of a text, if it is long; compilers print megabytes."""
    surplus = len(text) - 2 * MOST_TEXT
    if surplus <= 0:
        return text
    return f"{text[:MOST_TEXT]}\n[{surplus} characters are not shown]\n{text[-MOST_TEXT:]}"


def error_of(failure: Failure, kernel: str, where: str) -> BaseException:
    """Return the exception that the caller sees for a failure.

    >>> failure = failure_of(NameError("BLOCK"))
    >>> error_of(failure, "add", "worker 7").__cause__
    NameError('BLOCK')
    """
    error: BaseException | None = None
    trace = failure.trace
    if failure.error is not None:
        try:
            error = pickle.loads(failure.error)
        except Exception as reason:  # such as a class that is not importable here
            trace += f"(It could not be unpickled in the main process: {reason})\n"
    if error is not None and not is_stdlib_error(error):
        error.add_note(f"While compiling {kernel} in {where}:\n{trace.rstrip()}")
        return error
    failed = CompileFailed(kernel=kernel, problem=failure.problem, trace=trace)
    failed.__cause__ = error
    return failed


def is_stdlib_error(error: BaseException) -> bool:
    """Whether an exception class is defined by Python. Such an error does not say that compiling
    failed, so it is wrapped in `CompileFailed`. Errors of tzero and of compilers are raised as is.

    >>> is_stdlib_error(KeyError()), is_stdlib_error(CompileFailed(kernel="", problem="", trace=""))
    (True, False)
    """
    return type(error).__module__.partition(".")[0] in sys.stdlib_module_names


def _memory_hint(memory: int) -> str:
    return f"; the limit is {memory} MiB (TZERO_COMPILE_MEMORY)" if memory else ""


@contextmanager
def _limited(memory: int) -> Iterator[None]:
    """Make allocations beyond this many MiB fail. Memory that the worker started with does not
    count: a forked worker inherits its parent's."""
    if not memory:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = (_State.initial_data or 0) + memory * _MIB
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status(field: str) -> int:
    """A field of ``/proc/self/status`` in bytes."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        found = [int(line.split()[1]) for line in lines if line.startswith(field)]
    return 1024 * found[0] if found else 0
