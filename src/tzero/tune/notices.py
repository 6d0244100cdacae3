"""What tuning tells about one kernel: events of kind ``tune``, and warnings.

Enters: a reason, in words. Leaves: an event and, where asked for, a warning at the line that called
into tzero. It must not know what the reason is about.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tzero import events
from tzero.arguments.host import outside
from tzero.events import one_line

__all__ = ["Notices"]


class Notices:
    """Tells each reason once for one kernel.

    >>> with events.observe(lambda event: print(event)):
    ...     notices = Notices("add")
    ...     notices.once("its size_hints are not used")
    ...     notices.once("its size_hints are not used")
    add: tune: its size_hints are not used
    """

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._told: set[str] = set()

    def once(self, reason: str, *, warn: bool = False) -> None:
        """Emit an event, and with `warn` a warning, unless this reason was told before."""
        if reason in self._told:
            return
        self._told.add(reason)
        if warn:
            warnings.warn(one_line(f"{self._kernel}: {reason}."), stacklevel=outside()[1] + 1)
        self.each_time(reason)

    def each_time(self, reason: str, facts: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Emit an event."""
        events.emit(events.Event("tune", self._kernel, reason, facts))
