"""`Range`: a size or an integer that varies from call to call, and the classes that it stands for.

Enters: arguments with ranges in them. Leaves: the same arguments with a number in place of each
range, one for each class; or `InvalidArgument`, with how many there are, if that is too many. It
must not know what is called with them.

Triton specializes an integer on being 1, on divisibility by 16, and on needing 64 bits. A host
function computes with sizes before it launches: so numbers of each remainder by 16 are taken, and
from each interval between two powers of two, where constants such as ``next_power_of_2(n)`` change.
A ``tl.constexpr`` counts in full: each of its values is a class.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tzero.adapters import triton_launch
from tzero.adapters.torch_internals import tree_leaves, tree_map
from tzero.errors import InvalidArgument
from tzero.launches.ahead import Spec

__all__ = ["MOST", "LaunchClass", "Range", "classes", "launch_classes"]

MOST = 1024
"""The most classes that are warmed up for one call."""

_WIDE = 1 << 31
"""From here on, an integer needs 64 bits."""


@dataclass(frozen=True, slots=True)
class Range:
    """Every integer from `low` to `high`, both included, in the place of a size or an argument.

    >>> Range(1, 40).typical()
    (1, 16, 2)

    Equal ranges in the arguments of a call have the same value; different ones are combined.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not (type(self.low) is type(self.high) is int and 0 <= self.low <= self.high):
            raise InvalidArgument(
                kernel="tzero.Range",
                problem=f"it was given {self.low!r} and {self.high!r}",
                advice="Give the least and the greatest integer, from 0 on.",
            )

    @property
    def count(self) -> int:
        """How many integers it has; ``len`` cannot tell that of very many."""
        return self.high - self.low + 1

    def __len__(self) -> int:
        return self.count

    def every(self) -> Iterator[int]:
        """All integers."""
        return iter(range(self.low, self.high + 1))

    def typical(self) -> tuple[int, ...]:
        """One integer of each class of Triton's: 0, 1, divisible by 16, any other, and the last two
        beyond 32 bits."""
        found: list[int | None] = [n for n in (0, 1) if self.low <= n <= self.high]
        for low, high in ((2, _WIDE - 1), (_WIDE, self.high)):
            part = Range.between(low, high, self)
            if part is not None:
                found += [part.first_multiple(), part.first_other()]
        return tuple(n for n in found if n is not None)

    def representative(self) -> tuple[int, ...]:
        """One integer of each remainder by 16 from each interval between powers of two, and the
        greatest."""
        found = [n for n in (0, 1) if self.low <= n <= self.high]
        for power in range(1, self.high.bit_length() + 1):
            part = Range.between((1 << power - 1) + 1, 1 << power, self)
            if part is not None:
                found += range(part.low, min(part.high, part.low + 15) + 1)
        return tuple(dict.fromkeys([*found, self.high]))

    def first_multiple(self) -> int | None:
        """The least multiple of 16; None if there is none."""
        found = -(-self.low // 16) * 16
        return found if found <= self.high else None

    def first_other(self) -> int | None:
        """The least integer that is no multiple of 16; None if there is none."""
        found = self.low + (self.low % 16 == 0)
        return found if found <= self.high else None

    @staticmethod
    def between(low: int, high: int, within: Range) -> Range | None:
        """The part of a range between two integers; None if it is empty."""
        low, high = max(low, within.low), min(high, within.high)
        return Range(low, high) if low <= high else None


def classes(
    kernel: str, args: tuple[Any, ...], *, exact: bool, constants: Mapping[Range, str] | None = None
) -> list[tuple[Any, ...]]:
    """The arguments for each class. `exact`: each size is a class of its own. Each value of a range
    among `constants`, which name the argument, is a class in any case.

    >>> classes("add", (Range(1, 3), 5), exact=True)
    [(1, 5), (2, 5), (3, 5)]

    With several ranges, each varies over its representatives with the others at a typical value,
    and all typical values are combined.
    """
    ranges = list(dict.fromkeys(_ranges_in(args)))
    full = set(ranges) if exact else set(constants or ())
    sampled = [each for each in ranges if each not in full]
    combine = [each.count if each in full else len(each.typical()) for each in ranges]
    alone = sum(len(each.representative()) for each in sampled)
    count = math.prod(combine) + alone
    if count > MOST:
        raise _too_many(kernel, count, exact, constants or {})
    chosen = [each.every() if each in full else each.typical() for each in ranges]
    found = [
        dict(zip(ranges, each, strict=True)) for each in itertools.product(*map(tuple, chosen))
    ]
    for one in sampled:
        others = {each: each.typical()[-1] for each in ranges if each is not one}
        found += [{**others, one: value} for value in one.representative()]
    unique = {tuple(each[one] for one in ranges): each for each in found}
    return [_filled(args, each) for each in unique.values()]


def _too_many(
    kernel: str, count: int, exact: bool, constants: Mapping[Range, str]
) -> InvalidArgument:
    why = ", because each size is one: sizes are not left open" if exact else ""
    if constants:
        names = " and ".join(map(repr, constants.values()))
        why = f", because each value of {names} is one: it is a compile-time constant"
    return InvalidArgument(
        kernel=kernel,
        problem=f"its ranges mean {count:,} classes, and at most {MOST:,} are warmed up{why}",
        advice="Give narrower ranges, fewer of them, or with configs= also size_hints=.",
    )


@dataclass(frozen=True, slots=True)
class LaunchClass:
    """The arguments of a launch for one class.

    >>> LaunchClass((5,), {"BLOCK": 64}, {"BLOCK": Range(16, 64)}).named
    {'BLOCK': 64}
    """

    args: tuple[Any, ...]
    named: dict[str, Any]
    constants: Mapping[str, Range] = field(default_factory=dict)
    """The ranges that were given for compile-time constants."""

    def refused(self, kernel: str, values: Mapping[str, Any], error: Exception) -> InvalidArgument:
        """The error for a class that does not compile, where that is due to a constant of a range.
        ``values``: the arguments by name."""
        given = [f"{name}={values[name]} of {each}" for name, each in self.constants.items()]
        return InvalidArgument(
            kernel=kernel,
            problem=f"it does not compile for {', '.join(given)}, and each value of a compile-time "
            f"constant is a class of its own ({str(error).strip().splitlines()[-1]})",
            advice="Give the values that are launched, with an item of tzero.warmup for each.",
        )


def launch_classes(
    kernel: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> list[LaunchClass]:
    """The arguments of a launch for each class. In the place of a ``tl.constexpr`` or of an option
    of the compiler, each integer of a range is a class.

    ::

        launch_classes(add_kernel, (x, y, out, Range(1, 4096)), {"BLOCK": 1024})
    """
    parameters = triton_launch.parameters(kernel)
    open_ = {each.name for each in parameters if not each.constant}
    given = {**dict(zip((each.name for each in parameters), args, strict=False)), **named}
    ranges = {
        name: value
        for name, value in given.items()
        if isinstance(value, Range) and name not in open_
    }
    constants = {value: name for name, value in reversed(ranges.items())}
    made = classes(kernel.__name__, (args, dict(named)), exact=False, constants=constants)
    return [LaunchClass(ordered, by_name, ranges) for ordered, by_name in made]


def _ranges_in(args: Sequence[Any]) -> Iterator[Range]:
    for leaf in tree_leaves(args):
        if isinstance(leaf, Range):
            yield leaf
        elif isinstance(leaf, Spec):
            parts: tuple[Any, ...] = (*leaf.shape, *(leaf.strides or ()))
            yield from (each for each in parts if isinstance(each, Range))


def _filled(args: tuple[Any, ...], values: Mapping[Range, int]) -> tuple[Any, ...]:
    def number(value: Any) -> Any:
        return values[value] if isinstance(value, Range) else value

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, Spec):
            strides = None if leaf.strides is None else tuple(map(number, leaf.strides))
            return replace(leaf, shape=tuple(map(number, leaf.shape)), strides=strides)
        return number(leaf)

    filled: tuple[Any, ...] = tree_map(fill, args)
    return filled
