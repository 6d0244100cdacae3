"""`Stats` and `Explanation`: what `Kernel.stats` and `Kernel.explain` return.

Enters: counts, keys and reasons. Leaves: values that print. It must not know tables or calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tzero.arguments.key import Key
from tzero.config import Config
from tzero.plans.plan import Plan

__all__ = ["Explanation", "Stats"]


class Stats(NamedTuple):
    """Counts of a kernel's calls. `misses` are of calls and of `bind`; `bound_ahead` are those of
    `bind` alone.

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
    """Why a call would hit or miss, whether it would be replayed, and what that costs.

    `tier` is how the kernel's calls can be replayed. `plan` is the plan of the call, and `refusal`
    why it would not be replayed, such as a guard that fails. `since` is the first difference from
    the last call that hit. `stages` are nanoseconds, measured by `explain`. `choice` is why the
    call has its config: pinned, cached, pretuned, nearest or tuned.

    >>> print(Explanation("add", Key((int,)), True, None, "", tier=0))
    add: hit, the host function runs (tier 0)
      key: Key(int)
    """

    kernel: str
    key: Key
    hit: bool
    config: Config | None
    difference: str
    tier: int
    plan: Plan | None = None
    refusal: str = ""
    since: str = ""
    stages: Mapping[str, float] = MappingProxyType({})
    choice: str = ""

    def __str__(self) -> str:
        served = "the host function runs"
        if self.plan is not None and not self.refusal:
            served = f"replayed {'natively' if self.tier == 2 else 'in Python'}"
        elif not self.hit and self.tier and not self.refusal:
            served = "to be recorded"
        hit = "hit" if self.hit else "miss"
        lines = [f"{self.kernel}: {hit}, {served} (tier {self.tier})", f"  key: {self.key!r}"]
        if self.config is not None:
            why = f" ({self.choice})" if self.choice else ""
            lines.append(f"  config: {self.config!r}{why}")
        if self.refusal:
            lines.append(f"  not replayed: {self.refusal}")
        if self.plan is not None:
            lines += [f"  {line}" for line in str(self.plan).splitlines()]
        if self.since:
            lines.append(f"  unlike the last call that hit: {self.since}")
        if self.difference:
            lines.append(f"  unlike the nearest other entry: {self.difference}")
        if self.stages:
            words = [f"{name} {time:.0f} ns" for name, time in self.stages.items()]
            lines.append(f"  costs: {', '.join(words)}")
        return "\n".join(lines)
