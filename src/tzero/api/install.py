"""`tzero.install`: tzero launches the Triton kernels of a whole program, and its Helion kernels.

    install() ── every kernel of Triton's, made before or after ──► native launches, with guards
              └─ Helion, once it is imported ──► `tzero.helion.install`

Enters: names of packages, or nothing for all. Leaves: launches by tzero, and an `Installed` that
says how launches were made. It must not know how a launch is made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rich.table import Table
from rich.text import Text

from tzero import events, locks
from tzero.errors import InvalidArgument, NativeMissing, UnsupportedVersion
from tzero.launches.graphs import Run
from tzero.launches.tiers import tier
from tzero.shown import counted, drawn, first_line, in_cells

__all__ = ["Installed", "KernelLaunches", "install", "installed", "uninstall"]

_change = locks.lock()  # protects what follows
_packages: tuple[str, ...] | None = None  # None: not installed; empty: all
_has_helion = False  # whether `install` has installed the integration


def install(*packages: str) -> None:
    """Launch every Triton kernel of this process with tzero from now on, with every guard.

    ::

        import tzero
        tzero.install()                       # all kernels, made before or after
        tzero.install("fla", "liger_kernel")  # those of these packages

    Nothing in the program changes: kernels, autotuners and heuristics stay Triton's objects, and
    their caches, hooks and flags mean what they mean. Launches that native code cannot make are
    left to Triton, with an event that has the reason. Helion kernels are called through tzero too,
    unless packages are named and ``helion`` is not one of them. A second call replaces the choice
    of packages. `uninstall` undoes it.
    """
    global _packages
    for each in packages:
        if not _can_be_imported(each):
            raise InvalidArgument(
                kernel="tzero.install",
                problem=f"there is no package {each!r}",
                advice="Give the names of packages that can be imported, or none for all.",
            )
    why = _obstacle()
    if why:
        events.emit(events.Event("fallback", "tzero.install", f"Triton launches: {why}"))
        return
    from tzero import _native
    from tzero.launches import beside, traced

    traced.begin()
    with _change:
        _packages = packages
        beside.everywhere(_native, _chooses(packages))
        if not packages or "helion" in packages:
            _begin_helion()
        else:
            _end_helion()


def uninstall() -> None:
    """Undo `install`: Triton launches again, also in threads that are launching now.

    ::

        tzero.uninstall()
    """
    global _packages
    with _change:
        if _packages is None:
            return
        from tzero import _native
        from tzero.launches import beside

        _packages = None
        beside.nowhere(_native)
        _end_helion()


@dataclass(frozen=True, slots=True)
class KernelLaunches:
    """How one kernel was launched.

    >>> KernelLaunches("fla.ops.gla", "chunk", 10, 9, 1.5, {"a launch hook is attached": 1}).native
    9
    """

    module: str
    kernel: str
    launches: int
    native: int
    microseconds: float | None
    """What a launch takes, as the mean of one in 32."""
    reasons: dict[str, int]
    """Why Triton made the others, and how often."""
    trials: int = 0
    """Launches by an autotuner that was timing its configs; they are not among the others."""
    runs: tuple[Run, ...] = ()
    """One launch of each binary on CUDA, and the CUDA graph that it became."""


@dataclass(frozen=True, slots=True)
class Installed:
    """How the kernels of a program were launched since `install`; printed as a table.

    >>> print(Installed(None, ()))
    tzero is not installed: call tzero.install()
    """

    packages: tuple[str, ...] | None
    """The packages that were named, empty for all; None if tzero is not installed."""
    kernels: tuple[KernelLaunches, ...]

    @property
    def launches(self) -> int:
        """How many launches there were."""
        return sum(each.launches for each in self.kernels)

    @property
    def native(self) -> int:
        """How many of them were native."""
        return sum(each.native for each in self.kernels)

    @property
    def trials(self) -> int:
        """How many launches autotuners made besides, to time configs."""
        return sum(each.trials for each in self.kernels)

    def __str__(self) -> str:
        if self.packages is None and not self.kernels:
            return "tzero is not installed: call tzero.install()"
        tried = ("trials",) if self.trials else ()
        table = Table("kernel", "launches", *tried, "native", "µs", "why not native", box=None)
        for each in sorted(self.kernels, key=lambda each: -each.launches):
            reasons = "; ".join(f"{why} ({count})" for why, count in each.reasons.items())
            mean = "" if each.microseconds is None else f"{each.microseconds:.1f}"
            name = Text(f"{each.module}.{each.kernel}", overflow="fold")
            counts = [each.launches, *([each.trials] if tried else []), each.native]
            table.add_row(name, *(f"{count:,}" for count in counts), mean, Text(reasons))
        # Rounded down: "100%" says that there is nothing to look for.
        share = f"{100 * self.native // self.launches}%" if self.launches else "none"
        launches = counted(self.launches, "launch", "launches")
        kernels = counted(len(self.kernels), "kernel", "kernels")
        whole = f"{launches} of {kernels}, {share} native"
        if self.trials:
            whole += f", and {counted(self.trials, 'trial', 'trials')} by autotuners"
        graphs = [
            f"{each.module}.{each.kernel}: {run}"
            for each in self.kernels
            for run in each.runs
            if not run.waits
        ]
        return "\n".join([whole, *([drawn(table, 100)] if self.kernels else []), *graphs])

    __repr__ = first_line
    _repr_pretty_ = in_cells


def installed() -> Installed:
    """How kernels were launched since `install`: launches, how many were native, microseconds, and
    the reasons of the rest.

    ::

        print(tzero.installed())
        # 1,204 launches of 3 kernels, 99% native, and 4,410 trials by autotuners
        # ...
    """
    if tier() < 2:
        return Installed(_packages, ())
    from tzero.launches import counted

    found = [_described(each) for each in counted.launched() if each.launches or each.trials]
    return Installed(_packages, tuple(found))


def _described(found: Any) -> KernelLaunches:
    reasons = {why or "a hook, an observer or an error": n for why, n in found.left.items()}
    if found.missed:
        reasons = {"the first launch with a binary": found.missed, **reasons}
    return KernelLaunches(
        found.module,
        found.name,
        found.launches,
        found.native,
        found.microseconds,
        reasons,
        found.trials,
        found.runs,
    )


def _can_be_imported(package: Any) -> bool:
    """Whether there is a package or module of this name. None is imported to find that out."""
    if not isinstance(package, str) or not all(package.split(".")):
        return False
    if package in sys.modules:
        return True
    places: Sequence[str] | None = None
    whole = ""
    for part in package.split("."):
        whole = f"{whole}.{part}" if whole else part
        spec = PathFinder.find_spec(whole, places) if whole != part else find_spec(part)
        if spec is None:
            return False
        places = spec.submodule_search_locations or []
    return True


def _obstacle() -> str:
    """Why native code cannot launch; empty if it can."""
    chosen = tier()
    if chosen == 0:
        return "tzero is disabled, or at tier 0"
    return str(NativeMissing()) if chosen == 1 else ""


def _chooses(packages: tuple[str, ...]) -> Any:
    """Whether a kernel belongs to one of these packages, or any kernel if there are none."""
    below = tuple(f"{each}." for each in packages)

    def chooses(kernel: Any) -> bool:
        module = kernel.__module__ or ""
        return not packages or module in packages or module.startswith(below)

    return chooses


# -- Helion ----------------------------------------------------------------------------------------


def _begin_helion() -> None:
    """Install the integration, now or when Helion is imported."""
    global _has_helion
    if "helion" not in sys.modules:
        if _watch not in sys.meta_path:
            sys.meta_path.insert(0, _watch)
        return
    from tzero.integrations import helion

    if helion.installed():
        return
    try:
        helion.install()
        _has_helion = True
    except UnsupportedVersion as error:
        events.emit(events.Event("fallback", "helion", f"Helion makes its calls: {error}"))


def _end_helion() -> None:
    global _has_helion
    if _watch in sys.meta_path:
        sys.meta_path.remove(_watch)
    if _has_helion:
        from tzero.integrations import helion

        helion.uninstall()
        _has_helion = False


class _Watch(MetaPathFinder):
    """Finds Helion as it would be found, and installs the integration once it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "helion":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loading(spec.loader)
        return spec


class _Loading(Loader):
    """Loads a module with its own loader, and then installs."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        with _change:
            if _packages is not None and (not _packages or "helion" in _packages):
                _begin_helion()


_watch = _Watch()
