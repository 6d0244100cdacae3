"""A host function and its arguments, sent to another process.

::

    Host, arguments ── packed ──► Parcel: a pickle, then the bytes of the storages, in a memfd
                                     └─ file descriptor ── opened ──► equal Host and arguments

Enters: a host function, wherever it is defined, and arguments. Leaves: a memfd; in a process that
has its descriptor, the function and the arguments again. Tensors keep contents, strides, offsets,
alignment and device, and share memory where they did. It must not know what they are sent for.

Importable objects are sent by name, except those of the main module, which is not run again. Other
functions are pickled by value with what they refer to. Triton kernels are sent as the tables of
`tzero.backends.triton.program`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import io
import mmap
import os
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle
import torch

from tzero.adapters.triton_launch import JITCallable, JITFunction
from tzero.arguments.extract import ConstExpr
from tzero.arguments.host import Host
from tzero.backends.triton.program import Maker, Unwritable, Writer
from tzero.errors import InvalidArgument, UnsupportedType
from tzero.launches import tiers
from tzero.launches.python import PythonJit
from tzero.tune.copying import (
    Location,
    bytes_of,
    has_contents,
    location_of,
    location_of_storage,
    new_storages,
    tensor_of,
    view_of,
)
from tzero.tune.judge import DEFAULT, Judge
from tzero.tune.trial import Called, as_written

__all__ = ["Parcel", "opened", "packed", "unsendable"]

_ALIGNED = 64  # where the bytes of a storage begin


class Parcel(NamedTuple):
    """A packed function: an open file, and how many of its bytes are the pickle.

    ::

        parcel = packed(host, args)
        opened(parcel)   # in a process that has the descriptor as well
    """

    descriptor: int
    length: int


class _Contents(NamedTuple):
    """A row of the table of storages."""

    location: Location
    pinned: bool


def packed(
    host: Host[Any],
    args: tuple[Any, ...],
    called: Called = as_written,
    judge: Judge = DEFAULT,
) -> Parcel:
    """Pack a function, its arguments, how it is called, and how its results are judged;
    `InvalidArgument` where something cannot be sent.

    ::

        parcel = packed(add.host, (x, y), called)
        os.close(parcel.descriptor)
    """
    # Calling needs neither signature nor defaults, and annotations may not be picklable.
    sent = dataclasses.replace(
        host,
        function=_plain(host),
        signature=inspect.Signature(),
        defaults={},
        config=None,
    )
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    try:
        pickler.dump((sent, args, called, judge))
    except Exception as error:  # objects may raise anything when they are pickled
        raise unsendable(host.name, _reason(error)) from error
    table = [
        _Contents(location, storage.is_pinned()) for location, storage in pickler.storages.items()
    ]
    text = pickle.dumps((buffer.getvalue(), table))
    parcel = Parcel(os.memfd_create("tzero-parcel", os.MFD_CLOEXEC), len(text))
    try:
        _fill(parcel, text, pickler.storages)
    except BaseException:
        os.close(parcel.descriptor)
        raise
    return parcel


def _plain(host: Host[Any]) -> Any:
    """The host function. One that is sent by value has only the annotations that count, as values:
    a name that only an annotation uses is not sent with a function."""
    function = host.function
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return function
    if _name_of(function, function) is not None or _name_around(function) is not None:
        return function
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__, made.__module__ = function.__kwdefaults__, function.__module__
    made.__qualname__ = function.__qualname__
    made.__dict__.update(function.__dict__)
    pairs = zip(host.parameters, host.constants, strict=True)
    made.__annotations__ = {name.lstrip("*"): ConstExpr for name, constant in pairs if constant}
    return made


def opened(parcel: Parcel) -> tuple[Host[Any], tuple[Any, ...], Called, Judge]:
    """What was packed.

    ::

        host, args, called, judge = opened(parcel)
        called(host, config)(*args)
    """
    with mmap.mmap(parcel.descriptor, 0, access=mmap.ACCESS_COPY) as memory:
        data, table = pickle.loads(memory[: parcel.length])
        storages = new_storages({each.location: each.pinned for each in table})
        for location, start in _starts(parcel.length, [each.location for each in table]).items():
            if has_contents(location):
                # No view may outlive this line: an mmap with views cannot be closed.
                bytes_of(storages[location]).copy_(_viewed(memory, start, location[2]))
    found: tuple[Host[Any], tuple[Any, ...], Called, Judge]
    found = _Unpickler(io.BytesIO(data), storages).load()
    return found


def unsendable(name: str, why: str) -> InvalidArgument:
    """The error for a function that cannot be sent to another process.

    >>> print(unsendable("add", "it reads an open file"))
    add: it cannot be timed in a process of its own: it reads an open file. Define what it uses in \
