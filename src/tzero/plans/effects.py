"""What operators of torch do besides making new tensors.

    index_copy_(cache, ...)      ──► changed: the cache
    batch_norm(training=True)    ──► changed_unseen: its statistics
    dropout, custom operators    ──► cut: why no CUDA graph can hold them
    x.item()                     ──► reads_value

Enters: the operators that one torch function ran. Leaves: what they change, read or draw. It must
not know plans or steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from tzero.adapters.torch_internals import schema_of, tree_leaves
from tzero.plans.torch_ops import Ran

__all__ = ["acts", "changed", "changed_unseen", "cut", "reads_value"]


def reads_value(result: Any, ran: Sequence[Ran]) -> bool:
    """Whether a function returned the value of a tensor, as a Python number, and changed nothing.

    >>> reads_value(3.0, [])
    False
    """
    if type(result) not in (bool, int, float) or any(map(acts, ran)):
        return False
    return any(torch.Tag.data_dependent_output in each.traits.tags for each in ran)


def acts(ran: Ran) -> bool:
    """Whether an operator may do more than make new tensors: it changes one, draws random numbers,
    or is not torch's own."""
    traits = ran.traits
    is_seeded = torch.Tag.nondeterministic_seeded in traits.tags
    return traits.is_mutable or is_seeded or not traits.is_own or bool(changed_unseen([ran]))


def cut(ran: Sequence[Ran]) -> str:
    """Why no CUDA graph can hold the operators of a function; usually empty. A replay of a graph
    would not run the code of a custom operator, and would draw the same random numbers again.

    >>> cut([])
    ''
    """
    for each in ran:
        traits = each.traits
        if not traits.is_own:
            return f"{traits.name} is a custom operator, whose code runs on each call"
        if torch.Tag.nondeterministic_seeded in traits.tags and not _never_draws(each):
            return f"{traits.name} draws random numbers"
    return ""


def _never_draws(ran: Ran) -> bool:
    """Whether an operator that may draw random numbers does not with these arguments: attention
    without dropout."""
    traits = ran.traits
    return "dropout_p" in traits.arguments and ran.arguments.get("dropout_p", 0.0) == 0.0


def changed(ran: Sequence[Ran]) -> list[torch.Tensor]:
    """The tensors that operators change in place, once for each change."""
    found: list[torch.Tensor] = []
    for each in ran:
        if not each.traits.is_mutable:
            continue
        written = {a.name for a in schema_of(each.operator).arguments if _is_written(a)}
        given = [value for name, value in each.arguments.items() if name in written]
        found += [value for value in tree_leaves(given) if isinstance(value, torch.Tensor)]
    return found


def changed_unseen(ran: Sequence[Ran]) -> list[torch.Tensor]:
    """The tensors that operators change although their schemas do not say so, which torch does not
    count: statistics of batch norms in training."""
    found: list[torch.Tensor] = []
    for each in ran:
        name, given = each.traits.name, each.arguments
        trains = bool(given.get("training", given.get("train", True)))
        if trains and "norm" in name and not _OTHER_NORMS.search(name):
            found += [t for t in map(given.get, _STATISTICS) if isinstance(t, torch.Tensor)]
    return found


_STATISTICS = ("running_mean", "running_var")
_OTHER_NORMS = re.compile("_(backward|functional|no_training|no_update)(?![a-z_])")


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)
