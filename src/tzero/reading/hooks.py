"""Hooks of modules of `torch.nn`: calls of modules that have none are replayed, behind guards.

    model.layer(x)     ──► the layer has no hooks, and there are none on all modules
    nn.GELU()          ──► there are none on what modules register

Enters: a module that is about to be called, or the fact that one is made. Leaves: guards in a
`World`, or `Unreplayable`. It must not know what a call of a module runs besides.
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

_OF_A_MODULE = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_ALL = (
    *("_global_forward_hooks", "_global_forward_pre_hooks"),
    *("_global_backward_hooks", "_global_backward_pre_hooks"),
)
_ON_REGISTRATION = (
    *("_global_buffer_registration_hooks", "_global_module_registration_hooks"),
    "_global_parameter_registration_hooks",
)


class Hooks:
    """The hooks that modules have in one call: none. A module may lose its hooks, so a refusal for
    them passes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._guarded: set[tuple[int, str]] = set()  # dicts, and the first name in them

    def none_on(self, module: torch.nn.Module) -> None:
        """A module is about to be called. One that was made in this call needs no guard."""
        named, of_all = self._world.name(module), vars(torch.nn.modules.module)
        self._refuse(vars(module), _OF_A_MODULE, f"{named} has hooks")
        self._refuse(of_all, _OF_ALL, f"{named} has hooks, as all modules have")
        if self._world.has(module):
            self._guard(f"no hooks on {named}", vars(module), _OF_A_MODULE)
        self._guard("no hooks on all modules", of_all, _OF_ALL)

    def none_on_what_registers(self) -> None:
        """A module is about to be made: it registers what it holds."""
        of_all, words = vars(torch.nn.modules.module), "hooks on what modules register"
        self._refuse(of_all, _ON_REGISTRATION, f"there are {words}")
        self._guard(f"no {words}", of_all, _ON_REGISTRATION)

    def _refuse(self, own: dict[str, Any], names: Sequence[str], words: str) -> None:
        if any(own.get(name) for name in names):
            raise Unreplayable(words, "", 0, passes=True)

    def _guard(self, text: str, own: dict[str, Any], names: Sequence[str]) -> None:
        """Guard dicts of hooks, which are empty."""
        if (id(own), names[0]) in self._guarded:
            return
        self._guarded.add((id(own), names[0]))
        for name in names:
            if name not in own:
                self._world.absent(f"{text} ({name})", own, name)
                continue
            hooks = own[name]
            self._world.add(Same(f"{text} ({name})", own, name, hooks))
            if type(hooks) in (dict, collections.OrderedDict):
                self._world.add(Items.of(f"{text} ({name} is empty)", hooks))
            else:
                empty: Callable[[Any], bool] = lambda now: not now  # noqa: E731
                where = {"of": hooks}
                self._world.add(Check(f"{text} ({name} is empty)", where, "of", hooks, empty))
