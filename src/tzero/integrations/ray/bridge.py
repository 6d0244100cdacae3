"""The child process that is connected to a Ray cluster: calls come in, answers go out.

Enters: over a pipe, `Call`s with a pickled function and where it may run. Leaves: over the same
pipe, an `Answered` for each, or one `Unusable` if there is no cluster. It must not know what is
called: it unpickles neither calls nor results.

Ray itself gives a call to another node if its node is lost. A call that no node of the cluster
could run is answered with an error after a while. The process ends with the pipe.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

__all__ = ["Answered", "Call", "Unusable", "main"]

RETRIES = 3
"""How many nodes may be lost with a call."""

_POLL = 1.0


class Call(NamedTuple):
    """A function and its arguments, pickled, and the resources of Ray that it needs."""

    number: int
    pickled: bytes
    cpus: float
    gpus: float
    accelerator: str | None


class Answered(NamedTuple):
    """The pickled result of a call, or why there is none."""

    number: int
    pickled: bytes | None
    problem: str


class Unusable(NamedTuple):
    """There is no cluster."""

    problem: str


def main(descriptor: int, address: str, patience: float) -> None:
    """Connect to a cluster, and serve the pipe until it ends. A call waits ``patience`` seconds for
    a node that could run it.

    ::

        python -c "from tzero.integrations.ray.bridge import main; main(3, 'auto', 10)"
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    pipe = Connection(descriptor)
    try:
        _reach(address, patience)
        ray = importlib.import_module("ray")
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
    except Exception as error:  # no package, no cluster, another version of Ray or Python
        pipe.send(Unusable(f"{type(error).__name__}: {error}"))
        return
    with contextlib.suppress(EOFError, OSError):  # the parent has ended, or closed it
        _Bridge(ray, pipe, patience).serve()
    ray.shutdown()


def _reach(address: str, patience: float) -> None:
    """Raise OSError if nobody listens at ``host:port``: Ray itself tries for a long time, and then
    ends the process."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "://" not in address:
        socket.create_connection((host, int(port)), timeout=patience).close()


def run(pickled: bytes) -> bytes:
    """Make a call on a node; returns its pickled result.

    >>> pickle.loads(run(pickle.dumps((max, (1, 2), {}))))
    2
    """
    function, args, kwargs = pickle.loads(pickled)
    return pickle.dumps(function(*args, **kwargs))


class _Bridge:
    def __init__(self, ray: Any, pipe: Connection, patience: float) -> None:
        self._ray, self._pipe, self._patience = ray, pipe, patience
        self._parent = os.getppid()
        self._lock = threading.Lock()  # protects writes to the pipe, and `_open`
        # By number: a call, its reference, and since when no node could run it; 0.0: one could.
        self._open: dict[int, tuple[Call, Any, float]] = {}

    def serve(self) -> None:
        # A process that the parent forked may hold its end of the pipe, too.
        while os.getppid() == self._parent:
            while self._pipe.poll(_POLL):
                self._start(self._pipe.recv())
            self._give_up()

    def _start(self, call: Call) -> None:
        remote = self._ray.remote(run).options(
            num_cpus=call.cpus,
            num_gpus=call.gpus,
            accelerator_type=call.accelerator,
            max_retries=RETRIES,
        )
        reference = remote.remote(call.pickled)
        with self._lock:
            self._open[call.number] = call, reference, 0.0
        reference.future().add_done_callback(lambda done: self._finish(call.number, done))

    def _finish(self, number: int, done: Any) -> None:
        error = done.exception()
        problem = "" if error is None else f"{type(error).__name__}: {error}"
        self._answer(number, None if problem else done.result(), problem)

    def _answer(self, number: int, pickled: bytes | None, problem: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # the parent has ended
            if self._open.pop(number, None) is not None:
                self._pipe.send(Answered(number, pickled, problem))

    def _give_up(self) -> None:
        """Answer the calls that no node of the cluster could run for some time."""
        with self._lock:
            waiting = list(self._open.items())
        if not waiting:
            return
        has, now = self._ray.cluster_resources(), time.monotonic()
        for number, (call, reference, since) in waiting:
            lacking = _lacking(call, has)
            if not lacking:
                since = 0.0
            elif since and now - since > self._patience:
                self._answer(number, None, f"no node of the cluster has {lacking}")
                self._ray.cancel(reference, force=True)
                continue
            else:
                since = since or now
            with self._lock:
                if number in self._open:
                    self._open[number] = call, reference, since


def _lacking(call: Call, has: Mapping[str, float]) -> str:
    """What a call needs and the whole cluster does not have; empty if it has all."""
    needs = {"CPU": call.cpus, "GPU": call.gpus}
    if call.accelerator is not None:
        needs[f"accelerator_type:{call.accelerator}"] = 0.001
    return ", ".join(name for name, count in needs.items() if has.get(name, 0.0) < count)
