"""What torch functions that make new tensors make of other sizes.

    torch.empty(m, n), torch.empty_like(x), x.contiguous(), x + y ──► the geometry of the result

Enters: the arguments of a torch function, with formulas in place of integers and a `Shape` in place
of each tensor. Leaves: the `Shape` of its result, with conditions for what must be so in another
call; or `NoRule`. It must not know tensors. Views are in `tzero.symbolic.shapes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tzero.symbolic.formulas import Formulas
from tzero.symbolic.shapes import NoRule, Shape, contiguous

__all__ = ["ALLOCATIONS", "RESULTS", "require_contiguity", "require_no_contiguity"]

Rule = Callable[..., Shape]


def require_contiguity(formulas: Formulas, shape: Shape) -> None:
    """Let a tensor be contiguous in every call.

    >>> these = Formulas()
    >>> n = these.constant(3)
    >>> require_contiguity(these, Shape((n, n), (n, these.constant(1)), these.constant(0)))
    """
    one, zero = formulas.constant(1), formulas.constant(0)
    every = _product(formulas, shape.sizes)
    if formulas.value(every) == 0:
        formulas.compare("==", every, zero)
        return
    wanted = contiguous(formulas, shape.sizes)
    for size, stride, expected in zip(shape.sizes, shape.strides, wanted, strict=True):
        if formulas.value(stride) == formulas.value(expected):
            formulas.compare("==", stride, expected)
        elif not formulas.compare("==", size, one):
            raise NoRule


def require_no_contiguity(formulas: Formulas, shape: Shape) -> None:
    """Let a tensor be not contiguous in any call.

    >>> these = Formulas()
    >>> n, one = these.constant(3), these.constant(1)
    >>> require_no_contiguity(these, Shape((n, n), (one, n), these.constant(0)))
    """
    one, zero = formulas.constant(1), formulas.constant(0)
    wanted = contiguous(formulas, shape.sizes)
    for size, stride, expected in zip(shape.sizes, shape.strides, wanted, strict=True):
        gap = formulas.value(stride) != formulas.value(expected)
        if gap and formulas.value(size) > 1:
            formulas.compare("!=", stride, expected)
            formulas.compare(">", size, one)
            formulas.compare("!=", _product(formulas, shape.sizes), zero)
            return
    raise NoRule


def _product(formulas: Formulas, sizes: Sequence[int]) -> int:
    made = formulas.constant(1)
    for each in sizes:
        made = formulas.apply("*", made, each)
    return made


def _listed(formulas: Formulas, args: Sequence[Any]) -> tuple[int, ...]:
    """Sizes that are given one by one, or in one sequence; none of them is negative."""
    if len(args) == 1 and isinstance(args[0], (list, tuple)):
        args = args[0]
    for each in args:
        if type(each) is not int:
            raise NoRule
        is_size = formulas.nodes[each].operation == "input"
        is_size = is_size and formulas.nodes[each].args[0] == "size"
        if not is_size and not formulas.compare(">=", each, formulas.constant(0)):
            raise NoRule
    return tuple(args)


def _check_options(formulas: Formulas, named: Mapping[str, Any]) -> None:
    """Options other than these do not decide about the geometry of a result."""
    if named.get("out") is not None or named.get("names") is not None:
        raise NoRule
    layout = named.get("memory_format"), named.get("layout")
    if layout[0] not in (None, torch.contiguous_format) or layout[1] not in (None, torch.strided):
        raise NoRule


def fresh(formulas: Formulas, *args: Any, size: Any = None, **named: Any) -> Shape:
    """torch.empty, torch.zeros, torch.ones"""
    _check_options(formulas, named)
    sizes = _listed(formulas, args if size is None else [size])
    return Shape(sizes, contiguous(formulas, sizes), formulas.constant(0))


def full(formulas: Formulas, size: Any, fill_value: Any, **named: Any) -> Shape:
    """torch.full; the number is the same in every call."""
    if type(fill_value) is int:
        formulas.pin(fill_value)
    return fresh(formulas, size, **named)


def fresh_of(formulas: Formulas, of: Shape, *args: Any, size: Any = None, **named: Any) -> Shape:
    """Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones"""
    return fresh(formulas, *args, size=size, **named)


def full_of(formulas: Formulas, of: Shape, size: Any, fill_value: Any, **named: Any) -> Shape:
    """Tensor.new_full"""
    return full(formulas, size, fill_value, **named)


def strided(formulas: Formulas, size: Any, stride: Any, **named: Any) -> Shape:
    """torch.empty_strided"""
    _check_options(formulas, named)
    sizes, strides = _listed(formulas, [size]), _listed(formulas, [stride])
    return Shape(sizes, strides, formulas.constant(0))


def strided_of(formulas: Formulas, of: Shape, size: Any, stride: Any, **named: Any) -> Shape:
    """Tensor.new_empty_strided"""
    return strided(formulas, size, stride, **named)


def like(formulas: Formulas, of: Shape, **named: Any) -> Shape:
    """torch.empty_like and functions that preserve the order of dimensions, of a tensor without
    gaps."""
    asked = named.pop("memory_format", None)
    _check_options(formulas, named)
    if asked is torch.contiguous_format:
        return of._replace(strides=contiguous(formulas, of.sizes), offset=formulas.constant(0))
    if asked not in (None, torch.preserve_format):
        raise NoRule
    _require_dense(formulas, of)
    return of._replace(offset=formulas.constant(0))


def full_like(formulas: Formulas, of: Shape, fill_value: Any, **named: Any) -> Shape:
    """torch.full_like"""
    if type(fill_value) is int:
        formulas.pin(fill_value)
    return like(formulas, of, **named)


def _require_dense(formulas: Formulas, of: Shape) -> None:
    """Let a tensor have no gaps in every call, with its dimensions in this order in memory."""
    value, one = formulas.value, formulas.constant(1)
    dims = sorted(range(len(of.sizes)), key=lambda k: (value(of.strides[k]), -k))
    expected, last = one, len(dims) - 1
    for place, k in enumerate(dims):
        if value(of.strides[k]) == value(expected):
            formulas.compare("==", of.strides[k], expected)
        elif not formulas.compare("==", of.sizes[k], one):
            raise NoRule
        if place != last:  # no stride depends on the outermost size
            expected = formulas.apply("*", expected, formulas.apply("max", of.sizes[k], one))


# -- results of functions that compute -------------------------------------------------------------


def copied(formulas: Formulas, of: Shape) -> Shape:
    """Tensor.contiguous of a tensor that is not."""
    require_no_contiguity(formulas, of)
    return Shape(of.sizes, contiguous(formulas, of.sizes), formulas.constant(0))


def converted(formulas: Formulas, of: Shape, *args: Any, **named: Any) -> Shape:
    """Tensor.to and the like, which make a copy because of the dtype or device."""
    if any(type(each) is int for each in args) or torch.contiguous_format in args:
        raise NoRule
    return like(formulas, of, memory_format=named.get("memory_format"))


def unary(formulas: Formulas, of: Shape) -> Shape:
    """A function of each element."""
    return like(formulas, of)


def binary(formulas: Formulas, one: Any, other: Any) -> Shape:
    """A function of the elements of two tensors of the same geometry, or of a tensor and a
    number."""
    tensors = [each for each in (one, other) if isinstance(each, Shape)]
    whole = [each for each in tensors if each.sizes]
    if len(whole) == 2:
        for pair in ((whole[0].sizes, whole[1].sizes), (whole[0].strides, whole[1].strides)):
            if len(pair[0]) != len(pair[1]):
                raise NoRule
            if not all(formulas.compare("==", *each) for each in zip(*pair, strict=True)):
                raise NoRule
    if not whole:
        raise NoRule
    return like(formulas, whole[0])


def along(formulas: Formulas, of: Shape, *args: Any, **named: Any) -> Shape:
    """A function of the rows of a contiguous tensor, such as softmax."""
    require_contiguity(formulas, of)
    for each in (*args, *named.values()):
        if type(each) is int:
            formulas.pin(each)
    return Shape(of.sizes, contiguous(formulas, of.sizes), formulas.constant(0))


def whole(formulas: Formulas, of: Shape) -> Shape:
    """A function of all elements, without a dimension."""
    return Shape((), (), formulas.constant(0))


def reduced(
    formulas: Formulas, of: Shape, dim: Any = None, keepdim: Any = False, **_: Any
) -> Shape:
    """A function of the elements along some dimensions, such as `sum`; the result is contiguous."""
    if type(keepdim) is not bool:
        raise NoRule
    places = dim if isinstance(dim, (tuple, list)) else [] if dim is None else [dim]
    gone = {_constant(formulas, each) % max(len(of.sizes), 1) for each in places}
    gone = gone or set(range(len(of.sizes)))
    kept = [formulas.constant(1) if k in gone else size for k, size in enumerate(of.sizes)]
    sizes = kept if keepdim else [size for k, size in enumerate(of.sizes) if k not in gone]
    return Shape(tuple(sizes), contiguous(formulas, sizes), formulas.constant(0))


def _constant(formulas: Formulas, number: Any) -> int:
    if type(number) is not int or not formulas.is_constant(number):
        raise NoRule
    return formulas.value(number)


def accumulated(formulas: Formulas, of: Shape, dim: Any, **_: Any) -> Shape:
    """A function along a dimension that keeps it, such as `cumsum`; the result is contiguous."""
    _constant(formulas, dim)
    return Shape(of.sizes, contiguous(formulas, of.sizes), formulas.constant(0))


def product(formulas: Formulas, one: Any, other: Any) -> Shape:
    """The product of two matrices."""
    if not (isinstance(one, Shape) and isinstance(other, Shape)):
        raise NoRule
    if len(one.sizes) != 2 or len(other.sizes) != 2:
        raise NoRule
    if not formulas.compare("==", one.sizes[1], other.sizes[0]):
        raise NoRule
    sizes = one.sizes[0], other.sizes[1]
    return Shape(sizes, contiguous(formulas, sizes), formulas.constant(0))


ALLOCATIONS: Mapping[str, Rule] = {
    **dict.fromkeys(["empty", "zeros", "ones"], fresh),
    "full": full,
    **dict.fromkeys([f"Tensor.new_{name}" for name in ("empty", "zeros", "ones")], fresh_of),
    "Tensor.new_full": full_of,
    "empty_strided": strided,
    "Tensor.new_empty_strided": strided_of,
    **dict.fromkeys([f"{name}_like" for name in ("empty", "zeros", "ones")], like),
    "full_like": full_like,
}
"""Functions that allocate a tensor, and may fill it with one number."""

_UNARY = (
    *("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "relu"),
    *("square", "reciprocal", "floor", "ceil", "round", "sign", "exp2", "log2", "log1p"),
)
_BINARY = (
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "pow",
    "true_divide",
    "truediv",
)

RESULTS: Mapping[str, Rule] = {
    "Tensor.contiguous": copied,
    **dict.fromkeys(
        [f"Tensor.{name}" for name in ("to", "float", "double", "half", "bfloat16", "int", "long")],
        converted,
    ),
    **dict.fromkeys(["Tensor.clone", "clone"], like),
    **dict.fromkeys(["nn.functional.softmax", "softmax", "Tensor.softmax"], along),
    **dict.fromkeys(["rand", "randn"], fresh),
    **{name: whole for each in ("max", "min", "norm") for name in (each, f"Tensor.{each}")},
    **{
        name: reduced
        for each in ("sum", "mean", "amax", "amin", "prod", "logsumexp", "argmax", "argmin")
        for name in (each, f"Tensor.{each}")
    },
    **dict.fromkeys(["cumsum", "Tensor.cumsum", "cumprod", "Tensor.cumprod"], accumulated),
    **{name: unary for each in _UNARY for name in (each, f"Tensor.{each}", f"Tensor.__{each}__")},
    **{
        name: binary
        for each in _BINARY
        for name in (each, f"Tensor.{each}", f"Tensor.__{each}__", f"Tensor.__r{each}__")
    },
    **dict.fromkeys(["mm", "matmul", "Tensor.mm", "Tensor.matmul", "Tensor.__matmul__"], product),
}
"""Functions that compute. They make a new tensor for all sizes that meet the conditions."""
