"""One candidate, measured: how long a call takes, and whether what it computes is right.

::

    arguments ── copies ──► arguments that a candidate may spoil
    call ── warm-up ── calls per sample ── batches of samples ──► Timing
                 each sample: `before`, cache flushed, then timed   └─ why it ended: settled,
    results ── same(results, of the first config) ──► Comparison         hopeless, samples, budget

Enters: a call without arguments, the device that it runs on, a budget, the best median so far.
Leaves: a frozen `Timing` in seconds. It must not know configs, kernels or how candidates are
chosen. All that differs between devices is in a `Clock`, which may be handed in.

Medians and their intervals are nonparametric: times have a long tail, and are not normal. A
candidate is looked at after each batch, so that one whose true median is a hair's breadth from the
best is given up a little more often than the confidence says; it would have won next to nothing.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from tzero.adapters.torch_internals import cuda_sleep
from tzero.errors import UnsupportedType
from tzero.tune.copying import copies
from tzero.tune.seconds import in_words

__all__ = [
    "Clock",
    "Comparison",
    "CpuClock",
    "CudaClock",
    "Timing",
    "clock_of",
    "copies",
    "interval",
    "measure",
    "same",
]

CONFIDENCE = 0.95
"""How sure an interval is to hold the true median."""

PRECISION = 0.02
"""A candidate is settled when its interval is this narrow, as a part of its median."""

FEWEST = 10
"""Samples before a candidate can be settled."""

MOST = 200
"""Samples after which more of them would tell little."""

BATCH = 10
"""Samples between two looks at a candidate."""

GLANCE = 3
"""Samples after which a candidate is given up if all of them took `FAR` times the best median."""

FAR = 2.0

SURE = 6
"""Samples from which an interval of `CONFIDENCE` has ends."""

CALLS = 1 << 16
"""Calls that one sample has at most."""

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
    """The interval that holds the true median, most likely; 0 where there are too few samples."""
    high: float
    """Its other end; infinite where there are too few samples."""
    samples: int
    calls: int
    """Calls in each sample, of which a sample is the mean."""
    ended: Ended
    """``settled``: the interval is narrow; ``hopeless``: slower than the best; ``samples``: it
    stays wide; ``budget``: the time was up."""

    @classmethod
    def of(cls, seconds: Iterable[float], *, calls: int, ended: Ended) -> Timing:
        """The timing that samples, each in seconds per call, come to.

        >>> Timing.of([1.0, 2.0, 3.0, 4.0], calls=1, ended="samples").median
        2.5
        """
        ordered = sorted(seconds)
        middle = len(ordered) // 2
        median = (ordered[middle] + ordered[~middle]) / 2
        return cls(median, *interval(ordered), samples=len(ordered), calls=calls, ended=ended)

    @property
    def hopeless(self) -> bool:
        """Whether it was given up because the best is faster.

        >>> Timing.of([1.0], calls=1, ended="hopeless").hopeless
        True
        """
        return self.ended == "hopeless"

    def __str__(self) -> str:
        spread = f"{in_words(self.low)} to {in_words(self.high)}"
        return f"{in_words(self.median)} ({spread}; {self.samples} samples, {self.ended})"


def interval(ordered: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Between which two samples, of some in order, the true median lies with this confidence: no
    distribution is assumed. Times are not negative, so with too few samples it is 0 to infinity.

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (1.0, 6.0)
    >>> interval([1.0, 2.0])
    (0.0, inf)
    """
    rank = _rank(len(ordered), confidence)
    return (ordered[rank - 1], ordered[-rank]) if rank else (0.0, math.inf)


@functools.lru_cache(maxsize=1024)
def _rank(count: int, confidence: float) -> int:
    """The greatest k for which the k-th of the samples, from either end, encloses the median: the
    median is below the k-th as often as fewer than k of `count` coins fall heads."""
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
        """Seconds that a sample must have for the clock to be exact."""

    def now(self) -> float:
        """Seconds as the wall clock has them, for budgets."""

    def samples(self, call: Call, calls: int, count: int, before: Call | None) -> list[float]:
        """Seconds of so many samples, each of so many calls; ahead of each of them `before` is
        called, and then the cache flushed."""


