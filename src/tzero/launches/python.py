"""Launches of Triton kernels in Python: the same checks as in native/, which has the fast version.

    k[grid](...) ─► facts ─► spec ── found, and Triton would find it too ──► run
                              └ not found: Triton launches, and the spec is stored

Enters: a grid and the arguments of a launch. Leaves: the compiled kernel, launched. It must not
know how Triton finds or compiles a kernel; `tzero.adapters.triton_launch` does.

A spec maps facts about arguments to the binary that Triton ran for them. It is valid while all of
this holds, checked on every launch: no pre-run hook and no hook on compiler stages is set; the
knobs and the driver equal those in the key; the binary is still in Triton's cache; no global that
the kernel was compiled with has changed. Otherwise Triton makes the launch.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tzero import events, settings
from tzero.adapters import intercept, triton_launch
from tzero.adapters.torch_modes import untraced
from tzero.adapters.triton_launch import Compiled, JITFunction, driver
from tzero.arguments.launch_facts import Reader
from tzero.backends.triton import compiled
from tzero.cpu.launcher import Launcher
from tzero.cpu.pool import DONE
from tzero.fallbacks import Fallbacks
from tzero.launches import graphs

if TYPE_CHECKING:
    from tzero.launches.ahead import Precompiled
    from tzero.launches.ranges import LaunchClass

__all__ = ["Launching", "PythonJit", "finish", "over"]


_HOOKED = "a pre-run hook is attached"


class Launching:
    """A kernel with a grid, as ``k[grid]`` returns it."""

    __slots__ = ("grid", "kernel", "sizes")

    def __init__(self, kernel: PythonJit, grid: Any) -> None:
        self.kernel = kernel
        self.grid = grid
        plain = type(grid) is tuple and all(type(size) is int for size in grid)
        self.sizes = (*grid, 1, 1)[:3] if plain and grid else None

    @untraced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch, and return the compiled kernel as Triton does."""
        if intercept.anywhere and intercept.here.recorder is not None:
            return intercept.shown(
                *(self.kernel, self.grid, args, kwargs),
                lambda grid: Launching(self.kernel, grid)(*args, **kwargs),
            )
        kernel, grid, debug = self.kernel, self.grid, self.kernel.debug
        if type(kernel.pre_run_hooks) is not list or kernel.pre_run_hooks:
            return kernel.hand_to_triton(grid, args, kwargs, _HOOKED)
        knobs = triton_launch.launch_knobs()
        if knobs[0] is not None:
            return kernel.hand_to_triton(
                grid, args, kwargs, "a hook on the compiler's stages is set"
            )
        active = driver.active
        device = active.get_current_device()
        reader = kernel.readers.get(device)
        if reader is None:
            reader = kernel.reader(active, device)
        if reader.reserves and not reader.reserves.isdisjoint(kwargs):
            return kernel.plain_run(grid, args, kwargs)  # it raises
        try:
            facts, values = reader.read(*args, **kwargs)
            key = (active, device, debug, type(debug), knobs, facts)
            spec = kernel.specs.get(key)
        except Exception as error:  # Triton raises its own error for these arguments
            reason = f"the arguments cannot be read, which ends in a {type(error).__name__}"
            return kernel.hand_to_triton(grid, args, kwargs, reason)
        if spec is None or not spec.is_current(kernel, device):
            return kernel.missed(key, device, grid, args, kwargs)
        if kernel.used_global_vals and any(triton_launch.changed_globals(kernel)):
            return kernel.plain_run(grid, args, kwargs)  # it raises, by name
        sizes = self.sizes
        if sizes is None and callable(grid):
            stream = active.get_current_stream(device)
            named = reader.named(*args, **kwargs)
            # The grid function gets the arguments themselves, and may change them, or the memory of
            # a tensor. As in Triton, the launch uses what it leaves behind.
            finish(kernel, spec.kernel, grid(named), tuple(named.values()), stream)
            return spec.kernel
        if grid is None:
            return kernel.plain_run(grid, args, kwargs)  # it raises
        hooks = triton_launch.hooks()
        if sizes is None or hooks is not None or values is None or spec.direct is None:
            stream = active.get_current_stream(device)
            finish(kernel, spec.kernel, grid, tuple(reader.named(*args, **kwargs).values()), stream)
            return spec.kernel
        try:
            outcome = spec.direct(spec.handle, *sizes, values)
        except (struct.error, OverflowError):  # `finish` raises an error that names the value
            outcome = None
        if outcome != DONE:
            values = tuple(reader.named(*args, **kwargs).values())
            if outcome is not None and spec.error is not None:
                raise spec.error(outcome, sizes, values)
            finish(kernel, spec.kernel, grid, values, 0)
        elif events.watched():
            _tell(kernel, sizes)
        return spec.kernel


