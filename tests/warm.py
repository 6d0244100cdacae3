"""Runs programs in processes that have imported torch, Triton and tzero already.

Enters: the command line of a Python program, its environment and folder. Leaves: its output and
exit code, as `subprocess.run` gives them. An import of torch takes 2 s; a server, of which each
pytest process starts one, imports it once and forks a child for each program.

Not for tests about imports, about what is read at an import, or about the hashes of strings: all
children share the server's. It knows nothing of the programs.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from typing import IO, Any

MODULES = (
    *("torch", "triton", "triton.language", "triton.compiler.code_generator"),
    *("tzero", "tzero.adapters.triton_compile", "tzero.api.decorators", "tzero.cli"),
)

AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "TORCH")
"""How variables begin that the interpreter and libraries read when they start, as Triton's import
reads TZERO_CPU: a program has the server's."""

LATER = ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "KMP_INIT_AT_FORK")
"""Those of them that are read later, or that may differ. In the process of a test torch.compile
sets the second one, and joblib the third."""

_SIZE = 8  # bytes of a number on the socket


# -- the pytest process ----------------------------------------------------------------------------


class Server:
    """A process that forks children for programs, until it is closed."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._environment = dict(os.environ)

    def run(
        self,
        command: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        files: Sequence[IO[bytes]],
        timeout: float,
    ) -> int:
        """Run a program with these files as its standard streams, and return its exit code."""
        for name in env.keys() | self._environment.keys():
            if name == "TZERO_CPU" or (name.startswith(AT_START) and name not in LATER):
                assert env.get(name) == self._environment.get(name), f"{name} is read at the start"
        request = json.dumps({"command": list(command), "cwd": cwd, "env": dict(env)}).encode()
        size = len(request).to_bytes(_SIZE, "big")
        socket.send_fds(self._socket, [size], [file.fileno() for file in files])
        self._socket.sendall(request)
        pid = self._reply()
        if not select.select([self._socket], [], [], timeout)[0]:
            os.kill(pid, signal.SIGKILL)
            self._reply()
            raise subprocess.TimeoutExpired(command, timeout)
        return self._reply()

    def _reply(self) -> int:
        data = self._socket.recv(_SIZE, socket.MSG_WAITALL)
        assert data, f"the server of {__file__} ended with {self._process.wait()}"
        return int.from_bytes(data, "big", signed=True)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_servers: dict[tuple[int, tuple[str, ...]], Server] = {}


def run(
    command: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
    timeout: float = 300,
    modules: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run ``[sys.executable, "-c" TEXT | "-m" MODULE | FILE, ...]``, and return what it said.

    `modules` are imported beforehand too, in a server of their own.
    """
    assert command[0] == sys.executable
    key = (os.getpid(), tuple(modules))
    if key not in _servers:
        _servers[key] = Server(modules)
        atexit.register(_servers[key].close)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
        given.write(input.encode())
        given.seek(0)
        with tempfile.TemporaryFile() as err:
            code = _servers[key].run(
                command[1:],
                os.getcwd() if cwd is None else os.fspath(cwd),
                os.environ if env is None else env,
                (given, out, err),
                timeout,
            )
            for file in (out, err):
                file.seek(0)
            said, warned = out.read().decode(), err.read().decode()
    return subprocess.CompletedProcess(list(command), code, said, warned)


def other_hash_seed() -> str:
    """A PYTHONHASHSEED for a new process that hashes strings otherwise than this one."""
    return "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"


# -- the server and its children -------------------------------------------------------------------


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork a child for each request. Returns the request in a child; the server ends here."""
    while True:
        head, streams, _, _ = socket.recv_fds(connection, _SIZE, 3)
        if not head:
            sys.exit()
        request = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
        for stream in streams:
            os.close(stream)
        if pid == 0:
            connection.close()
            return json.loads(request)  # type: ignore[no-any-return]
        connection.sendall(pid.to_bytes(_SIZE, "big", signed=True))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(code.to_bytes(_SIZE, "big", signed=True))


def _main_module(command: Sequence[str], path: Sequence[str]) -> tuple[types.CodeType, Any]:
    """The code of a program and the module that it runs in, which is `__main__` from now on."""
    main = types.ModuleType("__main__")
    kind, *words = command
    if kind == "-c":
        text, *words = words
        sys.argv, sys.path = ["-c", *words], ["", *path]
        code = compile(text, "<string>", "exec", dont_inherit=True)
    elif kind == "-m":
        name, *words = words
        sys.path = [os.getcwd(), *path]
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None, f"there is no module {name}"
        sys.argv = [spec.origin, *words]
        main.__dict__.update(__spec__=spec, __package__=spec.parent, __file__=spec.origin)
        code = spec.loader.get_code(name)  # type: ignore[union-attr]
    else:
        sys.argv, sys.path = list(command), [os.path.dirname(os.path.abspath(kind)), *path]
        main.__file__ = kind
        with open(kind, "rb") as file:
            code = compile(file.read(), kind, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    return code, main


def _search_path(env: Mapping[str, str]) -> list[str]:
    """The path of a process with this environment, without the folder of its program."""
    ours, theirs = (
        each["PYTHONPATH"].split(os.pathsep) if each.get("PYTHONPATH") else []
        for each in (os.environ, env)
    )
    return [*theirs, *(each for each in sys.path[1:] if each not in ours)]


def _warm_up(modules: Sequence[str]) -> None:
    for name in (*MODULES, *modules):
        importlib.import_module(name)
    sys.modules["tzero.adapters.triton_compile"].compiler_digest()  # reads all of Triton's files
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # what libraries leave to the collection at the end is no leak


def _forget_settings() -> None:
    """Triton's import has read them, for TZERO_CPU; the program reads its own."""
    held = sys.modules["tzero.settings"]._held
    held.base = held.in_force = held.latest = None


if __name__ == "__main__":
    _, number, *names = sys.argv
    _warm_up(names)
    asked = _serve(socket.socket(fileno=int(number)))
    os.chdir(asked["cwd"])
    found = _search_path(asked["env"])
    os.environ.clear()
    os.environ.update(asked["env"])
    _forget_settings()
    code, main = _main_module(asked["command"], found)
    exec(code, main.__dict__)
