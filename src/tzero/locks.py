"""Locks that a forked child can take, whatever other threads held when it was forked.

Enters: nothing. Leaves: locks, and cached properties, that `os.fork` knows. It must not know what a
lock protects.

A forked child has one thread. A lock that another thread of the parent held would stay locked in
the child forever. So in the child every lock of this module is free, unless the forking thread
itself holds it. What a lock protects may then be half changed. Where that matters, the lock is made
with ``fork_waits=True``: a fork takes it first. Such a lock is held for milliseconds at most, and
under it only locks of lower packages are taken.

Locks are reentrant: only those know their owner, and a finalizer or a signal handler may run on the
thread that holds one.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = [
    "after_fork",
    "cached_property",
    "condition",
    "importing",
    "known",
    "lock",
    "no_fork",
    "owned",
    "register",
    "register_properties",
]

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds that a fork waits for a lock; then it goes on, and the child resets it."""

_known: dict[int, weakref.ref[Any]] = {}  # every lock, by id
_waited_for: list[threading.RLock] = []  # those that a fork takes first


def lock(*, fork_waits: bool = False) -> threading.RLock:
    """Make a lock.

    >>> with lock():
    ...     pass
    """
    made = register(threading.RLock())
    if fork_waits:
        _waited_for.append(made)  # never freed: such locks belong to modules
    return made


def condition() -> threading.Condition:
    """Make a condition with a lock of its own.

    >>> with condition() as changed:
    ...     changed
    True
    """
    return register(threading.Condition())


def register(made: T) -> T:
    """Let a forked child reset a lock, a condition or a semaphore that something else has made.

    >>> known(register(threading.Lock()))
    True
    """
    inner = _inner(made)
    number = id(inner)
    _known[number] = weakref.ref(inner, lambda _: _known.pop(number, None))
    return made


def register_properties(kind: type) -> None:
    """Let a forked child reset the locks of a class's cached properties: until Python 3.12 each
    has one for all objects, held while a value is computed.

    >>> class Name:
    ...     @functools.cached_property
    ...     def text(self):
    ...         return "computed once"
    >>> register_properties(Name)
    """
    for each in vars(kind).values():
        made = getattr(each, "lock", None)
        if isinstance(each, functools.cached_property) and made is not None:
            register(made)


def known(made: object) -> bool:
    """Whether a forked child resets this lock, condition or semaphore.

    >>> known(threading.Lock())
    False
    """
    inner = _inner(made)
    found = _known.get(id(inner))
    return found is not None and found() is inner


def owned(made: threading.RLock) -> bool:
    """Whether the calling thread holds this lock.

    >>> owned(lock())
    False
    """
    return bool(made._is_owned())  # type: ignore[attr-defined]


def after_fork(function: Callable[[], None]) -> None:
    """Call a function in each forked child, once the locks can be taken.

    ::

        after_fork(_connections.clear)
    """
    os.register_at_fork(after_in_child=function)


class cached_property(functools.cached_property[T]):
    """As `functools.cached_property`, whose lock (until Python 3.12) is known here.

    >>> class Name:
    ...     @cached_property
    ...     def text(self):
    ...         return "computed once"
    >>> Name().text
    'computed once'
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        made = getattr(self, "lock", None)
        if made is not None:
            register(made)


def _inner(made: Any) -> Any:
    """The condition of a semaphore or an event; any other lock itself."""
    return getattr(made, "_cond", made)


no_fork = register(threading.RLock())
"""Held while a worker starts, a module is imported on a thread of tzero's own, or a file is locked;
a fork waits for it before it takes other locks. A child forked in the middle of an import could
never import that module; one forked while a worker starts would inherit its pipes and the locks of
libraries. It is free in every child: a worker that is a fork begins under it, and never leaves that
block. Whoever holds a lock that a fork waits for must not wait for this one."""


def _is_mine(made: Any) -> bool:
    """Whether the calling thread holds this lock or condition, as far as it knows its owner."""
    inner = getattr(made, "_lock", made)  # of a condition; one with a plain lock calls any owner
    return hasattr(inner, "_is_owned") and bool(inner._is_owned())


@contextmanager
def importing() -> Iterator[None]:
    """Hold `no_fork` for an import. The thread that has it may wait for a module that this thread
    is importing: so go on without it after a while.

    >>> with importing():
    ...     import json
    """
    is_held = no_fork.acquire(timeout=PATIENCE)
    try:
        yield
    finally:
        if is_held:
            no_fork.release()


def _before_fork() -> None:
    no_fork.acquire(timeout=PATIENCE)
    # Those of upper packages first, as a call that takes several does.
    for each in reversed(_waited_for):
        each.acquire(timeout=PATIENCE)


def _release() -> None:
    for each in _waited_for:
        if owned(each):  # not one that could not be had, or was made meanwhile, by an import
            each.release()


def _in_parent() -> None:
    _release()
    if owned(no_fork):
        no_fork.release()


def _in_child() -> None:
    for reference in list(_known.values()):
        made = reference()
        if made is None or _is_mine(made):
            continue
        made._at_fork_reinit()
    _release()
    no_fork._at_fork_reinit()  # type: ignore[attr-defined]


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