class CpuClock:
    """The wall clock, for calls that have done their work when they return.

    >>> [seconds] = CpuClock(cache=1024).samples(lambda: None, calls=1, count=1, before=None)
    >>> seconds >= 0
    True
    """

    shortest = 3e-3
    """A flush takes the interpreter out of the cache too: of several calls the first is slow."""

    def __init__(
        self, cache: int | None = None, counter: Callable[[], float] = time.perf_counter
    ) -> None:
        self._counter = counter
        size = cpu_cache() if cache is None else cache
        self._buffer = torch.empty(size, dtype=torch.uint8, device="cpu")  # whatever the default is

    def now(self) -> float:
        return self._counter()

    def samples(self, call: Call, calls: int, count: int, before: Call | None) -> list[float]:
        counter, found = self._counter, []
        for _ in range(count):
            if before is not None:
                before()
            # Not by torch, whose threads spin for a while after what they did: on the cores that
            # the call is to have.
            ctypes.memset(self._buffer.data_ptr(), 0, self._buffer.numel())
            start = counter()
            for _ in range(calls):
                call()
            found.append(counter() - start)
        return found


class CudaClock:
    """Events on the device, in its current stream. A batch of samples is queued whole, behind a
    kernel that does nothing for as long as queuing takes: so the device never waits for the host,
    and what launching costs there is no part of the samples.

    ::

        CudaClock(torch.device("cuda", 0)).samples(call, calls=1, count=10, before=None)
    """

    shortest = 20e-6
    """Events count in half microseconds."""

    def __init__(self, device: torch.device, cache: int | None = None) -> None:
        self._device = device
        self._queuing = 0.0  # seconds that the host took for one sample, at last
        if cache is None:
            # Twice: which lines go first is for the device to say, and need not be the oldest.
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


_CYCLES = 2e9  # of a device in a second; where it has fewer, the host is only further ahead
_LONGEST_AHEAD = 0.02  # seconds; a call that compiles takes far longer, and is no guide


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_of(device: torch.device | str) -> Clock:
    """The clock for a device. It holds a buffer as large as the device's cache: make it once for
    many candidates.

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
_LARGEST = 16 << 20  # a virtual machine is told of the caches of the whole socket


def cpu_cache(folder: str = _CPU_CACHES) -> int:
    """The bytes of the largest cache of a CPU core; 16 MiB where it is larger, and where nobody
    says.

    >>> 0 < cpu_cache() <= 16 << 20
    True
    """
    sizes = []
    for path in Path(folder).glob("index*/size"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue  # one that this system does not tell of
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
    """Time a call, until it is settled, hopeless against the `best` median so far, or its budget of
    seconds is used up.

    A call in progress is never interrupted: a slow one may end after its budget, and then counts
    with what there is. `before` is called ahead of each sample, outside its time; it puts back what
    the call changes, where that changes how long it takes. Of several calls in a sample only the
    first finds the cache empty; `calls` is how many it had the last time, where that is known. What
    the call raises is the caller's.

    >>> measure(lambda: sum(range(1000)), device="cpu", budget=0.05).median > 0
    True
    """
    if not budget > 0:
        raise ValueError(f"the budget is {budget} seconds; it must be more than 0")
    if clock is None:
        clock = clock_of(device)
    end = clock.now() + budget
    first = clock.samples(call, 1, 1, before)  # compiles, loads, touches pages: not a fair one
    if clock.now() >= end:
        return Timing.of(first, calls=1, ended="budget")
    if first[0] > 0:  # it may have become slower since
        calls = max(1, min(calls, int((end - clock.now()) / first[0])))
    calls, seconds, cost = _calibrated(call, clock, end, before, calls)
    while (ended := _ended(seconds, best, end - clock.now())) is None:
        start = clock.now()
        count = min(_batch(len(seconds)), int((end - start) / cost) if cost > 0 else MOST)
        found = clock.samples(call, calls, max(count, 1), before)
        seconds += [each / calls for each in found]
        cost = (clock.now() - start) / len(found)
        if calls * min(seconds) < clock.shortest / 2 and calls < CALLS and clock.now() < end:
            # What the number of calls was chosen by was long by accident: the machine was busy.
            calls, seconds, cost = _calibrated(call, clock, end, before, calls * 2)
    return Timing.of(seconds, calls=calls, ended=ended)


def _batch(count: int) -> int:
    """How many samples come next, after so many: up to where a candidate can be given up."""
    marks: tuple[int, ...] = (GLANCE, SURE, *range(SURE + BATCH, MOST, BATCH), MOST)
    return next(mark - count for mark in marks if mark > count)


def _calibrated(
    call: Call, clock: Clock, end: float, before: Call | None, calls: int
) -> tuple[int, list[float], float]:
    """How many calls, or more than these, make a sample that the clock is exact for; the first such
    sample, in seconds per call; and the seconds that it cost, with what is around it."""
    calls = min(calls, CALLS)
    while True:
        start = clock.now()
        [taken] = clock.samples(call, calls, 1, before)
        now = clock.now()
        if taken >= clock.shortest or calls >= CALLS or now >= end:
            return calls, [taken / calls], now - start
        # A clock that says nearly nothing may be off by much, so the guess grows by steps.
        wanted = math.ceil(1.2 * clock.shortest / taken) if taken > 0 else 10
        calls = min(calls * max(2, min(wanted, 10)), CALLS)


def _ended(seconds: list[float], best: float | None, left: float) -> Ended | None:
    if best is not None and len(seconds) >= GLANCE and min(seconds) > FAR * best:
        return "hopeless"
    ordered = sorted(seconds)
    low, high = interval(ordered)
    if best is not None and low > best:
        return "hopeless"
    if len(seconds) >= FEWEST and high - low <= PRECISION * ordered[len(ordered) // 2]:
        return "settled"
    if len(seconds) >= MOST:
        return "samples"
    return "budget" if left <= 0 else None


# -- right or wrong -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Whether results are those of the reference; false, with words, where they are not.

    >>> bool(Comparison("")), bool(Comparison("result[0] has shape (2,)"))
    (True, False)
    """

    words: str = ""

    def __bool__(self) -> bool:
        return not self.words


