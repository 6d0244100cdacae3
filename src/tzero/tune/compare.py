"""Whether a candidate computes what the reference config computes.

::

    results, reference ── walked together ──► pairs of tensors ── close? ──► Comparison

Enters: the results of two calls, and how far they may differ. Leaves: a `Comparison`, which says
where they first differ. It must not know configs, or how calls are made.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import torch

from tzero.tune.closeness import EXACT, TOLERANCES, Leeway, limit, scale_of, varied, wrong
from tzero.tune.copying import held_by, sparse_parts
from tzero.tune.fresh import Pattern, holding

__all__ = ["TOLERANCES", "Comparison", "Leeways", "changed", "parts", "same", "spread"]

Leeways = Mapping[str, Leeway]
"""How far each part of a reference may be missed, by the name of the part."""


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """True where results agree with the reference; else `words` says where they differ."""

    words: str = ""

    def __bool__(self) -> bool:
        return not self.words


def same(
    results: Any,
    reference: Any,
    *,
    tolerance: float | None = None,
    named: str = "result",
    leeways: Leeways = MappingProxyType({}),
    pattern: Pattern | None = None,
    scales: dict[str, float] | None = None,
) -> Comparison:
    """Whether a candidate's results agree with those of the reference.

    Shapes, dtypes and devices must agree, integers must be equal, and each float within the
    tolerance of its dtype (`TOLERANCES`) or the given one; `tzero.tune.closeness` has the rule. NaN
    equals NaN, and infinities equal themselves. Lists, tuples, dicts and dataclasses are compared
    item by item. `named` is the name of the results in the message. `leeways` says which elements
    do not count, and which vary; `pattern` what fresh memory was filled with. `scales` keeps the
    scales of the reference's parts for the next comparison with it.

    >>> same([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])]).words
    'result[0] is 2.0 at (1,), and the reference 2.5; 1 of 2 elements differ'
    """
    for pair in _pairs(results, reference, named):
        if isinstance(pair, str):
            return Comparison(pair)
        found = _wrong(pair, tolerance, leeways.get(pair.at, EXACT), scales)
        if found is not None:
            return Comparison(_words(pair, found, pattern))
    return Comparison()


def spread(
    results: Any,
    reference: Any,
    *,
    tolerance: float | None = None,
    named: str = "result",
    leeways: Leeways = MappingProxyType({}),
) -> tuple[Comparison, dict[str, Leeway]]:
    """The leeways, with how far a reference that ran twice with the same inputs differs from
    itself. The comparison fails where that is so much that nothing can be compared with it.

    >>> once, again = torch.tensor([1.0, 100.0]), torch.tensor([1.0, 100.05])
    >>> found, leeways = spread(again, once)
    >>> bool(found), bool(same(torch.tensor([1.0, 100.1]), once, leeways=leeways))
    (True, True)
    """
    marked = dict(leeways)
    for pair in _pairs(results, reference, named):
        if isinstance(pair, str):
            return Comparison(pair), marked
        known = leeways.get(pair.at, EXACT)
        far = _wrong(pair, limit(_tolerance(pair, tolerance)), known)
        if far is not None:
            return Comparison(_words(pair, far)), marked
        tensors = _tensors(pair)
        if tensors is not None and (found := varied(*tensors)) is not None:
            marked[pair.at] = dataclasses.replace(found, ignored=known.ignored)
    return Comparison(), marked


def changed(
    results: Any,
    reference: Any,
    *,
    tolerance: float | None = None,
    named: str = "result",
    leeways: Leeways = MappingProxyType({}),
) -> tuple[Comparison, dict[str, Leeway]]:
    """The leeways, with the elements that differ between two runs of a reference marked as not
    counting. The comparison fails where the results have another form.

    >>> found, leeways = changed(torch.tensor([1.0, 7.0]), torch.tensor([1.0, 8.0]))
    >>> leeways["result"].ignored
    tensor([False,  True])
    """
    marked = dict(leeways)
    for pair in _pairs(results, reference, named):
        if isinstance(pair, str):
            return Comparison(pair), marked
        found = _wrong(pair, tolerance, leeways.get(pair.at, EXACT))
        if found is not None:
            known = marked.get(pair.at, EXACT)
            ignored = found if known.ignored is None else known.ignored | found
            marked[pair.at] = dataclasses.replace(known, ignored=ignored)
    return Comparison(), marked


def parts(value: Any, named: str = "result") -> dict[str, torch.Tensor]:
    """The tensors in a value, by the names that leeways have for them.

    >>> list(parts([torch.ones(1), {"a": torch.ones(2)}]))
    ['result[0]', "result[1]['a']"]
    """
    pairs = (pair for pair in _pairs(value, value, named) if isinstance(pair, _Pair))
    return {pair.at: pair.mine for pair in pairs if isinstance(pair.mine, torch.Tensor)}


# -- walking --------------------------------------------------------------------------------------


class _Pair(NamedTuple):
    """A part of both results that has no parts itself, and its name."""

    at: str
    mine: Any
    other: Any


def _pairs(
    mine: Any, other: Any, at: str, around: frozenset[int] = frozenset()
) -> Iterator[_Pair | str]:
    """The parts of two results; a text, and then nothing more, where their forms differ. Of an
    object only what has tensors counts. `around` has the ids of the objects that this is in."""
    if type(mine) is not type(other):
        yield f"{at} is of type {type(mine).__name__}, and the reference {type(other).__name__}"
    elif isinstance(mine, torch.Tensor):
        words = _other_form(mine, other, at)
        if words or mine.layout is torch.strided:
            yield words or _Pair(at, mine, other)
            return
        for name, part in sparse_parts(mine).items():
            yield from _pairs(part, sparse_parts(other)[name], f"{at}.{name}()")
    elif hasattr(mine, "__array__") and not isinstance(mine, float | complex):  # numpy's arrays
        yield from _pairs(_from_array(mine), _from_array(other), at)
    elif id(mine) in around:
        return
    elif (found := _items(mine, other, at)) is not None:
        if isinstance(found, str):
            yield found
            return
        for name, one, two in found:
            yield from _pairs(one, two, at + name, around | {id(mine)})
    else:
        yield _Pair(at, mine, other)


_PLAIN = (str, int, bool, bytes, type(None))


def _from_array(value: Any) -> Any:
    """An array of numpy as a tensor, in the same memory if torch can; or as a list, where torch has
    no such dtype."""
    array = value.__array__()
    if any(stride < 0 for stride in array.strides) or not array.flags.writeable:
        array = array.copy()
    try:
        return torch.as_tensor(array)
    except TypeError:  # texts, dates, objects
        return (str(array.dtype), array.shape, array.tolist())


def _items(mine: Any, other: Any, at: str) -> list[tuple[str, Any, Any]] | str | None:
    """The items of two collections or objects, with their names; a text where their forms differ,
    None where they have no items."""
    if isinstance(mine, SimpleNamespace):
        mine, other = vars(mine), vars(other)
    if isinstance(mine, dict | MappingProxyType):
        if list(mine) != list(other):
            return f"{at} has the keys {list(mine)}, and the reference {list(other)}"
        # By its position, too, where a key does not say enough: a name must mean one part only.
        names = [
            f"[{key!r}]" if type(key) in _PLAIN else f"[{key!r}, item {k}]"
            for k, key in enumerate(mine)
        ]
        return [(name, mine[key], other[key]) for name, key in zip(names, mine, strict=True)]
    if isinstance(mine, list | tuple | deque):
        if len(mine) != len(other):
            return f"{at} has {len(mine)} items, and the reference {len(other)}"
        pairs = zip(mine, other, strict=True)
        return [(f"[{k}]", one, two) for k, (one, two) in enumerate(pairs)]
    if dataclasses.is_dataclass(mine) and not isinstance(mine, type):
        names = [field.name for field in dataclasses.fields(mine)]
        return [(f".{k}", getattr(mine, k), getattr(other, k)) for k in names]
    its, wanted = held_by(mine), held_by(other)
    if not its and not wanted:
        return None
    return [(f".{k}", its.get(k), wanted.get(k)) for k in {**its, **wanted}]


def _other_form(mine: torch.Tensor, other: torch.Tensor, at: str) -> str:
    facts: tuple[tuple[str, Any, Any], ...] = (
        ("dtype", mine.dtype, other.dtype),
        ("shape", tuple(mine.shape), tuple(other.shape)),
        ("layout", mine.layout, other.layout),
        ("device", mine.device, other.device),
        ("requires_grad", mine.requires_grad, other.requires_grad),
    )
    for fact, its, wanted in facts:
        if its != wanted:
            return f"{at} has {fact} {its}, and the reference {wanted}"
    return ""


def _tensors(pair: _Pair) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The pair as tensors; None where it is neither tensors nor floats."""
    if isinstance(pair.mine, torch.Tensor):
        return pair.mine, pair.other
    if isinstance(pair.mine, float | complex):  # numbers read from a tensor, at best as float32
        return _number(pair.mine), _number(pair.other)
    return None


