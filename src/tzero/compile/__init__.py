"""Compile kernels in the background: a `Request` goes in, a future of an `Artifact` comes out.

What is sent to a worker process, and what comes back:

- sent: `Request` in ``request.py``: backend name, kernel name, program text, toolchain versions,
  environment variables. Everything is text; the worker needs nothing else from this process.
- sent beside it: how many MiB the compile may use (``worker.run(request, memory)``).
- returned: `worker.Reply` in ``worker.py``: the bytes of an `Artifact` or a `worker.Failure`, the
  process and thread ids, start and end time, memory in use.
- `Artifact` in ``request.py``: files by name, and facts about them as JSON.

::

    caller                 threads of the service                  worker processes
    ──────                 ──────────────────────                  ────────────────
    submit ─► in memory?
      │         │ no
      │       in flight? ─ yes ─► the same future
      │         │ no
      │         └─► lookup threads ─► on disk? ─► at the remote?
      │               │ no                          │ yes
      │               │                             └───────────┐
      │               ├─ runs = "thread" ─► thread ─ compiler ──┤
      │               │                                         │
      │               └─ runs = "process" ─► queue ─┬─ Slot ──── Request ──► worker ─ backend
      │                                             │   ▲◄────── Reply ─────────┘
      │                                             └─ Slot ... one worker each
      │                                                         │
    future ◄── delivery ◄── artifact ◄── disk, remote (put) ◄───┘
               (users' code)

    Before it is compiled a job is claimed, so that of the processes that share a cache one compiles
    it. If another has the claim, the job is parked until its artifact is in a cache.

    compile() looks into the caches in the caller's thread, and compiles there if no worker is up.
    A request whose workers are lost is compiled on the thread of its Slot, in this process.
    After on(executor) a request that no cache has goes to the executor instead.

- ``request.py``: `Request` and `Artifact`, and the bytes of an artifact.
- ``backend.py``: the protocol of a compiler, and how one is found by name.
- ``service.py``: `AsyncCompile`, the public methods and the order of the stages.
- ``in_flight.py``: which requests are being compiled, and the artifacts kept in memory.
- ``delivery.py``: the threads that run users' code: observers of events, callbacks of futures.
- ``pending.py``: `Pending`, the future that callers share, and `Job`; ``recent.py``: the LRU table.
- ``claiming.py``: which process compiles a job; ``together.py``: jobs in an order of digests.
- ``compilers.py``: runs a job in a worker, on a thread, or in the caller.
- ``executors.py``: `on`, and the jobs at an executor of the user's; ``executor_task.py``: the code
  that the executor runs; ``redis_queue.py``: an executor whose workers are ``tzero worker``;
  ``serving.py``: what these do.
- ``thread_pool.py``: threads that take work from a queue; ``budget.py``: how many of them compile
  at a time, in all processes of a user.
- ``pool.py``: `pool.Slot`, which starts, uses and ends one worker process.
- ``worker.py``: the code that runs in a worker; ``command.py``: compilers that are programs.
- ``lifetime.py``: exit and fork; ``accounting.py``: counters and events; ``progress.py``: the bar.

``docs/concurrency.md`` states the guarantees about threads, processes, forks and exits.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tzero import settings
from tzero.compile.accounting import CompileStats, Cost
from tzero.compile.executors import On, on
from tzero.compile.request import Artifact, Request
from tzero.compile.service import AsyncCompile, service

if TYPE_CHECKING:
    from tzero.compile.redis_queue import Queue, queue

__all__ = [
    "Artifact",
    "AsyncCompile",
    "CompileStats",
    "Cost",
    "On",
    "Queue",
    "Request",
    "on",
    "queue",
    "service",
    "top",
    "warm_pool",
]


def __getattr__(name: str) -> Any:
    if name not in ("Queue", "queue"):
        raise AttributeError(f"module 'tzero.compile' has no attribute {name!r}")
    return getattr(importlib.import_module("tzero.compile.redis_queue"), name)  # few need it


@contextmanager
def warm_pool(workers: int | None = None) -> Iterator[AsyncCompile]:
    """Have the worker processes for a block: they start now, in the background, and end with it.
    ``workers`` is how many, as the setting ``compile_workers``.

    ::

        with tzero.compile.warm_pool(8):
            load_weights()
            tzero.precompile([(scale, x, 2.0)])
    """
    with ExitStack() as stack:
        if workers is not None:
            stack.enter_context(settings.override(compile_workers=workers))
        found = service()
        found.warm_pool()
        stack.callback(found.quiesce)
        stack.callback(found.wait_pool_ready)  # workers that are still starting would stay
        yield found


def top(count: int = 10) -> list[Cost]:
    """Return the kernels whose compiles took longest in this process, longest first.

    >>> len(top(3)) <= 3
    True
    """
    return service().top(count)
