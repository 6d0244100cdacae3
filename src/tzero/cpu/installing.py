"""TZERO_INSTALL: calls `tzero.install` in a process that knows nothing of tzero.

Enters: Triton imports this package while it is itself being imported. Leaves: with the setting, at
the first use of Triton, all of its kernels are launched by tzero. It must not know how.

Triton is not whole yet when this runs, so that nothing can be installed. Until something is read of
the module ``triton`` after its import, its class is one that notices that.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from tzero import settings

__all__ = ["begin"]


def begin() -> None:
    """Install tzero once Triton is imported, if TZERO_INSTALL asks for it.

    ::

        begin()
    """
    triton = sys.modules["triton"]
    if settings.current().install and type(triton) is ModuleType:
        triton.__class__ = _Awaited


class _Awaited(ModuleType):
    """A module that is being imported, whose first use afterwards is awaited."""

    def __getattribute__(self, name: str) -> Any:
        if name[:2] != "__" and not any(map(_is_importing, ("triton", "torch"))):
            self.__class__ = ModuleType  # type: ignore[assignment]
            importlib.import_module("tzero").install()
        return ModuleType.__getattribute__(self, name)  # of a module by now, maybe


def _is_importing(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
