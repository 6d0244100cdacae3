"""Backends for tests, at ``tests.compile.backends:…``; each does one thing to its worker.

Backends that pause create the file named by the request's program, and wait until the test deletes
it. So a test can act in the middle of a compile.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tzero.compile import command, worker
from tzero.compile.backend import OtherTools
from tzero.compile.request import Artifact, Request
from tzero.errors import ToolchainMissing

HERE = __name__


def request(backend: str, program: str = "", name: str = "add", **more: object) -> Request:
    return Request(f"{HERE}:{backend}", name, program, "none", **more)  # type: ignore[arg-type]


def pause_at(path: str) -> None:
    """Write our process id into a new file at ``path``, and wait until the file is deleted."""
    part = Path(f"{path}.part")
    part.write_text(str(os.getpid()))
    part.rename(path)
    while os.path.exists(path):
        time.sleep(0.005)


class Process:
    runs = "process"

    def for_this_machine(self, request: Request) -> Request:
        return request


class Echo(Process):
    """Returns the program, and facts about the worker."""

    def compile(self, request: Request) -> Artifact:
        facts = {
            "pid": os.getpid(),
            "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "environment": {name: os.environ.get(name) for name in request.environment},
            "torch": "torch" in sys.modules,
            "interrupt": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        }
        return Artifact({"out": request.program.encode()}, facts)


class SlowEcho(Echo):
    """Echo, after a time in which its worker may be killed."""

    def compile(self, request: Request) -> Artifact:
        time.sleep(0.05)
        return super().compile(request)


class Pauses(Process):
    def compile(self, request: Request) -> Artifact:
        pause_at(request.program)
        return Artifact({}, {"pid": os.getpid()})


class PausesWithChild(Process):
    """Pauses with a child process that never ends by itself."""

    def compile(self, request: Request) -> Artifact:
        child = subprocess.Popen(["sleep", "1000"])
        Path(f"{request.program}.child").write_text(str(child.pid))
        pause_at(request.program)
        child.kill()
        child.wait()
        return Artifact({})


class Exits(Process):
    def compile(self, request: Request) -> Artifact:
        os._exit(3)


class ExitsPolitely(Process):
    def compile(self, request: Request) -> Artifact:
        sys.exit(4)


class Segfaults(Process):
    def compile(self, request: Request) -> Artifact:
        ctypes.string_at(0)
        raise AssertionError("unreachable")


class Aborts(Process):
    """As LLVM does when an internal check fails."""

    def compile(self, request: Request) -> Artifact:
        os.abort()


class Killed(Process):
    """Sends a signal to its worker, as someone outside would; works in any other process."""

    def compile(self, request: Request) -> Artifact:
        if worker.inside():
            if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as below nohup
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.Signals[request.program])
        return Artifact({"out": request.program.encode()}, {"pid": os.getpid()})


class Hungry(Process):
    def compile(self, request: Request) -> Artifact:
        held = [bytearray(64 << 20) for _ in range(int(request.program))]
        return Artifact({}, {"blocks": len(held)})


class NativelyHungry(Process):
    """Allocates in C, and aborts when that fails."""

    def compile(self, request: Request) -> Artifact:
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        for _ in range(int(request.program)):
            if not libc.malloc(64 << 20):
                os.abort()
        return Artifact({})


class Hangs(Process):
    """Hangs in C with all signals blocked."""

    def compile(self, request: Request) -> Artifact:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        ctypes.CDLL(None).sleep(1000)
        return Artifact({})


class Unsendable(Process):
    def compile(self, request: Request) -> Artifact:
        return Artifact({}, {"lock": threading.Lock()})


class NoArtifact(Process):
    def compile(self, request: Request) -> Artifact:
        return None  # type: ignore[return-value]


class Locked(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Stubborn(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(f"{message} {number}")


class Refused(Exception):
    """A compiler's own exception, which can be pickled."""


class Raises(Process):
    def compile(self, request: Request) -> Artifact:
        kinds = {
            "locked": lambda: Locked("no key"),
            "stubborn": lambda: Stubborn("no", 2),
            "own": lambda: Refused("not this one"),
            "missing": lambda: ToolchainMissing(backend="b", searched=["x"], advice="Install x."),
        }
        raise kinds[request.program]()


class Python(Process):
    """Compiles Python, and raises exceptions of the standard library."""

    def compile(self, request: Request) -> Artifact:
        compile(request.program, "kernel.py", "exec")
        return Artifact({"out": request.program.encode()})


class Compiler:
    """Runs the command in the request's program, a JSON list."""

    runs = "thread"

    def compile(self, request: Request) -> Artifact:
        line = json.loads(request.program)
        done = command.run(line, stdin=b"int x;", env={**os.environ, **request.environment})
        return Artifact({"out": done.stdout}, {"code": done.returncode, "pid": os.getpid()})


class ThreadPauses:
    runs = "thread"

    def compile(self, request: Request) -> Artifact:
        pause_at(request.program)
        return Artifact({}, {"thread": threading.get_ident()})


class Warm(Process):
    warmed = False

    def warm(self) -> None:
        type(self).warmed = True

    def compile(self, request: Request) -> Artifact:
        return Artifact({}, {"warmed": self.warmed})


class Homebound:
    """Echo, but it does not say which tools it uses, so its requests stay on their machine."""

    runs = "process"

    def compile(self, request: Request) -> Artifact:
        return Echo().compile(request)


class OtherMachine(Echo):
    """Echo, for which every other process is a machine with other tools."""

    def for_this_machine(self, request: Request) -> Request:
        raise OtherTools("its gcc is 13.1, and the request was made with gcc 12.2")


class Litters(Process):
    """Leaves a temporary file, and pauses."""

    def compile(self, request: Request) -> Artifact:
        number, path = tempfile.mkstemp()
        os.close(number)
        Path(f"{request.program}.left").write_text(path)
        pause_at(request.program)
        return Artifact({})


class Verbose(Process):
    def compile(self, request: Request) -> Artifact:
        raise ValueError(f"begin{'x' * int(request.program)}the end")


class WarmsForever(Process):
    def warm(self) -> None:
        time.sleep(1000)

    def compile(self, request: Request) -> Artifact:
        return Artifact({})


class Nested(Process):
    """Submits a request from inside a worker."""

    def compile(self, request_: Request) -> Artifact:
        from tests.compile.memory import Memory
        from tzero.compile import AsyncCompile

        inner = AsyncCompile(Memory()).submit(request("echo")).result()
        return Artifact({}, {"pid": os.getpid(), "inner": inner.facts["pid"]})


class NestedOnThread:
    """Requests more from the same service, on a compile thread, and waits for it."""

    runs = "thread"
    service: Any = None

    def compile(self, asked: Request) -> Artifact:
        inner = [self.service.submit(request(b, asked.program)) for b in ("compiler", "echo")]
        return Artifact({"out": inner[0].result(60).files["out"]}, {"n": len(inner)})


echo, pauses, pauses_with_child, exits = Echo(), Pauses(), PausesWithChild(), Exits()
exits_politely, segfaults, aborts, killed = ExitsPolitely(), Segfaults(), Aborts(), Killed()
hungry, natively_hungry, hangs = Hungry(), NativelyHungry(), Hangs()
unsendable, no_artifact, raises, python = Unsendable(), NoArtifact(), Raises(), Python()
compiler, thread_pauses, warm, nested = Compiler(), ThreadPauses(), Warm(), Nested()
warms_forever, litters, verbose = WarmsForever(), Litters(), Verbose()
slow_echo, nested_on_thread = SlowEcho(), NestedOnThread()
homebound, other_machine = Homebound(), OtherMachine()
