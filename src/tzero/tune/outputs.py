"""Which memory the reference overwrites as a whole, though it is not fresh.

Enters: the tensors that a call can reach, and a function that runs the reference with some of them
filled. Leaves: those that may be filled before a candidate runs. It must not know configs, or how
calls are made.

An output that the caller passes in, or that the host function keeps from one call to the next, may
hold the right result of an earlier call. What a candidate forgets to write there would look right.
So outputs are filled like fresh memory. An output is what the reference returns or changes, if its
results do not depend on what was in it. A function that returns nothing may find its outputs right
already, and change nothing. Then each of its tensors of floats is tried. Integers are not, because
they may be indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

import torch

from tzero.adapters.torch_internals import storage_id
from tzero.tune.copying import Location, has_contents
from tzero.tune.fresh import Pattern, fill

__all__ = ["filled", "find", "is_float"]

Same = Callable[[tuple[torch.Tensor, ...]], bool]
"""Whether the reference computes the same when these tensors are filled before."""


def find(
    held: Mapping[Location, torch.Tensor],
    changed: Set[Location],
    returned: Iterable[torch.Tensor],
    same: Same,
) -> tuple[torch.Tensor, ...]:
    """The tensors that the reference overwrites as a whole.

    >>> x, out = torch.ones(2), torch.ones(2)
    >>> def same(filled):
    ...     return all(each is out for each in filled)
    >>> found = find({1: x, 2: out}, set(), [], same)
    >>> [each is out for each in found]
    [True]
    """
    returned = list(returned)
    ids = {storage_id(each) for each in returned if each.layout is torch.strided}
    usable = {k: each for k, each in held.items() if not isinstance(k, tuple) or has_contents(k)}
    wanted = [k for k, each in usable.items() if k in changed or storage_id(each) in ids]
    known = tuple(usable[k] for k in wanted)
    found = list(known) if _is_same(known, same) else [e for e in known if _is_same((e,), same)]
    if not returned:
        others = [each for k, each in usable.items() if k not in wanted and is_float(each)]
        found += [each for each in others if _is_same((each,), same)]
    return tuple(found)


def filled(tensors: Iterable[torch.Tensor], pattern: Pattern) -> None:
    """Fill the storages of some tensors.

    >>> from tzero.tune.fresh import PATTERNS
    >>> x = torch.ones(2, dtype=torch.int32)
    >>> filled([x], PATTERNS[1])
    >>> x
    tensor([85, 85], dtype=torch.int32)
    """
    for tensor in tensors:
        fill(tensor, pattern)


def _is_same(tensors: tuple[torch.Tensor, ...], same: Same) -> bool:
    if not tensors:
        return False
    try:
        return same(tensors)
    except Exception:  # of the host function, which reads what was filled
        return False


def is_float(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be filled: its elements are no indices.

    >>> is_float(torch.ones(2)), is_float(torch.arange(2))
    (True, False)
    """
    return tensor.is_floating_point() or tensor.is_complex()
