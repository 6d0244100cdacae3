"""Find compiler backends by name, through the entry points of installed packages.

Enters: a backend's name in the entry point group ``tzero.backends``, or its import path
``package.module:object``. Leaves: that object, a `Backend`. tzero's own backends are entry points
like any other. It must not know any of them.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, Protocol, cast

from tzero import locks
from tzero.compile.request import Artifact, Request
from tzero.errors import BackendMissing

__all__ = ["GROUP", "Backend", "find", "names"]

GROUP = "tzero.backends"


class Backend(Protocol):
    """A compiler: turns requests into artifacts.

    ::

        class Shouting:
            runs = "thread"

            def compile(self, request):
                return Artifact({"out.txt": request.program.upper().encode()})

    It may also have a method ``warm()`` that imports what compiling needs. Workers that are started
    in advance call it.
    """

    runs: Literal["process", "thread"]
    """``process``: the compiler is Python code, and needs a worker process to run in parallel;
    ``thread``: it is a separate program, and a thread that waits for it is enough."""

    def compile(self, request: Request) -> Artifact:
        """Compile from the request alone; raise if that fails."""


def names() -> list[str]:
    """Return the names of all backends that installed packages offer.

    >>> "triton" in names()
    True
    """
    return sorted({entry.name for entry in entry_points(group=GROUP)})


@functools.cache
def find(name: str) -> Backend:
    """Return the backend of this name or import path.

    >>> find("fortran")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tzero.errors.BackendMissing: ...'fortran'...
    """
    if ":" in name:
        try:
            with locks.importing():
                return cast(Backend, EntryPoint(name, name, GROUP).load())
        except (ImportError, AttributeError) as error:
            raise BackendMissing(name=name, known=names()) from error
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise BackendMissing(name=name, known=sorted(found))
    with locks.importing():
        return cast(Backend, found[name].load())
