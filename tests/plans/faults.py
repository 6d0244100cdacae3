"""Checks of failed calls: the error, and leaked tensors.

Enters: calls. Leaves: what they raise, and counts of live tensors.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call raises, without the traceback, which would keep objects alive."""
    try:
        call()
    except BaseException as error:
        cause, context = type(error.__cause__), type(error.__context__)
        return type(error), error.args, str(error), vars(error), cause, context
    return ()


def tensors() -> int:
    """How many tensors the garbage collector knows that were created in the test."""
    gc.collect()
    return sum(type(each) in (torch.Tensor, torch.nn.Parameter) for each in gc.get_objects())