def _number(value: complex) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.complex128, device="cpu")


def _tolerance(pair: _Pair, tolerance: float | None) -> float:
    if tolerance is not None:
        return tolerance
    dtype = pair.mine.dtype if isinstance(pair.mine, torch.Tensor) else torch.float32
    return TOLERANCES.get(dtype, 0.0)


def _wrong(
    pair: _Pair,
    tolerance: float | None,
    leeway: Leeway,
    scales: dict[str, float] | None = None,
) -> torch.Tensor | None:
    """Which elements differ too much, in a flat tensor; None where no element does."""
    tensors = _tensors(pair)
    if tensors is not None:
        kept = {} if scales is None else scales

        def scale() -> float:
            if pair.at not in kept:
                kept[pair.at] = scale_of(tensors[1])
            return kept[pair.at]

        return wrong(*tensors, _tolerance(pair, tolerance), leeway, scale)
    alike = leeway.ignored is not None or _alike(pair.mine, pair.other)
    return None if alike else torch.ones(1, dtype=torch.bool, device="cpu")


def _alike(mine: Any, other: Any) -> bool:
    if mine is other or (mine == other) is True:
        return True
    kind: Any = type(mine)
    # It compares by identity, so nothing can be said about it.
    unknown = kind.__eq__ is object.__eq__ and hasattr(mine, "__dict__")
    return unknown and not isinstance(mine, Enum)


def _words(pair: _Pair, found: torch.Tensor, pattern: Pattern | None = None) -> str:
    at, mine, other = pair
    if not isinstance(mine, torch.Tensor):
        return f"{at} is {mine!r}, and the reference {other!r}"
    first = torch.tensor(int(found.to(torch.uint8).argmax()), device="cpu")
    place = tuple(int(k) for k in torch.unravel_index(first, mine.shape))
    shown = _shown(mine[place])
    if pattern is not None and bool(holding(mine[place], pattern)):
        shown += ", like unwritten memory,"
    many = f"{int(found.sum())} of {mine.numel()} elements differ"
    return f"{at} is {shown} at {place}, and the reference {_shown(other[place])}; {many}"


def _shown(element: torch.Tensor) -> str:
    try:
        return str(element.tolist())
    except (NotImplementedError, RuntimeError):  # a dtype that Python has no number for
        return f"the bytes {element.reshape(1).view(torch.uint8).tolist()}"
