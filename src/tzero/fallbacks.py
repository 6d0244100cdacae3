"""Reports the fallbacks of one kernel: each reason once, the first that lasts as a warning.

    passing: an autotuner times, a mode is on ──► an event, logged as INFO
    lasting: the host function reads a value  ──► an event, logged as a warning, once per kernel

Enters: why a call or a launch takes a slower path, and whether that lasts. Leaves: events. It must
not know how calls are made.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tzero import settings
from tzero.events import Event, emit

__all__ = ["SILENCE", "Fallbacks"]

SILENCE = (
    'Told once per kernel; silence it with TZERO_QUIET=1 or logging.getLogger("tzero")'
    '.setLevel("ERROR").'
)

_MOST_REASONS = 64
"""The most reasons that are told of a kernel: some contain values, and each call has others."""

_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


class Fallbacks:
    """What was told of one kernel.

    >>> from tzero.events import observe
    >>> told = Fallbacks("add")
    >>> with observe(print):
    ...     told.passing("not replayed: an autotuner times it")
    ...     told.passing("not replayed: an autotuner times it")
    add: fallback: not replayed: an autotuner times it
    """

    __slots__ = ("_kernel", "_told", "is_quiet")

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._told: dict[str, bool] = {}  # reasons, and whether they last
        self.is_quiet = False
        """Whether nothing is a warning: the tuner's trial kernels."""

    def __len__(self) -> int:
        return len(self._told)

    def __contains__(self, reason: str) -> bool:
        return reason in self._told

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons that were told, in order.

        >>> told = Fallbacks("add")
        >>> told.passing("not replayed: an autotuner times it")
        >>> told.reasons
        ('not replayed: an autotuner times it',)
        """
        return tuple(self._told)

    def lasting(self, reason: str, facts: Mapping[str, Any] = _NO_FACTS) -> None:
        """Tell why such calls always take a slower path; the first reason is a warning."""
        if self._told.get(reason) or len(self._told) >= _MOST_REASONS:
            return
        warns = not self.is_quiet and not any(self._told.values())
        self._told[reason] = True
        self._emit(reason, facts, warns and not settings.current().quiet)

    def passing(self, reason: str) -> None:
        """Tell why a call takes a slower path that the next one may not take."""
        if reason not in self._told and len(self._told) < _MOST_REASONS:
            self._told[reason] = False
            self._emit(reason, _NO_FACTS, False)

    def unimportant(self, reason: str) -> None:
        """Tell why calls are not replayed where replaying them would gain nothing."""
        if reason not in self._told:
            self._told[reason] = False
            emit(Event("fallback", self._kernel, reason), logging.DEBUG)

    def _emit(self, reason: str, facts: Mapping[str, Any], warns: bool) -> None:
        event = Event("fallback", self._kernel, reason, facts)
        emit(event, logging.WARNING if warns else logging.INFO, SILENCE if warns else "")
