"""When configs can be timed: one search at a time, and not inside a recording or a capture.

Enters: the arguments of a call. Leaves: the reason why nothing can be timed now, if there is one.
It must not know configs or kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tzero import locks
from tzero.adapters import intercept, torch_modes, triton_launch
from tzero.adapters.torch_internals import DisableTorchFunction, disable_current_modes
from tzero.arguments.situation import TENSORS
from tzero.launches.current_call import current
from tzero.tune.copying import tensors_in

__all__ = ["TURN", "outside_recording", "why_not_now"]

TURN = locks.lock()
"""Held during a search, because two searches would disturb each other's timings. It also protects
what searches read and write: the choices of each kernel, and the shipped files in use."""


def why_not_now(args: tuple[Any, ...]) -> str:
    """Why nothing can be timed now; empty where timing is possible."""
    if current.is_trial:
        return "the host function is run only to find what it launches"
    interpreting = triton_launch.interpreting()
    if interpreting:
        return interpreting
    if intercept.here.recorder is None:  # else the modes are those of a recording
        why = torch_modes.obstacle()
        if why and not why.startswith("a torch function mode"):
            return why
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is captured"
    for tensor in tensors_in(args):
        if type(tensor) not in TENSORS:
            return f"an argument is a {type(tensor).__name__}"
        if tensor.device.type not in ("cpu", "cuda"):
            return f"an argument is on {tensor.device}"
    return ""


@contextmanager
def outside_recording() -> Iterator[None]:
    """Suspend the recording of this thread, if there is one: timed calls are not part of it."""
    if intercept.here.recorder is None:
        yield
        return
    with intercept.paused(), DisableTorchFunction(), disable_current_modes():
        yield
