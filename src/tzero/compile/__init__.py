"""Compiling beside the program: requests out, artifacts back.

::

    caller                 the service's threads                    worker processes
    ──────                 ─────────────────────                    ────────────────
    submit ─► memory?
      │         │ no
      │       in flight? ─ yes ─► the same future
      │         │ no
      │         └─► lookers ─► disk? ─► remote?
      │               │ no               │ yes
      │               │                  └──────────────────────┐
      │               ├─ runs = "thread" ─► threads ─ compiler ─┤
      │               │                                         │
      │               └─ runs = "process" ─► queue ─┬─ slot ──── Request ──► worker ─ backend
      │                                             │   ▲◄────── Reply ─────────┘
      │                                             └─ slot ... one worker each
      │                                                         │
    future ◄── artifact ◄── memory ◄── disk, remote (put) ◄─────┘

    compile() does the looking in the caller, and the compiling too while no worker is up.

- `tzero.compile.request`: what crosses the border between processes.
- `tzero.compile.backend`: what compiles, found by name.
- `tzero.compile.service`: `AsyncCompile`; memory, what is in flight, and the order of the stages.
- `tzero.compile.crew`: threads that take work from a queue.
- `tzero.compile.pool`: a slot, its worker, and how that ends.
- `tzero.compile.worker`: what runs in a worker process.
- `tzero.compile.command`: compilers that are programs.
- `tzero.compile.accounting`, `tzero.compile.progress`: what it costs; how far it is.

What is promised of threads, processes, forks and exits is in ``docs/concurrency.md``.
"""

from tzero.compile.accounting import CompileStats, Cost
from tzero.compile.request import Artifact, Request
from tzero.compile.service import AsyncCompile, service

__all__ = ["Artifact", "AsyncCompile", "CompileStats", "Cost", "Request", "service", "top"]


def top(count: int = 10) -> list[Cost]:
    """The kernels whose compiles took longest in this process.

    >>> len(top(3)) <= 3
    True
    """
    return service().top(count)
