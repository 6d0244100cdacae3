"""A time as text.

Enters: seconds. Leaves: text with a unit. It must not know what was timed.
"""

from __future__ import annotations

import math

__all__ = ["in_words"]


def in_words(seconds: float) -> str:
    """A time with three digits and a fitting unit.

    >>> in_words(0.00123), in_words(2.5e-5), in_words(0.0), in_words(math.inf)
    ('1.23 ms', '25 µs', '0 s', 'any time')
    """
    if not 0 < seconds < math.inf:
        return "0 s" if seconds == 0 else "any time"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
