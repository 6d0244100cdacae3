"""Counts that threads increase without a lock.

Enters: each occurrence. Leaves: how many there were. It must not know what is counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tzero import locks

__all__ = ["Count"]


class Count:
    """A count. `add` is one call of C code, which no other thread can interrupt.

    >>> count = Count()
    >>> _ = count.add(), count.add()
    >>> count.value(), count.value()
    (2, 2)
    """

    __slots__ = ("_lock", "_reads", "add")

    def __init__(self) -> None:
        self.add: Callable[[], int] = itertools.count().__next__
        """Count one more."""
        self._reads = 0
        self._lock = locks.lock()  # protects `_reads`

    def value(self) -> int:
        """How often `add` was called. Reading a count advances it, so reads are counted too."""
        with self._lock:
            found = self.add() - self._reads
            self._reads += 1
            return found
