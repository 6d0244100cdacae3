"""`Stats` and `Explanation`: what `Kernel.stats` and `Kernel.explain` return.

Enters: counts, keys and reasons. Leaves: values that print. It must not know tables or calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from tzero.arguments.key import Key
from tzero.config import Config
from tzero.cures import cure
from tzero.launches.graphs import Run
from tzero.plans.plan import Plan
from tzero.plans.planner import UNRECORDED
from tzero.shown import first_line, in_cells

__all__ = ["Explanation", "Made", "Replay", "Run", "Stats"]


class Stats(NamedTuple):
    """Counts of a kernel's calls. `misses` are of calls and of `bind`; `bound_ahead` are those of
    `bind` alone. Each call is one of three: `native_replays` were made by native code,
    `python_replays` by Python, and in `plain_calls` the host function ran. Of these, `recordings`
    left a plan behind, and `unkeyed` had an argument that cannot be part of a key; native code goes
    by the type of such an argument, and counts others of that type alike. Calls inside another
    kernel's replay are not counted: they are part of it.

    >>> stats = Stats(3, 2, 2, 0, bound_ahead=1, native_replays=2, plain_calls=1, recordings=1)
    >>> stats.hits
    2
    >>> print(stats)
    3 calls: 2 replayed natively, 0 replayed in Python, 1 plain (1 of them recorded)
      2 hits, 1 miss, 2 bound kernels, 0 evicted
    """

    calls: int
    misses: int
    entries: int
    evictions: int
    bound_ahead: int
    native_replays: int = 0
    python_replays: int = 0
    plain_calls: int = 0
    recordings: int = 0
    unkeyed: int = 0

    @property
    def hits(self) -> int:
        """Calls that found their bound kernel."""
        return self.calls - self.unkeyed - (self.misses - self.bound_ahead)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        in_cells(self, printer, cycle)

    def __str__(self) -> str:
        missed = self.misses - self.bound_ahead
        unkeyed = f", {self.unkeyed} without a key" if self.unkeyed else ""
        return (
            f"{_counted(self.calls, 'call')}: {self.native_replays} replayed natively, "
            f"{self.python_replays} replayed in Python, {self.plain_calls} plain "
            f"({self.recordings} of them recorded)\n"
            f"  {_counted(self.hits, 'hit')}, {_counted(missed, 'miss', 'misses')}{unkeyed}, "
            f"{_counted(self.entries, 'bound kernel')}, {self.evictions} evicted"
        )


def _counted(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


class Made(NamedTuple):
    """How many calls were replayed by native code and by Python, and how many had no key.

    >>> Made(native=2, python=0, unkeyed=0).native
    2
    """

    native: int
    python: int
    unkeyed: int


class Replay(NamedTuple):
    """How a plan would be replayed. ``natively`` means that no Python code runs at all; ``partly in
    Python`` that native code calls the Python functions that `why` names; ``in Python`` that Python
    replays the plan, because of `why`. `runs` are its launches on CUDA, and the CUDA graphs that
    these became.

    >>> Replay("in Python", "an observer is on").how
    'in Python'
    """

    how: Literal["natively", "partly in Python", "in Python"]
    why: str = ""
    runs: tuple[Run, ...] = ()


class Explanation(NamedTuple):
    """Why a call would hit or miss, whether it would be replayed, and what that costs.

    `tier` is how the kernel's calls can be replayed. `plan` is the plan of the call, and `refusal`
    why it would not be replayed, such as a guard that fails. `since` is the first difference from
    the last call that hit. `stages` are nanoseconds, measured by `explain`. `choice` is why the
    call has its config: pinned, cached, pretuned, nearest or tuned. `replay` says how the plan
    would be replayed; None if the call would not be. `graphs` says which way each input of its
    CUDA graphs takes.

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
    replay: Replay | None = None
    graphs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return first_line(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        in_cells(self, printer, cycle)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The launches on CUDA of a plan, and the CUDA graphs that these became."""
        return () if self.replay is None else self.replay.runs

    @property
    def change(self) -> str:
        """What to change so that the call is replayed, if that is known.

        >>> why = "it reads the value of a tensor (Tensor.item)"
        >>> Explanation("add", Key(()), True, None, "", tier=2, refusal=why).change[:21]
        'compute on the device'
        """
        found = cure(self.refusal) if self.refusal and self.refusal != UNRECORDED else None
        return "" if found is None else found.advice

    def __str__(self) -> str:
        served = "the host function runs"
        if self.replay is not None:
            served = f"replayed {self.replay.how}"
        elif self.tier and self.refusal in ("", UNRECORDED):
            served = "to be recorded"
        hit = "hit" if self.hit else "miss" if self.key else "no key"
        lines = [f"{self.kernel}: {hit}, {served} (tier {self.tier})"]
        if self.key:
            lines.append(f"  key: {self.key!r}")
        if self.config is not None:
            why = f" ({self.choice})" if self.choice else ""
            lines.append(f"  config: {self.config!r}{why}")
        if self.refusal:
            lines.append(f"  not replayed: {self.refusal}")
            lines += [f"  what to do: {self.change}"] if self.change else []
        if self.replay is not None and self.replay.why:
            lines.append(f"  {self.replay.how}: {self.replay.why}")
        lines += [f"  {run}" for run in self.runs]
        if self.plan is not None:
            lines += [f"  {line}" for line in str(self.plan).splitlines()]
        lines += [f"  in the graph, {line}" for line in self.graphs]
        if self.since:
            lines.append(f"  unlike the last call that hit: {self.since}")
        if self.difference:
            lines.append(f"  unlike the nearest other entry: {self.difference}")
        if self.stages and (self.replay is not None or not self.refusal):
            words = [f"{name} {time:.0f} ns" for name, time in self.stages.items()]
            lines.append(f"  costs: {', '.join(words)}")
        return "\n".join(lines)
