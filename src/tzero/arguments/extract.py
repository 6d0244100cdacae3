"""A call's arguments to its raw key: the plain tuple that is looked up.

    arguments ── their exact types ──► a function generated for those types ──► raw key
                                        └ none yet: generate, compile and keep it

Enters: the arguments of one call, in order. Leaves: a tuple of one part per argument (as
`arguments.key` makes it), the device's part, and the result of a `key=` function if there is one.
It must not know tables of keys, nor what a key leads to.

A loop that looks up an extractor for each argument costs more than the extracting. So one function
is generated for each combination of argument types that does the same without a loop;
`tests/arguments/test_extract.py` checks it against `arguments.key`. The function of the last call
is tried first: it checks the types, and calls `_other` if they differ.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, cast

import torch

from tzero.arguments.device import capability
from tzero.arguments.key import TABLE, Options, UnsupportedType, constant, part
from tzero.arguments.objects import is_object
from tzero.arguments.scalars import BY_TYPE, BY_VALUE
from tzero.arguments.tensor_facts import TENSORS, expression
from tzero.errors import InvalidArgument

__all__ = ["ConstExpr", "Extractor", "unwrapped"]

Raw = tuple[Hashable, ...]


wrapped = False
"""Whether any `ConstExpr` was made in this process. While none was, no argument is one."""

_when_wrapped: list[Callable[[], None]] = []


def when_wrapped(told: Callable[[], None]) -> None:
    """Call a function before the first `ConstExpr` can be an argument."""
    _when_wrapped.append(told)


class ConstExpr:
    """A value that is a compile-time constant: annotates a parameter, or wraps an argument.

    >>> ConstExpr(64)
    ConstExpr(64)
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = value.value if type(value) is ConstExpr else value
        if not wrapped:
            _note_wrapped()

    def __repr__(self) -> str:
        return f"ConstExpr({self.value!r})"


def _note_wrapped() -> None:
    global wrapped
    wrapped = True
    for told in _when_wrapped:
        told()


