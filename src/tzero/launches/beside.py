"""Native launches of Triton's own kernels.

    kernel[grid](...) ─► `JITFunction.run` ── in a fallback, or chosen ──► native launch, guarded
                                           └ else, or a guard fails ──► Triton's own `run`
    compiled[grid](...)  ── made from a chosen kernel ──► the same, by Triton's own otherwise

Enters: a kernel that `triton.jit` made, at its first launch, and which kernels are chosen. Leaves:
a `Launchable` beside it, in the kernel's dict, which has the keys and binaries of its launches.
Hooks, caches and flags stay Triton's, on Triton's kernel: native code reads them there. It must not
know host functions, nor who chooses.

`in_fallbacks` puts a native object in the place of `JITFunction.run`, when the first host function
falls back for good. `everywhere` does so too, and for what Triton puts around kernels; the launches
of chosen kernels are native then, wherever they are made.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from tzero import locks, settings
from tzero.adapters import triton_entries, triton_launch
from tzero.events import Event, emit
from tzero.fallbacks import Fallbacks
from tzero.launches.native import NotNative, alone, described, parameter_of
from tzero.launches.python import finish

__all__ = ["Launches", "everywhere", "in_fallbacks", "launched", "nowhere", "with_native_run"]

Chooses = Callable[[Any], bool]


_numbers = itertools.count(1)
_fall_back = False  # whether `in_fallbacks` was called
_chooses: Chooses | None = None  # the choice in force; its number is `Run.choice`


def in_fallbacks(native: ModuleType) -> None:
    """Launch Triton's own kernels natively in fallbacks, from now on.

    ::

        in_fallbacks(tzero._native)
    """
    global _fall_back
    _fall_back = True
    before = triton_entries.replaced()
    if "run" not in before:
        triton_entries.replace({**before, "run": _run(native)})


def everywhere(native: ModuleType, chooses: Chooses) -> None:
    """Launch those of Triton's own kernels natively that a function chooses, from now on.

    ::

        everywhere(tzero._native, lambda kernel: kernel.__module__ == "fla")
    """
    global _chooses
    run = _run(native)
    _chooses = chooses
    run.choice = next(_numbers)
    triton_entries.replace({"run": run, **_around(native), **_compiled(native)})


def nowhere(native: ModuleType) -> None:
    """Undo `everywhere`; launches in fallbacks stay native."""
    global _chooses
    run = _run(native)
    run.choice, _chooses = 0, None
    triton_entries.replace({"run": run} if _fall_back else {})


@dataclass(frozen=True, slots=True)
class Launches:
    """How one of Triton's kernels was launched: natively, or by Triton, with the reason of each; or
    how those kernels of one name were that are gone by now."""

    kernel: Any
    """None for those that are gone."""
    module: str
    name: str
    launches: int
    missed: int
    """Launches that compiled, or looked for, another binary: Triton makes these."""
    left: Mapping[str, int]
    """Other launches that Triton made, by reason."""
    timed: int
    """How many of them were timed: one of 32."""
    nanoseconds: int

    @property
    def microseconds(self) -> float | None:
        """The mean of those launches that were timed."""
        return self.nanoseconds / self.timed / 1e3 if self.timed else None

    @property
    def native(self) -> int:
        """How many launches were native."""
        return self.launches - self.missed - sum(self.left.values())


def launched() -> list[Launches]:
    """The kernels that were launched since they were first chosen."""
    kept = list(_all)  # until the end, so that none is counted twice
    with _gone_lock:
        _add_up()
        return [*(each.counted() for each in kept), *_gone.values()]


_all: weakref.WeakSet[Any] = weakref.WeakSet()
_ended: deque[Launches] = deque()  # of kernels that are gone, and not in `_gone` yet
_gone: dict[tuple[str, str], Launches] = {}  # by module and name
_gone_lock = locks.lock()  # protects `_gone`


def _keep(ended: Launches) -> None:
    """Keep the counts of a kernel that is about to go. That happens anywhere, also where this
    thread holds the lock."""
    if ended.launches:
        _ended.append(replace(ended, kernel=None))
    if not locks.owned(_gone_lock) and _gone_lock.acquire(blocking=False):
        try:
            _add_up()
        finally:
            _gone_lock.release()


def _add_up() -> None:
    """Add the counts of kernels that are gone, name by name; the caller holds the lock."""
    while _ended:
        new = _ended.popleft()
        known = _gone.get((new.module, new.name))
        _gone[new.module, new.name] = new if known is None else _sum(known, new)


def _counted(kernel: Any, why_not: str, counts: Any) -> Launches:
    launches, missed, left, *timed = counts
    left = {why_not: launches} if why_not else left
    return Launches(
        kernel, kernel.__module__ or "", kernel.__name__, launches, missed, left, *timed
    )


def _sum(one: Launches, other: Launches) -> Launches:
    numbers = {
        name: getattr(one, name) + getattr(other, name)
        for name in ("launches", "missed", "timed", "nanoseconds")
    }
    left = {
        why: one.left.get(why, 0) + other.left.get(why, 0) for why in {**one.left, **other.left}
    }
    return replace(one, left=left, **numbers)


@functools.cache
def with_native_run(kind: Any) -> type:
    """A subclass of a class of autotuners or heuristics whose launches are native, unless the class
    has a `run` of its own."""
    from tzero import _native

    around = _around(_native)
    names = {"__module__": kind.__module__, "__getitem__": around["subscript"]}
    if triton_entries.is_entry(kind.run):
        for key in around.keys() & {"tuned", "heuristics"}:
            if issubclass(kind, triton_entries.ENTRIES[key][0]):
                names["run"] = around[key]
    return type(kind.__name__, (kind,), names)


@functools.cache
def _around(native: ModuleType) -> dict[str, Any]:
    """What stands in for the functions of Triton's autotuners, heuristics and subscripts."""
    kinds = {key: kind for key, (kind, _) in triton_entries.ENTRIES.items()}
    made = {
        key: native.Wrapper(key, triton_entries.plain[key], kinds[key])
        for key in ("subscript", "heuristics")
    }
    if triton_entries.configs_are_known():
        made["tuned"] = native.Wrapper(
            *("tuned", triton_entries.plain["tuned"], kinds["tuned"]),
            config=triton_entries.Config,
            all_kwargs=triton_entries.all_kwargs,
            fields=triton_entries.OPTIONS,
            launch=triton_entries.launch_with,
        )
    triton_entries.know(made.values())
    return made


