"""The variant of a call by its shapes: the one that was tuned for the nearest shapes.

::

    shapes ──ranks──► family ──one column for each size──► distances of all hints ──min──► Choice

Enters: variants with the shapes of their inputs and outputs at tuning, then the shapes of calls.
Leaves: a `Choice`, which says why it was made. It must not know what a variant is, or time
anything.

The distance of two shapes is the L1 distance in log2 space: for each dimension the number of
doublings from one size to the other, summed. It is counted in steps of 1/1024 of a doubling, which
is 0.07 percent of a size. The extension computes distances one by one (`native/selecting.cpp`);
shapes that are not tuples of plain integers are left to Python.

To take only microseconds, Python keeps the distances from one size to all hints in one integer, 32
bits for each hint. The distances of a whole call are the sum of a few such integers. The lowest
bits of each field are the number of the hint, so the least field is the choice.

    >>> selector = Selector([Hint("small", [(64, 64)]), Hint("large", [(4096, 4096)])])
    >>> selector.select(((100, 64),)).variant
    'small'
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import floor, log2, prod
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from tzero.errors import InvalidArgument
from tzero.shown import in_cells

if TYPE_CHECKING:
    from tzero._native import Nearest

__all__ = [
    "BELOW_ONE",
    "KEPT",
    "MOST_DIMS",
    "MOST_HINTS",
    "SIZES",
    "Choice",
    "Hint",
    "How",
    "Selector",
    "elements",
]

V = TypeVar("V")

Size = int | None
Shape = tuple[Size, ...]
Shapes = tuple[Shape, ...]

How = Literal["pinned", "cached", "pretuned", "nearest", "tuned"]
"""How a choice was made."""

BELOW_ONE = -1.0
"""The log2 that a size of 0 counts as: one doubling below that of 1."""

MOST_HINTS = 1 << 8
"""The most hints of one selector."""

MOST_DIMS = (1 << 8) - 1
"""The most dimensions of all tensors of a hint. With up to 64 doublings for each of them, a sum of
distances fits in 24 bits."""

KEPT = 1 << 12
"""The most choices in a selector's cache, which is cleared when it is full."""

SIZES = 1 << 9
"""The most sizes in the cache of distances of one dimension, likewise."""

_STEPS = 1 << 10  # steps in a doubling
_FIELD = 32  # bits for one hint: 24 of distance, 8 of number
_NUMBER = MOST_HINTS.bit_length() - 1
_LARGEST = 1 << 63


_PROVISIONAL = "; provisional: the machine was disturbed, and a later process times it again"