def unwrapped(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments as the host function gets them.

    >>> unwrapped((1, ConstExpr(2)))
    (1, 2)
    """
    return tuple(a.value if type(a) is ConstExpr else a for a in args)


_HOLDERS = (tuple, list, dict, FunctionType, MethodType, BuiltinFunctionType)
_WITHOUT_TENSORS = frozenset(TABLE) - {*TENSORS, *_HOLDERS}
_KNOWN = _WITHOUT_TENSORS | {*TENSORS, ConstExpr}

_CPU = torch.device("cpu")

Where = tuple[torch.device, int]
"""The device of the tensors so far, and the index of the argument that set it."""

_MOST_PATTERNS = 256
"""How many functions a kernel keeps. A caller with more combinations of types creates new classes
all the time; its keys are made by the loop."""


class Extractor:
    """Makes the raw keys of one kernel's calls.

    >>> extract = Extractor("scale", ("x", "by"), (False, True), Options(), None)
    >>> extract((torch.zeros(2), 3))
    ((torch.float32, torch.Size([2]), (1,)), ('constant', (<class 'int'>, 3)), ('cpu', None))
    """

    def __init__(
        self,
        kernel: str,
        parameters: tuple[str, ...],
        constants: tuple[bool, ...],
        options: Options,
        custom: Callable[..., Hashable] | None,
    ) -> None:
        self._kernel = kernel
        self._parameters = parameters
        self._constants = constants
        self._options = options
        self._custom = custom
        self._written: dict[tuple[type, ...], Callable[[Any], Raw]] = {}
        self.last: Callable[[tuple[Any, ...]], Raw] = self._other

    def __call__(self, args: tuple[Any, ...]) -> Raw:
        """The raw key of a call. Faster: call `last` directly."""
        return self.last(args)

    def _other(self, args: tuple[Any, ...]) -> Raw:
        """The raw key of arguments whose types differ from those of the last call."""
        types = tuple(map(type, args))
        found = self._written.get(types)
        if found is None:
            raw = self.general(args)  # raises for what cannot be an argument
            if len(self._written) < _MOST_PATTERNS:
                self.last = self._written[types] = self._write(types)
            return raw
        self.last = found
        return found(args)

    # -- the loop ------------------------------------------------------------------------------

    def general(self, args: tuple[Any, ...]) -> Raw:
        """The raw key of any arguments, by a loop; errors name the argument."""
        parts: list[Hashable] = []
        where: Where | None = None
        for k, value in enumerate(args):
            if type(value) is ConstExpr or self._constants[k]:
                parts.append(self._constant(k, value))
                continue
            parts.append(self._part(k, value))
            if type(value) not in _WITHOUT_TENSORS:
                where = self._device(k, value, where)
        parts.append(self._capability(where))
        if self._custom is not None:
            parts.append(self._custom_part(args))
        return tuple(parts)

    def _constant(self, k: int, value: Any) -> Hashable:
        try:
            return ("constant", constant(value.value if type(value) is ConstExpr else value))
        except UnsupportedType as error:
            raise self._refused(k, error) from error

    def _part(self, k: int, value: Any) -> Hashable:
        try:
            return part(value, self._options)
        except UnsupportedType as error:
            raise self._refused(k, error) from error

    def _refused(self, k: int, error: UnsupportedType) -> InvalidArgument:
        return self._invalid(k, f"is or holds {error.named}", error.advice)

    def _invalid(self, k: int, problem: str, advice: str) -> InvalidArgument:
        return InvalidArgument(
            kernel=self._kernel, argument=self._parameters[k], problem=problem, advice=advice
        )

    def _device(self, k: int, value: Any, where: Where | None) -> Where | None:
        """The one device of all tensors so far."""
        for tensor in _tensors(value, self._options.objects):
            device = tensor.device
            if device.type == "cpu":
                device = _CPU  # that of a FakeTensor may be cpu:0
            if device.type == "meta":
                raise self._invalid(
                    k, "is a meta tensor, which has no memory to run on", "Pass one on a device."
                )
            if where is not None and device != where[0]:
                before = "another tensor in it"
                if where[1] != k:
                    before = f"argument {self._parameters[where[1]]!r}"
                raise self._invalid(
                    k,
                    f"is on {device}, but {before} is on {where[0]}",
                    "Move one of them: all tensors of a call are on one device.",
                )
            where = where or (device, k)
        return where

    def _capability(self, where: Where | None) -> Hashable:
        """The device's part of the key."""
        if where is None:
            return None
        device, k = where
        try:
            return capability(device)
        except (AssertionError, RuntimeError) as error:  # raised by torch if the device is missing
            why = str(error).splitlines()[0]
            raise self._invalid(
                k,
                f"is on {device}, which torch cannot use here ({why})",
                "Pass tensors on an available device.",
            ) from error

    def _custom_part(self, args: tuple[Any, ...]) -> Hashable:
        assert self._custom is not None
        result = self._custom(*unwrapped(args))
        try:
            return ("key", constant(result))
        except UnsupportedType as error:
            raise InvalidArgument(
                kernel=self._kernel,
                problem=f"its key= function returned {error.named}, which cannot be part of a key",
                advice="Return numbers, strings, or tuples of these.",
            ) from error

    # -- generated functions -------------------------------------------------------------------

    def _write(self, types: tuple[type, ...]) -> Callable[[tuple[Any, ...]], Raw]:
        """Generate `general` for arguments of these types."""
        kinds = [ConstExpr if self._constants[k] else kind for k, kind in enumerate(types)]
        parts = [self._expression(k, kind) for k, kind in enumerate(kinds)]
        lines = []
        if types:
            wrong = " or ".join(f"type(a{k}) is not t{k}" for k in range(len(types)))
            lines += [f"{''.join(f'a{k}, ' for k in range(len(types)))} = args"]
            lines += [f"if {wrong}:", " return other(args)"]
        tensors = [k for k, kind in enumerate(kinds) if kind in TENSORS]
        if tensors:
            # Sparse tensors may have strides too: all zero, like an expanded dense one.
            sparse = " or ".join(f"a{k}.layout is not strided" for k in tensors)
            lines += [f"if {sparse}:", " return general(args)"]
        lines += _where(kinds)
        # A nested tensor raises for its size; the loop then names the argument.
        lines += ["try:", f" key = ({', '.join([*parts, 'where'])},)"]
        lines += ["except RuntimeError:", " return general(args)"]
        lines += ["return key" if self._custom is None else "return (*key, custom(args))"]
        source = "def extract(args):\n" + "\n".join(f" {line}" for line in lines)
        namespace: dict[str, Any] = {
            **{f"t{k}": kind for k, kind in enumerate(types)},
            "other": self._other,
            "general": self.general,
            "part": self._part,
            "constant": self._constant,
            "device": self._device,
            "checked": self._capability,
            "custom": self._custom_part,
            "capability": capability,
            "strided": torch.strided,
            "of_cpu": capability(_CPU),
        }
        exec(_code(source, f"<keys of {self._kernel}>"), namespace)
        return cast("Callable[[tuple[Any, ...]], Raw]", namespace["extract"])

    def _expression(self, k: int, kind: type) -> str:
        """Code for the part of argument `k`; equal to the loop's."""
        if kind is ConstExpr:
            return f"constant({k}, a{k})"
        if kind in TENSORS and self._options.static_shapes:
            return f"({expression('key', f'a{k}')})"
        if kind in BY_TYPE:
            return f"t{k}"
        if kind in BY_VALUE:
            return f"a{k}"
        return f"part({k}, a{k})"


@functools.lru_cache
def _code(source: str, name: str) -> CodeType:
    """Compiled once: kernels of one name, made again and again, have the same arguments."""
    return compile(source, name, "exec")


def _where(kinds: list[type]) -> list[str]:
    """Code that sets `where` to the device's part. Tensors on several devices are left to the loop,
    which raises the error."""
    tensors = [k for k, kind in enumerate(kinds) if kind in TENSORS]
    others = [k for k, kind in enumerate(kinds) if kind not in _KNOWN]
    if others:
        lines = ["where = None"]
        for k in sorted([*tensors, *others]):
            lines.append(f"where = device({k}, a{k}, where)")
        return [*lines, "where = checked(where)"]
    if not tensors:
        return ["where = None"]
    first, *rest = tensors
    apart = " or ".join([f"a{first}.is_meta", *(f"a{k}.device != where" for k in rest)])
    # Reading `is_cpu` costs half of creating and comparing a device.
    return [
        f"if {' and '.join(f'a{k}.is_cpu' for k in tensors)}:",
        " where = of_cpu",
        "else:",
        f" where = a{first}.device",
        f" if {apart}:",
        "  return general(args)",
        " try:",
        "  where = capability(where)",
        " except (AssertionError, RuntimeError):",
        "  return general(args)",
    ]


def _tensors(value: Any, objects: bool) -> list[torch.Tensor]:
    """The tensors that a value is or holds, in order; not what `objects` hold."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()  # functions may close over each other
    rest = [value]
    while rest:
        item = rest.pop()
        if type(item) in _WITHOUT_TENSORS or (objects and is_object(item)):
            continue
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif id(item) not in seen:
            seen.add(id(item))
            rest.extend(_inside(item)[::-1])
    return found


def _inside(value: Any) -> Sequence[Any]:
    """What a value holds, as far as keys read it."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, MethodType):
        tensor = [value.__self__] if isinstance(value.__self__, torch.Tensor) else []
        return [value.__func__, *tensor]
    if isinstance(value, BuiltinFunctionType):
        return [value.__self__]
    if isinstance(value, FunctionType):
        held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*_contents(value), *held]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [getattr(value, name) for name in names if hasattr(value, name)]
    return ()


def _contents(function: FunctionType) -> list[Any]:
    """What a function closes over, except names that are not assigned yet."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    return found
