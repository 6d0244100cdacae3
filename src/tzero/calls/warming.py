"""`warmup`: everything that the first calls would do, done before them.

::

    arguments, Specs, Ranges ── classes ──► one call each ── compiled in parallel
                                                         └── called, until nothing is left to do

Enters: kernels, and the arguments of calls. Leaves: configs chosen, plans recorded, binaries
compiled and loaded, and a `Warmed` for each kernel. It must not know how any of that is done: it
makes calls.

Calls are made on copies of the arguments, and on new tensors in place of `Spec`s: floats are random
and integers are zero. A class whose tensors would take too much memory is compiled only.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tzero import compile as compiling
from tzero.adapters import triton_launch
from tzero.adapters.torch_internals import tree_leaves, tree_map
from tzero.arguments.extract import unwrapped
from tzero.backends import triton as backend
from tzero.calls.coverage import Coverage
from tzero.errors import InvalidArgument
from tzero.events import one_line
from tzero.launches.ahead import Precompiled, Spec, precompile_host
from tzero.launches.current_call import current
from tzero.launches.python import PythonJit
from tzero.launches.ranges import classes, launch_classes
from tzero.shown import in_cells
from tzero.tune.by_size import NotResizable, check_memory
from tzero.tune.copying import copies
from tzero.tune.shipping import use

if TYPE_CHECKING:
    from tzero.calls.kernel import Kernel

__all__ = ["Warmable", "Warmed", "warmup"]

PASSES = 4
"""How often all classes are called, at most. Once nothing is left to do, it ends."""

AHEAD = 64
"""How many classes are compiled in parallel before they are called."""

COMBINED = 16
"""Up to how many combinations of addresses each class is called with, if tensors are not aligned.
Of more, it is called with those in which all are alike."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """What was warmed up for one kernel.

    >>> print(Warmed("add", classes=3, compiled=2, recorded=1, seconds=0.5))
    add: 3 classes, 2 compiles, 1 recording in 0.5 s
    """

    kernel: str
    classes: int
    compiled: int
    recorded: int
    seconds: float
    left: dict[str, str] = field(default_factory=dict)
    """Classes that were compiled and not called, with the reason."""

    _repr_pretty_ = in_cells

    def __str__(self) -> str:
        counts = ((self.classes, "class", "es"), (self.compiled, "compile", "s"))
        words = [f"{n} {one}{more if n != 1 else ''}" for n, one, more in counts]
        words.append(f"{self.recorded} recording{'s' if self.recorded != 1 else ''}")
        left = "".join(f"\n  only compiled: {each}: {why}" for each, why in self.left.items())
        return f"{self.kernel}: {', '.join(words)} in {self.seconds:.1f} s{left}"


class Warmable:
    """The method `warmup` of kernels."""

    def warmup(self, /, *args: Any, **kwargs: Any) -> Warmed:
        """Compile, tune and record what calls with these arguments need, so that the first of them
        has nothing left to do. Tensors may be given as `tzero.Spec`s, and sizes and integers as
        `tzero.Range`s, which stand for every class in them.

        ::

            add.warmup(tzero.Spec((tzero.Range(1, 4096), 256)), 2.0)

        Arguments are not changed: calls are made on copies of them. Other side effects of the host
        function happen.
        """
        return warmup([(self, *args, dict(kwargs))])[0]


def warmup(items: Iterable[tuple[Any, ...]] | str | os.PathLike[str]) -> tuple[Warmed, ...]:
    """Warm up several kernels, with a progress bar on a terminal. An item is a kernel and the
    arguments of a call; a dict as the last one holds keyword arguments. For a kernel of `tzero.jit`
    they are those of a launch, which is compiled and loaded, but not made.

    ::

        tzero.warmup([
            (softmax, tzero.Spec((tzero.Range(1, 4096), 256))),
            (add_kernel, x, y, out, tzero.Range(1, 4096), {"grid": (4,), "BLOCK": 1024}),
        ])

    Given the path of a file that `tzero.coverage().save` wrote, it compiles what is covered there
    for this device, and uses its configs. Before anything is compiled, it raises `InvalidArgument`
    if ranges mean more than 1,024 classes.
    """
    if isinstance(items, (str, os.PathLike)):
        return (_from_coverage(os.fspath(items)),)
    planned = [_planned(*item) for item in _checked(items)]
    current.is_asked, outer = True, current.is_asked
    try:
        with _bar(sum(len(each) for _, each in planned)) as advance:
            return tuple(_warmed(kernel, each, advance) for kernel, each in planned)
    finally:
        current.is_asked = outer


def _checked(items: Any) -> list[tuple[Any, ...]]:
    """The items, each of which has a kernel, and tensors that this machine can make."""
    listed = list(items) if isinstance(items, Iterable) else [items]
    for item in listed:
        if not isinstance(item, (tuple, list)) or not item:
            raise InvalidArgument(
                kernel="tzero.warmup",
                problem=f"it was given the item {one_line(repr(item))[:80]}",
                advice="Give tuples of a kernel and the arguments of a call, in a list: "
                "[(kernel, x, y)].",
            )
    for place in {each.place for each in tree_leaves(listed) if isinstance(each, Spec)}:
        try:
            torch.empty(0, device=place)
        except (AssertionError, RuntimeError) as error:  # as torch has it for each kind of device
            raise InvalidArgument(
                kernel="tzero.warmup",
                problem=f"a Spec is on {place}, where no tensor can be made here "
                f"({one_line(str(error))})",
                advice="Give the device that calls have here, or none.",
            ) from error
    return listed


def _planned(kernel: Any, *given: Any) -> tuple[Any, list[Any]]:
    """A kernel, and what it is called with for each class: arguments in order, or for a launch also
    those by name."""
    named = given[-1] if given and isinstance(given[-1], dict) else {}
    args = given[:-1] if given and isinstance(given[-1], dict) else given
    if isinstance(kernel, triton_launch.JITFunction):
        if not isinstance(kernel, PythonJit):
            raise InvalidArgument(
                kernel=kernel.__name__,
                problem="warmup was given a kernel of Triton's",
                advice="Put @tzero.jit on it, or give the @tzero.kernel that launches it.",
            )
        launched = {name: value for name, value in named.items() if name != "grid"}
        return kernel, launch_classes(kernel, args, launched)
    if not isinstance(kernel, Warmable):
        raise InvalidArgument(
            kernel=getattr(kernel, "__name__", repr(kernel)),
            problem="warmup was given it, and it is not a kernel of tzero",
            advice="Put @tzero.kernel or @tzero.jit on it.",
        )
    host: Any = kernel
    normal = unwrapped(host.ordered(args, named))
    return kernel, classes(host.name, normal, exact=_is_exact(host))


def _is_exact(kernel: Kernel[..., Any]) -> bool:
    """Whether each size has plans of its own."""
    tuned_alone = kernel.has_choice and kernel.options.static_shapes
    return tuned_alone or bool(kernel.planner is not None and kernel.planner.varied.why_not)


def _warmed(kernel: Any, each: list[Any], advance: Any) -> Warmed:
    start, before = time.perf_counter(), _compiles()
    if isinstance(kernel, PythonJit):
        for one in each:
            kernel.warm(one, (1,))  # nothing that is compiled depends on the grid
            advance(kernel.__name__, 1)
        seconds = time.perf_counter() - start
        return Warmed(kernel.__name__, len(each), _compiles() - before, 0, seconds)
    recorded = _recorded(kernel)
    has_device = torch.cuda.is_available()
    left, last = _make_calls(kernel, each, advance)
    if has_device:
        torch.cuda.synchronize()
    counts = len(each), _compiles() - before, _recorded(kernel) - recorded
    made = Warmed(kernel.name, *counts, time.perf_counter() - start, left)
    if last is not None:  # a call comes last, so that what it reads is in the processor's caches
        _call(kernel, last, _offsets(last)[-1])
        if has_device:
            torch.cuda.synchronize()
    return made


def _compiles() -> int:
    return sum(compiling.service().stats().compiled.values())


# -- host functions --------------------------------------------------------------------------------


def _make_calls(
    kernel: Kernel[..., Any], each: list[Any], advance: Any
) -> tuple[dict[str, str], Any]:
    """Call all classes until nothing is left to do; returns those that were only compiled, and the
    last one that was called."""
    reasons = [_too_large(args) for args in each]
    large = [args for args, why in zip(each, reasons, strict=True) if why]
    small = [args for args, why in zip(each, reasons, strict=True) if not why]
    if small:
        _call(
            kernel, small[0], _offsets(small[0])[0]
        )  # often all have the same binary: then no worker is started
    if not kernel.has_choice:  # else a search compiles its configs in parallel
        _compile_ahead(kernel, small[1:AHEAD])
    for args in large:
        given, by_name = kernel.ordered.spread(args)
        kernel.precompile(*given, **by_name).wait()
        advance(kernel.name, 1)
    for number in range(PASSES):
        before = _progress_of(kernel)
        for args in small:
            for offsets in _offsets(args):
                _call(kernel, args, offsets)
            if number == 0:
                advance(kernel.name, 1)
        if _progress_of(kernel) == before:
            break
    named = [", ".join(map(_worded, args)) for args in large]
    left = dict(zip(named, filter(None, reasons), strict=True))
    return left, small[-1] if small else None


def _progress_of(kernel: Kernel[..., Any]) -> tuple[int, ...]:
    """Changes when a call has done something that later calls need not do."""
    return kernel.stats().misses, _recorded(kernel), compiling.service().stats().requests


def _recorded(kernel: Kernel[..., Any]) -> int:
    return 0 if kernel.planner is None else kernel.planner.recorded


def _offsets(args: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """The offsets of all `Spec`s of a call: plans are for addresses modulo 16."""
    every = [each.offsets for each in tree_leaves(args) if isinstance(each, Spec)]
    if math.prod(map(len, every)) <= COMBINED:
        return list(itertools.product(*every))
    most = max(map(len, every))
    return [tuple(each[k % len(each)] for each in every) for k in range(most)]


def _call(kernel: Kernel[..., Any], args: tuple[Any, ...], offsets: tuple[int, ...]) -> None:
    """Make a call twice: native code gets the plan in the second one."""
    made = _made(args, offsets)
    given, named = kernel.ordered.spread(made)
    try:
        for _ in range(2):
            kernel(*given, **named)
    except Exception as error:
        error.add_note(f"while warmup called {kernel.name}({', '.join(map(_worded, args))})")
        raise


def _compile_ahead(kernel: Kernel[..., Any], each: list[Any]) -> None:
    """Compile in parallel what calls launch. The host function runs without launching anything, on
    tensors of its own: fake ones would need an import of torch._dynamo."""
    ahead = Precompiled()
    called = kernel.host.configured(kernel.function, kernel.host.config)
    current.is_trial, outer = True, current.is_trial
    try:
        for args in each:
            made = _made(args, _offsets(args)[0])
            with suppress(InvalidArgument):  # it reads values; its calls compile
                precompile_host(kernel.name, called, made, ahead, spoiling=True)
    finally:
        current.is_trial = outer
    ahead.wait()


def _made(args: tuple[Any, ...], offsets: Iterable[int]) -> tuple[Any, ...]:
    """Copies of arguments, and tensors for `Spec`s."""
    left = iter(offsets)
    made: tuple[Any, ...] = copies(tree_map(lambda each: _real(each, left), args))
    return made


def _real(value: Any, offsets: Iterator[int]) -> Any:
    """A tensor for a `Spec`, with the next of the offsets; anything else as it is."""
    if not isinstance(value, Spec):
        return value
    made = value.tensor(next(offsets))
    # Elements may overlap, and torch does not fill overlapping views: fill the memory instead.
    memory = torch.empty(0, dtype=made.dtype, device=made.device).set_(made.untyped_storage())
    filled = made.dtype.is_floating_point and made.dtype.itemsize > 1
    memory.normal_() if filled else memory.zero_()
    return made


def _too_large(args: tuple[Any, ...]) -> str:
    """Why there are no tensors for a call; usually empty."""
    needed: dict[torch.device, int] = {}
    for spec in tree_leaves(args):
        if isinstance(spec, Spec):
            size = spec.dtype.itemsize
            for n in spec.shape:
                size *= n
            needed[spec.place] = needed.get(spec.place, 0) + size
    try:
        for device, size in needed.items():
            check_memory(device, size, ", ".join(map(_worded, args)))
    except NotResizable as error:
        return str(error)
    return ""


def _worded(value: Any) -> str:
    if isinstance(value, (Spec, torch.Tensor)):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return one_line(repr(value))[:80]


# -- coverage files --------------------------------------------------------------------------------


def _from_coverage(path: str) -> Warmed:
    start, before = time.perf_counter(), _compiles()
    found = Coverage.read(path)
    target = triton_launch.driver.active.get_current_target()
    futures: dict[str, Future[Any]] = {}
    left: dict[str, str] = {}
    for number, each in enumerate(found.kernels, 1):
        name = f"{each.name} ({number})"
        made = backend.retargeted(each, target)
        if isinstance(made, backend.NotTransportable):
            left[name] = made.reason
        else:
            futures[name] = backend.submit(made)
    compiling.service().wait(futures)
    if found.configs:
        use(found.configs, path)
    seconds = time.perf_counter() - start
    return Warmed(path, len(futures), _compiles() - before, 0, seconds, left)


# -- progress --------------------------------------------------------------------------------------


@contextmanager
def _bar(total: int) -> Iterator[Any]:
    """A progress bar on a terminal: what is warmed up, how many classes, and the time left."""
    isatty = getattr(sys.stderr, "isatty", None)
    if isatty is None or getattr(sys.stderr, "closed", False) or not isatty():
        yield lambda name, count: None
        return
    rich = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(file=sys.stderr)
    text = rich.TextColumn("warming up {task.description}", markup=False)
    columns = [text, rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn()]
    # No thread redraws it, because that would disturb what is being timed.
    with rich.Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total)

        def advance(name: str, count: int) -> None:
            bar.update(task, advance=count, description=one_line(name), refresh=True)

        yield advance
