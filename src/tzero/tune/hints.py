"""Size hints: what the option says, and the arguments of each hint.

::

    size_hints=[64, 4096] ────────────────────► Alike: a size for all dimensions
    size_hints={"x": {0: [16, 64]}, ...} ─────► ByArgument: sizes for dimensions by name
                      │
    arguments ── each_sized ──► Sized: arguments of one hint ── config ──► by_size: BySize

Enters: the option, checked, and the arguments of a call. Leaves: a `Sized` for each hint, and what
chooses the hint of a call. It must not know how a config is tuned for a hint.

By name, dimensions with the same list of sizes change together, and lists that differ are
combined: each size of one with each size of the other. What is not named stays as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tzero.adapters.torch_internals import static_dims
from tzero.arguments.host import Host
from tzero.config import Config
from tzero.errors import InvalidArgument, InvalidKernel
from tzero.launches.ahead import Spec
from tzero.tune.by_size import BySize, Compared, Origins, Shapes, resized, shapes_of
from tzero.tune.resize import Place, changed, sharing, specified
from tzero.tune.select import Hint

__all__ = [
    "NO_HINTS",
    "Alike",
    "ByArgument",
    "ByDimension",
    "Named",
    "Option",
    "SizeHints",
    "Sized",
    "closeness",
]

Option = Sequence[int] | Mapping[str, Mapping[int, Sequence[int]] | Sequence[int]]
"""The option as it is written: sizes for all dimensions, or by argument and dimension, or by
integer argument."""


@dataclass(frozen=True, slots=True)
class Sized:
    """The arguments of one hint."""

    args: tuple[Any, ...]
    sizes: tuple[int, ...]
    """The sizes that the hint names, in the same order in all hints of a kernel."""
    text: str
    """The hint, in messages."""
    stored: str
    """The hint, in the keys of records: everything that decides on the sizes."""
    shapes: Shapes
    """The shapes of the arguments; then the integers that the hint names, as one more shape."""
    note: str = ""
    """What may be wrong with the hint, where no config works."""


def closeness(one: Sequence[int], other: Sequence[int]) -> float:
    """How much the times at one hint count at another: half where one size is twice as large. A
    size of 0 counts as half of 1.

    >>> closeness((64, 16), (128, 16))
    0.5
    """
    pairs = [(max(a, 0.5), max(b, 0.5)) for a, b in zip(one, other, strict=True)]
    return math.prod(min(pair) / max(pair) for pair in pairs)


@dataclass(frozen=True, slots=True)
class Alike:
    """The same sizes for all dimensions.

    >>> [sized] = Alike((4,)).each_sized("add", (torch.ones(3), 3), ("x", "n"))
    >>> sized.args
    (tensor([1., 1., 1., 1.]), 4)
    """

    hints: tuple[int, ...]
    compares_results: ClassVar[bool] = True
    """Whether the sizes of results count for which hint is the nearest."""

    def __bool__(self) -> bool:
        return bool(self.hints)

    def check(self, host: Host[Any]) -> None:
        """Nothing is named that the host function could lack."""

    def integers(self, parameters: Sequence[str]) -> frozenset[int]:
        """Which arguments are integers that choose the hint: none."""
        return frozenset()

    def each_sized(
        self,
        kernel: str,
        args: tuple[Any, ...],
        parameters: Sequence[str],
        fixed: Collection[int] = (),
    ) -> list[Sized]:
        """The arguments of each hint; `NotResizable` where these cannot be resized."""
        every = []
        for hint in self.hints:
            made = resized(args, parameters, hint)
            text, shapes = str(hint), shapes_of(made, parameters)
            every.append(Sized(made, (hint,), text, text, shapes))
        return every

    def each_specified(
        self, kernel: str, args: tuple[Any, ...], parameters: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """Nothing is compiled ahead for hints: a search does that."""
        return []

    def chooser(
        self,
        kernel: str,
        chosen: Sequence[tuple[Sized, Config]],
        args: tuple[Any, ...],
        parameters: Sequence[str],
        origins: Origins,
    ) -> BySize:
        """What chooses among the configs of the hints by all sizes of a call."""
        hints = []
        for sized, config in chosen:
            results = [tuple(size.of(sized.shapes) for size in each) for each in origins]
            hints.append(Hint(config, sized.shapes, results))
        return BySize(hints, origins, parameters)


NO_HINTS = Alike(())


@dataclass(frozen=True, slots=True)
class Named:
    """Sizes for a dimension of an argument as written; without a dimension, for an integer.

    >>> print(Named("x", -1, (16, 64)))
    size_hints={'x': {-1: ...}}
    """

    argument: str
    dimension: int | None
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        inner = "..." if self.dimension is None else f"{{{self.dimension}: ...}}"
        return f"size_hints={{{self.argument!r}: {inner}}}"


@dataclass(frozen=True, slots=True)
class ByArgument:
    """Sizes for dimensions and integers by the names of their arguments.

    >>> hints = ByArgument((Named("x", 0, (16, 64)), Named("m", None, (16, 64))))
    >>> for sized in hints.each_sized("add", (torch.ones(3, 8), 3), ("x", "m")):
    ...     print(sized.text, tuple(sized.args[0].shape), sized.args[1])
    x[0]=16, m=16 (16, 8) 16
    x[0]=64, m=64 (64, 8) 64
    """

    named: tuple[Named, ...]
    compares_results: ClassVar[bool] = False

    def __bool__(self) -> bool:
        return True

    def count(self) -> int:
        """How many hints there are."""
        return math.prod(len(sizes) for sizes in {each.sizes for each in self.named})

    def check(self, host: Host[Any]) -> None:
        """Raise `InvalidKernel` where an argument is named that the host function does not have, or
        each value of which is tuned by itself."""
        known = [name for name in host.parameters if not name.startswith("*")]
        for each in self.named:
            name = each.argument
            if name not in known:
                raise InvalidKernel(
                    kernel=host.name,
                    problem=f"size_hints= names an argument {name!r}",
                    advice=f"Name one of its arguments: {', '.join(known)}.",
                )
            if host.constants[host.parameters.index(name)]:
                raise InvalidKernel(
                    kernel=host.name,
                    problem=f"size_hints= names {name!r}, which is a ConstExpr",
                    advice="Leave it out: each value of a ConstExpr is tuned by itself.",
                )

    def integers(self, parameters: Sequence[str]) -> frozenset[int]:
        """Which arguments are integers that choose the hint."""
        return frozenset(
            parameters.index(each.argument)
            for each in self.named
            if each.dimension is None and len(each.sizes) > 1
        )

    def each_sized(
        self,
        kernel: str,
        args: tuple[Any, ...],
        parameters: Sequence[str],
        fixed: Collection[int] = (),
    ) -> list[Sized]:
        """The arguments of each hint; `fixed`: the arguments whose values are in the key."""
        every = []
        for new in self._combined(kernel, args, parameters, fixed):
            made = changed(args, parameters, new)
            text = ", ".join(f"{place}={size}" for place, size in new.items())
            shapes = shapes_of(made, parameters)
            stored = f"{text} of {', '.join(map(str, shapes))}"
            whole = tuple(size for place, size in new.items() if place.dimension is None)
            note, alike = "", sharing(args, parameters, new)
            if alike:
                note = f"{alike} has the size of a hinted dimension and was not resized; if it is "
                note += "the same dimension, name it in size_hints as well, with the same list"
            shapes = (*shapes, whole) if whole else shapes
            every.append(Sized(made, tuple(new.values()), text, stored, shapes, note))
        return every

    def each_specified(
        self, kernel: str, args: tuple[Any, ...], parameters: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """The arguments of each hint, as `Spec`s, to be compiled ahead."""
        every = self._combined(kernel, args, parameters, ())
        return [specified(args, parameters, new) for new in every]

    def chooser(
        self,
        kernel: str,
        chosen: Sequence[tuple[Sized, Config]],
        args: tuple[Any, ...],
        parameters: Sequence[str],
        origins: Origins,
    ) -> BySize:
        """What chooses among the configs of the hints by the dimensions that they name."""
        places = [place for place, _, _ in self._places(kernel, args, parameters, ())]
        columns = zip(*(sized.sizes for sized, _ in chosen), strict=True)
        differ = [len(set(column)) > 1 for column in columns]
        hints = [
            Hint(config, [tuple(itertools.compress(sized.sizes, differ))], name=sized.text)
            for sized, config in chosen
        ]
        return ByDimension(hints, tuple(itertools.compress(places, differ)))

    def _combined(
        self, kernel: str, args: tuple[Any, ...], parameters: Sequence[str], fixed: Collection[int]
    ) -> list[dict[Place, int]]:
        """The new sizes of each hint, each once."""
        groups: dict[tuple[int, ...], list[tuple[Place, bool]]] = {}
        order = []
        for place, sizes, stays in self._places(kernel, args, parameters, fixed):
            groups.setdefault(sizes, []).append((place, stays))
            order.append(place)
        each_group = [
            [
                {place: place.size(args) if stays else size for place, stays in members}
                for size in sizes
            ]
            for sizes, members in groups.items()
        ]
        found: dict[tuple[int, ...], dict[Place, int]] = {}
        for combination in itertools.product(*each_group):
            new = {place: size for part in combination for place, size in part.items()}
            found.setdefault(tuple(new[place] for place in order), {p: new[p] for p in order})
        return list(found.values()) if order else []

    def _places(
        self, kernel: str, args: tuple[Any, ...], parameters: Sequence[str], fixed: Collection[int]
    ) -> Iterator[tuple[Place, tuple[int, ...], bool]]:
        """The named places that these arguments have, with their sizes, and whether calls with the
        same key have the same size there. An argument that is None is left out."""
        seen: set[Place] = set()
        for each in self.named:
            at = parameters.index(each.argument)
            value = args[at]
            if value is None:
                continue
            place = Place(at, each.argument, _dimension(kernel, each, value))
            if place in seen:
                raise _unfit(kernel, each, f"has two lists for dimension {place.dimension}", "one")
            seen.add(place)
            stays = at in fixed
            if place.dimension is not None:
                static = static_dims(value) if isinstance(value, torch.Tensor) else ()
                stays = value.shape[place.dimension] < 2 or place.dimension in static
            yield place, each.sizes, stays


def _dimension(kernel: str, named: Named, value: Any) -> int | None:
    """The dimension that is named, counted from the first; None for an integer."""
    is_tensor = isinstance(value, (torch.Tensor, Spec))
    if named.dimension is None:
        if type(value) is int:
            return None
        instead = f"size_hints={{{named.argument!r}: {{0: [...]}}}}" if is_tensor else ""
        raise _unfit(kernel, named, f"is a {type(value).__name__}, not an integer", instead)
    if not is_tensor:
        instead = f"size_hints={{{named.argument!r}: [...]}}" if type(value) is int else ""
        raise _unfit(kernel, named, f"is a {type(value).__name__}, not a tensor", instead)
    rank = len(value.shape)
    if not -rank <= named.dimension < rank:
        raise _unfit(
            kernel,
            named,
            f"has {rank} dimensions",
            f"a dimension from {-rank} to {rank - 1}" if rank else "another argument",
        )
    return named.dimension % rank


def _unfit(kernel: str, named: Named, problem: str, instead: str) -> InvalidArgument:
    return InvalidArgument(
        kernel=kernel,
        argument=named.argument,
        problem=f"{problem}, and cannot be resized by {named}",
        advice=f"Write {instead}." if instead else "Name a tensor or an integer, or leave it out.",
    )


SizeHints = Alike | ByArgument


class ByDimension(BySize):
    """Chooses for each call the config of the hint that is nearest in the named dimensions.

    >>> hints = [Hint(Config(BLOCK=16), [(16,)]), Hint(Config(BLOCK=128), [(256,)])]
    >>> choose = ByDimension(hints, (Place(0, "x", 0),))
    >>> choose((torch.ones(3, 256), torch.ones(256, 256))).variant
    Config(BLOCK=16)
    """

    def __init__(self, hints: Sequence[Hint[Config]], places: tuple[Place, ...]) -> None:
        super().__init__(hints, (), ())
        self._places = places

    def shapes(self, args: Sequence[Any]) -> tuple[tuple[int | None, ...], ...]:
        """The sizes of the named dimensions, as one shape."""
        return (tuple([place.size(args) for place in self._places]),)

    def sources(self, args: Sequence[Any]) -> tuple[tuple[Compared, ...], ...]:
        """Where these come from."""
        return (tuple(place.source(args) for place in self._places),)
