"""`specialize`: adds a value to the kernel's key while a host function runs.

    specialize(n) ── which fact is it? ──► in the key already, with this value: done
                                           ├ not in the key: add it, for all later calls
                                           └ not determined by the arguments: it must not change

Enters: a value, inside a running host function. Leaves: the same value, and an `Extra` that joins
the kernel's key from then on, so that it selects the bound kernel before the host function runs. It
must not know how keys are stored.

For `specialize(n)`, `specialize(x.size(0))` or `specialize(x.shape[0])` of a parameter that is
never assigned, the extra is just that fact, as long as the value agrees. For any other expression
tzero assumes that the arguments determine it, and adds all of them to the key in full. If a bound
kernel then still gets another value (from a tensor's contents, or a global), the call raises,
because nothing known before the call would distinguish the two.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from tzero import locks
from tzero.arguments.constants import Identity, constant, fields_of
from tzero.arguments.key import Options, part
from tzero.arguments.objects import is_object
from tzero.arguments.text import shown
from tzero.calls.bound import BoundKernel, Given, Site
from tzero.errors import InvalidArgument, NotInKernel, UnsupportedType
from tzero.launches.current_call import current
from tzero.reading.bytecode import Source, assigned, read_source

__all__ = ["Extra", "NotInKernel", "specialize"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Extra:
    """A fact of the arguments that `specialize` added to a kernel's key.

    >>> Extra("argument", 1).of((None, 64)) == Extra("argument", 1).of((None, 64))
    True
    """

    kind: Literal["argument", "size", "everything"]
    index: int = 0
    dim: int = 0

    def of(self, args: Sequence[Any]) -> Hashable:
        """The value of this fact for some arguments."""
        if self.kind == "everything":
            return tuple(_in_full(value) for value in args)
        value = args[self.index]
        if self.kind == "argument":
            return constant(value)
        if isinstance(value, torch.Tensor) and -value.dim() <= self.dim < value.dim():
            return constant(value.size(self.dim))
        return _in_full(value)  # something else that has sizes


EVERYTHING = Extra("everything")


def by_value_in(facts: Iterable[Any]) -> frozenset[int]:
    """The places of the arguments whose values are among the facts of a key.

    >>> by_value_in([Extra("argument", 1), Extra("size", 0)])
    frozenset({1})
    """
    return frozenset(extra.index for extra in facts if extra.kind == "argument")


def found_by_words(facts: Iterable[Any], args: Sequence[Any]) -> bool:
    """Whether native code distinguishes calls with other facts, if it compares the arguments of
    `by_value_in` by value: it reads numbers and the sizes of tensors.

    >>> found_by_words([Extra("argument", 1)], (None, 64)), found_by_words([EVERYTHING], (64,))
    (True, False)
    """
    kinds = {"argument": (bool, int, float, str), "size": (torch.Tensor, torch.nn.Parameter)}
    return all(type(args[each.index]) in kinds.get(each.kind, ()) for each in facts)


def _in_full(value: Any) -> Hashable:
    """Everything from which a host function may compute a constant, except a tensor's contents."""
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
    return Identity(value) if is_object(value) else part(value, _STATIC)


_STATIC = Options(static_shapes=True)


def _place(tensor: torch.Tensor) -> Hashable:
    """A tensor's offset and alignment in memory; None if it has no memory, as under vmap."""
    try:
        return (tensor.storage_offset(), tensor.data_ptr() % 64)
    except RuntimeError:
        return None


# -- the call -------------------------------------------------------------------------------------


class Value(NamedTuple):
    """A value given to `specialize`: itself, as a constant, its site, and the fact of the arguments
    that it seems to be."""

    value: object
    constant: Hashable
    site: Site
    guess: Extra


run_as_written: weakref.WeakSet[CodeType] = weakref.WeakSet()
"""The code of host functions that run as written without further notice. Their calls have no keys,
so that there is nothing for a value to join."""


def _in_function_as_written(frame: FrameType | None) -> bool:
    while frame is not None and run_as_written:
        if frame.f_code in run_as_written:
            return True
        frame = frame.f_back
    return False


def specialize(value: T) -> T:
    """Specialize the kernel on a value; returns it unchanged. Under torch.compile and in
    `Kernel.precompile` it does nothing else.

    ::

        @tzero.kernel
        def scale(x, n):
            block = tzero.specialize(n)  # calls with another n get another bound kernel
            ...
    """
    if torch.compiler.is_compiling() or current.is_trial:
        return value
    call = current.call
    if call is None:
        if _in_function_as_written(sys._getframe(1)):
            return value
        raise NotInKernel(what="specialize")
    note, base, bound, args, number = call
    note(base, bound, args, number, _read(value, sys._getframe(1), bound))
    return value


def _read(value: object, frame: FrameType, bound: BoundKernel[Any]) -> Value:
    """A value and its site; raises `InvalidArgument` if the value cannot be part of a key."""
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
            advice="Give it a number, a string, a dtype, or a list, tuple, dict or dataclass of "
            "these.",
        ) from error
    return Value(value, known, site, _origin(code, frame.f_lasti, bound))


def unsettled(value: Value, bound: BoundKernel[Any], args: Sequence[Any]) -> Extra | None:
    """The fact behind a value; None if the bound kernel's key has it, with this value.

    The fact read from the source is a guess: the host function may have changed its arguments. So
    it is used only as long as the value agrees with the fact in the key or, the first time, with
    the arguments.
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


_recording = locks.lock()  # protects changes of `given` and `open_sites` of bound kernels


def hold(bound: BoundKernel[Any], number: int, value: Value, *, in_key: bool) -> None:
    """Check a value against those that were given at the same site before; `in_key` says whether
    the key has all arguments in full.

    The first call at a site may give any number of values, as in a loop. So may calls that run at
    the same time on other threads, and later ones if it fails: the site is open until a call
    succeeds (`close_sites`).
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
    same, advice = "the bound kernel, which was bound before it joined the key", "Bind it again."
    if in_key:
        same = "a call with the same arguments before, so they do not determine it"
        advice = "Make it an argument, a ConstExpr, or part of what key= returns."
    raise InvalidArgument(
        kernel=bound.name,
        problem=f"specialize was given {words} at {file}:{line}, and {before} in {same}",
        advice=advice,
    )


def close_sites(bound: BoundKernel[Any]) -> None:
    """Note that a call succeeded: later calls must give the same values."""
    with _recording:
        bound.open_sites = frozenset()


# -- facts read from the source -------------------------------------------------------------------

Sites = dict[int, Extra]
"""The facts of simple `specialize` calls in a host function, by bytecode offset."""

_sites: weakref.WeakKeyDictionary[CodeType, dict[tuple[str, ...], Sites]]
_sites = weakref.WeakKeyDictionary()


def _origin(code: CodeType, offset: int, bound: BoundKernel[Any]) -> Extra:
    """The fact of the arguments that a call of `specialize` seems to use."""
    if code is not getattr(bound.function, "__code__", None):
        return EVERYTHING
    parameters = bound.host.parameters  # one more for a method that is called on its class
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
    """The fact that an expression of one of the three simple forms stands for."""
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
