"""Space: the configs that a search may try, as a list or as ranges of values.

Enters: configs, or values for each parameter and constraints on their combinations. Leaves:
configs, each once, in a stable or a random order. Configs are made when they are needed, so a space
may be far larger than memory. It must not know what a kernel is, or how long a config takes.

    >>> wide = lambda config: config.BLOCK >= 32 * config.num_warps
    >>> space = Space(BLOCK=[64, 128], num_warps=[2, 4], where=wide)
    >>> for config in space:
    ...     print(config)
    Config(BLOCK=64, num_warps=2)
    Config(BLOCK=128, num_warps=2)
    Config(BLOCK=128, num_warps=4)
"""

from __future__ import annotations

import difflib
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from tzero.config import Config
from tzero.errors import InvalidArgument

__all__ = ["COUNTABLE", "EARLY", "PATIENCE", "VALUES", "Constraint", "Space"]

Constraint = Callable[[Config], object]
"""Whether a config may be tried: any true or false value but None."""

COUNTABLE = 1 << 14
"""A space with constraints is counted if it has at most this many combinations."""

EARLY = 1 << 12
"""Combinations that are walked to find the first config; after that a random one is taken."""

PATIENCE = 1 << 16
"""Combinations in a row that the constraints reject before the search for more ends."""

VALUES = 1 << 16
"""The most values of one parameter."""


