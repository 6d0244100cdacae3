"""`Sizing`: what a plan computes anew for the sizes of each call.

Enters: formulas and conditions of one recorded call. Leaves: a frozen value that evaluates them for
other arguments, and shows them as text. It must not know steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tzero.plans.chosen import Chosen
from tzero.symbolic.formulas import OPERATIONS, Condition, Node, Source, computed, holds
from tzero.symbolic.shapes import Shape

__all__ = ["Sizing", "read_source"]


@dataclass(frozen=True, slots=True)
class Sizing:
    """The formulas of a plan over sizes. The first of them are its inputs, `free`: another call may
    have other values there, if the conditions are met. `slots` has the geometry of each slot of the
    plan, None for the result of a torch function that nothing reads the geometry of. `values` are
    those of the recorded call; `pinned` says what is the same in every call, and why. `chosen` is
    what else calls of a tuned kernel have in common.

    >>> n = Source("size", 0)
    >>> nodes = (Node("input", n), Node("constant", (4,)), Node("cdiv", (0, 1)))
    >>> sizing = Sizing(nodes, (Condition(">", 0, 1, True),), (n,), (), (7, 4, 2))
    >>> sizing.at([torch.empty(9)]), sizing.at([torch.empty(4)]), sizing.text(2, ["x"])
    ([9, 4, 3], None, 'cdiv(x.size(0), 4)')
    """

    nodes: tuple[Node, ...]
    conditions: tuple[Condition, ...]
    free: tuple[Source, ...]
    slots: tuple[Shape | None, ...]
    values: tuple[int, ...] = field(default=(), compare=False)
    pinned: tuple[str, ...] = field(default=(), compare=False)
    chosen: Chosen | None = None

    def at(self, leaves: Sequence[Any]) -> list[int] | None:
        """The values of all formulas for other arguments, given as leaves; None if the plan is not
        for these."""
        try:
            values = computed(self.nodes, lambda source: read_source(source, leaves))
        except ArithmeticError:
            return None
        if not holds(self.conditions, values):
            return None
        is_same = self.chosen is None or self.chosen.holds(values, leaves)
        return values if is_same else None

    def text(self, formula: int, names: Sequence[str]) -> str:
        """A formula as text, with the names of the leaves."""
        node = self.nodes[formula]
        if node.operation == "input":
            what, leaf, dim = node.args
            return names[leaf] if what == "number" else f"{names[leaf]}.{what}({dim})"
        if node.operation == "constant":
            return str(node.args[0])
        words = [self.text(each, names) for each in node.args]
        return OPERATIONS[node.operation].text.format(*words)

    def conditioned(self, names: Sequence[str]) -> list[str]:
        """The conditions as text."""
        found = []
        for comparison, left, right, truth in self.conditions:
            shown = comparison if truth else _OPPOSITE[comparison]
            found.append(f"{self.text(left, names)} {shown} {self.text(right, names)}")
        return found if self.chosen is None else [*found, *self.chosen.text()]


_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def read_source(source: Source, leaves: Sequence[Any]) -> int:
    """An input of a plan, read from the leaves of a call's arguments.

    >>> read_source(Source("stride", 0), [torch.empty(2, 3)]), read_source(Source("number", 0), [7])
    (3, 7)
    """
    value = leaves[source.leaf]
    if source.what == "number":
        found: int = value
    else:
        assert isinstance(value, torch.Tensor)
        found = value.size(source.dim) if source.what == "size" else value.stride(source.dim)
    return found
