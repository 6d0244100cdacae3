"""`tzero.ray.executor`: an executor on a Ray cluster.

Enters: calls of functions that the nodes can import. Leaves: futures. A child process
(`tzero.integrations.ray.bridge`) is connected to the cluster; it starts with the first call. It
must not know what is called.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from multiprocessing.connection import Pipe
from typing import Any

import cloudpickle

from tzero import locks, settings
from tzero.errors import ToolchainMissing
from tzero.integrations.ray.bridge import Answered, Call, Unusable

__all__ = ["Cluster", "executor"]

AGAIN = 60.0
"""Seconds after the loss of the cluster in which nobody tries to connect again."""

# Ray ends a process that cannot reach its cluster for this many seconds. By default they are 60.
_ENVIRONMENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5", "RAY_USAGE_STATS_ENABLED": "0"}

_CODE = "import sys; sys.path[:] = {path!r}; from tzero.integrations.ray import bridge; \
bridge.main({descriptor}, {address!r}, {patience!r})"


def executor(
    address: str = "auto",
    *,
    accelerator_type: str | None = None,
    cpus: float = 1.0,
    patience: float = 10.0,
) -> Cluster:
    """An executor on a Ray cluster, for `tzero.compile.on`.

    ``address`` is that of the cluster's head, as ``ray.init`` takes it. Compiles run on any node,
    with ``cpus`` CPUs each. Configs are timed only on nodes that have this ``accelerator_type`` (as
    Ray names it: ``"H200"``), and only if the device of that node is of the same class as here;
    without one, in this process. A call that no node of the cluster could run waits ``patience``
    seconds for one.

    ::

        with tzero.ray.executor("head:6379", accelerator_type="H200") as cluster:
            with tzero.compile.on(cluster):
                serve()
    """
    if importlib.util.find_spec("ray") is None:
        raise ToolchainMissing(
            backend="ray",
            searched=["the package ray"],
            advice="Run `pip install 'tzero-runtime[ray]'`.",
        )
    return Cluster(address, accelerator_type, cpus, patience)


class Cluster(Executor):
    """Calls functions on the nodes of a Ray cluster; `executor` makes it.

    ::

        future = cluster.submit(function, 1, 2)
    """

    def __init__(
        self, address: str, accelerator_type: str | None, cpus: float, patience: float
    ) -> None:
        self.address, self.accelerator_type = address, accelerator_type
        self._cpus, self._patience = cpus, patience
        self._lock = locks.lock()  # protects everything below
        self._bridge: _Connected | None = None
        self._lost, self._lost_until = "", 0.0
        self._is_shut = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function on any node."""
        return self._submit(function, args, kwargs, 0.0, None)

    def measuring(self, hardware: str) -> _Measuring | None:
        """An executor on the nodes that have the accelerator; None where none is given.
        ``hardware`` is the class of the device, such as ``cuda:sm_90``."""
        if self.accelerator_type is None:
            return None
        gpus = 0.0 if hardware.startswith("cpu") else 1.0
        return _Measuring(self, gpus, self.accelerator_type)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster. With ``wait``, after the calls have been answered."""
        with self._lock:
            self._is_shut = True
            bridge, self._bridge = self._bridge, None
        if bridge is not None:
            if wait and not cancel_futures:
                bridge.wait()
            bridge.end()

    def _submit(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        gpus: float,
        accelerator: str | None,
    ) -> Future[Any]:
        pickled = cloudpickle.dumps((function, args, kwargs))
        with self._lock:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if time.monotonic() < self._lost_until:
                raise BrokenExecutor(self._lost)
            if self._bridge is None:
                self._bridge = _Connected(self.address, self._patience, self._on_end)
            bridge = self._bridge
        return bridge.call(pickled, self._cpus, gpus, accelerator)

    def _on_end(self, bridge: _Connected, problem: str) -> None:
        with self._lock:
            if self._bridge is bridge:
                self._bridge = None
                self._lost, self._lost_until = problem, time.monotonic() + AGAIN


class _Measuring(Executor):
    """Calls functions on the nodes of a cluster that have an accelerator."""

    def __init__(self, cluster: Cluster, gpus: float, accelerator: str) -> None:
        self._cluster, self._gpus, self._accelerator = cluster, gpus, accelerator

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._cluster._submit(function, args, kwargs, self._gpus, self._accelerator)


class _Connected:
    """A bridge, and the calls that it has."""

    def __init__(
        self, address: str, patience: float, on_end: Callable[[_Connected, str], None]
    ) -> None:
        self._address, self._on_end = address, on_end
        self._changed = locks.condition()  # protects everything below
        self._calls: dict[int, Future[Any]] = {}
        self._count = 0
        self._problem = ""
        self._owner = os.getpid()
        self._pipe, its = Pipe()
        given = {"descriptor": its.fileno(), "address": address, "patience": patience}
        code = _CODE.format(path=sys.path, **given)
        with its, locks.no_fork:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # Ray prints what its nodes say; losses are reported
                pass_fds=(its.fileno(),),
                env={**settings.variables(), **_ENVIRONMENT},
                process_group=0,
            )
        # A daemon thread: calls that are never answered must not keep the process from ending.
        threading.Thread(target=self._read, name="tzero-ray", daemon=True).start()

    def call(
        self, pickled: bytes, cpus: float, gpus: float, accelerator: str | None
    ) -> Future[Any]:
        if self._owner != os.getpid():
            raise BrokenExecutor("the connection to the cluster is that of a parent process")
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            if self._problem:
                raise BrokenExecutor(self._problem)
            self._count += 1
            self._calls[self._count] = future
            try:
                self._pipe.send(Call(self._count, pickled, cpus, gpus, accelerator))
            except OSError as error:
                del self._calls[self._count]
                raise BrokenExecutor(f"the connection to the cluster is lost: {error}") from error
        return future

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._calls)

    def end(self) -> None:
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        problem = ""
        try:
            while True:
                message = self._pipe.recv()
                if isinstance(message, Unusable):
                    problem = message.problem
                else:
                    self._take(message)
        except (EOFError, OSError):
            problem = problem or "the process that was connected to it has ended"
        self._fail(f"Ray at {self._address!r}: {problem}")

    def _take(self, answered: Answered) -> None:
        with self._changed:
            future = self._calls.pop(answered.number)
            self._changed.notify_all()
        if answered.pickled is None:
            future.set_exception(BrokenExecutor(f"Ray: {answered.problem}"))
            return
        try:
            future.set_result(pickle.loads(answered.pickled))
        except Exception as error:  # of a class that this process cannot import, for one
            future.set_exception(error)

    def _fail(self, problem: str) -> None:
        self._on_end(self, problem)
        with self._changed:
            self._problem = problem
            calls, self._calls = self._calls, {}
            self._changed.notify_all()
        for future in calls.values():
            future.set_exception(BrokenExecutor(problem))
        self._process.wait()
