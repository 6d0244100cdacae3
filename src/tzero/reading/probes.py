"""`tzero.constant`: marks a function whose result is constant for the process.

    host function ── probe(x.device) ──► plain: called as ever
                                         └ recorded: called, not followed; its result is part of the
                                           plan, and a replay does not call it

Enters: a function. Leaves: a `ConstantFunction` that is called like it. Guards on names and
arguments are made by those who read the host function; this module must not know them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

import torch

from tzero.adapters import intercept, triton_launch
from tzero.adapters.torch_internals import tree_leaves
from tzero.errors import InvalidKernel

__all__ = ["ConstantFunction", "constant"]

P = ParamSpec("P")
R = TypeVar("R")


class ConstantFunction(Generic[P, R]):
    """A function that `constant` marks; `function` is the function itself.

    ::

        has_tma = tzero.constant(has_tma)
        has_tma.function(device)
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(cast("Any", self), function, updated=())
        self.function = function

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not intercept.anywhere or intercept.here.recorder is None:
            return self.function(*args, **kwargs)
        recorder = intercept.here.recorder
        with intercept.paused(), recorder.unseen():
            result = self.function(*args, **kwargs)
        name = getattr(self, "__qualname__", "a function")
        if _has_tensor((args, kwargs)):
            recorder.refuse(f"{name}, which tzero.constant marks, is given a tensor")
        elif _has_tensor(result):
            recorder.refuse(f"{name}, which tzero.constant marks, returns a tensor")
        return result

    def __get__(self, instance: object, owner: type | None = None) -> ConstantFunction[P, R]:
        if instance is None:
            return self
        raise InvalidKernel(
            kernel=getattr(self, "__qualname__", "constant"),
            problem="tzero.constant marks functions, and this is a method, whose object may change",
            advice="Write @staticmethod above @tzero.constant, or mark a function.",
        )

    def __repr__(self) -> str:
        return f"<constant {getattr(self, '__qualname__', self.function)!s}>"


def constant(helper: Callable[P, R]) -> ConstantFunction[P, R]:
    """Mark a function as constant for the process: given the same arguments, it always returns the
    same. Use it for probes of devices and versions that tzero cannot look into.

    ::

        @tzero.constant
        def has_tma(device):
            return torch.cuda.get_device_capability(device)[0] >= 9

        @tzero.kernel
        def copy(x):
            block = 128 if has_tma(x.device) else 64
            ...

    A plain call runs the function. In a host function that is recorded it runs too, and its result
    is part of the plan: a replay does not call it. The plan is for this function object and these
    arguments; what the function reads is not guarded. A function of someone else's module is marked
    by putting it back: ``theirs.is_hopper = tzero.constant(theirs.is_hopper)``.

    Arguments and results may be any values but tensors, whose contents differ from call to call: a
    call with a tensor is not replayed. Pass ``x.device`` or ``x.dtype``. Do not change a list or a
    dict that it returns. Verify mode (``TZERO_VERIFY=1``) raises `PlanDrift` if a result changes.
    """
    if isinstance(helper, ConstantFunction):
        return helper
    name = getattr(helper, "__qualname__", type(helper).__name__)
    problem = _problem(helper)
    if problem:
        raise InvalidKernel(
            kernel=name,
            problem=f"tzero.constant was given {problem}",
            advice="Give it a function that returns a plain value, such as a bool or a number.",
        )
    return ConstantFunction(helper)


def _problem(helper: Any) -> str:
    """Why something cannot be marked; usually empty."""
    if isinstance(helper, (staticmethod, classmethod)):
        return f"a {type(helper).__name__}; it belongs above @tzero.constant, not below it"
    if not callable(helper):
        return f"{helper!r}, which is not a function"
    if isinstance(helper, type):
        return f"the class {helper.__name__}, which makes a new object each time"
    if isinstance(helper, (triton_launch.JITFunction, torch.nn.Module)) or hasattr(helper, "host"):
        return f"{getattr(helper, '__name__', type(helper).__name__)}, which computes with tensors"
    if inspect.isgeneratorfunction(helper) or inspect.iscoroutinefunction(helper):
        return f"{helper.__name__}, a generator or coroutine, which can be used once"
    return ""


def _has_tensor(value: Any) -> bool:
    return any(isinstance(each, torch.Tensor) for each in tree_leaves(value))
