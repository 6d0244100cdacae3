"""A process that can only compile: it cannot import torch, nor the tests, and has no device.

Enters: requests, pickled, on standard input. Leaves: for each, on standard output, the bytes of its
artifact or the failure, and what the process has become. `Elsewhere` is the other end.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

_SIZE = struct.Struct(">Q")


class Reply(NamedTuple):
    payload: bytes | None
    error: str
    torch: bool
    resident: int  # bytes


class Elsewhere:
    """A process of its own, until it is closed."""

    def __init__(self, **variables: str) -> None:
        hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tempfile.gettempdir(),
            env={**kept, **hidden, **variables},
        )

    def compile(self, request: Any) -> Reply:
        assert self._process.stdin is not None and self._process.stdout is not None
        data = pickle.dumps(request)
        self._process.stdin.write(_SIZE.pack(len(data)) + data)
        self._process.stdin.flush()
        (size,) = _SIZE.unpack(self._process.stdout.read(_SIZE.size))
        return Reply(*pickle.loads(self._process.stdout.read(size)))

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def _serve() -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it raises ImportError
    sys.modules["tests"] = None  # type: ignore[assignment]
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints, prints elsewhere
    from tzero.compile.backend import find

    while head := sys.stdin.buffer.read(_SIZE.size):
        request = pickle.loads(sys.stdin.buffer.read(*_SIZE.unpack(head)))
        try:
            payload, error = find("triton").compile(request).encode(), ""
        except Exception as problem:
            payload, error = None, f"{type(problem).__name__}: {problem}"
        with open("/proc/self/status", encoding="ascii") as lines:
            resident = next(1024 * int(line.split()[1]) for line in lines if "VmRSS" in line)
        reply = (payload, error, sys.modules["torch"] is not None, resident)
        data = pickle.dumps(reply)
        out.write(_SIZE.pack(len(data)) + data)
        out.flush()


if __name__ == "__main__":
    _serve()
