"""How many launches of Triton's own kernels were native, also of kernels that are gone.

::

    counts that native code keeps of a kernel ── Tally ──► less trials ──► Launches
    the kernel goes ── its last Launches ──► kept by module and name

Enters: counts. Leaves: `Launches`. It must not know how a launch is made.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tzero import locks
from tzero.launches.graphs import Run

__all__ = ["Counting", "Launches", "Tally", "forget_gone", "launched"]


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of launches, which can be added and subtracted.

    >>> Tally(3, 1) - Tally(1)
    Tally(launches=2, missed=1, left={}, timed=0, nanoseconds=0)
    """

    launches: int = 0
    missed: int = 0
    """Launches that compiled, or looked for, another binary: Triton makes these."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Other launches that Triton made, by reason."""
    timed: int = 0
    """How many of them were timed: one of 32."""
    nanoseconds: int = 0

    def __add__(self, other: Tally) -> Tally:
        return self._with(other, 1)

    def __sub__(self, other: Tally) -> Tally:
        return self._with(other, -1)

    def _with(self, other: Tally, sign: int) -> Tally:
        left = {
            why: self.left.get(why, 0) + sign * other.left.get(why, 0)
            for why in (*self.left, *other.left)
        }
        return Tally(
            self.launches + sign * other.launches,
            self.missed + sign * other.missed,
            {why: count for why, count in left.items() if count},
            self.timed + sign * other.timed,
            self.nanoseconds + sign * other.nanoseconds,
        )


@dataclass(frozen=True, slots=True)
class Launches:
    """How one of Triton's kernels was launched: natively, or by Triton, with the reason of each; or
    how those kernels of one name were that are gone by now. Trials of an autotuner are not among
    the launches.

    ::

        Launches(kernel, "fla.ops", "chunk_fwd", Tally(100, 1))
    """

    kernel: Any
    """None for those that are gone."""
    module: str
    name: str
    tally: Tally
    trials: int = 0
    """Launches by an autotuner that was timing its configs, with any that other threads made of the
    kernel meanwhile."""
    runs: tuple[Run, ...] = ()
    """One launch of each binary on CUDA, and the CUDA graph that it became; of no kernel that is
    gone."""

    @property
    def launches(self) -> int:
        return self.tally.launches

    @property
    def missed(self) -> int:
        return self.tally.missed

    @property
    def left(self) -> Mapping[str, int]:
        return self.tally.left

    @property
    def native(self) -> int:
        """How many launches were native."""
        return self.launches - self.missed - sum(self.left.values())

    @property
    def microseconds(self) -> float | None:
        """The mean of those launches that were timed."""
        timed = self.tally.timed
        return self.tally.nanoseconds / timed / 1e3 if timed else None


def launched() -> list[Launches]:
    """The kernels that were launched since they were first chosen. Those that are gone are told of
    until kernels are chosen anew.

    >>> [each.name for each in launched() if each.native > 10**9]
    []
    """
    kept = list(_all)  # until the end, so that none is counted twice
    with _gone_lock:
        _add_up()
        return [*(each.counted() for each in kept), *_gone.values()]


_all: weakref.WeakSet[Counting] = weakref.WeakSet()
_tallying = locks.lock()  # held while trials are added
_ended: deque[Launches] = deque()  # of kernels that are gone, and not in `_gone` yet
_gone: dict[tuple[str, str], Launches] = {}  # by module and name
_gone_lock = locks.lock()  # protects `_gone`


def forget_gone() -> None:
    """Forget the kernels that are gone.

    >>> forget_gone()
    """
    with _gone_lock:
        _ended.clear()
        _gone.clear()


def _keep(ended: Launches) -> None:
    """Keep the counts of a kernel that is about to go. That happens anywhere, also where this
    thread holds the lock."""
    _ended.append(ended)
    if not locks.owned(_gone_lock) and _gone_lock.acquire(blocking=False):
        try:
            _add_up()
        finally:
            _gone_lock.release()


def _add_up() -> None:
    """Add the counts of kernels that are gone, name by name; the caller holds the lock."""
    while _ended:
        new = _ended.popleft()
        known = _gone.get((new.module, new.name))
        if known is not None:
            new = replace(new, tally=known.tally + new.tally, trials=known.trials + new.trials)
        _gone[new.module, new.name] = new


class Counting:
    """What is asked of the launches of a kernel that native code counts. A subclass has `kernel`,
    `why_not`, `_counts` and `_described_runs`, and calls `count` when it is made.

    ::

        class Beside(Counting, native.Launchable): ...
    """

    kernel: Any
    why_not: str
    _counts: Callable[[], Any]
    _described_runs: Callable[[], tuple[Run, ...]]
    _trials = Tally()

    def count(self) -> None:
        """Let `launched` tell of this kernel from now on."""
        _all.add(self)

    def tally(self) -> Tally:
        """The launches so far, those of trials too."""
        launches, missed, left, timed, nanoseconds = self._counts()
        if self.why_not:
            left = {self.why_not: launches}
        return Tally(launches, missed, left, timed, nanoseconds)

    def were_trials(self, those: Tally) -> None:
        """Count launches that were made by now as those of an autotuner's trials."""
        with _tallying:
            self._trials += those

    def counted(self) -> Launches:
        """How the kernel was launched."""
        return replace(self._told(), runs=self._described_runs())

    def _told(self) -> Launches:
        trials = self._trials  # first: they are launches already
        names = self.kernel.__module__ or "", self.kernel.__name__
        return Launches(self.kernel, *names, self.tally() - trials, trials.launches)

    def __del__(self) -> None:
        ended = self._told()
        if ended.launches or ended.trials:
            _keep(replace(ended, kernel=None))