@dataclass(frozen=True, slots=True)
class Choice(Generic[V]):
    """A variant, and why it was chosen: pinned, cached, pretuned, nearest or tuned.

    >>> choice = Choice.tuned("wide", tried=24, seconds=0.0021)
    >>> choice.how, choice.why
    ('tuned', 'the fastest of 24 that were timed, with 2.100 ms')
    >>> print(choice)
    'wide' (tuned: the fastest of 24 that were timed, with 2.100 ms)
    """

    variant: V
    how: How
    why: str
    seconds: float | None = None
    """Its time, where it was timed."""
    provisional: bool = False
    """Whether the machine was disturbed when it was timed, so that a later process times it
    again."""

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise InvalidArgument(
                kernel="Choice",
                argument="how",
                problem=f"is {self.how!r}",
                advice=f"Use one of {', '.join(get_args(How))}.",
            )

    _repr_pretty_ = in_cells

    def __str__(self) -> str:
        return f"{self.variant!r} ({self.how}: {self.why})"

    @classmethod
    def pinned(cls, variant: V, by: str = "the caller") -> Choice[V]:
        """The caller or an option asks for this variant.

        >>> print(Choice.pinned("wide", by="config="))
        'wide' (pinned: config= asks for it)
        """
        return cls(variant, "pinned", f"{by} asks for it")

    @classmethod
    def cached(
        cls, variant: V, place: str, seconds: float | None = None, provisional: bool = False
    ) -> Choice[V]:
        """An earlier search for these shapes on this machine found it.

        >>> print(Choice.cached("wide", "the local cache", seconds=2e-5))
        'wide' (cached: an earlier search found it, with 20.000 µs; kept in the local cache)
        """
        why = f"an earlier search found it{_with(seconds)}; kept in {place}"
        why += _PROVISIONAL if provisional else ""
        return cls(variant, "cached", why, seconds, provisional)

    @classmethod
    def pretuned(cls, variant: V, place: str, seconds: float | None = None) -> Choice[V]:
        """A shipped file or a lookup table has it.

        >>> print(Choice.pretuned("wide", "h200.json"))
        'wide' (pretuned: h200.json has it for this kind of hardware)
        """
        taken = _with(seconds)
        return cls(variant, "pretuned", f"{place} has it for this kind of hardware{taken}", seconds)

    @classmethod
    def nearest(cls, variant: V, shapes: str, among: int) -> Choice[V]:
        """It was tuned for the shapes that are nearest.

        >>> print(Choice.nearest("wide", "(64, 64)", among=16))
        'wide' (nearest: tuned for (64, 64), the nearest of 16 tuned shapes)
        """
        which = "the only tuned shape" if among == 1 else f"the nearest of {among} tuned shapes"
        return cls(variant, "nearest", f"tuned for {shapes}, {which}")

    @classmethod
    def tuned(
        cls,
        variant: V,
        *,
        tried: int,
        failed: int = 0,
        left_out: int = 0,
        seconds: float | None = None,
        kept: bool = False,
        provisional: bool = False,
    ) -> Choice[V]:
        """A search in this process found it. `kept`: it is the default, and the fastest is not
        faster by more than the spread.

        >>> print(Choice.tuned("wide", tried=1, failed=2, left_out=3))
        'wide' (tuned: the only one that was timed; 2 failed; 3 left out, for lack of time)
        """
        which = "the only one that was" if tried == 1 else f"the fastest of {tried} that were"
        if kept:
            which = f"the first of {tried} that were"
        others = ", and no other is faster by more than the spread" if kept else ""
        others += f"; {failed} failed" if failed else ""
        others += f"; {left_out} left out, for lack of time" if left_out else ""
        others += _PROVISIONAL if provisional else ""
        return cls(variant, "tuned", f"{which} timed{_with(seconds)}{others}", seconds, provisional)


@dataclass(frozen=True, slots=True)
class Hint(Generic[V]):
    """A variant, and the shapes of its inputs and outputs when it was tuned.

    A size of None is unknown; it has distance 0 to every size.

    >>> print(Hint("small", inputs=[(64, 32), (32, 8)], outputs=[(64, 8)]))
    (64, 32), (32, 8) → (64, 8)
    >>> print(Hint("small", [(64,)], name="x[0]=64"))
    x[0]=64
    """

    variant: V
    inputs: Sequence[Sequence[Size]]
    outputs: Sequence[Sequence[Size]] = ()
    name: str = ""
    """What to call it; by default, its shapes."""

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs"):
            shapes = tuple(_shape(name, each) for each in getattr(self, name))
            object.__setattr__(self, name, shapes)

    @property
    def shapes(self) -> Shapes:
        """Inputs and outputs together, as `Selector.select` takes them."""
        return (*self.inputs, *self.outputs)  # type: ignore[arg-type]  # tuples, see above

    def __str__(self) -> str:
        if self.name:
            return self.name
        sides = [", ".join(map(str, side)) or "nothing" for side in (self.inputs, self.outputs)]
        return " → ".join(sides if self.outputs else sides[:1])


