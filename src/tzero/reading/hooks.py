"""Hooks of modules of `torch.nn`: guards on which there are, and those that are followed.

    model.layer(x)     ──► which forward hooks the layer has; there are none on all modules
    nn.GELU()          ──► there are none on what modules register

Enters: a module that is about to be called, or the fact that one is made. Leaves: guards in a
`World` and the hooks that the call runs, or `Unreplayable`. It must not know what a call of a
module runs besides.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tzero.reading.findings import Unreplayable
from tzero.reading.guards import Check, Items, Same
from tzero.reading.world import World

__all__ = ["Hooks"]

_FOLLOWED = ("_forward_pre_hooks", "_forward_hooks")
_OF_FOLLOWED = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs")
"""Which of the hooks are given keywords."""

_NEVER = ("_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks")
"""Hooks with which a module is not replayed: they run around what is seen of a call."""

_OF_ALL = (
    *("_global_forward_hooks", "_global_forward_pre_hooks"),
    *("_global_backward_hooks", "_global_backward_pre_hooks"),
)
_ON_REGISTRATION = (
    *("_global_buffer_registration_hooks", "_global_module_registration_hooks"),
    "_global_parameter_registration_hooks",
)


class Hooks:
    """The hooks that modules have in one call. A module may lose those that prevent a replay, so a
    refusal for them passes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._guarded: set[tuple[int, str]] = set()  # dicts, and the first name in them

    def on(self, module: torch.nn.Module) -> list[Any]:
        """The hooks that a module runs which is about to be called. One that was made in this call
        needs no guard."""
        own, named = vars(module), self._world.name(module)
        of_all = vars(torch.nn.modules.module)
        self._refuse(own, _NEVER, f"{named} has hooks")
        self._refuse(of_all, _OF_ALL, f"{named} has hooks, as all modules have")
        followed = [each for name in _FOLLOWED for each in own.get(name, {}).values()]
        if self._world.has(module):
            self._guard(f"the hooks on {named}", own, (*_FOLLOWED, *_NEVER))
            if followed:
                self._guard(f"the hooks on {named}", own, _OF_FOLLOWED)
        self._guard("no hooks on all modules", of_all, _OF_ALL)
        return followed

    def none_on_what_registers(self) -> None:
        """A module is about to be made: it registers what it holds."""
        of_all, words = vars(torch.nn.modules.module), "hooks on what modules register"
        self._refuse(of_all, _ON_REGISTRATION, f"there are {words}")
        self._guard(f"no {words}", of_all, _ON_REGISTRATION)

    def _refuse(self, own: dict[str, Any], names: Sequence[str], words: str) -> None:
        if any(own.get(name) for name in names):
            raise Unreplayable(words, "", 0, passes=True)

    def _guard(self, text: str, own: dict[str, Any], names: Sequence[str]) -> None:
        """Guard what is in dicts of hooks."""
        if (id(own), names[0]) in self._guarded:
            return
        self._guarded.add((id(own), names[0]))
        for name in names:
            self._guard_one(f"{text} ({name})", own, name)

    def _guard_one(self, text: str, own: dict[str, Any], name: str) -> None:
        if name not in own:
            self._world.absent(text, own, name)
            return
        hooks = own[name]
        self._world.add(Same(text, own, name, hooks))
        if hooks:
            self._world.enter(hooks, text)
            self._world.contents(hooks)
        elif type(hooks) in (dict, collections.OrderedDict):
            self._world.add(Items.of(f"{text} is empty", hooks))
        else:
            empty: Callable[[Any], bool] = lambda now: not now  # noqa: E731
            self._world.add(Check(f"{text} is empty", {"of": hooks}, "of", hooks, empty))