@functools.cache
def _compiled(native: ModuleType) -> dict[str, Any]:
    """What stands in for ``compiled[grid]`` of compiled kernels."""
    if not triton_entries.compiled_is_known():
        reason = "Triton launches: this Triton launches compiled kernels in another way"
        emit(Event("fallback", "compiled kernels", reason))
        return {}
    run = _run(native)

    def bind(kernel: Any) -> Any:
        """How native code launches a compiled kernel that is loaded."""
        made_from = getattr(kernel.src, "fn", None)
        said: Any
        if not isinstance(made_from, triton_launch.JITFunction):
            counts, said = None, "it was compiled from no function of triton.jit"
            Fallbacks(kernel.name).lasting(f"Triton launches: {said}")
        else:
            counts = run.beside_of(made_from)
            try:
                said = counts.why_not or alone(native, kernel)
            except NotNative as reason:
                said = str(reason)
        return native.Bound(kernel, counts, said, **triton_entries.READ_BY_COMPILED)

    plain, kind = triton_entries.plain["compiled"], triton_entries.CompiledKernel
    return {"compiled": native.Wrapper("compiled", plain, kind, bind=bind)}


@functools.cache
def _run(native: ModuleType) -> Any:
    """What stands in for `JITFunction.run`."""
    kind, most = _class(native), native.MOST_PARAMETERS

    def beside(kernel: Any) -> Any:
        why_not = triton_launch.unsupported(kernel, in_python=False)
        count = len(kernel.params)
        if not why_not and count > most:
            why_not = f"it has {count} parameters, more than {most}"
        return kind(kernel, why_not)

    return native.Run(triton_launch.plain_run, triton_launch.JITFunction, beside)


def _class(native: ModuleType) -> Any:
    """The class of what stands beside a kernel."""

    class Beside(native.Launchable):  # type: ignore[name-defined, misc]
        """Launches one of Triton's kernels. Native code calls methods with an underscore."""

        def __init__(self, kernel: Any, why_not: str) -> None:
            self.kernel, self.why_not = kernel, why_not
            self.fallbacks = Fallbacks(kernel.__name__)
            self.shape = triton_launch.parameters(kernel)
            if not why_not:
                shape = tuple(map(parameter_of, self.shape))
                self._prepare(shape, settings.current().max_specializations)
            _all.add(self)

        def _chosen(self) -> bool:
            """Whether launches outside of fallbacks are native."""
            chooses = _chooses
            is_chosen = chooses is not None and chooses(self.kernel)
            if is_chosen and self.why_not:
                self._left(self.why_not)
            return is_chosen

        def _left(self, reason: str) -> None:
            """Report why launches are left to Triton."""
            self.fallbacks.lasting(f"Triton launches: {reason}")

        def _launched(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            """Let Triton launch. Returns the compiled kernel and its description, why native code
            cannot launch it, or None if Triton does not keep it."""
            made = triton_launch.plain_run(self.kernel, *args, grid=grid, warmup=False, **kwargs)
            try:
                if made is None:
                    return None, None
                return made, described(native, self.kernel, made, self.shape, takes_nested=True)
            except NotNative as reason:
                return made, str(reason)

        def _finish(self, kernel: Any, grid: Any, values: tuple[Any, ...], stream: int) -> Any:
            """Finish a launch in Python after native code has called the grid function."""
            finish(self.kernel, kernel, grid, values, stream)
            return kernel

        def counted(self) -> Launches:
            """How the kernel was launched."""
            return _counted(self.kernel, self.why_not, self._counts())

        def __del__(self) -> None:
            _keep(self.counted())

        # A copy of Triton's kernel has attributes of its own, and gets another one of these.

        def __deepcopy__(self, memo: dict[int, Any]) -> Beside:
            return self

        def __reduce__(self) -> Any:
            return type(None), ()

    return Beside
