"""What a kernel says of itself when it is asked.

Enters: counts, and the key of a call beside the keys there are. Leaves: values that print. It must
not know tables or calls.
"""

from __future__ import annotations

from typing import NamedTuple

from tzero.config import Config
from tzero.key import Key

__all__ = ["Explanation", "Stats"]


class Stats(NamedTuple):
    """What became of a kernel's calls. Misses are of calls and of `bind`; `bound_ahead` says how
    many of them were of `bind`.

    >>> Stats(calls=3, misses=2, entries=2, evictions=0, bound_ahead=1).hits
    2
    """

    calls: int
    misses: int
    entries: int
    evictions: int
    bound_ahead: int

    @property
    def hits(self) -> int:
        """Calls that found their bound kernel."""
        return self.calls - (self.misses - self.bound_ahead)


class Explanation(NamedTuple):
    """Why a call would hit or miss.

    >>> print(Explanation("add", Key((int,)), True, None, ""))
    add: hit
      key: Key(int)
    """

    kernel: str
    key: Key
    hit: bool
    config: Config | None
    difference: str

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {'hit' if self.hit else 'miss'}", f"  key: {self.key!r}"]
        if self.config is not None:
            lines.append(f"  config: {self.config!r}")
        if self.difference:
            lines.append(f"  unlike the nearest other entry: {self.difference}")
        return "\n".join(lines)