def _hooked(kernel: PythonJit, grid: Any) -> Callable[..., Any]:
    """What ``k[grid]`` returns for a kernel with a pre-run hook: Triton launches, by the shortest
    way."""
    run, recording = triton_launch.plain_run, intercept
    return lambda *args, **kwargs: (
        Launching(kernel, grid)(*args, **kwargs)
        if recording.anywhere
        else run(kernel, *args, grid=grid, warmup=False, **kwargs)
    )


untraced(_hooked(None, None))  # type: ignore[arg-type] # all of them have the same code


def finish(kernel: Any, compiled: Any, grid: Any, values: tuple[Any, ...], stream: Any) -> None:
    """The end of a launch, when its binary and its grid are known: hooks, and the launcher of the
    binary, which packs arguments and launch attributes (Triton's, or `tzero.cpu.launcher`)."""
    size = len(grid)
    sizes = (grid[0], grid[1] if size > 1 else 1, grid[2] if size > 2 else 1)
    enter, leave = triton_launch.hooks() or (None, None)
    metadata = None if enter is None else compiled.launch_metadata(grid, stream, *values)
    launched = (compiled.function, compiled.packed_metadata, metadata, enter, leave)
    compiled.run(*sizes, stream, *launched, *values)
    if events.watched():
        _tell(kernel, sizes)


def _tell(kernel: Any, sizes: tuple[Any, ...]) -> None:
    events.emit(events.Event("launch", kernel.__name__, facts={"grid": sizes}))


_MOST_GRIDS = 1024
"""The most `Launching`s that a kernel stores, by grid; then it drops all."""


_BESIDE = "_tzero_beside"
"""Where a kernel of Triton's holds what `tzero.launches.beside` put beside it."""