class Space:
    """The configs a search may try: all combinations of the parameters' values that `where` allows.

    The order is that of nested loops: the last parameter changes fastest. The first config is used
    without a search. `where` is a function of a config, or several functions. A parameter that is
    itself called `where` goes into a mapping: ``Space({"where": [1, 2]})``.

    >>> space = Space(BLOCK=[64, 128, 256], num_warps=[1, 2, 4])
    >>> space.count(), space.first
    (9, Config(BLOCK=64, num_warps=1))
    >>> Config(num_warps=2, BLOCK=64) in space, Config(BLOCK=96, num_warps=2) in space
    (True, False)
    """

    __slots__ = ("_constraints", "_count", "_first", "_listed", "_parameters", "_singles", "_size")

    _parameters: Mapping[str, tuple[Any, ...]]
    _constraints: tuple[Constraint, ...]
    _listed: dict[Config, None] | None  # an ordered set; None for a space of ranges
    _singles: dict[str, frozenset[Config]]  # each value as a Config, which compares types too
    _size: int  # combinations, before constraints
    _count: int | None
    _first: Config | None

    def __init__(
        self,
        ranges: Mapping[str, Sequence[Any]] | None = None,
        /,
        *,
        where: Constraint | Iterable[Constraint] | None = None,
        **named: Sequence[Any],
    ) -> None:
        if not isinstance(ranges, Mapping | None):
            raise _invalid(
                None,
                f"was given {ranges!r}, which does not map names to values",
                "Write Space(BLOCK=[64, 128]), or Space.of([Config(BLOCK=64), ...]).",
            )
        merged = {**(ranges or {}), **named}
        if not merged:
            raise _invalid(None, "has no parameters", "Give it one: Space(BLOCK=[64, 128]).")
        parameters = {name: _values(name, merged[name]) for name in merged}
        self._parameters = MappingProxyType(parameters)
        self._constraints = _constraints(where)
        self._listed = None
        self._singles = {
            name: frozenset(Config({name: value}) for value in values)
            for name, values in parameters.items()
        }
        self._size = math.prod(map(len, parameters.values()))
        self._count = None if self._constraints else self._size
        self._first = None

    @classmethod
    def of(
        cls,
        configs: Iterable[Config | Mapping[str, Any]],
        /,
        *,
        where: Constraint | Iterable[Constraint] | None = None,
    ) -> Self:
        """The space of these configs, in this order. They need not have the same parameters.

        >>> space = Space.of([Config(BLOCK=64), Config(BLOCK=128, fast=True), Config(BLOCK=64)])
        >>> list(space)
        [Config(BLOCK=64), Config(BLOCK=128, fast=True)]
        >>> dict(space.parameters)
        {'BLOCK': (64, 128), 'fast': (True,)}
        """
        if isinstance(configs, Mapping | str) or not isinstance(configs, Iterable):
            raise _invalid(
                "configs", f"is {configs!r}, not a list of configs", "Write [Config(BLOCK=64)]."
            )
        space = cls.__new__(cls)
        space._constraints = _constraints(where)
        given = dict.fromkeys(_config(k, each) for k, each in enumerate(configs))
        if not given:
            raise _invalid("configs", "is empty", "Give it at least one config.")
        space._listed = {each: None for each in given if space._allows(each)}
        if not space._listed:
            raise space._nothing(f"none of the {len(given)} configs")
        found: dict[str, dict[Config, Any]] = {}
        for config in space._listed:
            for name, value in config.items():
                found.setdefault(name, {}).setdefault(Config({name: value}), value)
        space._parameters = MappingProxyType(
            {name: tuple(values.values()) for name, values in found.items()}
        )
        space._singles = {}
        space._size = space._count = len(space._listed)
        space._first = None
        return space

    @property
    def parameters(self) -> Mapping[str, tuple[Any, ...]]:
        """The values of each parameter, by name, in order.

        >>> Space(BLOCK=(64, 64, 128)).parameters["BLOCK"]
        (64, 128)
        """
        return self._parameters

    @property
    def listed(self) -> tuple[Config, ...] | None:
        """The configs of a space that was made from a list; None for ranges."""
        return None if self._listed is None else tuple(self._listed)

    @property
    def first(self) -> Config:
        """The config that is used without a search: the first in order. Where constraints reject
        the first `EARLY` combinations, it is a random one, the same each time: a walk in order
        could take forever to reach another value of the first parameter.

        >>> Space(BLOCK=[64, 128], where=lambda config: config.BLOCK > 64).first
        Config(BLOCK=128)
        """
        if self._first is None:
            early = self if self._size <= EARLY else self._walk(EARLY)
            found = next(iter(early), None)
            self._first = next(self.shuffled(random.Random(0))) if found is None else found
        return self._first

    @property
    def combinations(self) -> int:
        """How many configs there would be without constraints.

        >>> Space(BLOCK=[64, 128], num_warps=range(1, 9), where=lambda c: False).combinations
        16
        """
        return self._size

    def count(self) -> int | None:
        """How many configs there are; None with constraints on more than `COUNTABLE` combinations,
        which would take long to count.

        >>> Space(BLOCK=[64, 128], where=lambda config: config.BLOCK > 64).count()
        1
        """
        if self._count is None and self._size <= COUNTABLE:
            self._count = sum(1 for _ in self)
        return self._count

    def check_names(self, known: Collection[str], *, kernel: str) -> None:
        """Raise `InvalidArgument` where the space has a parameter that a kernel does not take.

        >>> Space(BLOK=[64]).check_names(["BLOCK", "num_warps"], kernel="add")
        Traceback (most recent call last):
        tzero.errors.InvalidArgument: add: argument 'BLOK' is in the configs to try, and the \
kernel has BLOCK, num_warps. Did you mean 'BLOCK'?
        """
        for name in self._parameters:
            if name in known:
                continue
            close = difflib.get_close_matches(name, known, n=1)
            raise InvalidArgument(
                kernel=kernel,
                argument=name,
                problem="is in the configs to try, and the kernel has "
                f"{', '.join(known) or 'no parameters to choose'}",
                advice=f"Did you mean {close[0]!r}?" if close else "Leave it out.",
            )

    def sample(self, rng: random.Random, n: int) -> list[Config]:
        """`n` different random configs; fewer where there are no more.

        >>> len(Space(a=range(1000), b=range(1000), c=range(1000)).sample(random.Random(0), 3))
        3
        """
        if type(n) is not int or n < 0:
            raise _invalid("n", f"is {n!r}", "Ask for zero configs or more.")
        return list(itertools.islice(self.shuffled(rng), n))

    def shuffled(self, rng: random.Random) -> Iterator[Config]:
        """Every config once, in a random order; memory grows with the number that was taken.

        It ends early where the constraints reject `PATIENCE` combinations in a row: what is left is
        too rare to be found at random.

        >>> sorted(config.BLOCK for config in Space(BLOCK=[1, 2, 4]).shuffled(random.Random(7)))
        [1, 2, 4]
        """
        if not isinstance(rng, random.Random):
            raise _invalid("rng", f"is {rng!r}", "Pass random.Random(seed).")
        refused, found = 0, False
        listed = self.listed
        for index in _permutation(rng, self._size):
            if listed is not None:
                yield listed[index]
                continue
            config = self._at(index)
            if self._allows(config):
                refused, found = 0, True
                yield config
                continue
            refused += 1
            if refused == PATIENCE:
                break
        if listed is None and not found:
            raise self._nothing(f"none of {refused} combinations")

    def __iter__(self) -> Iterator[Config]:
        if self._listed is not None:
            return iter(self._listed)
        return self._walk()

    def _walk(self, most: int | None = None) -> Iterator[Config]:
        """The configs among the first `most` combinations; an error where there are none at all, or
        none among the first `PATIENCE`."""
        found, names = False, tuple(self._parameters)
        for tried, values in enumerate(itertools.product(*self._parameters.values())):
            if tried == most:
                return
            if tried == PATIENCE and not found:
                raise self._nothing(f"none of the first {PATIENCE} combinations")
            config = Config(dict(zip(names, values, strict=True)))
            if self._allows(config):
                found = True
                yield config
        if not found:
            raise self._nothing(f"none of the {self._size} combinations")

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, Config):
            return False
        if self._listed is not None:
            return config in self._listed
        if config.keys() != self._parameters.keys():
            return False
        return all(
            Config({name: value}) in self._singles[name] for name, value in config.items()
        ) and self._allows(config)

    def __repr__(self) -> str:
        if self._listed is not None:
            return f"Space.of([{', '.join(map(repr, self._listed))}])"
        named = [f"{name}={list(values)!r}" for name, values in self._parameters.items()]
        named += [f"where=<{_plural(len(self._constraints), 'constraint')}>"] * bool(
            self._constraints
        )
        return f"Space({', '.join(named)})"

    def _at(self, index: int) -> Config:
        """The combination with this index, in the order of nested loops."""
        chosen: dict[str, Any] = {}
        for name in reversed(tuple(self._parameters)):
            values = self._parameters[name]
            index, place = divmod(index, len(values))
            chosen[name] = values[place]
        return Config({name: chosen[name] for name in self._parameters})

    def _allows(self, config: Config) -> bool:
        for constraint in self._constraints:
            try:
                answer = constraint(config)
                if answer is not None and not answer:
                    return False
            except Exception as error:
                raise _invalid(
                    "where",
                    f"raised {type(error).__name__} for {config!r}: {str(error).rstrip('.')}",
                    "Make it answer True or False for every config.",
                ) from error
            if answer is None:
                raise _invalid(
                    "where",
                    f"returned None for {config!r}",
                    "Make it answer True or False; a `return` may be missing.",
                )
        return True

    def _nothing(self, tried: str) -> InvalidArgument:
        return _invalid("where", f"allows {tried}", "Loosen it, or give more values.")


