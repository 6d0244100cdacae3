"""Which functions of torch only copy the elements of a tensor, in the order they have in memory.

    out.copy_(x), out[:] = x                  ──► from x to out
    x.clone(), x.to(x.dtype, copy=True)       ──► from x to a new tensor
    x.t().contiguous(), x.to(torch.float16)   ──► None: in another order, with another dtype

Enters: the operator that a function ran, and what the function returned. Leaves: the two tensors.
It must not know slots or steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch

from tzero.plans.in_mode import InMode
from tzero.plans.torch_ops import Ran

__all__ = ["Pair", "copied"]

_NEW = ("aten::clone", "aten::_to_copy")


class Pair(NamedTuple):
    """Two tensors that have the same elements afterwards; `is_new` if the function made the first.

    >>> x = torch.ones(3)
    >>> Pair(torch.empty(3), x, False).source is x
    True
    """

    target: torch.Tensor
    source: torch.Tensor
    is_new: bool


def copied(function: Any, result: Any, ran: Sequence[Ran]) -> Pair | None:
    """What a function has copied, if that is all that it does for these arguments in the modes of
    the call: functions in Python may do more.

    >>> copied(torch.sum, torch.ones(()), []) is None
    True
    """
    if len(ran) != 1 or isinstance(function, (FunctionType, InMode)):
        return None
    target: Any
    is_new = ran[0].name in _NEW
    if is_new:
        target, source = result, ran[0].args[0]
        is_right = ran[0].result is not None and ran[0].result() is target
    elif ran[0].name == "aten::copy_":
        target, source = ran[0].args[0], ran[0].arguments.get("src")
        is_right = result is None or result is target
    else:
        return None
    if not is_right or not (_is_row(target) and _is_row(source)):
        return None
    if target is source or not _are_alike(target, source):
        return None
    return Pair(target, source, is_new)


def _is_row(tensor: Any) -> bool:
    """Whether a tensor is plain memory, with its elements one after another."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def _are_alike(one: torch.Tensor, other: Any) -> bool:
    if one.dtype is torch.bool and one.device.type == "cpu":  # torch makes each byte 0 or 1
        return False
    return (one.dtype, one.device, one.size()) == (other.dtype, other.device, other.size())