TOLERANCES: Mapping[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 2e-2,
    torch.complex128: 1e-9,
    torch.complex64: 1e-4,
    torch.complex32: 1e-2,
    torch.float8_e4m3fn: 0.13,
    torch.float8_e4m3fnuz: 0.13,
    torch.float8_e5m2: 0.26,
    torch.float8_e5m2fnuz: 0.26,
}
"""What configs may differ by: a part of the value, and of how large the values of the reference
are together (their root mean square). It allows for sums taken in another order, which is what
configs change; wrong kernels are wrong by far more."""

_CHUNK = 1 << 24  # elements compared at once, as 64-bit floats


def same(
    results: Any, reference: Any, *, tolerance: float | None = None, named: str = "result"
) -> Comparison:
    """Whether a candidate's results are those of the first config.

    Shapes, dtypes and devices agree, integers are equal, and floats are within the tolerance of
    their dtype (`TOLERANCES`), or within the one that is given; NaN is equal to NaN, and infinities
    to themselves. Lists, tuples, dicts and dataclasses are compared item by item. `named` is what
    the words call the whole of it.

    >>> same([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])]).words
    'result[0] is 2.0 at (1,), and the reference 2.5; 1 of 2 elements differ'
    """
    return Comparison(_differ(results, reference, named, tolerance) or "")


def _differ(mine: Any, other: Any, at: str, tolerance: float | None) -> str | None:
    if type(mine) is not type(other):
        return f"{at} is of type {type(mine).__name__}, and the reference {type(other).__name__}"
    if isinstance(mine, torch.Tensor):
        return _tensors_differ(mine, other, at, tolerance)
    if isinstance(mine, dict):
        if list(mine) != list(other):
            return f"{at} has the keys {list(mine)}, and the reference {list(other)}"
        return _first(((f"{at}[{k!r}]", mine[k], other[k]) for k in mine), tolerance)
    if isinstance(mine, list | tuple):
        if len(mine) != len(other):
            return f"{at} has {len(mine)} items, and the reference {len(other)}"
        pairs = enumerate(zip(mine, other, strict=True))
        return _first(((f"{at}[{k}]", one, two) for k, (one, two) in pairs), tolerance)
    if dataclasses.is_dataclass(mine):
        names = [field.name for field in dataclasses.fields(mine)]
        items = ((f"{at}.{k}", getattr(mine, k), getattr(other, k)) for k in names)
        return _first(items, tolerance)
    if isinstance(mine, float | complex):
        allowed = TOLERANCES[torch.float32] if tolerance is None else tolerance
        near = _close(_parts(mine), _parts(other), 0.0, allowed)  # a number read from a tensor
        return None if bool(near.all()) else f"{at} is {mine}, and the reference {other}"
    if hasattr(mine, "__array__"):  # an array of numpy's
        return _tensors_differ(torch.as_tensor(mine), torch.as_tensor(other), at, tolerance)
    if mine is other or (mine == other) is True:
        return None
    kind: Any = type(mine)
    if kind.__eq__ is object.__eq__ and hasattr(mine, "__dict__") and not isinstance(mine, Enum):
        return None  # each is equal to itself alone: whether it is right, nobody can tell
    return f"{at} is {mine!r}, and the reference {other!r}"