def _permutation(rng: random.Random, size: int) -> Iterator[int]:
    """The numbers below `size` in a random order: a Fisher-Yates shuffle that stores only the
    positions that differ from the sorted order."""
    moved: dict[int, int] = {}
    for place in range(size):
        other = rng.randrange(place, size)
        held = moved.pop(place, place)
        if other == place:
            yield held
        else:
            yield moved.get(other, other)
            moved[other] = held


def _values(name: str, values: Any) -> tuple[Any, ...]:
    """The values of one parameter, each once, in the form that a config stores."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise _invalid(
            name,
            f"is {values!r}, not a list of values",
            "Write its values in order, as [64, 128].",
        )
    if not values:
        raise _invalid(name, "has no values", "Give it at least one, or leave it out.")
    if len(values) > VALUES:
        raise _invalid(name, f"has {len(values)} values", f"Give it at most {VALUES}.")
    singles = dict.fromkeys(Config({name: value}) for value in values)
    return tuple(single[name] for single in singles)


def _constraints(where: Any) -> tuple[Constraint, ...]:
    if where is None:
        return ()
    given = tuple(where) if isinstance(where, list | tuple) else (where,)
    for each in given:
        if not callable(each):
            raise _invalid("where", f"is {each!r}", "Give it a function of a config.")
    return given


def _config(place: int, given: Any) -> Config:
    if isinstance(given, Config):
        return given
    if isinstance(given, Mapping):
        return Config(given)
    raise _invalid(
        f"configs[{place}]", f"is {given!r}, not a Config", "Write it as Config(BLOCK=64)."
    )


def _invalid(argument: str | None, problem: str, advice: str) -> InvalidArgument:
    return InvalidArgument(kernel="Space", argument=argument, problem=problem, advice=advice)


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
