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
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from tzero import settings
from tzero.adapters import triton_entries, triton_launch
from tzero.events import Event, emit
from tzero.fallbacks import Fallbacks
from tzero.launches import graphs
from tzero.launches.counted import Counting, forget_gone
from tzero.launches.native import NotNative, alone, described, parameter_of
from tzero.launches.python import finish

__all__ = ["everywhere", "in_fallbacks", "nowhere", "with_native_run"]

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
    if _chooses is None:
        forget_gone()
    _chooses = chooses
    run.choice = next(_numbers)
    triton_entries.replace({"run": run, **_around(native), **_compiled(native)})
    triton_entries.around_trials(functools.partial(_counted_apart, run))


def nowhere(native: ModuleType) -> None:
    """Undo `everywhere`; launches in fallbacks stay native."""
    global _chooses
    run = _run(native)
    run.choice, _chooses = 0, None
    triton_entries.replace({"run": run} if _fall_back else {})
    triton_entries.around_trials(None)


def _counted_apart(run: Any, tuner: Any, trial: triton_entries.Trial) -> Any:
    """Make a trial of an autotuner, and count its launches apart from those of the program."""
    kernel = tuner
    while not isinstance(kernel, triton_launch.JITFunction) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    if not isinstance(kernel, triton_launch.JITFunction):
        return trial()
    counts = run.beside_of(kernel)
    before = counts.tally()
    try:
        return trial()
    finally:
        counts.were_trials(counts.tally() - before)


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

    class Beside(Counting, native.Launchable):  # type: ignore[name-defined, misc]
        """Launches one of Triton's kernels. Native code calls methods with an underscore."""

        def __init__(self, kernel: Any, why_not: str) -> None:
            self.kernel, self.why_not = kernel, why_not
            self.fallbacks = Fallbacks(kernel.__name__)
            self.shape = triton_launch.parameters(kernel)
            if not why_not:
                shape = tuple(map(parameter_of, self.shape))
                self._prepare(shape, settings.current().max_specializations)
            self.count()

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

        def _described_runs(self) -> tuple[graphs.Run, ...]:
            return graphs.runs(native, self._runs())

        # A copy of Triton's kernel has attributes of its own, and gets another one of these.

        def __deepcopy__(self, memo: dict[int, Any]) -> Beside:
            return self

        def __reduce__(self) -> Any:
            return type(None), ()

    return Beside