class Selector(Generic[V]):
    """Chooses, for the shapes of a call, among variants that were tuned for other shapes.

    - The nearest by L1 distance in log2 space is taken. Several may be equally near, as squares are
      to a long and narrow shape: then the one with the nearest product of all sizes, then the
      earlier.
    - log2 of a size of 0 counts as -1, so that 0 is as far from 1 as 1 is from 2.
    - A size of None, on either side, adds nothing.
    - Only where no hint has the same number of tensors and the same ranks, hints of other ranks are
      chosen. They are compared by the number of elements of all tensors; None counts as 1.
    - The native extension chooses, where it is built; with `native=False`, Python does. Both choose
      the same.

    >>> selector = Selector([Hint("a", [(8, 8)]), Hint("b", [(8, 512)]), Hint("c", [(1024,)])])
    >>> [selector.nearest(shapes).variant for shapes in [((8, 64),), ((2000,),), ((1, 32, 2),)]]
    ['a', 'c', 'a']
    """

    __slots__ = (
        "_choices",
        "_elements",
        "_families",
        "_hints",
        "_kept",
        "_kernel",
        "_likely",
        "_number",
        "native",
    )

    def __init__(
        self, hints: Iterable[Hint[V]], *, kernel: str = "Selector", native: bool = True
    ) -> None:
        self._hints = tuple(hints)
        self._kernel = kernel
        for each in self._hints:
            if not isinstance(each, Hint):
                raise self._invalid(f"was given {each!r} as a hint", "Write Hint(variant, inputs).")
        if not 0 < len(self._hints) <= MOST_HINTS:
            raise self._invalid(
                f"has {len(self._hints)} hints to choose from", f"Give it 1 to {MOST_HINTS}."
            )
        among = len(self._hints)
        self._choices = tuple(
            Choice.nearest(each.variant, str(each), among) for each in self._hints
        )
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, each in enumerate(self._hints):
            groups.setdefault(tuple(map(len, each.shapes)), []).append(number)
        self._families = {ranks: self._family(ranks, groups[ranks]) for ranks in groups}
        totals = [(elements(each.shapes),) for each in self._hints]
        self._elements = _Family((1,), range(among), totals, kernel)
        self._likely = self._families[max(groups, key=lambda ranks: len(groups[ranks]))]
        self.native = _natively(self._hints) if native else None
        """The native object that chooses; None where Python does."""
        self._number = None if self.native is None else self.native.number
        self._kept: _Kept[V] = _Kept(self.nearest)

    @property
    def hints(self) -> tuple[Hint[V], ...]:
        """The hints, in order."""
        return self._hints

    def select(self, shapes: Shapes) -> Choice[V]:
        """The choice for these shapes, inputs then outputs; cached.

        >>> selector = Selector([Hint("small", [(64,)], [(64,)])])
        >>> selector.select(((80,), (80,))) is selector.select(((80,), (80,)))
        True
        """
        return self._kept[shapes]

    def nearest(self, shapes: Shapes) -> Choice[V]:
        """The choice for these shapes, computed each time.

        >>> print(Selector([Hint("small", [(64,)]), Hint("large", [(4096,)])]).nearest(((500,),)))
        'small' (nearest: tuned for (64,), the nearest of 2 tuned shapes)
        """
        return self._choices[self.number(shapes)]

    def numbers(self, variant: V) -> frozenset[int]:
        """The numbers of the hints with a variant.

        >>> Selector([Hint("small", [(64,)]), Hint("large", [(4096,)])]).numbers("large")
        frozenset({1})
        """
        return frozenset(k for k, each in enumerate(self._choices) if each.variant == variant)

    def number(self, shapes: Shapes) -> int:
        """The number of the nearest hint, computed each time.

        >>> Selector([Hint("small", [(64,)]), Hint("large", [(4096,)])]).number(((5000,),))
        1
        """
        number = self._number(shapes) if self._number is not None else None
        if number is None:
            try:
                fields = self._likely.fields(shapes)
            except ValueError:  # other ranks than most hints have
                family, compared = self._family_of(shapes)
                fields = family.fields(compared)
            number = self._least(fields, shapes)
        return number

    def _least(self, fields: Sequence[int], shapes: Shapes) -> int:
        """The number of the hint with the least distance."""
        least = min(fields) >> _NUMBER
        tied = [each & (MOST_HINTS - 1) for each in fields if each >> _NUMBER == least]
        return min(tied, key=lambda number: (self._off(number, shapes), number))

    def _off(self, number: int, shapes: Shapes) -> int:
        """The distance of the product of all sizes from that of a hint, in steps; 0 for other
        ranks."""
        mine = self._hints[number].shapes
        if list(map(len, mine)) != list(map(len, shapes)):
            return 0
        pairs = zip(chain.from_iterable(mine), chain.from_iterable(shapes), strict=True)
        known = ((one, other) for one, other in pairs if one is not None and other is not None)
        return abs(sum(_log2(one) - _log2(other) for one, other in known))

    def explain(self, shapes: Shapes) -> str:
        """The distance of each hint from these shapes, nearest first.

        >>> selector = Selector([Hint("small", [(64,)]), Hint("large", [(4096,)])])
        >>> print(selector.explain(((512,),)))
        'small': 3.00, tuned for (64,)
        'large': 3.00, tuned for (4096,)
        """
        family, compared = self._family_of(shapes)
        by = " in elements" if family is self._elements else ""
        fields = [divmod(each, MOST_HINTS) for each in family.fields(compared)]
        fields.sort(key=lambda each: (each[0], self._off(each[1], shapes), each[1]))
        rows = [(steps, self._hints[number]) for steps, number in fields]
        return "\n".join(
            f"{hint.variant!r}: {steps / _STEPS:.2f}{by}, tuned for {hint}" for steps, hint in rows
        )

    def _family_of(self, shapes: Shapes) -> tuple[_Family, Shapes]:
        """The hints to compare with, and the shapes in the form that is compared."""
        family = self._families.get(tuple(map(len, shapes)))
        if family is not None:
            return family, shapes
        return self._elements, ((elements(shapes),),)

    def _family(self, ranks: tuple[int, ...], numbers: Sequence[int]) -> _Family:
        if sum(ranks) > MOST_DIMS:
            raise self._invalid(
                f"has a hint with {sum(ranks)} dimensions", f"Give it at most {MOST_DIMS}."
            )
        flat = [tuple(chain.from_iterable(self._hints[number].shapes)) for number in numbers]
        return _Family(ranks, numbers, flat, self._kernel)

    def _invalid(self, problem: str, advice: str) -> InvalidArgument:
        return InvalidArgument(kernel=self._kernel, problem=problem, advice=advice)


