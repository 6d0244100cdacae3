"""``TZERO_LOGS``: prints events of chosen kinds on stderr, whatever the program does with logging.

Enters: the kinds, from the settings. Leaves: a handler of the logger ``tzero``. It must not know
what a kind means. Hits and launches are only told to a logger at level DEBUG, and then calls are
made in Python: these two cost time.

    $ TZERO_LOGS=fallback,compile python app.py
    tzero: normalized: fallback: not replayed: it reads the value of a tensor
"""

from __future__ import annotations

import logging
import re
from typing import get_args

from tzero import locks, settings
from tzero.events import Event, Kind

__all__ = ["KINDS", "begin"]

KINDS: tuple[str, ...] = get_args(Kind)

_lock = locks.lock()  # protects `_handler`
_handler: logging.Handler | None = None


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints the events of some kinds."""

    def __init__(self, kinds: frozenset[str]) -> None:
        super().__init__()
        self.kinds = kinds

    def filter(self, record: logging.LogRecord) -> bool:
        event = _event(record)
        return event is not None and event.kind in self.kinds

    def format(self, record: logging.LogRecord) -> str:
        return _DIGEST.sub(lambda found: f"{found[0][:12]}…", f"tzero: {_event(record)}")


_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
"""Those of requests: 12 digits are enough to tell them apart, as `tzero cache ls` does."""


def _event(record: logging.LogRecord) -> Event | None:
    """The event that `tzero.events` logged."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return first if isinstance(first, Event) else None


def begin() -> None:
    """Print what ``TZERO_LOGS`` asks for, from now on; nothing if it is not set.

    >>> begin()
    """
    global _handler
    kinds = frozenset(settings.current().logs)
    if not kinds:
        return
    with _lock:
        if _handler is not None:
            return
        _handler = _Handler(kinds)
        logger = logging.getLogger("tzero")
        logger.addHandler(_handler)
        most = logging.DEBUG if kinds & {"hit", "launch", "refusal"} else logging.INFO
        if logger.getEffectiveLevel() > most:
            logger.setLevel(most)
