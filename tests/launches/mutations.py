"""Ways to take one guard out of the Python twin, so that rows can be seen to fail without it.

Enters: the name of a guard. Leaves: a context in which launches of tier 1 go without that check.
It knows the insides of `launches.python` and `arguments.launch_facts`: when those change and a
mutation no longer bites, the row that it should break passes, and `test_mutations` says so.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tzero.adapters import triton_launch
from tzero.adapters.triton_launch import Compiled
from tzero.arguments import launch_facts
from tzero.arguments.launch_facts import Reader
from tzero.launches import python as launch
from tzero.launches.python import Launching, PythonJit

Patch = pytest.MonkeyPatch


def without(pattern: str, of: Callable[[Any], bool]) -> Callable[[Patch], None]:
    """A reader that leaves something out of what it writes of arguments of some types; ``NAME`` is
    the parameter's."""

    def mutate(patch: Patch) -> None:
        original = Reader._expression

        def expression(self: Reader, k: int, parameter: Any, kind: Any, world: Any) -> str:
            written = original(self, k, parameter, kind, world)
            if parameter.constant or not of(kind):
                return written
            return re.sub(pattern.replace("NAME", parameter.name), "", written).strip(", ")

        patch.setattr(Reader, "_expression", expression)

    return mutate


def _is_tensor(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, torch.Tensor)


def _is_int(kind: Any) -> bool:
    return kind is int


def unread(which: Callable[[Any], bool]) -> Callable[[Patch], None]:
    """A reader to which some parameters say nothing."""

    def mutate(patch: Patch) -> None:
        original = Reader._expression

        def expression(self: Reader, k: int, parameter: Any, kind: Any, world: Any) -> str:
            return "None" if which(parameter) else original(self, k, parameter, kind, world)

        patch.setattr(Reader, "_expression", expression)

    return mutate


def _has_default(parameter: Any) -> bool:
    return parameter.default is not launch_facts.inspect.Parameter.empty


def any_tensor_is_plain(patch: Patch) -> None:
    """Subclasses of tensors are read as tensors: by where torch keeps their memory."""
    original = Reader._expression

    def kind_of(value: Any) -> type:
        return torch.Tensor if isinstance(value, torch.Tensor) else type(value)

    def expression(self: Reader, k: int, parameter: Any, kind: Any, world: Any) -> str:
        world["_tz_type"], world["_tz_plain"] = kind_of, torch.Tensor
        written = original(self, k, parameter, kind, world)
        address = f"_tz_plain.data_ptr({parameter.name})"
        return written.replace(f"{parameter.name}.data_ptr()", address)

    patch.setattr(Reader, "_expression", expression)
    patch.setattr(launch_facts, "type", kind_of, raising=False)


def alignment_is_not_read(patch: Patch) -> None:
    """The address of a tensor is read, and nothing made of it."""
    original = Reader._expression

    def expression(self: Reader, k: int, parameter: Any, kind: Any, world: Any) -> str:
        written = original(self, k, parameter, kind, world)
        return written.replace(" & 15 == 0", " is None") if _is_tensor(kind) else written

    patch.setattr(Reader, "_expression", expression)


def types_are_not_compared(patch: Patch) -> None:
    """Every argument is taken to have the type that the first one had in its place."""
    original = Reader._write

    def write(self: Reader, types: Any) -> Any:
        written = original(self, types)
        if types is not None:
            # What is written asks for the type of each argument, in order.
            expected = itertools.cycle(types)
            written.__globals__["_tz_type"] = lambda value: next(expected)
        return written

    patch.setattr(Reader, "_write", write)


class _Standing:
    """An object with one attribute that never changes, for those who read it through this."""

    def __init__(self, inner: Any, **fixed: Any) -> None:
        self._inner = inner
        self._fixed = fixed

    def __getattr__(self, name: str) -> Any:
        return self._fixed[name] if name in self._fixed else getattr(self._inner, name)


def fixed_knob(group: str, name: str, value: Any) -> Callable[[Patch], None]:
    """A knob that looks the same to launches, whatever it is."""

    def mutate(patch: Patch) -> None:
        knobs = triton_launch.knobs
        standing = _Standing(getattr(knobs, group), **{name: value})
        patch.setattr(triton_launch, "knobs", _Standing(knobs, **{group: standing}))

    return mutate


def own_debug_is_not_seen(patch: Patch) -> None:
    """The kernel's own flag is out of sight of launches, and there for Triton."""
    launched, run = Launching.__call__, PythonJit.plain_run

    def blind(self: Launching, *args: Any, **kwargs: Any) -> Any:
        kernel = self.kernel
        kernel.hidden, kernel.debug = kernel.debug, None
        try:
            return launched(self, *args, **kwargs)
        finally:
            kernel.debug = kernel.hidden

    def seeing(self: PythonJit, *args: Any, **kwargs: Any) -> Any:
        self.debug = self.hidden
        try:
            return run(self, *args, **kwargs)
        finally:
            self.debug = None

    patch.setattr(Launching, "__call__", blind)
    patch.setattr(PythonJit, "plain_run", seeing)


