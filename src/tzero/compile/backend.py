"""The compilers there are: one protocol, found by name through the entry points of packages.

Enters: the name of a backend. Leaves: the object behind the entry point of that name in the group
``tzero.backends``; tzero's own are declared in the same way as anyone else's. It must not know any
of them.
"""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from typing import Literal, Protocol, cast

from tzero.compile.request import Artifact, Request
from tzero.errors import BackendMissing

__all__ = ["GROUP", "Backend", "find"]

GROUP = "tzero.backends"


class Backend(Protocol):
    """What makes artifacts of requests.

    ::

        class Shouting:
            runs = "thread"

            def compile(self, request):
                return Artifact({"out.txt": request.program.upper().encode()})
    """

    runs: Literal["process", "thread"]
    """``process``: the compiler is Python, and needs a worker process to run beside others;
    ``thread``: it is a program of its own, and a thread that waits for it is enough."""

    def compile(self, request: Request) -> Artifact:
        """Make what was asked for, from the request alone; raise where it cannot be made."""


@functools.cache
def find(name: str) -> Backend:
    """The backend of this name.

    >>> find("fortran")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tzero.errors.BackendMissing: no backend is called 'fortran'...
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise BackendMissing(name=name, known=sorted(found))
    return cast(Backend, found[name].load())
