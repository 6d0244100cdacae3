"""Calls of torch functions that a host function makes in another mode than it is called in.

    with torch.no_grad(): linear(x, w)     ──► Call(InMode(linear, ...), ...)
    with torch.autocast(...): linear(x, w) ──► likewise

Enters: a torch function, and the mode in which it was called. Leaves: a function that enters that
mode for each call. It must not know slots or recordings.

A block of autocast keeps the casts of weights that require gradients until it ends, and each call
has a block of its own. That is the same as long as nobody changes such a weight in the block, and
none of the casts is recorded by autograd: `why_not` and the recording see to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tzero.adapters.torch_modes import Computing

__all__ = ["KEEPS", "InMode", "cut", "is_kept", "why_not"]

KEEPS = (
    "autocast keeps the cast of a weight that requires a gradient: use requires_grad_(False), or "
    "cache_enabled=False"
)


class InMode:
    """A function that is called in a mode.

    >>> with torch.enable_grad():
    ...     made = InMode(torch.is_grad_enabled, Computing.now())
    >>> with torch.no_grad():
    ...     made()
    True
    """

    __slots__ = ("function", "mode")

    def __init__(self, function: Any, mode: Computing) -> None:
        self.function = function
        self.mode = mode

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.mode.entered():
            return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, InMode)
            and self.function == other.function
            and self.mode == other.mode
        )

    def __hash__(self) -> int:
        return hash((self.function, self.mode))


def is_kept(mode: Computing, given: Sequence[torch.Tensor]) -> bool:
    """Whether autocast keeps casts of one of these tensors in a mode.

    >>> is_kept(Computing.now(), [torch.ones(2, requires_grad=True)])
    False
    """
    return mode.keeps and any(tensor.requires_grad for tensor in given)


def why_not(outer: Computing, mode: Computing, given: Sequence[torch.Tensor]) -> str:
    """Why a call with these tensors, in a block of autocast, cannot have a block of its own;
    usually empty. `outer` is the mode of the host function."""
    is_block = mode.casts != outer.casts or mode.keeps != outer.keeps
    return KEEPS if is_block and mode.grad and is_kept(mode, given) else ""


def cut(outer: Computing, mode: Computing, given: Sequence[torch.Tensor]) -> str:
    """Why no CUDA graph can hold a call; usually empty.

    >>> cut(Computing.now(), Computing.now(), [])
    ''
    """
    if mode.inference != outer.inference:
        return "it is called in another inference mode than the host function"
    if outer.keeps and is_kept(mode, given):  # memory that others would use after the graph's end
        return KEEPS
    return ""