def elements(shapes: Shapes) -> int:
    """The number of elements of all tensors together.

    >>> elements(((2, 3), (), (None, 4), (0, 9)))
    11
    """
    if any(None in shape for shape in shapes):
        shapes = tuple(tuple(1 if size is None else size for size in shape) for shape in shapes)
    counts: list[int] = [prod(shape) for shape in shapes]  # type: ignore[arg-type]  # no None now
    return min(sum(counts), _LARGEST - 1)


def _natively(hints: Iterable[Hint[Any]]) -> Nearest | None:
    """A native object whose `number` goes from shapes to the number of the nearest hint; it returns
    None where Python must choose. None where the extension is not built."""
    try:
        from tzero._native import Nearest
    except ModuleNotFoundError as error:
        if error.name != "tzero._native":
            raise
        return None
    return Nearest(tuple(each.shapes for each in hints))


class _Family:
    """Hints with the same ranks. `fields` takes shapes of these ranks and returns a field for each
    hint: its distance and, in the lowest bits, its number. For other ranks it raises ValueError."""

    __slots__ = ("fields",)

    def __init__(
        self,
        ranks: tuple[int, ...],
        numbers: Sequence[int],
        sizes: Sequence[tuple[Size, ...]],
        kernel: str,
    ) -> None:
        start = sum(number << _FIELD * k for k, number in enumerate(numbers))
        # Two dimensions that are equal in all hints, as in an input and the output, share a column
        # and its cache.
        shared: dict[tuple[Size, ...], _Column] = {}
        columns = [
            shared.setdefault(each, _Column(each, kernel)) for each in zip(*sizes, strict=True)
        ]
        self.fields = _adding(ranks, columns, start, len(numbers))


