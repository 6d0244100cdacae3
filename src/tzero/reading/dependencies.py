"""What a host function reads besides its arguments: globals, closures, and those of its helpers.

    names    every name that the code loads          ┐
    values   what each name holds -> guards          ├─► Findings ──► Dependencies
    classes  the program's classes among the values  ┘

Enters: a host function. Leaves: the guards that must hold for a second call to behave like the
first, or `Unreplayable`. It must not know how a call is recorded or replayed.

Seen are the names in the code: globals, closure variables, ``a.b.c`` of modules, methods of the
program's classes, and what the program may put on ``torch.Tensor``. The functions of torch, Triton,
numpy and the standard library are not read; `purity` says which of them have side effects or are
nondeterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import torch

from tzero.reading.attributes import class_dict, may_be_hidden
from tzero.reading.findings import Findings, Unreplayable
from tzero.reading.guards import Absent, Code, Guard, Same
from tzero.reading.names import NameReader

__all__ = ["Dependencies", "Unreplayable", "code_guard", "read_dependencies"]


class Dependencies(NamedTuple):
    """What a host function reads besides its arguments.

    `tensors` are the tensors among the guards' values, by the number of the guard. `attributes` are
    names that the code loads from local variables and that tensors do not have, unless the program
    adds them. `helpers` are functions of the program that it may call, whose code was read.
    `of_tensors` are the names that it may load from tensors, `loaded` those of them that a tensor
    itself may hide.

    >>> read_dependencies(lambda x: torch.empty_like(x)).guards[1].text
    'torch.empty_like'
    """

    guards: tuple[Guard, ...]
    tensors: Mapping[int, torch.Tensor]
    attributes: frozenset[str] = frozenset()
    helpers: tuple[FunctionType, ...] = ()
    of_tensors: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()

    def of_parameters(self, tensor: torch.Tensor) -> list[Guard]:
        """The guards on what the program may put on `torch.nn.Parameter`, if a tensor is one."""
        if type(tensor) is not torch.nn.Parameter:
            return []
        own = class_dict(torch.nn.Parameter)
        return [
            Same(f"torch.nn.Parameter.{name}", own, name, own[name])
            if name in own
            else Absent(f"no torch.nn.Parameter.{name}", own, name)
            for name in sorted(self.of_tensors)
        ]


def read_dependencies(function: Callable[..., Any]) -> Dependencies:
    """Read a host function's code.

    >>> BLOCK = 64
    >>> [guard.text for guard in read_dependencies(lambda: BLOCK).guards]
    ["the global 'BLOCK'"]
    """
    if not isinstance(function, FunctionType):
        raise Unreplayable("it is not a plain Python function", "", 0)
    found = Findings()
    reader = NameReader(found)
    reader.function(function)
    reader.values.classes.finish()
    _guard_helpers(found)
    reader.values.finish()
    guards = tuple(found.guards.values())
    held = {k: guard.value for k, guard in enumerate(guards)}
    tensors = {k: v for k, v in held.items() if isinstance(v, torch.Tensor)}
    names = frozenset(found.of_tensors | found.attributes)
    helpers, loaded = tuple(found.helpers), frozenset(filter(may_be_hidden, found.loaded))
    return Dependencies(guards, tensors, frozenset(found.attributes), helpers, names, loaded)


def _guard_helpers(found: Findings) -> None:
    """Guard the code and defaults of helpers, which an editor of a running program replaces."""
    for function in found.helpers:
        found.add(code_guard(function))


def code_guard(function: FunctionType) -> Code:
    """A guard on the code and the defaults of a function.

    >>> code_guard(code_guard).holds()
    True
    """
    return Code.of(f"the code of {function.__qualname__}", function)
