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

__all__ = ["GROUP", "Backend", "OtherTools", "find", "for_this_machine", "names", "source_of"]

GROUP = "tzero.backends"


class Backend(Protocol):
    """A compiler: turns requests into artifacts.

    ::

        class Shouting:
            runs = "thread"

            def compile(self, request):
                return Artifact({"out.txt": request.program.upper().encode()})

    It may also have a method ``warm()`` that imports what compiling needs. Workers that are started
    in advance call it. And it may have ``for_this_machine(request)``, as the function of that name;
    requests to a backend without it stay on the machine that made them. Where it has
    ``source(request)``, that is the text to log; else the whole program of the request is.
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


class OtherTools(Exception):
    """This machine does not have the tools that a request was made with; the message says which.

    ::

        raise OtherTools("its gcc is 13.1, and the request was made with gcc 12.2")
    """


def for_this_machine(request: Request) -> Request:
    """A request that another machine made, as this one compiles it: the same, with the places of
    this machine's tools. Raises `OtherTools` where these would make something else.

    ::

        find(request.backend).compile(for_this_machine(request))
    """
    localize = getattr(find(request.backend), "for_this_machine", None)
    if localize is None:
        raise OtherTools(f"the backend {request.backend!r} does not say which tools it uses")
    made: Request = localize(request)
    if made.digest != request.digest:
        raise OtherTools(f"the backend {request.backend!r} would compile something else here")
    return made


def source_of(request: Request) -> str:
    """The source of a request as its author wrote it, as far as its backend can tell.

    >>> source_of(Request("triton", "add", "no tables", ""))
    'no tables'
    """
    read = getattr(find(request.backend), "source", None)
    try:
        return request.program if read is None else str(read(request))
    except (ValueError, LookupError, TypeError):  # a program that the backend did not write
        return request.program
