"""Backends for tests, at ``tests.compile.backends:…``; each does one thing to its worker.

A backend that must be met in the middle of a job makes a file, whose name is the program, and waits
until it is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tzero.compile import command
from tzero.compile.request import Artifact, Request
from tzero.errors import ToolchainMissing

HERE = __name__


def request(backend: str, program: str = "", name: str = "add", **more: object) -> Request:
    return Request(f"{HERE}:{backend}", name, program, "none", **more)  # type: ignore[arg-type]


def meet(path: str) -> None:
    """Show that this is where we are, with our process, and wait to be let on."""
    part = Path(f"{path}.part")
    part.write_text(str(os.getpid()))
    part.rename(path)
    while os.path.exists(path):
        time.sleep(0.005)


class Process:
    runs = "process"


class Echo(Process):
    """Says what it was asked, and where."""

    def compile(self, request: Request) -> Artifact:
        facts = {
            "pid": os.getpid(),
            "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "environment": {name: os.environ.get(name) for name in request.environment},
            "torch": "torch" in sys.modules,
            "interrupt": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        }
        return Artifact({"out": request.program.encode()}, facts)


class Meets(Process):
    def compile(self, request: Request) -> Artifact:
        meet(request.program)
        return Artifact({}, {"pid": os.getpid()})


class MeetsWithChild(Process):
    """As the one above, beside a compiler of its own that takes for ever."""

    def compile(self, request: Request) -> Artifact:
        child = subprocess.Popen(["sleep", "1000"])
        Path(f"{request.program}.child").write_text(str(child.pid))
        meet(request.program)
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
        raise AssertionError("it should have crashed")


class Aborts(Process):
    """As LLVM does where it meets what it does not expect."""

    def compile(self, request: Request) -> Artifact:
        os.abort()


class Killed(Process):
    """As by the kernel, out of memory."""

    def compile(self, request: Request) -> Artifact:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


class Hungry(Process):
    def compile(self, request: Request) -> Artifact:
        held = [bytearray(64 << 20) for _ in range(int(request.program))]
        return Artifact({}, {"blocks": len(held)})


class NativelyHungry(Process):
    """Memory that is asked for in C++, where nobody looks at the answer."""

    def compile(self, request: Request) -> Artifact:
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        for _ in range(int(request.program)):
            if not libc.malloc(64 << 20):
                os.abort()
        return Artifact({})


class Hangs(Process):
    """Where no Python code runs any more."""

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
    """An exception that holds what cannot be pickled."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.lock = threading.Lock()


class Stubborn(Exception):
    """An exception that can be pickled, and not made again."""

    def __init__(self, words: str, more: int) -> None:
        super().__init__(f"{words} {more}")


class Refused(Exception):
    """A compiler's own exception, which travels."""


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
    """Compiles Python, whose errors are Python's own."""

    def compile(self, request: Request) -> Artifact:
        compile(request.program, "kernel.py", "exec")
        return Artifact({"out": request.program.encode()})


class Compiler:
    """A compiler that is a program: `cat`, or what the program names."""

    runs = "thread"

    def compile(self, request: Request) -> Artifact:
        words = json.loads(request.program)
        done = command.run(words, stdin=b"int x;", env={**os.environ, **request.environment})
        return Artifact({"out": done.stdout}, {"code": done.returncode, "pid": os.getpid()})


class ThreadMeets:
    runs = "thread"

    def compile(self, request: Request) -> Artifact:
        meet(request.program)
        return Artifact({}, {"thread": threading.get_ident()})


class Warm(Process):
    warmed = False

    def warm(self) -> None:
        type(self).warmed = True

    def compile(self, request: Request) -> Artifact:
        return Artifact({}, {"warmed": self.warmed})


class Nested(Process):
    """Asks the service itself."""

    def compile(self, request_: Request) -> Artifact:
        from tests.compile.memory import Memory
        from tzero.compile import AsyncCompile

        inner = AsyncCompile(Memory()).submit(request("echo")).result()
        return Artifact({}, {"pid": os.getpid(), "inner": inner.facts["pid"]})


echo, meets, meets_with_child, exits = Echo(), Meets(), MeetsWithChild(), Exits()
exits_politely, segfaults, aborts, killed = ExitsPolitely(), Segfaults(), Aborts(), Killed()
hungry, natively_hungry, hangs = Hungry(), NativelyHungry(), Hangs()
unsendable, no_artifact, raises, python = Unsendable(), NoArtifact(), Raises(), Python()
compiler, thread_meets, warm, nested = Compiler(), ThreadMeets(), Warm(), Nested()
