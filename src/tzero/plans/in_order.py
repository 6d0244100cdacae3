"""Makes the steps of one part of a plan, one after the other, as the host function does.

Enters: a part, and the tensors that it is given. Leaves: its outputs, in tensors given too,
or `Stopped`, which says at which step. It must not know whether the work runs or is captured.

What no later step needs is let go of at once, as the host function does, so that its memory is used
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tzero.plans.parts import called, made_by, used_by
from tzero.plans.plan import Allocate, Call, Fill, Launch, Part, Plan, Step, Value, View
from tzero.plans.wrapper import Drifted, built, drift_in, fits, made_as

__all__ = ["InOrder", "Stopped"]


class Stopped(Exception):
    """A step cannot be made. `name` is what it calls.

    >>> Stopped("Tensor.item", "it waits").name
    'Tensor.item'
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason


class InOrder:
    """The steps of a part; `drifted` raises if a torch function returns something else than when
    the plan was recorded.

    ::

        InOrder(plan, plan.parts[0], drifted)((x, y, out))
    """

    def __init__(self, plan: Plan, part: Part, drifted: Drifted) -> None:
        self._plan = plan
        self._part = part
        self._drifted = drifted
        last: dict[int, int] = {}
        for k in range(part.first, part.after):
            step = plan.steps[k]
            last |= dict.fromkeys((*used_by(step), *made_by(step)), k)
        for slot in (*part.inputs, *part.outputs):
            last.pop(slot, None)
        self._done: dict[int, list[int]] = {}  # by step: the slots that none after it needs
        for slot, k in last.items():
            self._done.setdefault(k, []).append(slot)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make the steps with these tensors: inputs, then outputs."""
        part = self._part
        given = dict(zip((*part.inputs, *part.outputs), tensors, strict=True))
        slots = {slot: tensor for slot, tensor in given.items() if slot not in part.copied}
        for k in range(part.first, part.after):
            step = self._plan.steps[k]
            try:
                self._make(step, slots)
            except RuntimeError as error:
                name = called(step)
                if not name:
                    raise
                text = (str(error).splitlines() or [type(error).__name__])[0][:200]
                raise Stopped(name, text) from error
            for slot in self._done.get(k, ()):
                slots.pop(slot, None)
        for slot in part.copied:
            given[slot].copy_(slots[slot])

    def _make(self, step: Step, slots: dict[int, Any]) -> None:
        tensor = slots.__getitem__
        value: Callable[[Value], Any] = lambda of: built(of, tensor, ())  # noqa: E731
        if isinstance(step, Allocate):
            if step.slot not in slots:
                slots[step.slot] = made_as(self._plan.slots[step.slot])
        elif isinstance(step, Fill):
            slots[step.slot].data.fill_(step.value)
        elif isinstance(step, View):
            slots[step.slot] = _called(step.call, value)
        elif isinstance(step, Call):
            result = _called(step, value)
            if not fits(self._plan, step.result, result, slots):
                self._drifted(self._plan, drift_in(self._plan, step, result))
        elif isinstance(step, Launch):
            names = [parameter.name for parameter in step.function.params]
            args, kwargs = step.spelled(names, value)
            step.function[step.grid](*args, **kwargs)


def _called(call: Call, value: Callable[[Value], Any]) -> Any:
    named: Mapping[str, Any] = {name: value(each) for name, each in call.kwargs}
    return call.function(*map(value, call.args), **named)