a module that can be imported, or time it in this process.
    """
    return InvalidArgument(
        kernel=name,
        problem=f"it cannot be timed in a process of its own: {why}",
        advice="Define what it uses in a module that can be imported, or time it in this process.",
    )


def _reason(error: Exception) -> str:
    known = (Unwritable, UnsupportedType, _Unsendable)
    words = str(error).rstrip(".")
    return words if isinstance(error, known) else f"{type(error).__name__}: {words}"


# -- the bytes of storages ------------------------------------------------------------------------


def _starts(length: int, locations: list[Location]) -> dict[Location, int]:
    """The offset in the memfd at which the bytes of each storage begin."""
    found, end = {}, length
    for location in locations:
        found[location] = -(-end // _ALIGNED) * _ALIGNED
        end = found[location] + (location[2] if has_contents(location) else 0)
    return found


def _fill(parcel: Parcel, text: bytes, storages: dict[Location, torch.UntypedStorage]) -> None:
    starts = _starts(parcel.length, list(storages))
    last = max((start + location[2] for location, start in starts.items()), default=0)
    os.ftruncate(parcel.descriptor, max(len(text), last))
    with mmap.mmap(parcel.descriptor, 0) as memory:
        memory[: len(text)] = text
        for location, start in starts.items():
            if has_contents(location):
                _viewed(memory, start, location[2]).copy_(bytes_of(storages[location]))


def _viewed(memory: mmap.mmap, start: int, size: int) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=size)


# -- functions, kernels and tensors ---------------------------------------------------------------


class _Unsendable(Exception):
    """Something that cannot be sent; the message says what."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles kernels and tensors in forms that another process can rebuild."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.storages: dict[Location, torch.UntypedStorage] = {}

    def persistent_id(self, value: Any) -> Location | None:
        if not isinstance(value, torch.UntypedStorage):
            return None
        location = location_of_storage(value)
        self.storages[location] = value
        return location

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            location_of(value)  # raises for tensors that are more than a view of their storage
            return tensor_of, (view_of(value), value.untyped_storage())
        if isinstance(value, FunctionType):
            name = _name_around(value)
            return super().reducer_override(value) if name is None else (_around, name)
        if "__qualname__" in getattr(value, "__dict__", ()) and not isinstance(value, type):
            name = _name_of(value, value)
            if name is not None:
                return _found, name
        if isinstance(value, JITCallable):
            return _kernel_made, _kernel_written(value)
        host = getattr(value, "__dict__", {}).get("host")
        if isinstance(host, Host):  # only kernels and bound kernels of tzero have one
            raise _Unsendable(
                f"it uses the kernel {host.name!r}, which is in no module that can be imported"
            )
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storages: dict[Location, torch.UntypedStorage]) -> None:
        super().__init__(file)
        self._storages = storages

    def persistent_load(self, location: Location) -> torch.UntypedStorage:
        return self._storages[location]


def _name_of(value: Any, there: Any) -> tuple[str, str] | None:
    """The module and name of a value, if `there` is found under them; None for the main module,
    which is another one in another process."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module is None or module == "__main__" or module not in sys.modules:
        return None
    return (module, name) if _looked_up(sys.modules[module], name) is there else None


def _name_around(function: FunctionType) -> tuple[str, str] | None:
    """The module and name of the object with which a decorator such as `tzero.kernel` has replaced
    a function."""
    module = sys.modules.get(function.__module__ or "")
    outer = None if module is None else _looked_up(module, function.__qualname__)
    if outer is None or getattr(outer, "__wrapped__", None) is not function:
        return None
    return _name_of(function, outer)


def _looked_up(holder: Any, name: str) -> Any:
    for part in name.split("."):
        holder = inspect.getattr_static(holder, part, None)
    return holder


def _found(module: str, name: str) -> Any:
    holder: Any = importlib.import_module(module)
    for part in name.split("."):
        holder = getattr(holder, part)
    return holder


def _around(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = _found(module, name).__wrapped__
    return function


def _kernel_written(kernel: Any) -> tuple[dict[str, Any], int, bool]:
    if isinstance(kernel, JITFunction) and kernel.pre_run_hooks:
        raise _Unsendable(f"the kernel {kernel.__name__!r} has hooks that run before it")
    writer = Writer()
    try:
        index = writer.function(kernel)
    except Unwritable as problem:
        raise _Unsendable(f"of the kernel {kernel.__name__!r}, {problem}") from None
    return writer.tables(), index, isinstance(kernel, PythonJit)


def _kernel_made(tables: dict[str, Any], index: int, fast: bool) -> Any:
    made = Maker(tables).function(index)
    return tiers.made(made, {}) if fast else made
