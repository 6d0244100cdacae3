"""`specialize`: a host function asks that its code be made for a value, not only for its type.

Enters: a value, inside a running host function. Leaves: the same value, and an `Extra` that joins
the kernel's key from then on, so that later calls are told apart by it before the host function
runs. It must not know how keys are stored.

Where the call reads `specialize(n)`, `specialize(x.size(0))` or `specialize(x.shape[0])` of a
parameter that is never assigned, the extra is just that. Of any other expression only this is
known: that the arguments decide it. Then all of them join the key in full.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Literal, TypeVar

import torch

from tzero.bind import running
from tzero.errors import TzeroError
from tzero.key import Options, constant, part

__all__ = ["Extra", "NotInKernel", "specialize"]

T = TypeVar("T")


class NotInKernel(TzeroError, RuntimeError):
    """`specialize` was called while no kernel's host function was running.

    >>> print(NotInKernel(what="specialize"))
    specialize was called outside a kernel. Call it in a host function under @tzero.kernel, or in \
what that calls.
    """

    def __init__(self, *, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what} was called outside a kernel. Call it in a host function under @tzero.kernel, "
            "or in what that calls."
        )


@dataclass(frozen=True, slots=True)
class Extra:
    """A fact of the arguments that a kernel's key gained.

    >>> Extra("argument", 1).of((None, 64)) == Extra("argument", 1).of((None, 64))
    True
    """

    kind: Literal["argument", "size", "everything"]
    index: int = 0
    dim: int = 0

    def of(self, args: Sequence[Any]) -> Hashable:
        """What this fact is for some arguments."""
        if self.kind == "argument":
            return constant(args[self.index])
        value = args[self.index] if args else None
        if self.kind == "size" and isinstance(value, torch.Tensor):
            return int(value.size(self.dim))
        if self.kind == "size":
            return _in_full(value)  # something else that has sizes
        return tuple(_in_full(value) for value in args)


def _in_full(value: Any) -> Hashable:
    """Whatever a host function may compute a constant from, short of a tensor's contents."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        place = (value.storage_offset(), value.data_ptr() % 64, value.requires_grad)
        return (part(value, Options(static_shapes=True)), place)
    if isinstance(value, (bool, int, float, complex)):
        return constant(value)
    if isinstance(value, (list, tuple)):
        return (type(value), *(_in_full(item) for item in value))
    if isinstance(value, dict):
        return (type(value), *((constant(k), _in_full(item)) for k, item in value.items()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return (type(value), *((name, _in_full(getattr(value, name))) for name in names))
    return part(value, Options(static_shapes=True))


def specialize(value: T) -> T:
    """Have code made for this value; returns it unchanged.

    ::

        @tzero.kernel
        def scale(x, n):
            block = tzero.specialize(n)  # calls with another n are bound anew
            ...
    """
    call = running.current
    if call is None:
        raise NotInKernel(what="specialize")
    if isinstance(value, torch.Tensor):
        raise TypeError("specialize takes a number or another constant, not a tensor.")
    constant(value)  # a value that cannot be a constant is refused here, by name
    note, base, bound, args = call
    note(base, bound, args, _origin(sys._getframe(1), bound.function))
    return value


def _origin(frame: FrameType, function: Callable[..., Any]) -> Extra:
    """Which fact of the arguments a call of `specialize` looks at."""
    code: CodeType = frame.f_code
    if code is not getattr(function, "__code__", None):
        return Extra("everything")
    positions = list(code.co_positions())[frame.f_lasti // 2]
    return _call_sites(code, function).get(positions, Extra("everything"))


# First line, last line, first column, last column; begin and end, for `f(x).g(y)` is two calls that
# begin in one place.
Span = tuple[int | None, int | None, int | None, int | None]

_sites: dict[CodeType, dict[Span, Extra]] = {}


def _call_sites(code: CodeType, function: Callable[..., Any]) -> dict[Span, Extra]:
    """Where a host function calls `specialize` on something simple."""
    if code not in _sites:
        _sites[code] = _read_sites(code, function)
    return _sites[code]


def _read_sites(code: CodeType, function: Callable[..., Any]) -> dict[Span, Extra]:
    try:
        lines, first = inspect.getsourcelines(function)
        source = "".join(lines)
        tree = ast.parse(textwrap.dedent(source))
    except (OSError, SyntaxError):  # no source, or not one that stands alone: nothing is simple
        return {}
    indent = len(lines[0]) - len(lines[0].lstrip())
    names = code.co_varnames[: code.co_argcount]
    assigned = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    steady = {name: k for k, name in enumerate(names) if name not in assigned}
    found: dict[Span, Extra] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            extra = _simple(node.args[0], steady)
            if extra is not None:
                assert node.end_lineno is not None
                assert node.end_col_offset is not None
                lines_span = (node.lineno + first - 1, node.end_lineno + first - 1)
                found[*lines_span, node.col_offset + indent, node.end_col_offset + indent] = extra
    return found


def _simple(node: ast.expr, steady: dict[str, int]) -> Extra | None:
    if isinstance(node, ast.Name) and node.id in steady:
        return Extra("argument", steady[node.id])
    target: ast.expr
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        target, dim = node.func, node.args[0]
        wanted = "size"
    elif isinstance(node, ast.Subscript):
        target, dim = node.value, node.slice
        wanted = "shape"
    else:
        return None
    if not (isinstance(target, ast.Attribute) and target.attr == wanted):
        return None
    if not (isinstance(target.value, ast.Name) and target.value.id in steady):
        return None
    if not (isinstance(dim, ast.Constant) and type(dim.value) is int):
        return None
    return Extra("size", steady[target.value.id], dim.value)
