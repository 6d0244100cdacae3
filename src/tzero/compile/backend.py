"""The compilers there are: one protocol, found by name through the entry points of packages.

Enters: the name of a backend, or where it is, as ``package.module:object``. Leaves: that object;
for a name, the one behind the entry point in the group ``tzero.backends``. tzero's own are declared
in the same way as anyone else's. It must not know any of them.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, Protocol, cast

from tzero.compile.request import Artifact, Request
from tzero.errors import BackendMissing

__all__ = ["GROUP", "Backend", "find", "names"]

GROUP = "tzero.backends"


class Backend(Protocol):
    """What makes artifacts of requests.

    ::

        class Shouting:
            runs = "thread"

            def compile(self, request):
                return Artifact({"out.txt": request.program.upper().encode()})

    It may also have a method ``warm()``, which imports what compiling will need: a worker that is
    started ahead of need calls it.
    """

    runs: Literal["process", "thread"]
    """``process``: the compiler is Python, and needs a worker process to run beside others;
    ``thread``: it is a program of its own, and a thread that waits for it is enough."""

    def compile(self, request: Request) -> Artifact:
        """Make what was asked for, from the request alone; raise where it cannot be made."""


def names() -> list[str]:
    """The names of all backends that installed packages offer.

    >>> "fortran" in names()
    False
    """
    return sorted({entry.name for entry in entry_points(group=GROUP)})


@functools.cache
def find(name: str) -> Backend:
    """The backend of this name, or at this place.

    >>> find("fortran")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tzero.errors.BackendMissing: no backend is called 'fortran'...
    """
    if ":" in name:
        try:
            return cast(Backend, EntryPoint(name, name, GROUP).load())
        except (ImportError, AttributeError) as error:
            raise BackendMissing(name=name, known=names()) from error
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise BackendMissing(name=name, known=sorted(found))
    return cast(Backend, found[name].load())
