"""Counts a kernel's misses and evictions, and emits the events for misses and invalid arguments.

Enters: each miss and each invalid call. Leaves: counts, events with reasons, and one warning when
bound kernels are evicted. It must not know how calls are made.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections import Counter
from typing import Any

from tzero import events, settings
from tzero.arguments.host import outside
from tzero.arguments.key import Key, difference
from tzero.arguments.text import first_difference, holds_tensor
from tzero.errors import InvalidArgument

__all__ = ["Tally"]


class Tally:
    """The counts of one kernel; `lock` protects them.

    ::

        tally = Tally("add", ("x", "y"), static_shapes=True, lock=threading.RLock())
    """

    def __init__(
        self, kernel: str, parameters: tuple[str, ...], static_shapes: bool, lock: threading.RLock
    ) -> None:
        self._kernel, self._parameters = kernel, parameters
        self._static_shapes = static_shapes
        self._lock = lock
        self._last: Key | None = None  # the key that missed last
        self._changed: Counter[int] = Counter()  # how often each part of a key changed
        self.misses, self.bound_ahead, self.evictions = 0, 0, 0

    def reset(self) -> None:
        """Forget which keys missed; keep the counts."""
        self._last, self._changed = None, Counter()

    def missed(self, kernel: Any, key: Key, args: tuple[Any, ...], gone: int, ahead: bool) -> None:
        """Count a miss, for which `gone` bound kernels were evicted."""
        with self._lock:
            self.misses += 1
            self.bound_ahead += ahead
            self.evictions += gone
            first_eviction = gone > 0 and gone == self.evictions
            last, self._last = self._last, key
            if last is not None:
                self._changed[first_difference(last, key)] += 1
        if events.heard("miss"):  # without the lock: values of the user's are printed
            reason = "the first call" if last is None else difference(last, key, self._parameters)
            about = {"kernel": kernel, "args": args}
            events.emit(events.Event("miss", self._kernel, reason, about))
        if first_eviction:
            self._warn(key)

    def refused(self, error: InvalidArgument) -> None:
        """Emit an event for a call that raises `InvalidArgument`; quiet, because the error says
        it."""
        subject = "" if error.argument is None else f"argument {error.argument!r} "
        event = events.Event("refusal", self._kernel, f"{subject}{error.problem}")
        events.emit(event, logging.DEBUG)

    def _warn(self, key: Key) -> None:
        """Warn at the caller's line that bound kernels are evicted, and say what to do."""
        most, arity = settings.current().max_specializations, len(self._parameters)
        ((k, _),) = self._changed.most_common(1) or ((len(key), 0),)
        by_shape = k < arity and self._static_shapes and holds_tensor(key[k])
        advice = "Pass static_shapes=False, or raise" if by_shape else "Raise"
        beyond = "the device" if k == arity else "what key= or specialize adds"
        name = repr(self._parameters[k]) if k < arity else beyond
        warnings.warn(
            f"{self._kernel} has more than {most} specializations, so old ones are dropped; "
            f"{name} keeps changing. {advice} TZERO_MAX_SPECIALIZATIONS.",
            stacklevel=outside()[1] + 1,
        )
