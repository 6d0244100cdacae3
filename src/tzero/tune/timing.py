"""How long a call takes.

::

    call ── warm-up ── calls per sample ── batches of samples ── without disturbed ones ──► Timing
                 each sample: `before`, cache flushed, then timed    why it ended: settled, ─┘
                                                                     hopeless, samples, budget

Enters: a call without arguments, its device, a budget, the best median so far. Leaves: a frozen
`Timing` in seconds. It must not know configs, kernels or how candidates are chosen. All that
differs between devices is in a `Clock`, which may be passed in.

Other programs disturb samples: a thread of the call is ready to run and has no core. Linux counts
how long threads wait for one. Samples with such waits do not count; instead the timing takes
longer. On a machine with two cores, one of them busy, a quarter of the samples is undisturbed, and
their median is that of a quiet machine, while the median of all samples is twice as large.

Medians and their intervals are nonparametric, because times have a long tail. The interval is
checked after each batch, so a candidate that is almost as fast as the best is given up a little
more often than the confidence says. Little is lost by that.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, Protocol

import torch

from tzero.adapters.torch_internals import cuda_sleep
from tzero.errors import UnsupportedType
from tzero.tune.seconds import in_words

__all__ = [
    "Clock",
    "CpuClock",
    "CudaClock",
    "Timing",
    "clock_of",
    "interval",
    "measure",
]

CONFIDENCE = 0.95
"""The probability that an interval contains the true median."""

PRECISION = 0.02
"""A candidate is settled when the width of its interval is this fraction of its median."""

FEWEST = 10
"""The least number of samples of a settled candidate."""

MOST = 200
"""The most samples of a candidate."""

BATCH = 10
"""Samples between two checks of the interval."""

GLANCE = 3
"""Samples after which a candidate is given up if all of them took `FAR` times the best median."""

FAR = 2.0

SURE = 6
"""The least number of samples that gives a finite interval of `CONFIDENCE`."""

CALLS = 1 << 16
"""The most calls in one sample."""

WAITED = 0.02
"""A sample is disturbed if a thread waited for a core for more than this fraction of it."""

SHORTER = 8
"""How many times shorter samples are where most are disturbed."""

LONGER = 3.0
"""How many times its budget a timing may take, where most samples are disturbed."""

QUIET = 3
"""The least number of undisturbed samples that count alone; with fewer, the shortest do."""

WIDE = 0.2
"""A timing is disturbed, too, if the width of its interval is this fraction of its median."""

MOST_THREADS = 128
"""With more threads than this, their waits are not read: that would take longer than a sample."""

Call = Callable[[], object]
Ended = Literal["settled", "hopeless", "samples", "budget"]


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """How long one call takes, in seconds.

    >>> timing = Timing.of([3e-6, 1e-6, 2e-6], calls=4, ended="budget")
    >>> timing.median, timing.low, timing.high
    (2e-06, 0.0, inf)
    """

    median: float
    low: float
    """The lower end of the confidence interval of the median; 0 with too few samples."""
    high: float
    """Its upper end; infinite with too few samples."""
    samples: int
    calls: int
    """Calls in each sample; a sample is their mean."""
    ended: Ended
    """``settled``: the interval is narrow; ``hopeless``: slower than the best; ``samples``: the
    interval stays wide; ``budget``: the time was up."""
    disturbed: bool = False
    """Whether other programs disturbed it, so that another time would be measured at another
    moment."""

    @classmethod
    def of(
        cls, seconds: Iterable[float], *, calls: int, ended: Ended, disturbed: bool = False
    ) -> Timing:
        """The timing of some samples, each in seconds per call.

        >>> Timing.of([1.0, 2.0, 3.0, 4.0], calls=1, ended="samples").median
        2.5
        """
        ordered = sorted(seconds)
        middle = len(ordered) // 2
        median = (ordered[middle] + ordered[~middle]) / 2
        low, high = interval(ordered)
        wide = len(ordered) >= FEWEST and high - low > WIDE * median and ended != "hopeless"
        return cls(median, low, high, len(ordered), calls, ended, disturbed or wide)

    @property
    def hopeless(self) -> bool:
        """Whether it was given up because the best is faster."""
        return self.ended == "hopeless"

    def __str__(self) -> str:
        spread = f"{in_words(self.low)} to {in_words(self.high)}"
        noise = ", disturbed" if self.disturbed else ""
        return f"{in_words(self.median)} ({spread}; {self.samples} samples, {self.ended}{noise})"


def interval(ordered: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The two of some sorted samples between which the true median lies with this confidence. No
    distribution is assumed. With too few samples the interval is 0 to infinity.

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (1.0, 6.0)
    >>> interval([1.0, 2.0])
    (0.0, inf)
    """
    rank = _rank(len(ordered), confidence)
    return (ordered[rank - 1], ordered[-rank]) if rank else (0.0, math.inf)


