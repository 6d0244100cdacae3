"""Kernels written in C-like languages, launched with ``k[grid](...)``.

    k[grid](x, out, n) ── by name ──► checked against the declaration ──► loaded ──► launched
                                                          first time: compiled, loaded ┘

Enters: a kernel's declaration, then grids and arguments. Leaves: the launched kernel, or an error
that names the argument. It must not know how a kernel is compiled, loaded or run: the backends'
subclasses of `Kernel` do. It imports torch only when a kernel is launched.

A `Kernel` has the attributes of Triton's (`params`, `signature`, `device_caches`, ...), so that
recording, replaying and launching work for both. It has none of Triton's hooks and globals.
"""

from __future__ import annotations

import abc
import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tzero import events, locks
from tzero.backends import c_source
from tzero.compile.request import Artifact, Request
from tzero.errors import InvalidArgument, InvalidKernel

__all__ = ["Kernel", "Launching", "Loaded", "Parameter"]

Grid = tuple[int, int, int]
Check = Callable[[Any], Any]

_INTEGERS = {
    f"{sign}{bits}": (-(1 << bits - 1) if sign == "i" else 0, 1 << bits - (sign == "i"))
    for sign in "iu"
    for bits in (8, 16, 32, 64)
}


class Parameter:
    """A parameter with the attributes that Triton's have: never constexpr, never specialized.

    >>> Parameter(c_source.Parameter("n", "i64", "long")).is_constexpr
    False
    """

    is_constexpr = False
    is_const = False
    do_not_specialize = True
    do_not_specialize_on_alignment = True
    default = inspect.Parameter.empty

    def __init__(self, declared: c_source.Parameter) -> None:
        self.name = declared.name
        self.declared = declared
        self._param = inspect.Parameter(declared.name, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Loaded:
    """A kernel loaded on a device, with the attributes of Triton's ``CompiledKernel``.

    `run` takes the grid, a stream, `function`, two values that only Triton uses, two hooks, and the
    arguments. `keeps` holds objects that must live as long as this one.

    ::

        loaded.run(4, 1, 1, stream, loaded.function, None, None, None, None, x, out, n)
    """

    name: str
    src: SimpleNamespace
    metadata: SimpleNamespace
    run: Callable[..., None]
    function: int
    asm: Mapping[str, Any]
    keeps: Any = None
    packed_metadata: None = None

    def launch_metadata(self, grid: Any, stream: Any, *args: Any) -> Any:
        """What launch hooks receive."""
        return SimpleNamespace(get=lambda: {"name": self.name, "function": self.function})


class Kernel(abc.ABC):
    """A kernel in a C-like language. A backend makes these: `tzero.backends.cpp.kernel`, for one.

    ::

        k = cpp.kernel("void double_it(float *x, tzero::Program program) { ... }")
        k.precompile()          # optional: in the background; the first launch does it otherwise
        k[(4,)](x)
    """

    def __init__(
        self, declared: c_source.Function, parameters: Sequence[c_source.Parameter]
    ) -> None:
        self.__name__ = declared.name
        self.params = [Parameter(each) for each in parameters]
        self.signature = inspect.Signature([each._param for each in self.params])
        self.pre_run_hooks: list[Any] = []
        self.debug = None
        self.used_global_vals: dict[Any, Any] = {}
        self.device_caches: dict[Any, tuple[Any, ...]] = {}
        """Device -> a tuple like Triton's, whose first item maps options to loaded kernels."""
        self._checks = [check(self.__name__, each.declared, self.place) for each in self.params]
        self._names = [each.name for each in self.params]
        self._loading = locks.lock()  # protects `device_caches` while something is loaded

    # -- what a backend implements ---------------------------------------------------------------

    place: str
    """The torch device type that it runs on."""

    kinds: tuple[str, ...]
    """The kinds of files that its compiler makes, by extension; the first is the one to load."""

    @abc.abstractmethod
    def request(self, kind: str = ...) -> Request:
        """The request that compiles it, to a file of a kind; by default the one to load."""

    @abc.abstractmethod
    def device(self) -> Any:
        """The current device and stream, where a launch goes."""

    @abc.abstractmethod
    def load(self, artifact: Artifact, device: Any, options: Mapping[str, Any]) -> Loaded:
        """Load a compiled kernel on a device."""

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The options of a launch, with defaults, normalized; the base class knows none."""
        for name in given:
            raise InvalidArgument(
                kernel=self.__name__,
                problem=f"it has no parameter or option {name!r}",
                advice=f"It takes {', '.join(self._names) or 'nothing'}.",
            )
        return given

    # -- compiling -------------------------------------------------------------------------------

    def precompile(self) -> Future[Artifact]:
        """Start compiling in the background; a launch waits for the result.

        ::

            k.precompile().result()
        """
        from tzero.compile.service import service

        return service().submit(self.request())

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Compile it ahead of time to a file, whose extension says what is made; nothing is loaded.

        ::

            k.write("build/scale.o")
        """
        from tzero.compile.service import service

        made = Path(path)
        kind = made.suffix.removeprefix(".")
        if kind not in self.kinds:
            raise InvalidArgument(
                kernel=self.__name__,
                problem=f"it cannot be written as {made.name!r}",
                advice=f"Give a name that ends in .{', .'.join(self.kinds)}.",
            )
        artifact = service().compile(self.request(kind))
        made.write_bytes(artifact.files[f"kernel.{kind}"])
        return made

    def loaded(self, device: Any, options: Mapping[str, Any]) -> Loaded:
        """The kernel loaded on a device; compiles and loads it if it is not."""
        key = repr(sorted(options.items())) if options else ""
        caches = self.device_caches.get(device)
        found: Loaded | None = caches[0].get(key) if caches is not None else None
        if found is None:
            found = self._make(device, key, options)
        return found

    def _make(self, device: Any, key: str, options: Mapping[str, Any]) -> Loaded:
        from tzero.compile.service import service

        artifact = service().compile(self.request())
        with self._loading:
            # The layout of Triton's: kernels, a second table, target, backend, binder.
            empty: tuple[Any, ...] = ({}, {}, None, _PLAIN_BACKEND, None)
            table = self.device_caches.setdefault(device, empty)[0]
            found: Loaded | None = table.get(key)
            if found is None:
                found = table[key] = self.load(artifact, device, options)
            return found

    # -- launching -------------------------------------------------------------------------------

    def __getitem__(self, grid: Any) -> Launching:
        return Launching(self, grid)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """Triton's entry: ``k[grid](...)``; with `warmup`, only compile and load."""
        if not warmup:
            return Launching(self, grid)(*args, **kwargs)
        _, options = self.bound(args, kwargs)
        return self.loaded(self.device()[0], options)

    def bound(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments of a launch by parameter name, and its options."""
        names = self._names
        given = dict(zip(names, args, strict=False))
        rest = {}
        for name, value in kwargs.items():
            if name not in names:
                rest[name] = value
            elif name in given:
                raise self._wrong(name, "is given twice", "Give it by place or by name.")
            else:
                given[name] = value
        options = self.options(rest)
        if len(args) > len(names) or len(given) < len(names):
            missing = [name for name in names if name not in given]
            problem = f"it is given {len(args) + len(kwargs) - len(rest)} arguments"
            problem += f", without {', '.join(missing)}" if missing else ""
            raise InvalidArgument(
                kernel=self.__name__,
                problem=problem,
                advice=f"It takes {len(names)}: {', '.join(names) or 'none'}.",
            )
        return {name: given[name] for name in names}, options

    def _wrong(self, argument: str, problem: str, advice: str) -> InvalidArgument:
        return InvalidArgument(
            kernel=self.__name__, argument=argument, problem=problem, advice=advice
        )

    def __repr__(self) -> str:
        return f"<{type(self).__module__.rpartition('.')[2]} kernel {self.__name__}>"


class Launching:
    """A kernel with a grid, as ``k[grid]`` returns it.

    ::

        launching = k[(4,)]
        launching(x, out, n)
    """

    __slots__ = ("grid", "kernel")

    def __init__(self, kernel: Kernel, grid: Any) -> None:
        self.kernel = kernel
        self.grid = grid

    def __call__(self, *args: Any, **kwargs: Any) -> Loaded:
        """Launch, and return the loaded kernel, as Triton does."""
        from tzero.adapters import intercept

        kernel, grid = self.kernel, self.grid
        if intercept.anywhere and intercept.here.recorder is not None:
            shown: Loaded = intercept.shown(
                *(kernel, grid, args, kwargs),
                lambda grid: Launching(kernel, grid)(*args, **kwargs),
            )
            return shown
        given: Iterable[Any] = args
        if kwargs or callable(grid) or len(args) != len(kernel._names):
            named, options = kernel.bound(args, kwargs)
            given = named.values()
            grid = grid(named) if callable(grid) else grid
        else:
            options = kernel.options({})
        values = [check(each) for check, each in zip(kernel._checks, given, strict=True)]
        sizes = grid_of(kernel.__name__, grid)
        device, stream = kernel.device()
        loaded = kernel.loaded(device, options)
        loaded.run(*sizes, stream, loaded.function, None, None, None, None, *values)
        if events.watched():
            events.emit(events.Event("launch", kernel.__name__, facts={"grid": sizes}))
        return loaded


def grid_of(kernel: str, grid: Any) -> Grid:
    """A grid as three sizes.

    >>> grid_of("add", (4,)), grid_of("add", 7)
    ((4, 1, 1), (7, 1, 1))
    """
    given = grid if isinstance(grid, (tuple, list)) else (grid,)
    try:
        first, *more = map(operator.index, given)
        x, y, z = first, *more, *(1,) * (2 - len(more))
    except (TypeError, ValueError):
        x = y = z = -1
    if min(x, y, z) < 0 or max(x, y, z) >= 1 << 31:
        raise InvalidArgument(
            kernel=kernel,
            problem=f"the grid is {grid!r}",
            advice="A grid is one to three sizes below 2**31, or a function that returns them.",
        )
    return x, y, z


_PLAIN_BACKEND = SimpleNamespace(supports_native_tensor_specialization=True)
"""In the place of Triton's backend: needs no facts about tensors but their alignment."""


# -- arguments ------------------------------------------------------------------------------------


def checked_parameters(function: c_source.Function, rule: str) -> tuple[c_source.Parameter, ...]:
    """The parameters of a kernel; raises if one has a type that no argument fits."""
    for parameter in function.parameters:
        if parameter.type in ("", "c64", "c128", "str") or parameter.name.startswith("#"):
            raise InvalidKernel(
                kernel=function.name,
                problem=f"its parameter {parameter.name!r} is declared as {parameter.spelled!r}",
                advice=rule,
            )
    names = [parameter.name for parameter in function.parameters]
    if len(set(names)) != len(names):
        raise InvalidKernel(
            kernel=function.name, problem="two parameters have one name", advice=rule
        )
    return function.parameters


RULE = (
    "Parameters have a name, and are numbers (bool, int, int64_t, float, double, ...) or pointers "
    "to them, for tensors."
)


def check_count(kernel: str, ports: Sequence[c_source.Port], args: Sequence[Any]) -> None:
    """Raise if a call has more or fewer arguments than the function takes."""
    if len(args) != len(ports):
        names = ", ".join(port.name for port in ports)
        raise InvalidArgument(
            kernel=kernel,
            problem=f"it is given {len(args)} arguments",
            advice=f"It takes {len(ports)}: {names or 'none'}.",
        )


def check(kernel: str, parameter: c_source.Parameter, place: str) -> Check:
    """A function that checks an argument against its parameter, and converts it for launchers."""
    kind = parameter.type
    if kind[0] == "*":
        return functools.partial(_tensor, kernel, parameter, place)
    if kind in _INTEGERS:
        return functools.partial(_integer, kernel, parameter, *_INTEGERS[kind])
    if kind == "i1":
        return functools.partial(_boolean, kernel, parameter)
    return functools.partial(_float, kernel, parameter)


def _tensor(kernel: str, parameter: c_source.Parameter, place: str, value: Any) -> Any:
    import torch

    dtype = c_source.DTYPES.get(parameter.type[1:])
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        problem, advice = f"is of type {type(value).__name__}", "Pass a tensor, or None for null."
    elif dtype is not None and value.dtype is not getattr(torch, dtype):
        problem, advice = f"is a tensor of {value.dtype}", f"Pass a tensor of torch.{dtype}."
    elif value.device.type != place:
        raise InvalidArgument(
            kernel=kernel,
            argument=parameter.name,
            problem=f"is on {value.device}, and this kernel runs on {_PLACES.get(place, place)}",
            advice=f"Pass a tensor that is there: {parameter.name}.to({place!r}).",
        )
    else:
        return value
    raise InvalidArgument(
        kernel=kernel,
        argument=parameter.name,
        problem=f"{problem}, and the parameter is declared as {parameter.spelled!r}",
        advice=advice,
    )


_PLACES = {"cpu": "the CPU", "cuda": "a CUDA device"}


def _integer(kernel: str, parameter: c_source.Parameter, low: int, high: int, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise _no_number(kernel, parameter, value, "Pass an int.") from None
    if not low <= number < high:
        raise InvalidArgument(
            kernel=kernel,
            argument=parameter.name,
            problem=f"is {number}, which a {parameter.spelled!r} does not hold",
            advice=f"It holds {low} to {high - 1}.",
        )
    return number


def _boolean(kernel: str, parameter: c_source.Parameter, value: Any) -> bool:
    if type(value) is not bool:
        raise _no_number(kernel, parameter, value, "Pass True or False.")
    return value


def _float(kernel: str, parameter: c_source.Parameter, value: Any) -> float:
    if not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise _no_number(kernel, parameter, value, "Pass a float or an int.")
    return float(value)


def _no_number(
    kernel: str, parameter: c_source.Parameter, value: Any, advice: str
) -> InvalidArgument:
    return InvalidArgument(
        kernel=kernel,
        argument=parameter.name,
        problem=f"is of type {type(value).__name__}, "
        f"and the parameter is declared as {parameter.spelled!r}",
        advice=advice,
    )
