"""What decides which function Helion calls, as conditions of a plan over sizes.

    Helion's key ── sizes of 0, 1 or more, 32-bit indices ──► conditions
                 ├─ relations of sizes ──► conditions
                 └─ whatever else it reads of tensors ──► pinned, or an obstacle

Enters: what Helion's key has, and the arguments of a call. Leaves: conditions in the `Sizes` of a
recording. It must not know Helion's private parts, which are in `compat`.

A plan over sizes is for calls that Helion would make with the function that was recorded. Helion
finds it by a key, whose parts are functions of the arguments. Those that are relations of sizes are
translated. The others are watched while they run: what they read of tensors is the same in every
call of the plan, and so is their result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from tzero.integrations.helion.compat import Extractor, Relation, relation_of
from tzero.plans.sizes import Sizes
from tzero.plans.torch_ops import named
from tzero.symbolic.formulas import Formulas, Source

__all__ = ["Choice", "read_choice", "require_choice"]

_MOST_BY_32_BITS = torch.iinfo(torch.int32).max
"""Helion computes with indices of 64 bits for tensors with more elements."""

_FREE_READS = frozenset(
    f"Tensor.{name}"
    for name in (
        *("dtype.__get__", "device.__get__", "ndim.__get__", "layout.__get__", "itemsize.__get__"),
        *("is_cuda.__get__", "is_cpu.__get__", "is_meta.__get__", "dim", "element_size"),
    )
)
"""Reads of facts that a plan's key has."""

_OF_SIZES = frozenset(["Tensor.size", "Tensor.shape.__get__", "Tensor.numel", "Tensor.nelement"])


class Choice(NamedTuple):
    """What Helion's key has of the arguments of a call: relations of sizes, sizes and strides of
    tensors, whether of numbers only the types, and the name of something else that plans do not
    compare (usually empty)."""

    relations: tuple[Relation, ...]
    reads: tuple[tuple[torch.Tensor, str, int], ...]
    numbers_by_type: bool
    obstacle: str


class _Watching(TorchFunctionMode):
    """Notes what is read of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[torch.Tensor, str, int]] = []
        self.obstacle = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = named(func), (*args[1:], *(kwargs or {}).values())
        if name in _OF_SIZES:
            self._note(args[0], "size", given)
        elif name == "Tensor.stride":
            self._note(args[0], "stride", given)
        elif name not in _FREE_READS:
            self.obstacle = self.obstacle or name
        return func(*args, **(kwargs or {}))

    def _note(self, tensor: torch.Tensor, what: str, dims: Sequence[int]) -> None:
        count = len(tensor.stride())
        every = [dim % count for dim in dims] if dims else range(count)
        self.reads += [(tensor, what, dim) for dim in every]


def read_choice(
    extractors: Sequence[Extractor], args: tuple[Any, ...], numbers_by_type: bool
) -> Choice:
    """What the parts of Helion's key read of the arguments of a call.

    >>> x = torch.empty(2, 3)
    >>> read_choice([lambda args: args[0].size(-1)], (x,), True).reads[0][1:]
    ('size', 1)
    >>> read_choice([lambda args: args[0].storage_offset()], (x,), True).obstacle
    'Tensor.storage_offset'
    """
    relations: list[Relation] = []
    watching = _Watching()
    with watching:
        for each in extractors:
            relation = relation_of(each, args)
            if relation is None:
                each(args)
            else:
                relations.append(relation)
    return Choice(tuple(relations), tuple(watching.reads), numbers_by_type, watching.obstacle)


def require_choice(choice: Choice, leaves: Sequence[Any], sizes: Sizes) -> None:
    """Let Helion choose the same function in every call of a plan.

    ::

        require_choice(read_choice(found.extractors, args, True), leaves, sizes)
    """
    these = _Inputs(sizes, leaves)
    for source, number in sizes.inputs.items():
        if source.what == "number" and not choice.numbers_by_type:
            sizes.formulas.pin(number)
    for tensor in these.tensors():
        _require_buckets(sizes.formulas, these.every(tensor, "size"))
    for tensor, what, dim in choice.reads:
        for formula in these.of(tensor, what, dim):
            sizes.formulas.pin(formula)
    for relation in choice.relations:
        _require_relation(sizes.formulas, these, relation)


class _Inputs:
    """The formulas of what Helion's key reads."""

    def __init__(self, sizes: Sizes, leaves: Sequence[Any]) -> None:
        self._sizes = sizes
        self._leaves = leaves

    def tensors(self) -> Iterator[torch.Tensor]:
        return (each for each in self._leaves if isinstance(each, torch.Tensor))

    def of(self, tensor: torch.Tensor, what: Any, dim: int) -> list[int]:
        """The formulas of one size or stride: as many as there are leaves with that tensor."""
        value = (tensor.size if what == "size" else tensor.stride)(dim)
        constant = self._sizes.formulas.constant(value)
        return [
            self._sizes.inputs.get(Source(what, k, dim), constant)
            for k, each in enumerate(self._leaves)
            if each is tensor
        ]

    def every(self, tensor: torch.Tensor, what: str) -> list[int]:
        return [self.of(tensor, what, dim)[0] for dim in range(tensor.dim())]


def _require_buckets(formulas: Formulas, sizes: Sequence[int]) -> None:
    """Let the sizes of a tensor be in the same buckets: 0, 1, or more; and let its elements be
    counted in as many bits."""
    two, count = formulas.constant(2), formulas.constant(1)
    for size in sizes:
        if formulas.value(size) < 2:
            formulas.pin(size)
        else:
            formulas.compare(">=", size, two)
        count = formulas.apply("*", count, size)
    formulas.compare(">", count, formulas.constant(_MOST_BY_32_BITS))


def _require_relation(formulas: Formulas, these: _Inputs, relation: Relation) -> None:
    """Let a relation of sizes hold in every call of a plan, or in none."""
    symbols: dict[Any, int] = {}
    every: list[int] = []
    for symbol, (tensor, what, dim) in relation.sources.items():
        found = these.of(tensor, what, dim)
        symbols[symbol] = found[0]
        every += found
    try:
        left = _formula(formulas, relation.left, symbols)
        right = _formula(formulas, relation.right, symbols)
        if relation.of_block:
            least = formulas.apply("max", left, formulas.constant(1))
            left = formulas.apply("next_power_of_2", least)
        formulas.compare("==", left, right)
    except (ArithmeticError, KeyError):
        for each in every:
            formulas.pin(each)


def _formula(formulas: Formulas, expression: Any, symbols: Mapping[Any, int]) -> int:
    """A formula that always has the value of an expression; KeyError if there is none."""
    if expression.is_Symbol:
        return symbols[expression]
    if expression.is_Integer:
        return formulas.constant(int(expression))
    operation = _OPERATIONS[expression.func.__name__]
    made, *rest = (_formula(formulas, each, symbols) for each in expression.args)
    for each in rest:
        made = formulas.apply(operation, made, each)
    return made


_OPERATIONS: Mapping[str, str] = {
    "Add": "+",
    "Mul": "*",
    "Max": "max",
    "Min": "min",
    **dict.fromkeys(["Mod", "PythonMod"], "%"),
    **dict.fromkeys(["FloorDiv", "CleanDiv"], "//"),
}
"""The operations on integers, in sympy and torch, that formulas have too."""