@functools.lru_cache(maxsize=1024)
def _rank(count: int, confidence: float) -> int:
    """The greatest k for which the k-th samples from both ends enclose the median. The median is
    below the k-th sample with the probability that fewer than k of `count` coins fall heads."""
    allowed = (1 - Fraction(confidence)) / 2 * 2**count
    below, rank = 0, 0
    while (below := below + math.comb(count, rank)) <= allowed:
        rank += 1
    return rank


# -- clocks ---------------------------------------------------------------------------------------


class Clock(Protocol):
    """How calls are timed on one device.

    ::

        clock = clock_of(torch.device("cuda"))
        clock.samples(call, calls=4, count=10, before=restore)  # ten numbers, in seconds
    """

    @property
    def shortest(self) -> float:
        """The shortest sample, in seconds, that the clock measures exactly."""

    @property
    def waits(self) -> Sequence[float]:
        """For each of the last samples, the seconds that a thread of this process was ready to run
        and had no core: of all threads, the longest. Empty where that is unknown."""

    def now(self) -> float:
        """Wall-clock seconds, for budgets."""

    def samples(self, call: Call, calls: int, count: int, before: Call | None) -> list[float]:
        """The seconds of `count` samples of `calls` calls each. Before each sample, `before` is
        called and then the cache is flushed."""


class CpuClock:
    """The wall clock, for calls that are complete when they return.

    >>> [seconds] = CpuClock(cache=1024).samples(lambda: None, calls=1, count=1, before=None)
    >>> seconds >= 0
    True
    """

    shortest = 3e-3
    """A flush evicts the interpreter from the cache too, so the first call of a sample is slow."""

    def __init__(
        self, cache: int | None = None, counter: Callable[[], float] = time.perf_counter
    ) -> None:
        self._counter = counter
        size = cpu_cache() if cache is None else cache
        self._buffer = torch.empty(size, dtype=torch.uint8, device="cpu")
        self.waits: list[float] = []

    def now(self) -> float:
        return self._counter()

    def samples(self, call: Call, calls: int, count: int, before: Call | None) -> list[float]:
        counter, found = self._counter, []
        self.waits = []
        with contextlib.closing(_Waits()) as waits:
            for _ in range(count):
                if before is not None:
                    before()
                # Not by torch: its threads keep spinning for a while, on cores that the call needs.
                ctypes.memset(self._buffer.data_ptr(), 0, self._buffer.numel())
                waits.longest()
                start = counter()
                for _ in range(calls):
                    call()
                found.append(counter() - start)
                self.waits.append(waits.longest())
        return found


_TASKS = "/proc/self/task"