def _parts(number: complex) -> torch.Tensor:
    return torch.view_as_real(torch.tensor(number, dtype=torch.complex128, device="cpu"))


def _first(items: Iterable[tuple[str, Any, Any]], tolerance: float | None) -> str | None:
    found = (_differ(one, two, at, tolerance) for at, one, two in items)
    return next((words for words in found if words is not None), None)


def _tensors_differ(
    mine: torch.Tensor, other: torch.Tensor, at: str, tolerance: float | None
) -> str | None:
    facts: tuple[tuple[str, Any, Any], ...] = (
        ("dtype", mine.dtype, other.dtype),
        ("shape", tuple(mine.shape), tuple(other.shape)),
        ("device", mine.device, other.device),
    )
    for fact, its, wanted in facts:
        if its != wanted:
            return f"{at} has {fact} {its}, and the reference {wanted}"
    if mine.numel() == 0:
        return None
    one, two = _flat(mine), _flat(other)
    if torch.equal(_bytes(one), _bytes(two)):  # as most arguments are; and it is much cheaper
        return None
    if mine.dtype in TOLERANCES:
        allowed = TOLERANCES[mine.dtype] if tolerance is None else tolerance
        near = _near(one, two, allowed)
    else:
        near = torch.eq(one, two)
    # Several numbers stand for one element where it is complex, or of a type that is only bytes.
    wrong = ~near.reshape(mine.numel(), -1).all(dim=1)
    count = int(wrong.sum())
    if count == 0:
        return None
    index = int(wrong.to(torch.uint8).argmax())
    place = tuple(
        int(k) for k in torch.unravel_index(torch.tensor(index, device="cpu"), mine.shape)
    )
    shown, wanted = mine[place].tolist(), other[place].tolist()
    many = f"{count} of {mine.numel()} elements differ"
    return f"{at} is {shown} at {place}, and the reference {wanted}; {many}"


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order, in a dtype that torch compares."""
    tensor = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if tensor.is_complex():
        return torch.view_as_real(tensor).reshape(-1)
    if tensor.dtype in _SIGNED:
        return tensor.view(_SIGNED[tensor.dtype])
    if tensor.dtype.is_floating_point and tensor.dtype not in TOLERANCES:
        return tensor.contiguous().view(torch.uint8)
    return tensor


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    # One element may have any stride, and only a stride of 1 can be viewed as bytes.
    return flat.contiguous().as_strided((flat.numel(),), (1,)).view(torch.uint8)


def _near(mine: torch.Tensor, other: torch.Tensor, allowed: float) -> torch.Tensor:
    total, count = 0.0, 0
    for part in torch.split(other, _CHUNK):
        finite = part[part.to(torch.float64).isfinite()].to(torch.float64)
        total += float((finite * finite).sum())
        count += finite.numel()
    scale = math.sqrt(total / count) if count and math.isfinite(total) else 0.0
    pairs = zip(torch.split(mine, _CHUNK), torch.split(other, _CHUNK), strict=True)
    return torch.cat([_close(one, two, scale, allowed) for one, two in pairs])


def _close(mine: torch.Tensor, other: torch.Tensor, scale: float, allowed: float) -> torch.Tensor:
    one, two = mine.to(torch.float64), other.to(torch.float64)
    return torch.isclose(one, two, rtol=allowed, atol=allowed * scale, equal_nan=True)
