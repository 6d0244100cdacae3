"""What happens, for whoever wants to know: hits, misses, refusals, compiles, launches,
caches, tuning.

::

    kernel ──emit──► observers (in the order they came)
                └──► the logger "tzero"

Enters: an event. Leaves: the event, at every observer and in the log. It must not know what a
kernel is. Nobody pays for events that nobody watches: callers on a hot path ask `watched` first.

    >>> seen = []
    >>> with observe(seen.append):
    ...     emit(Event("refusal", "matmul", "the host function reads a tensor's value"))
    >>> seen[0].kind, seen[0].kernel
    ('refusal', 'matmul')
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["Event", "Kind", "Observer", "emit", "hushed", "observe", "watched"]

Kind = Literal["hit", "miss", "refusal", "compile", "launch", "cache", "tune"]

_LEVELS: Mapping[Kind, int] = {
    "hit": logging.DEBUG,
    "launch": logging.DEBUG,
    "miss": logging.INFO,
    "compile": logging.INFO,
    "tune": logging.INFO,
    "refusal": logging.WARNING,
    "cache": logging.WARNING,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one kernel, and why.

    >>> print(Event("miss", "add", "argument 'x' has dtype torch.float16"))
    add: miss: argument 'x' has dtype torch.float16
    """

    kind: Kind
    kernel: str
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __str__(self) -> str:
        return f"{self.kernel}: {self.kind}{': ' + self.reason if self.reason else ''}"


Observer = Callable[[Event], None]

_logger = logging.getLogger("tzero")
_answers: Mapping[int, bool] = getattr(_logger, "_cache", {})
_change = threading.Lock()  # protects replacing these; reading them takes none
_every: tuple[Observer, ...] = ()
_observers: tuple[Observer, ...] = ()
"""Those who would be told of a hit or a launch: all, but for while these are `hushed`."""
_hushes = 0


def watched() -> bool:
    """Whether anyone would see an event of a hit or a launch.

    >>> with observe(print):
    ...     watched()
    True
    """
    if _observers:
        return True
    # The logger's own answers, which it forgets whenever a level changes.
    known = _answers.get(logging.DEBUG)
    return _logger.isEnabledFor(logging.DEBUG) if known is None else known


def emit(event: Event, level: int | None = None) -> None:
    """Tell observers, in the order they came, and the log, at the level of the event's kind if
    none is given. An observer's exception is the caller's: an observer that fails must not go
    unnoticed.

    >>> emit(Event("hit", "add"))
    """
    _logger.log(_LEVELS[event.kind] if level is None else level, "%s", event)
    for observer in _every:
        observer(event)


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Have every event of every thread given to an observer, until the block ends.

    >>> with observe(lambda event: print(event)):
    ...     emit(Event("compile", "softmax", "1 of 2"))
    softmax: compile: 1 of 2
    """
    entry = _Entry(observer)
    with _change:
        _watch((*_every, entry))
    try:
        yield
    finally:
        with _change:
            _watch(tuple(each for each in _every if each is not entry))


@contextmanager
def hushed() -> Iterator[None]:
    """Have nobody told of launches and of hits, in a cache or not, of any thread, until the block
    ends: what is timed must not take longer because someone watches. All other events are told.

    >>> with observe(print), hushed():
    ...     watched()
    False
    """
    global _hushes
    with _change:
        _hushes += 1
        _watch(_every)
        level = _logger.level
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        with _change:
            _hushes -= 1
            _watch(_every)
            _logger.setLevel(level)


def _watch(every: tuple[Observer, ...]) -> None:
    global _every, _observers
    _every = every
    _observers = () if _hushes else every


class _Entry:
    """One registration: the same observer may be there twice."""

    __slots__ = ("observer",)

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def __call__(self, event: Event) -> None:
        self.observer(event)