class _Waits:
    """How long the threads of this process have waited for a core, as Linux counts it. Elsewhere it
    is always 0."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # file descriptor -> nanoseconds, when it was last read
        threads = os.listdir(_TASKS) if os.path.isdir(_TASKS) else []
        for thread in threads if len(threads) <= MOST_THREADS else ():
            with contextlib.suppress(OSError):  # it has ended, or the system does not count
                path = f"{_TASKS}/{thread}/schedstat"
                self._seen[os.open(path, os.O_RDONLY | os.O_CLOEXEC)] = 0

    def longest(self) -> float:
        """Seconds since the last time that this was called: of all threads, the longest."""
        longest = 0
        for file, before in self._seen.items():
            with contextlib.suppress(OSError):  # the thread has ended
                self._seen[file] = now = int(os.pread(file, 128, 0).split()[1])
                longest = max(longest, now - before)
        return longest * 1e-9

    def close(self) -> None:
        """Close the files."""
        for file in self._seen:
            os.close(file)


class CudaClock:
    """CUDA events in the current stream. A whole batch of samples is queued behind a sleeping
    kernel that lasts as long as queuing takes. So the device never waits for the host, and the
    samples do not contain the host's launch overhead.

    ::

        CudaClock(torch.device("cuda", 0)).samples(call, calls=1, count=10, before=None)
    """

    shortest = 20e-6
    """Events have a resolution of half a microsecond."""

    waits: Sequence[float] = ()
    """Waits of the host do not matter to the device."""

    def __init__(self, device: torch.device, cache: int | None = None) -> None:
        self._device = device
        self._queuing = 0.0  # seconds that the host took to queue one call, the last time
        if cache is None:
            # Twice, because the device need not evict the oldest lines first.
            cache = 2 * int(torch.cuda.get_device_properties(device).L2_cache_size)
        self._buffer = torch.empty(max(cache, 1), dtype=torch.uint8, device=device)

    def now(self) -> float:
        return time.perf_counter()

    def samples(self, call: Call, calls: int, count: int, before: Call | None) -> list[float]:
        pairs = []
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            stream.synchronize()
            ahead = min(1.5 * self._queuing * count * calls, _LONGEST_AHEAD)
            cuda_sleep(int(ahead * _CYCLES))
            began = time.perf_counter()
            for _ in range(count):
                start, end = _event(), _event()
                pairs.append((start, end))
                if before is not None:
                    before()
                self._buffer.zero_()
                start.record(stream)
                for _ in range(calls):
                    call()
                end.record(stream)
            self._queuing = (time.perf_counter() - began) / (count * calls)
            stream.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairs]


_CYCLES = 2e9  # per second; on a slower device the kernel only sleeps longer than needed
_LONGEST_AHEAD = 0.02  # seconds; a call that compiles takes far longer, and is not typical


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_of(device: torch.device | str) -> Clock:
    """The clock for a device. It holds a buffer as large as the device's cache: share it between
    candidates.

    >>> type(clock_of("cpu")).__name__
    'CpuClock'
    """
    device = torch.device(device)
    if device.type == "cuda":
        return CudaClock(device)
    if device.type == "cpu":
        return CpuClock()
    raise UnsupportedType(
        kind=f"tensor on {device}", advice="Candidates are timed on CPUs and CUDA devices."
    )


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CPU_CACHES = "/sys/devices/system/cpu/cpu0/cache"
_LARGEST = 16 << 20  # a virtual machine reports the caches of the whole socket


def cpu_cache(folder: str = _CPU_CACHES) -> int:
    """The bytes of the largest cache of a CPU core, at most 16 MiB; 16 MiB where it is unknown.

    >>> 0 < cpu_cache() <= 16 << 20
    True
    """
    sizes = []
    for path in Path(folder).glob("index*/size"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue  # not readable on this system
        digits, unit = (text[:-1], _UNITS.get(text[-1:])) if text[-1:].isalpha() else (text, 1)
        if unit is not None and digits.isdecimal():
            sizes.append(int(digits) * unit)
    return min(max(sizes, default=0) or _LARGEST, _LARGEST)


# -- measuring ------------------------------------------------------------------------------------


def measure(
    call: Call,
    *,
    device: torch.device | str,
    budget: float,
    best: float | None = None,
    before: Call | None = None,
    clock: Clock | None = None,
    calls: int = 1,
) -> Timing:
    """Time a call until the result is settled, it is clearly slower than the `best` median so far,
    or its budget of seconds is used up.

    A call is never interrupted: a slow one may end after the budget, and still counts. Where other
    programs disturb it, it takes up to three times its budget. `before` is called before each
    sample, outside the timed region; it restores what the call modifies. In a sample of several
    calls only the first finds the cache flushed. `calls` is the number of calls per sample of an
    earlier timing, where there was one. Exceptions of the call are not caught.

    >>> measure(lambda: sum(range(1000)), device="cpu", budget=0.05).median > 0
    True
    """
    if not budget > 0:
        raise ValueError(f"the budget is {budget} seconds; it must be more than 0")
    if clock is None:
        clock = clock_of(device)
    start = clock.now()
    end = start + budget
    taken = _Samples()
    first = clock.samples(call, 1, 1, before)  # warm-up: it may compile, load, and fault pages
    if clock.now() >= end:
        taken.add(first, clock.waits, 1)
        return taken.timing(1, "budget")
    if first[0] > 0:  # it may have become slower since
        calls = max(1, min(calls, int((end - clock.now()) / first[0])))
    shortest = clock.shortest
    calls, cost = _calibrate(taken, call, clock, end, before, calls)
    while True:
        now = clock.now()
        until = end if taken.enough else start + LONGER * budget
        ended = _ended(taken, best, until - now)
        if ended is not None:
            return taken.timing(calls, ended)
        count = min(_batch(len(taken.quiet)), int((until - now) / cost) if cost > 0 else MOST)
        found = clock.samples(call, calls, max(count, 1), before)
        taken.add(found, clock.waits, calls)
        cost = (clock.now() - now) / len(found)
        if taken.mostly_disturbed and shortest == clock.shortest and calls > 1:
            # Shorter samples fit between two disturbances.
            shortest, calls = shortest / SHORTER, max(1, calls // SHORTER)
        elif calls * min(taken.seconds) < shortest / 2 and calls < CALLS and clock.now() < end:
            # The machine was busy during calibration: the sample needs more calls.
            taken, shortest = _Samples(), clock.shortest
            calls, cost = _calibrate(taken, call, clock, end, before, calls * 2)


class _Samples:
    """Samples of one call, and how disturbed each is."""

    def __init__(self) -> None:
        self.seconds: list[float] = []  # per call
        self.quiet: list[float] = []  # those that are not disturbed

    def add(self, found: Sequence[float], waits: Sequence[float], calls: int) -> None:
        for k, taken in enumerate(found):
            waited = waits[k] / taken if k < len(waits) and taken > 0 else 0.0
            self.seconds.append(taken / calls)
            if waited <= WAITED:
                self.quiet.append(taken / calls)

    @property
    def enough(self) -> bool:
        """Whether there are enough undisturbed samples, so that it need not take longer."""
        return len(self.quiet) >= min(SURE, len(self.seconds))

    @property
    def mostly_disturbed(self) -> bool:
        """Whether there are some samples, and fewer than half of them are undisturbed."""
        return len(self.seconds) >= GLANCE and 2 * len(self.quiet) < len(self.seconds)

    def timing(self, calls: int, ended: Ended) -> Timing:
        # Of disturbed samples the shortest are the least disturbed: other programs only add time.
        quiet = len(self.quiet) >= min(QUIET, len(self.seconds))
        counted = self.quiet if quiet else sorted(self.seconds)[:QUIET]
        return Timing.of(counted, calls=calls, ended=ended, disturbed=not self.enough)


def _batch(count: int) -> int:
    """How many samples to take after `count`: up to the next check."""
    marks: tuple[int, ...] = (GLANCE, SURE, *range(SURE + BATCH, MOST, BATCH), MOST)
    return next(mark - count for mark in marks if mark > count)


def _calibrate(
    taken: _Samples, call: Call, clock: Clock, end: float, before: Call | None, calls: int
) -> tuple[int, float]:
    """The number of calls, at least `calls`, in a sample that the clock measures exactly, and the
    seconds that such a sample cost with flush and `before`. Adds the sample to those taken."""
    calls = min(calls, CALLS)
    while True:
        start = clock.now()
        found = clock.samples(call, calls, 1, before)
        now = clock.now()
        if found[0] >= clock.shortest or calls >= CALLS or now >= end:
            taken.add(found, clock.waits, calls)
            return calls, now - start
        # A very short reading is inexact, so the number grows at most tenfold at a time.
        wanted = math.ceil(1.2 * clock.shortest / found[0]) if found[0] > 0 else 10
        calls = min(calls * max(2, min(wanted, 10)), CALLS)


def _ended(taken: _Samples, best: float | None, left: float) -> Ended | None:
    seconds = taken.quiet
    if best is not None and len(seconds) >= GLANCE and min(seconds) > FAR * best:
        return "hopeless"
    ordered = sorted(seconds)
    low, high = interval(ordered)
    if best is not None and low > best:
        return "hopeless"
    if len(seconds) >= FEWEST and high - low <= PRECISION * ordered[len(ordered) // 2]:
        return "settled"
    if len(taken.seconds) >= MOST:
        return "samples"
    return "budget" if left <= 0 else None