class _Frozen:
    """A driver that is asked for some things once, and then believed."""

    def __init__(self, answers: dict[str, Any], active: Any) -> None:
        self._answers = answers
        self._active = active

    def __getattr__(self, name: str) -> Any:
        read = getattr(self._active, name)
        if name not in self._answers:
            return read
        return lambda *args: self._answers[name].setdefault("first", read(*args))


def asked_once(name: str) -> Callable[[Patch], None]:
    """What the driver says of the device, or the stream, is believed ever after."""

    def mutate(patch: Patch) -> None:
        answers: dict[str, Any] = {name: {}}
        frozen: dict[int, _Frozen] = {}

        class Driver:
            @property
            def active(self) -> Any:
                active = triton_launch.driver.active
                return frozen.setdefault(id(active), _Frozen(answers, active))

        patch.setattr(launch, "driver", Driver())

    return mutate


def first_driver_forever(patch: Patch) -> None:
    patch.setattr(launch, "driver", SimpleNamespace(active=triton_launch.driver.active))


def first_grid_forever(patch: Patch) -> None:
    """Every launch of a kernel has the grid that its first one had."""
    original = Launching.__call__
    first: dict[int, Any] = {}

    def launched(self: Launching, *args: Any, **kwargs: Any) -> Any:
        asked = self.grid
        if not callable(asked):
            grid = first.setdefault(id(self.kernel), tuple(asked))
            return original(Launching(self.kernel, grid), *args, **kwargs)

        def answer(meta: Any) -> Any:
            return first.setdefault(id(self.kernel), tuple(asked(meta)))

        return original(Launching(self.kernel, answer), *args, **kwargs)

    patch.setattr(Launching, "__call__", launched)


def pre_run_hooks_are_hidden(patch: Patch) -> None:
    original = Launching.__call__

    def launched(self: Launching, *args: Any, **kwargs: Any) -> Any:
        kernel = self.kernel
        hooks, kernel.pre_run_hooks = kernel.pre_run_hooks, []
        try:
            return original(self, *args, **kwargs)
        finally:
            kernel.pre_run_hooks = hooks

    patch.setattr(Launching, "__call__", launched)


def options_are_not_read(patch: Patch) -> None:
    """What is no parameter is dropped before the reader sees it."""

    def read(self: Reader) -> Any:
        names = {parameter.name for parameter in self.takes}
        inner = self._inner_read
        return lambda *args, **kwargs: inner(
            *args, **{name: value for name, value in kwargs.items() if name in names}
        )

    def keep(self: Reader, inner: Any) -> None:
        self._inner_read = inner

    # A property of the class goes before what an instance keeps under that name.
    patch.setattr(Reader, "read", property(read, keep), raising=False)


def described_as(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """Triton's description of an argument, changed."""

    def mutate(patch: Patch) -> None:
        original = triton_launch.specialization
        patch.setattr(triton_launch, "specialization", lambda *given: change(original(*given)))

    return mutate


def _flat(description: Any) -> Any:
    """Without the places where tuples begin and end."""
    if not isinstance(description, tuple):
        return (description,)
    return tuple(item for each in description for item in _flat(each))


def _without_block(description: Any) -> Any:
    kind, rest = description
    return (re.sub(r"\[.*\]", "", kind), rest) if isinstance(kind, str) else description


MUTATIONS: dict[str, Callable[[Patch], None]] = {
    "alignment": alignment_is_not_read,
    "integer_one": without("NAME == 1(, )?", _is_int),
    "integer_16": without("NAME & 15 == 0(, )?", _is_int),
    "integer_width": without(r"-0x80000000 <= NAME.*1 << 64\)(, )?", _is_int),
    "dtype": without(r"NAME\.dtype(, )?", _is_tensor),
    "tensor_type": any_tensor_is_plain,
    "argument_type": types_are_not_compared,
    "constants": unread(lambda parameter: parameter.constant),
    "options": options_are_not_read,
    "defaults": unread(_has_default),
    "globals": lambda patch: patch.setattr(triton_launch, "changed_globals", lambda function: ()),
    "knob_debug": fixed_knob("runtime", "debug", False),
    "knob_instrumentation": fixed_knob("compilation", "instrumentation_mode", ""),
    "stages_hook": fixed_knob("runtime", "add_stages_inspection_hook", None),
    "launch_hooks": lambda patch: patch.setattr(triton_launch, "hooks", lambda: None),
    "pre_run_hooks": pre_run_hooks_are_hidden,
    "own_debug": own_debug_is_not_seen,
    "driver": first_driver_forever,
    "device": asked_once("get_current_device"),
    "stream": asked_once("get_current_stream"),
    "cache": lambda patch: patch.setattr(Compiled, "is_current", lambda self, *where: True),
    "grid": first_grid_forever,
    "tuple_shape": described_as(_flat),
    "descriptor_block": described_as(_without_block),
}
"""For each guard, what takes it out of `tzero.launches.python`."""


@contextmanager
def guard_out(guard: str) -> Iterator[None]:
    """Launches of tier 1 without one of their checks."""
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[guard](patch)
        yield
