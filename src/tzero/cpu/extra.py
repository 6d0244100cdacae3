"""``triton.language.extra.cpu``, which programs for other CPU backends import.

Enters: an import of that package or of its ``libdevice``. Leaves: a module with the functions of
``triton.language.extra.cuda.libdevice``, which this backend maps to C. It must not import these
before that: Triton imports the driver while it is itself being imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["Finder", "offer"]

PACKAGE = "triton.language.extra.cpu"
LIBDEVICE = f"{PACKAGE}.libdevice"
THEIRS = "triton.language.extra.cuda.libdevice"


class Finder(MetaPathFinder, Loader):
    """Finds the two modules; stands last, so that a Triton that has them keeps its own.

    >>> Finder().find_spec("triton.language.extra.cpu.libdevice", None).name
    'triton.language.extra.cpu.libdevice'
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in (PACKAGE, LIBDEVICE):
            return None
        return ModuleSpec(name, self, is_package=name == PACKAGE)

    def create_module(self, spec: ModuleSpec) -> None:
        return None  # an ordinary one

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == LIBDEVICE:
            theirs = vars(importlib.import_module(THEIRS))
            vars(module).update({name: each for name, each in theirs.items() if name[0] != "_"})


def offer() -> None:
    """Let the modules be imported from now on.

    >>> offer()
    """
    if not any(isinstance(each, Finder) for each in sys.meta_path):
        sys.meta_path.append(Finder())
