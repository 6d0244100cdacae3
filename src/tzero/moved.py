"""Old names of modules, which can still be imported, with a `DeprecationWarning`.

Enters: the import of a module under a name that it had before. Leaves: the module itself. It must
not import any module before that.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

__all__ = ["MOVED", "PUBLIC", "Finder"]

PUBLIC = {
    "helion": "integrations.helion",
    "key": "arguments.key",
    "pool": "plans.outputs",
    "ray": "integrations.ray",
}
"""Modules that are public under a shorter name; they import without a warning."""

MOVED = {
    "compile.crew": "compile.thread_pool",
    "backends.running": "backends.source_kernel",
    "backends.sources": "backends.c_source",
    "backends.triton_compat": "adapters.triton_compile",
    "backends.triton_names": "backends.triton.names",
    "backends.triton_program": "backends.triton.program",
    "bind": "calls.bound",
    "capture": "plans.capture",
    "classes": "reading.attributes",
    "comparing": "calls.compare",
    "constants": "arguments.constants",
    "decorating": "api.decorators",
    "device": "arguments.device",
    "dispatch": "calls.kernel",
    "entries": "calls.bound_table",
    "extract": "arguments.extract",
    "facts": "arguments.launch_facts",
    "host": "arguments.host",
    "inside": "launches.current_call",
    "integrations.helion_calls": "integrations.helion.calls",
    "integrations.helion_compat": "integrations.helion.compat",
    "integrations.helion_planner": "integrations.helion.planner",
    "intercept": "adapters.intercept",
    "jitting": "api.decorators",
    "launch": "launches.python",
    "leaves": "arguments.situation",
    "libraries": "reading.purity",
    "modes": "adapters.torch_modes",
    "native_launch": "launches.native",
    "native_plan": "calls.native",
    "operators": "plans.torch_ops",
    "options": "api.options",
    "passing": "reading.forwarded",
    "plan": "plans.plan",
    "planner": "plans.planner",
    "precompiling": "launches.ahead",
    "replay": "plans.wrapper",
    "reports": "calls.reports",
    "sites": "reading.bytecode",
    "sizes": "tune.by_size",
    "specializing": "calls.specialize",
    "triton_side": "adapters.triton_launch",
    "tune.memory": "tune.records",
    "tune.parcel": "tune.transfer",
    "tuning": "tune.decide",
    "variants": "api.variants",
    "words": "arguments.text",
    "world": "reading.dependencies",
}
"""Where modules are now, by the name that they had before."""


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module under its old name. It is asked last, after every other finder has failed.

    >>> import tzero.words  # doctest: +SKIP
    DeprecationWarning: tzero.words is now tzero.arguments.text
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for an old name; None for any other."""
        package, _, name = fullname.partition(".")
        if package != "tzero" or (name not in MOVED and name not in PUBLIC):
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module that is meant in the place of the new, empty one."""
        name = module.__name__.removeprefix("tzero.")
        new = f"tzero.{PUBLIC.get(name) or MOVED[name]}"
        if name in MOVED:
            warnings.warn(
                f"{module.__name__} is now {new}; the old name will go.",
                DeprecationWarning,
                stacklevel=2,  # frames of importlib do not count
            )
        sys.modules[module.__name__] = importlib.import_module(new)
