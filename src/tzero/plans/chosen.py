"""What a plan over sizes of a tuned kernel assumes besides: that calls have the same config.

    bound kernel, `BySize` ── Choosing ──► conditions on sizes, which keep the key
                                       └─► Chosen: the nearest hints, and marks on tensors

A tuned kernel chooses a config for each of its bound kernels, or for each of its size hints. So a
plan is for calls of one bound kernel whose nearest hint has the config of the plan.

Enters: how the config of a recorded call was chosen. Leaves: conditions, and a frozen `Chosen` that
is checked for other calls. It must not know how configs are tuned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tzero.adapters.torch_internals import static_marks
from tzero.arguments.key import INT32_ELEMENTS
from tzero.arguments.situation import TENSORS, leaves
from tzero.config import Config
from tzero.symbolic.formulas import Source
from tzero.tune.by_size import BySize, Compared
from tzero.tune.select import Selector

if TYPE_CHECKING:
    from tzero.plans.sizes import Sizes

__all__ = ["Choosing", "Chosen"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What calls of a plan must have in common besides the conditions on sizes: the `marks` on the
    tensors among their leaves, None for other leaves; and the nearest of the hints of `selector`,
    by number. `shapes` are the sizes that are compared with those of hints, as formulas. Without a
    selector the config is the same for all sizes."""

    marks: tuple[frozenset[int] | None, ...]
    selector: Selector[Config] | None = None
    shapes: tuple[tuple[int | None, ...], ...] = ()
    hints: frozenset[int] = frozenset()

    def holds(self, values: Sequence[int], given: Sequence[Any]) -> bool:
        """Whether a call has the same config, by the values of all formulas and its leaves."""
        if marks_of(given) != self.marks:
            return False
        if self.selector is None:
            return True
        shapes = [tuple(None if k is None else values[k] for k in each) for each in self.shapes]
        return self.selector.number(tuple(shapes)) in self.hints

    def renumbered(self, number: Callable[[int], int]) -> Chosen:
        """The same with other numbers of formulas."""
        shapes = [tuple(None if k is None else number(k) for k in each) for each in self.shapes]
        return replace(self, shapes=tuple(shapes))

    def text(self) -> list[str]:
        """What is assumed of the hints, as text."""
        if self.selector is None:
            return []
        names = [str(self.selector.hints[k]) for k in sorted(self.hints)]
        return [f"the nearest of {len(self.selector.hints)} size hints: {' or '.join(names)}"]


def marks_of(given: Sequence[Any]) -> tuple[frozenset[int] | None, ...]:
    """The dimensions of each leaf that are marked static, None for other leaves than tensors.

    >>> marks_of([torch.ones(2), 3])
    (frozenset(), None)
    """
    return tuple(static_marks(each) if type(each) in TENSORS else None for each in given)


class Choosing(NamedTuple):
    """How the config of a call was chosen: by size, or for all calls of a bound kernel. `facts` are
    what `specialize` has added to its key, and `tells_64_bits` whether the key says that indices
    need 64 bits."""

    config: Config | None
    by_size: BySize | None
    facts: Mapping[Any, Hashable]
    tells_64_bits: bool

    def demand(self, sizes: Sizes, args: Sequence[Any], names: Sequence[str]) -> None:
        """Let the plan of a call be for calls of the same bound kernel with the same config."""
        given = [value for _, value in leaves(args, names)]
        self._keep_facts(sizes, args)
        _keep_buckets(sizes)
        if self.tells_64_bits:
            _keep_width(sizes, given)
        sizes.chosen = chosen = Chosen(marks_of(given))
        if self.by_size is None or self.config is None:
            return
        selector = self.by_size.selector
        hints = selector.numbers(self.config)
        if len(hints) == len(selector.hints):
            return
        if selector.native is None:
            sizes.lose("its config depends on sizes, and only Python can choose it")
            return
        shapes = self.by_size.sources(args)
        formulas = [tuple(_formula(sizes, given, each) for each in shape) for shape in shapes]
        sizes.chosen = replace(chosen, selector=selector, shapes=tuple(formulas), hints=hints)

    def integers(self, args: Sequence[Any]) -> frozenset[int]:
        """The leaves that are integers by which the config is chosen."""
        every = () if self.by_size is None else self.by_size.sources(args)
        return frozenset(
            each.leaf
            for shape in every
            for each in shape
            if isinstance(each, Source) and each.what == "number"
        )

    def _keep_facts(self, sizes: Sizes, args: Sequence[Any]) -> None:
        """Pin what `specialize` has added to the key."""
        for fact in self.facts:
            value = None if fact.kind == "everything" else args[fact.index]
            if type(value) is not int and type(value) not in TENSORS:
                sizes.lose("it specializes on a value, and each is tuned by itself")
                return
            before = args[: fact.index]
            leaf = sum(1 for _ in leaves(before, [""] * len(before)))
            found = Source("number", leaf)
            if isinstance(value, torch.Tensor):
                found = Source("size", leaf, fact.dim % value.dim())
            if found in sizes.inputs:
                sizes.formulas.pin(sizes.inputs[found])


def _keep_buckets(sizes: Sizes) -> None:
    """Let sizes and strides be 0, 1 or more, as they are: the key has that."""
    formulas = sizes.formulas
    for source, number in sizes.inputs.items():
        if source.what == "number":
            continue
        if formulas.value(number) > 1:
            formulas.compare(">", number, formulas.constant(1))
        else:
            formulas.pin(number)


def _keep_width(sizes: Sizes, given: Sequence[Any]) -> None:
    """Let tensors need 64-bit indices or not, as they do."""
    formulas = sizes.formulas
    for leaf, value in enumerate(given):
        dims = range(value.dim()) if type(value) in TENSORS else ()
        every = [_size(sizes, Source("size", leaf, k), value.size(k)) for k in dims]
        if all(map(formulas.is_constant, every)):
            continue
        try:
            elements = functools.reduce(functools.partial(formulas.apply, "*"), every)
        except ArithmeticError:
            sizes.lose(f"an argument of sizes {list(value.shape)} has more than 2**63 elements")
            return
        formulas.compare("<=", elements, formulas.constant(INT32_ELEMENTS))


def _formula(sizes: Sizes, given: Sequence[Any], source: Compared) -> int | None:
    """The formula of a size that is compared; None for an unknown one."""
    if not isinstance(source, Source):
        return None if source is None else sizes.formulas.constant(source)
    value = given[source.leaf]
    if source.what == "size":
        return _size(sizes, source, value.size(source.dim))
    number = _size(sizes, source, min(max(value, 0), _LARGEST))
    return sizes.formulas.apply("max", number, sizes.formulas.constant(0))


def _size(sizes: Sizes, source: Source, value: int) -> int:
    found = sizes.inputs.get(source)
    return sizes.formulas.constant(value) if found is None else found


_LARGEST = 2**63 - 1
