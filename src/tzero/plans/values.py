"""Python values in plans: constants, tensors and containers.

Enters: values that a host function passes to a step or returns. Leaves: constants, and the tensors
and containers in a value; or `NotAStep` if a plan cannot hold it. It must not know slots or steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from tzero.adapters import triton_launch
from tzero.arguments.situation import TENSORS, containers
from tzero.plans.plan import Constant
from tzero.reading.attributes import may_be_hidden
from tzero.reading.guards import Guard

__all__ = [
    "NotAStep",
    "NotYet",
    "bare",
    "constant_of",
    "containers_in",
    "is_inexact",
    "shared",
    "tensors_of",
]

_CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), slice, torch.Size),
    *(torch.dtype, torch.layout, torch.memory_format, torch.device),
)


class NotAStep(Exception):
    """An action of a host function cannot be a step of a plan; the message says why."""


class NotYet(NotAStep):
    """It cannot be a step in this call, but the next call may do without it."""


def constant_of(value: Any, what: str) -> Constant:
    """An immutable value as a constant; `what` names it in the error if it is mutable.

    >>> constant_of(64, "an argument")
    Constant(value=64)
    """
    if type(value) in _CONSTANTS or isinstance(
        value, (triton_launch.Dtype, triton_launch.Constexpr)
    ):
        return Constant(value)
    if type(value) is tuple and all(type(item) is int for item in value):  # the shape of a block
        return Constant(value)
    raise NotAStep(f"{what} is of type {type(value).__name__}, which plans do not hold")


def containers_in(value: Any) -> Iterator[Any]:
    """The lists and dicts in a value, itself included; one that is in several places, each time.

    >>> list(containers_in(([1], 2)))
    [[1]]
    """
    seen: set[int] = set()  # one may hold itself
    rest = [value]
    while rest:
        each = rest.pop()
        kind = type(each)  # `isinstance` may run code of the program: it reads `__class__`
        if issubclass(kind, (list, dict)):
            yield each
        if not issubclass(kind, (list, tuple, dict)) or id(each) in seen:
            continue
        seen.add(id(each))
        rest.extend(dict.values(each) if issubclass(kind, dict) else _base(kind).__iter__(each))


def shared(args: Sequence[Any], guards: Iterable[Guard]) -> bool:
    """Whether an argument shares a list, tuple or dict with what a host function reads: the host
    function may compare their identities, or change one and read the other."""
    given = {id(each) for each in containers(args)}
    if not given:
        return False
    held = (guard.now() for guard in guards if type(guard.value) in (list, tuple, dict))
    return any(id(each) in given for each in containers(held))


def _base(kind: type) -> Any:
    return list if issubclass(kind, list) else tuple


def is_inexact(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds floating point or complex numbers.

    >>> is_inexact(torch.ones(1)), is_inexact(torch.ones(1, dtype=torch.int8))
    (True, False)
    """
    return tensor.is_floating_point() or tensor.is_complex()


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, in order.

    >>> len(tensors_of([torch.ones(1), {"a": torch.ones(2)}]))
    2
    """
    found: list[torch.Tensor] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[torch.Tensor]) -> None:
    if type(value) in _CONSTANTS:
        return
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _gather(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, found)


def bare(
    leaves: Sequence[tuple[str, Any]], read: Callable[[torch.Tensor], Iterable[str]]
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The leaves that are tensors of which names were `read` that a tensor itself may have, with
    these names.

    >>> bare([("x", torch.ones(2))], lambda x: ["scale", "shape"])
    ((0, ('scale',)),)
    """
    tensors = [(k, value) for k, (_, value) in enumerate(leaves) if type(value) in TENSORS]
    found = [(k, tuple(sorted(filter(may_be_hidden, read(value))))) for k, value in tensors]
    return tuple(each for each in found if each[1])
