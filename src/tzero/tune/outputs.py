"""Which memory the reference overwrites as a whole, though it is not fresh.

Enters: the tensors that a call can reach, and a function that runs the reference with some of them
filled. Leaves: those that may be filled before a candidate runs. It must not know configs, or how
calls are made.

An output that the caller passes in, or that the host function keeps from one call to the next, may
hold the right result of an earlier call. What a candidate forgets to write there would look right.
So outputs are filled like fresh memory. An output is what the reference returns or changes, if its
results do not depend on what was in it. A function that returns nothing may find its outputs right
already, and change nothing. Then each of its tensors is tried: integers, which may be indices, only
with zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

import torch

from tzero.adapters.torch_internals import storage_id
from tzero.tune.copying import Location, bytes_of, has_contents
from tzero.tune.fresh import PATTERNS, Pattern, fill

__all__ = ["filled", "find", "harmless"]

Same = Callable[[tuple[torch.Tensor, ...], tuple[Pattern, ...]], bool]
"""Whether the reference computes the same if these tensors are filled with each pattern before."""


def find(
    held: Mapping[Location, torch.Tensor],
    changed: Set[Location],
    returned: Iterable[torch.Tensor],
    same: Same,
) -> tuple[torch.Tensor, ...]:
    """The tensors that the reference overwrites as a whole.

    >>> x, out = torch.ones(2), torch.ones(2)
    >>> def same(filled, patterns):
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
        others = [(each, harmless(each)) for k, each in usable.items() if k not in wanted]
        found += [each for each, patterns in others if _is_same((each,), same, patterns)]
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


def harmless(tensor: torch.Tensor) -> tuple[Pattern, ...]:
    """The patterns that a tensor may be filled with before it is known to be an output: integers,
    which may be indices, with zero; with nothing if they are zero already, which shows nothing.

    >>> len(harmless(torch.ones(2))), len(harmless(torch.ones(2).int()))
    (4, 1)
    """
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        return PATTERNS
    shows = bool(bytes_of(tensor.untyped_storage()).any())
    return PATTERNS[-1:] if shows else ()


def _is_same(
    tensors: tuple[torch.Tensor, ...], same: Same, patterns: tuple[Pattern, ...] = PATTERNS
) -> bool:
    if not tensors or not patterns:
        return False
    try:
        return same(tensors, patterns)
    except Exception:  # of the host function, which reads what was filled
        return False