class PythonJit(JITFunction):
    """A Triton kernel that tzero launches in Python: tier 1, and what tier 2 falls back to."""

    def __init__(self, fn: Any, **options: Any) -> None:
        super().__init__(fn, **options)
        self.specs: dict[Any, Compiled] = {}
        self.readers: dict[Any, Reader] = {}
        self._grids: dict[Any, Launching] = {}
        self.fallbacks = Fallbacks(self.__name__)

    @classmethod
    def of(cls, kernel: Any) -> PythonJit:
        """A kernel from one of Triton's. Both share their hooks."""
        made = cls(kernel.fn, **triton_launch.options_of(kernel))
        if kernel.src != made.src:
            triton_launch.set_source(made, kernel.src)
        made.pre_run_hooks = kernel.pre_run_hooks
        for name, value in vars(kernel).items():
            if name != _BESIDE and not hasattr(made, name):  # set by users
                setattr(made, name, value)
        return made

    def __copy__(self) -> PythonJit:
        return type(self).of(self)

    # Models with a kernel as an attribute are copied and pickled; a kernel behaves like a function.

    def __deepcopy__(self, memo: dict[int, Any]) -> PythonJit:
        return self

    def __reduce__(self) -> str:
        name: str = self.__qualname__  # pickle raises if another object has that name
        return name

    # -- Triton's interface --------------------------------------------------------------------

    @untraced
    def __getitem__(self, grid: Any) -> Any:
        if self.pre_run_hooks and f"Triton launches: {_HOOKED}" in self.fallbacks:
            return _hooked(self, grid)
        if type(grid) is not tuple:
            return Launching(self, grid)
        try:
            found = self._grids.get(grid)
        except TypeError:  # not hashable
            return Launching(self, grid)
        # Types count too: (True,) and (1.0,) equal (1,).
        if found is not None and (found.grid is grid or all(map(_same, found.grid, grid))):
            return found
        if len(self._grids) >= _MOST_GRIDS:
            self._grids.clear()
        found = self._grids[grid] = Launching(self, grid)
        return found

    def create_binder(self) -> Any:
        """Triton's per-device state; compiling goes through the compile service."""
        made = super().create_binder()
        self.compile = compiled
        return made

    def explain(self) -> graphs.Launched:
        """How launches on CUDA are made: one by one or as CUDA graphs, and why."""
        return graphs.Launched(self.__name__, (), self.fallbacks.reasons)

    def precompile(self, /, *args: Any, **kwargs: Any) -> Precompiled:
        """Compile in the background what a launch with these arguments needs; tensors may be
        `tzero.Spec`s."""
        from tzero.launches.ahead import Precompiled, precompile_launch  # here: few programs do

        ahead = Precompiled()
        precompile_launch(self, args, kwargs, ahead)
        return ahead

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Compile and load what a launch with these arguments needs, without launching, as Triton
        does. Tensors may be `tzero.Spec`s, and integers `tzero.Range`s, which stand for every class
        in them; in the place of a compile-time constant each integer is a class. Returns the
        compiled kernel, the last one of several."""
        from tzero.launches.ranges import launch_classes

        made = None
        for each in launch_classes(self, args, kwargs):
            made = self.warm(each, grid)
        return made

    def warm(self, one: LaunchClass, grid: Any) -> Any:
        """Compile and load what one class of launches needs."""
        from tzero.launches.ahead import stand_in

        given = [stand_in(each) for each in one.args]
        by_name = {name: stand_in(each) for name, each in one.named.items()}
        try:
            made = super().warmup(*given, grid=grid, **by_name)
        except triton_launch.CompilationError as error:
            if not one.constants:
                raise
            names = (each.name for each in triton_launch.parameters(self))
            values = {**dict(zip(names, one.args, strict=False)), **one.named}
            raise one.refused(self.__name__, values, error) from error
        if type(made) is triton_launch.CompiledKernel:  # not while others compile it
            made.run  # noqa: B018 - loads it
        return made

    @untraced
    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """Triton's entry point, which autotuners and heuristics use too."""
        if warmup:
            return super().run(*args, grid=grid, warmup=warmup, **kwargs)
        return Launching(self, grid)(*args, **kwargs)

    # -- for Launching -------------------------------------------------------------------------

    def reader(self, active: Any, device: Any) -> Reader:
        """The reader of arguments for a device; it depends on the device's backend."""
        backend = triton_launch.backend_of(self.device_caches[device])
        reader = self.readers[device] = Reader(
            self.__name__,
            triton_launch.parameters(self),
            backend,
            addresses=active.launcher_cls is Launcher,
        )
        return reader

    def plain_run(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Triton's own launch."""
        return super().run(*args, grid=grid, warmup=False, **kwargs)

    def missed(
        self, key: Any, device: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """The facts are new, or Triton has dropped their binary: Triton launches, and the binary is
        stored, unless knobs, device or driver changed during the launch."""
        kernel = self.plain_run(grid, args, kwargs)
        knobs = triton_launch.launch_knobs()
        now = (driver.active, device, self.debug, type(self.debug), knobs)
        if kernel is None or not all(map(_same, now, key)):
            return kernel
        spec = triton_launch.compiled(self, kernel, device)
        if spec is not None and not self._reads_alike(spec, device):
            spec = None
        if spec is not None:
            self._make_room()
            self.specs[key] = spec
            reason = "these arguments were not launched yet"
            facts = {"kernel": self, "grid": grid, "args": args, "kwargs": kwargs}
            events.emit(events.Event("miss", self.__name__, reason, facts))
        return kernel

    def _reads_alike(self, spec: Compiled, device: Any) -> bool:
        """Whether the reader takes the parameters that Triton binds; if not, since these were
        changed, the next launch gets a new one."""
        reader = self.readers.get(device)
        if reader is not None and triton_launch.binds_like(spec.caches, reader.takes):
            return True
        self.readers.pop(device, None)
        return False

    def _make_room(self) -> None:
        """Drop the oldest spec if there are too many. Other threads may do so at the same time."""
        if len(self.specs) >= settings.current().max_specializations:
            try:
                self.specs.pop(next(iter(self.specs)), None)
            except (StopIteration, RuntimeError):  # another thread changed the dict
                return

    def hand_to_triton(
        self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str
    ) -> Any:
        """Let Triton launch, for as long as the reason holds; one event per reason says why."""
        self.fallbacks.passing(f"Triton launches: {reason}")
        return self.plain_run(grid, args, kwargs)


class _Wrapper(PythonJit):
    """Launches one of Triton's own kernels like one of tzero's. Triton's state stays on that
    kernel, and attributes are looked up there."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.specs = {}
        self.readers = {}
        self._grids = {}
        self.fallbacks = Fallbacks(kernel.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["kernel"], name)

    def __getitem__(self, grid: Any) -> Any:
        return Launching(self, grid)

    def plain_run(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self.kernel.run(*args, grid=grid, warmup=False, **kwargs)


_wrappers: weakref.WeakKeyDictionary[Any, _Wrapper] = weakref.WeakKeyDictionary()


def over(kernel: Any) -> Any:
    """A kernel that tzero launches: itself, or a wrapper around one of Triton's own. Kernels of
    tzero's other backends are returned as they are."""
    if not isinstance(kernel, JITFunction) or isinstance(kernel, PythonJit):
        return kernel
    if triton_launch.unsupported(kernel):
        return kernel
    found = _wrappers.get(kernel)
    if found is None:
        found = _wrappers[kernel] = _Wrapper(kernel)
    return found


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