def _adding(
    ranks: tuple[int, ...], columns: Sequence[_Column], start: int, hints: int
) -> Callable[[Shapes], tuple[int, ...]]:
    """A function generated for shapes of these ranks. Unpacking checks the ranks, and a loop over
    the sizes would take twice as long. For a matrix and a vector it is::

        def fields(shapes):
            ((s0, s1,), (s2,),) = shapes
            return unpack((start + c0[s0] + c1[s1] + c2[s2]).to_bytes(64, "little"))
    """
    names = iter(range(len(columns)))
    apart = ["(" + "".join(f"s{next(names)}, " for _ in range(rank)) + ")" for rank in ranks]
    terms = ["start", *(f"c{k}[s{k}]" for k in range(len(columns)))]
    source = (
        "def fields(shapes):\n"
        f"    ({''.join(f'{each}, ' for each in apart)}) = shapes\n"
        f"    return unpack(({' + '.join(terms)}).to_bytes({hints * _FIELD // 8}, 'little'))\n"
    )
    known: dict[str, Any] = {f"c{k}": column for k, column in enumerate(columns)}
    known.update(start=start, unpack=struct.Struct(f"<{hints}I").unpack)
    exec(compile(source, "<tzero: distances>", "exec"), known)
    made: Callable[[Shapes], tuple[int, ...]] = known["fields"]
    return made


class _Column(dict[Any, int]):
    """The distances of a size from the sizes of all hints in one dimension: a field for each hint,
    in one integer.

    Between two neighbouring sizes of the hints each distance is a linear function of log2 of the
    size, so one product and one sum give all of them.
    """

    __slots__ = ("_kernel", "_lines", "_marks")

    def __init__(self, sizes: Sequence[Size], kernel: str) -> None:
        self._kernel = kernel
        places = [(_log2(size), k) for k, size in enumerate(sizes) if size is not None]
        self._marks = sorted({mark for mark, _ in places})
        self._lines = [
            _line(places, above) for above in [*(mark - 1 for mark in self._marks), _TOP]
        ]

    def __missing__(self, size: Any) -> int:
        if type(size) is int and 0 < size < 1 << 62:  # a literal: `_LARGEST` takes twice as long
            at = floor(log2(size) * _STEPS + 0.5)  # `_log2` without the cost of a call
        elif size is None:
            return 0
        else:
            at = self._checked(size)
        slope, offset = self._lines[bisect_left(self._marks, at)]
        packed = self[size] = slope * at + offset
        if len(self) > SIZES:
            self.clear()
        return packed

    def _checked(self, size: Any) -> int:
        if _is_size(size):
            return _log2(size)
        raise InvalidArgument(
            kernel=self._kernel,
            problem=f"got a size of {size!r}",
            advice=_ALLOWED,
        )


class _Kept(dict[Shapes, Choice[V]]):
    """A cache of choices by shapes; a miss makes the choice."""

    __slots__ = ("_choose",)

    def __init__(self, choose: Callable[[Shapes], Choice[V]]) -> None:
        self._choose = choose

    def __missing__(self, shapes: Shapes) -> Choice[V]:
        choice = self._choose(shapes)
        if len(self) >= KEPT:  # shapes may change with every call
            self.clear()
        self[shapes] = choice
        return choice


def _line(places: Sequence[tuple[int, int]], at: int) -> tuple[int, int]:
    """Slope and offset of the distances, for sizes in the same interval between hints as `at`."""
    slope = offset = 0
    for mark, k in places:
        sign = (1 if mark <= at else -1) << _FIELD * k + _NUMBER
        slope += sign
        offset -= sign * mark
    return slope, offset


def _log2(size: int) -> int:
    """log2 of a size, in steps."""
    return floor((log2(size) if size else BELOW_ONE) * _STEPS + 0.5)


_TOP = _log2(_LARGEST)


def _shape(name: str, shape: Any) -> Shape:
    """The sizes of one tensor, checked."""
    problem = None
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        problem = f"has {shape!r}, which is not a shape"
    else:
        wrong = [size for size in shape if size is not None and not _is_size(size)]
        if wrong:
            problem = f"has a size of {wrong[0]!r}"
    if problem is not None:
        raise InvalidArgument(
            kernel="Hint",
            argument=name,
            problem=problem,
            advice=f"Write a list of shapes: [(64, 64), (64,)]. {_ALLOWED}",
        )
    return tuple(shape)


def _is_size(size: Any) -> bool:
    return type(size) is int and 0 <= size < _LARGEST


_ALLOWED = "A size is an integer from 0 to 2**63 - 1, or None where it is unknown."


def _with(seconds: float | None) -> str:
    """A time with a fitting unit."""
    if seconds is None:
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f", with {seconds / scale:.3f} {unit}"
    return f", with {seconds * 1e6:.3f} µs"
