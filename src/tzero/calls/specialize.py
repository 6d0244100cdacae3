"""`specialize`: a host function asks that its code be made for a value, not only for its type.

    specialize(n) ── which fact is it? ──► in the key already, with this value: done
                                           ├ not in the key: it joins, for every later call
                                           └ the arguments do not decide it: hold it to what it was

Enters: a value, inside a running host function. Leaves: the same value, and an `Extra` that joins
the kernel's key from then on, so that later calls are told apart by it before the host function
runs. It must not know how keys are stored.

Where the call reads `specialize(n)`, `specialize(x.size(0))` or `specialize(x.shape[0])` of a
parameter that is never assigned, the extra is just that, as long as the value says so too. Of any
other expression it is guessed that the arguments decide it, and all of them join the key in full.
Where even then one bound kernel meets another value (a tensor's contents, a global), the call is
refused: nothing that tzero knows before the call would tell the two apart.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from tzero.arguments.constants import constant, fields_of
from tzero.arguments.key import Options, part
from tzero.arguments.text import shown
from tzero.calls.bound import BoundKernel, Given, Site
from tzero.errors import InvalidArgument, NotInKernel, UnsupportedType
from tzero.launches.current_call import current
from tzero.reading.bytecode import Source, assigned, read_source

__all__ = ["Extra", "NotInKernel", "specialize"]

T = TypeVar("T")


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
        if self.kind == "everything":
            return tuple(_in_full(value) for value in args)
        value = args[self.index]
        if self.kind == "argument":
            return constant(value)
        if isinstance(value, torch.Tensor) and -value.dim() <= self.dim < value.dim():
            return constant(value.size(self.dim))
        return _in_full(value)  # something else that has sizes


EVERYTHING = Extra("everything")


def _in_full(value: Any) -> Hashable:
    """Whatever a host function may compute a constant from, short of a tensor's contents."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return (part(value, _STATIC), _place(value), value.requires_grad)
    if isinstance(value, (bool, int, float, complex)):
        return constant(value)
    if isinstance(value, (list, tuple)):
        return (type(value), *(_in_full(item) for item in value))
    if isinstance(value, dict):
        return (type(value), *((constant(k), _in_full(item)) for k, item in value.items()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value), *((name, _in_full(item)) for name, item in fields_of(value)))
    return part(value, _STATIC)


_STATIC = Options(static_shapes=True)


def _place(tensor: torch.Tensor) -> Hashable:
    """How a tensor lies in memory; under vmap, for one, it lies nowhere."""
    try:
        return (tensor.storage_offset(), tensor.data_ptr() % 64)
    except RuntimeError:
        return None


# -- the call -------------------------------------------------------------------------------------


class Value(NamedTuple):
    """A value that was given to `specialize`: also as a constant, where, and the fact of the
    arguments that it seems to be."""

    value: object
    constant: Hashable
    site: Site
    guess: Extra


def specialize(value: T) -> T:
    """Have code made for this value; returns it unchanged. Under torch.compile, where the host
    function is traced, and in `Kernel.precompile` that is all it does.

    ::

        @tzero.kernel
        def scale(x, n):
            block = tzero.specialize(n)  # calls with another n are bound anew
            ...
    """
    if torch.compiler.is_compiling() or current.is_trial:
        return value
    call = current.call
    if call is None:
        raise NotInKernel(what="specialize")
    note, base, bound, args, number = call
    note(base, bound, args, number, _read(value, sys._getframe(1), bound))
    return value


def _read(value: object, frame: FrameType, bound: BoundKernel[Any]) -> Value:
    """A value, refused here if code cannot be made for it."""
    code = frame.f_code
    site = (code.co_filename, frame.f_lineno, frame.f_lasti)
    try:
        if isinstance(value, torch.Tensor):
            raise UnsupportedType(kind="tensor")
        known = constant(value)
    except UnsupportedType as error:
        raise InvalidArgument(
            kernel=bound.name,
            problem=f"specialize was given {error.named} at {site[0]}:{site[1]}",
            advice="Give it what code can be made for: a number, a string, a dtype, or lists, "
            "tuples, dicts and dataclasses of these.",
        ) from error
    return Value(value, known, site, _origin(code, frame.f_lasti, bound))


