"""What is left of a call that fails: the error, and tensors.

Enters: calls. Leaves: what they raise, and counts of what there is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call raises, without the frames that hold what was in it."""
    try:
        call()
    except BaseException as error:
        cause, context = type(error.__cause__), type(error.__context__)
        return type(error), error.args, str(error), vars(error), cause, context
    return ()


def tensors() -> int:
    """How many tensors there are that Python knows of, since the test began."""
    gc.collect()
    return sum(type(each) in (torch.Tensor, torch.nn.Parameter) for each in gc.get_objects())
