"""Events: cache hits and misses, fallbacks, compiles, launches, tuning, for observers and the log.

::

    kernel ──emit──► observers (in the order they were added)
                └──► the logger "tzero"

Enters: an event. Leaves: the event, at every observer and in the log. It must not know what a
kernel is. Callers on a hot path check `watched` first, so that events cost nothing without
observers.

    >>> seen = []
    >>> with observe(seen.append):
    ...     emit(Event("fallback", "matmul", "not replayed: it reads a tensor's value"))
    >>> seen[0].kind, seen[0].kernel
    ('fallback', 'matmul')
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from tzero import locks

__all__ = ["Event", "Kind", "Observer", "emit", "hushed", "observe", "watched"]

Kind = Literal["hit", "miss", "fallback", "refusal", "compile", "launch", "graph", "cache", "tune"]
"""A ``fallback`` is a call, a launch or a compile that takes a slower path; a ``refusal`` is a call
that raises `InvalidArgument`; a ``graph`` is launches that become a CUDA graph, or are none any
more."""

_CALLS = ("hit", "launch")

_LEVELS: Mapping[Kind, int] = {
    "hit": logging.DEBUG,
    "launch": logging.DEBUG,
    "graph": logging.INFO,
    "miss": logging.INFO,
    "compile": logging.INFO,
    "tune": logging.INFO,
    "fallback": logging.WARNING,
    "refusal": logging.DEBUG,
    "cache": logging.WARNING,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one kernel, and why.

    >>> print(Event("miss", "add", "argument 'x' has dtype torch.float16"))
    add: miss: argument 'x' has dtype torch.float16

    As text it is one line, whatever the names in it contain:

    >>> print(Event("compile", "add\\nroot: login"))
    add\\nroot: login: compile
    """

    kind: Kind
    kernel: str
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __str__(self) -> str:
        return one_line(f"{self.kernel}: {self.kind}{': ' + self.reason if self.reason else ''}")


def one_line(text: str) -> str:
    """A text that may contain names of the user's, safe for logs and terminals.

    >>> print(one_line("add\\x1b[2J\\n"))
    add\\x1b[2J\\n
    """
    return _UNSAFE.sub(_escaped, text)


# Line ends, terminal escapes, marks that reorder text, characters without width, and halves of
# characters: in a log, they would forge lines and names, or fail to be written.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


Observer = Callable[[Event], None]
"""A function that is called with each event."""

_logger = logging.getLogger("tzero")
_enabled: Mapping[int, bool] = getattr(_logger, "_cache", {})
_change = locks.lock()  # protects writes to these; reads take no lock
_every: tuple[_Entry, ...] = ()
_observers: tuple[_Entry, ...] = ()
"""The observers that get hits and launches; none while a `hushed` block is open."""
_hushes: list[int] = []
"""The threads whose `hushed` blocks are open."""
_level = 0
"""The level of the logger before the first of these blocks."""


def watched() -> bool:
    """Whether an observer or the log would get an event of a hit or a launch.

    >>> with observe(print):
    ...     watched()
    True
    """
    if _observers:
        return True
    # The logger's own cache of `isEnabledFor`, which it clears whenever a level changes.
    known = _enabled.get(logging.DEBUG)
    return _logger.isEnabledFor(logging.DEBUG) if known is None else known


def heard(kind: Kind) -> bool:
    """Whether an observer or the log would get an event of a kind.

    >>> with observe(print):
    ...     heard("miss")
    True
    """
    return bool(_every) or _logger.isEnabledFor(_LEVELS[kind])


def emit(event: Event, level: int | None = None, advice: str = "") -> None:
    """Pass an event to the log and to every observer. The log's level is that of the event's kind
    if none is given; `advice` follows in the log. An observer's exception propagates to the caller,
    so that it is noticed.

    >>> emit(Event("hit", "add"))
    """
    level = _LEVELS[event.kind] if level is None else level
    relay = _here.relay
    if relay is None:
        _emit(event, level, advice)
    elif _every or _logger.isEnabledFor(level):
        relay(functools.partial(_emit, event, level, advice))


def _emit(event: Event, level: int, advice: str = "") -> None:
    # Where logging is not set up, Python prints warnings as they are: they say whose they are.
    named = level >= logging.WARNING and event.kernel != "tzero"
    after = f". {advice.replace('%', '%%')}" if advice else ""
    _logger.log(level, f"{'tzero: ' if named else ''}%s{after}", event)
    for observer in _every:
        if observer.calls or event.kind not in _CALLS:
            observer(event)


Relay = Callable[[Callable[[], None]], None]
"""Takes a call that passes an event on, and makes it on another thread."""


class _Here(threading.local):
    relay: Relay | None = None


_here = _Here()


@contextmanager
def relayed(relay: Relay) -> Iterator[None]:
    """Until the block ends, let `emit` on this thread give what it would do to ``relay``: a thread
    that others need must not run observers or log handlers, which may wait for it.

    >>> calls = []
    >>> with observe(print), relayed(calls.append):
    ...     emit(Event("compile", "softmax"))
    >>> len(calls)
    1
    """
    outer, _here.relay = _here.relay, relay
    try:
        yield
    finally:
        _here.relay = outer


def relays() -> bool:
    """Whether this thread is in a block of `relayed`.

    >>> relays()
    False
    """
    return _here.relay is not None


@contextmanager
def observe(observer: Observer, *, calls: bool = True) -> Iterator[None]:
    """Call an observer with every event of every thread, until the block ends. With ``calls=False``
    it gets no hits and no launches, and calls stay native: the others are made in Python, so that
    there is something to observe.

    >>> with observe(lambda event: print(event)):
    ...     emit(Event("compile", "softmax", "1 of 2"))
    softmax: compile: 1 of 2
    >>> with observe(print, calls=False):
    ...     emit(Event("hit", "softmax"))
    ...     watched()
    False
    """
    entry = _Entry(observer, calls)
    with _change:
        _watch((*_every, entry))
    try:
        yield
    finally:
        with _change:
            _watch(tuple(each for each in _every if each is not entry))


@contextmanager
def hushed() -> Iterator[None]:
    """Suppress hits and launches of all threads until the block ends, so that observers do not slow
    down what is being timed. All other events are emitted.

    >>> with observe(print), hushed():
    ...     watched()
    False
    """
    global _level
    me = threading.get_ident()
    with _change:
        if not _hushes:
            _level = _logger.level
        _hushes.append(me)
        _watch(_every)
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        with _change:
            _hushes.remove(me)
            _unhush()


def _unhush() -> None:
    """Show hits and launches again if no block is open; the caller holds the lock."""
    _watch(_every)
    if not _hushes:
        _logger.setLevel(_level)


def _forget_hushes() -> None:
    """In a forked child: the blocks of other threads never end."""
    if _hushes:
        me = threading.get_ident()
        _hushes[:] = [each for each in _hushes if each == me]
        _unhush()


locks.after_fork(_forget_hushes)


def _watch(every: tuple[_Entry, ...]) -> None:
    global _every, _observers
    _every = every
    _observers = () if _hushes else tuple(each for each in every if each.calls)


class _Entry:
    """One registration; the same observer may be registered twice."""

    __slots__ = ("calls", "observer")

    def __init__(self, observer: Observer, calls: bool) -> None:
        self.observer, self.calls = observer, calls

    def __call__(self, event: Event) -> None:
        self.observer(event)