def unsettled(value: Value, bound: BoundKernel[Any], args: Sequence[Any]) -> Extra | None:
    """The fact behind a value, unless the key of the bound kernel has it, and with this value.

    What the source says is a guess: the host function may have changed its arguments before. So it
    is believed only as long as the value agrees, with the key's fact, from before the call, or,
    the first time, with the arguments.
    """
    guess = value.guess
    if EVERYTHING in bound.facts or guess == EVERYTHING:
        return EVERYTHING
    if guess in bound.facts:
        return None if bound.facts[guess] == value.constant else EVERYTHING
    try:
        agrees = guess.of(args) == value.constant
    except UnsupportedType:
        return EVERYTHING
    return guess if agrees else EVERYTHING


_recording = threading.Lock()  # protects changing what bound kernels were given


def hold(bound: BoundKernel[Any], number: int, value: Value, *, in_key: bool) -> None:
    """Hold a value to those that the bound kernel was given at the site before; `in_key` says
    whether its key has all arguments in full.

    The call that comes to a site first may give it any number of values, as in a loop. So may those
    that run beside it on other threads, and those after it, if it fails: the site is open until a
    call has ended well (`close_sites`).
    """
    given = bound.given.get(value.site)
    if given is not None and value.constant in given.values:
        return
    words = shown(value.value)[:80]
    with _recording:
        given = bound.given.get(value.site)
        if given is None:
            given = bound.given[value.site] = Given(number, {})
            bound.open_sites |= {value.site}
        if given.number == number or value.site in bound.open_sites:
            given.values[value.constant] = words
            return
        before = " or ".join(given.values.values())[:200]
    file, line, _ = value.site
    same, advice = "the bound kernel, which was bound before this counted", "Bind it again."
    if in_key:
        same = "a call with the same arguments before, so they do not decide it"
        advice = "Make it an argument, a ConstExpr, or part of what key= returns."
    raise InvalidArgument(
        kernel=bound.name,
        problem=f"specialize was given {words} at {file}:{line}, and {before} in {same}",
        advice=advice,
    )


def close_sites(bound: BoundKernel[Any]) -> None:
    """A call of a bound kernel has ended well: what it was given is what later calls must give."""
    with _recording:
        bound.open_sites = frozenset()


# -- which fact it is -----------------------------------------------------------------------------

Sites = dict[int, Extra]
"""Where, by the offset of the call, a host function calls `specialize` on something simple."""

_sites: weakref.WeakKeyDictionary[CodeType, dict[tuple[str, ...], Sites]]
_sites = weakref.WeakKeyDictionary()


def _origin(code: CodeType, offset: int, bound: BoundKernel[Any]) -> Extra:
    """Which fact of the arguments a call of `specialize` seems to look at."""
    if code is not getattr(bound.function, "__code__", None):
        return EVERYTHING
    parameters = bound.host.parameters  # a method has one more where it is called on its class
    known = _sites.setdefault(code, {})
    if parameters not in known:
        known[parameters] = _read_sites(code, bound.function, parameters)
    return known[parameters].get(offset, EVERYTHING)


def _read_sites(code: CodeType, function: Callable[..., Any], parameters: Sequence[str]) -> Sites:
    source = read_source(function)
    if source is None:  # nothing is simple
        return {}
    changed = set(assigned(code))
    steady = {name: k for k, name in enumerate(parameters) if name not in changed}
    spans = dict(_simple_calls(source, steady))
    places = enumerate(code.co_positions())  # one for each instruction, of two bytes
    return {2 * k: spans[span] for k, span in places if span in spans}


def _simple_calls(source: Source, steady: dict[str, int]) -> Iterator[tuple[Any, Extra]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            extra = _simple(node.args[0], steady)
            if extra is not None:
                yield source.span(node), extra


def _simple(node: ast.expr, steady: dict[str, int]) -> Extra | None:
    """The fact that an expression is, if it is one of three forms."""
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
