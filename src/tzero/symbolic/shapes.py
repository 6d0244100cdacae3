"""The geometry of tensors as formulas: what views and allocations make of other sizes.

    x.view(m, -1), torch.empty(m, n), x.t() ──► sizes, strides and offset of the result

Enters: the geometry of a tensor and the arguments of a torch function, as formulas. Leaves: the
geometry of its result, with conditions for what must be so in another call; or `NoRule`. It must
not know tensors: who asks compares the values with those of the real result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tzero.symbolic.formulas import Formulas

__all__ = ["VIEWS", "NoRule", "Shape", "broadcast", "contiguous", "require_contiguous"]


class NoRule(Exception):
    """There is no rule for what a function makes of other sizes."""


class Shape(NamedTuple):
    """The formulas of a tensor's sizes and strides, and of its offset from the tensor it is a view
    of, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def contiguous(formulas: Formulas, sizes: Sequence[int]) -> tuple[int, ...]:
    """The strides of a new contiguous tensor.

    >>> these = Formulas()
    >>> strides = contiguous(these, [these.constant(n) for n in (2, 3, 4)])
    >>> [these.value(each) for each in strides]
    [12, 4, 1]
    """
    one = formulas.constant(1)
    strides = [one] * len(sizes)
    for k in range(len(sizes) - 1, 0, -1):
        size = formulas.apply("max", sizes[k], one)
        strides[k - 1] = formulas.apply("*", strides[k], size)
    return tuple(strides)


def require_contiguous(formulas: Formulas, shape: Shape) -> None:
    """Let a tensor have the strides of a new contiguous one in each call of the plan.

    >>> these = Formulas()
    >>> n = these.constant(3)
    >>> require_contiguous(these, Shape((n, n), (n, these.constant(1)), these.constant(0)))
    """
    if not _is_contiguous(formulas, shape):
        raise NoRule
    for stride, wanted in zip(shape.strides, contiguous(formulas, shape.sizes), strict=True):
        formulas.compare("==", stride, wanted)


def _is_contiguous(formulas: Formulas, shape: Shape) -> bool:
    """Whether the strides are, in the recorded call, those of a new contiguous tensor."""
    wanted = contiguous(formulas, shape.sizes)
    return list(map(formulas.value, shape.strides)) == list(map(formulas.value, wanted))


def _place(dim: int, count: int) -> int:
    if not -count <= dim < count:
        raise NoRule
    return dim % count


def _fixed(formulas: Formulas, arg: Any) -> int:
    """An argument that must be the same in every call."""
    if type(arg) is not int:
        raise NoRule
    return formulas.pin(arg)


def _listed(args: Sequence[Any]) -> list[int]:
    """Integers that are given one by one, or in one sequence."""
    if len(args) == 1 and isinstance(args[0], (list, tuple)):
        args = args[0]
    if not all(type(each) is int for each in args):
        raise NoRule
    return list(args)


def product(formulas: Formulas, sizes: Sequence[int]) -> int:
    """The formula of the product.

    >>> these = Formulas()
    >>> these.value(product(these, [these.constant(6), these.constant(7)]))
    42
    """
    made = formulas.constant(1)
    for each in sizes:
        made = formulas.apply("*", made, each)
    return made


def view(formulas: Formulas, shape: Shape, *args: Any) -> Shape:
    """Tensor.view; Tensor.reshape where it makes a view"""
    sizes = _inferred(formulas, shape, _listed(args))
    if _is_contiguous(formulas, shape):
        require_contiguous(formulas, shape)
        strides = contiguous(formulas, sizes)
    else:
        strides = _view_strides(formulas, shape, sizes)
    return Shape(tuple(sizes), strides, formulas.constant(0))


def view_as(formulas: Formulas, shape: Shape, other: Shape) -> Shape:
    """Tensor.view_as; Tensor.reshape_as where it makes a view"""
    return view(formulas, shape, *other.sizes)


def _inferred(formulas: Formulas, shape: Shape, sizes: list[int]) -> list[int]:
    """The sizes of a view; one of them may be -1."""
    minus_one, zero = formulas.constant(-1), formulas.constant(0)
    open_ = [k for k, each in enumerate(sizes) if formulas.compare("==", each, minus_one)]
    every = product(formulas, shape.sizes)
    others = [each for k, each in enumerate(sizes) if k not in open_]
    if len(open_) > 1 or not all(formulas.compare(">=", each, zero) for each in others):
        raise NoRule
    if open_:
        known = product(formulas, others)
        if formulas.compare("==", known, zero):
            raise NoRule
        sizes[open_[0]] = formulas.apply("//", every, known)
    if not formulas.compare("==", product(formulas, sizes), every):
        raise NoRule
    return sizes


def _view_strides(formulas: Formulas, shape: Shape, sizes: Sequence[int]) -> tuple[int, ...]:
    """The strides of a view of a tensor that is not contiguous. Dimensions whose elements lie at
    one distance in memory are one run, and each run must be cut into whole dimensions."""
    one, every = formulas.constant(1), product(formulas, shape.sizes)
    if formulas.compare("==", every, formulas.constant(0)):
        is_same = len(sizes) == len(shape.sizes) and all(
            formulas.compare("==", *pair) for pair in zip(sizes, shape.sizes, strict=True)
        )
        return shape.strides if is_same else contiguous(formulas, sizes)
    strides: list[int] = []
    left, base, length = list(sizes), shape.strides[-1], one
    for k in reversed(range(len(shape.sizes))):
        length = formulas.apply("*", length, shape.sizes[k])
        if k and _goes_on(formulas, shape, k - 1, formulas.apply("*", length, base)):
            continue
        done = one
        while left and (
            formulas.compare("<", done, length) or formulas.compare("==", left[-1], one)
        ):
            strides.append(formulas.apply("*", done, base))
            done = formulas.apply("*", done, left.pop())
        if not formulas.compare("==", done, length):
            raise NoRule
        if k:
            base, length = shape.strides[k - 1], one
    return tuple(reversed(strides))


def _goes_on(formulas: Formulas, shape: Shape, k: int, distance: int) -> bool:
    """Whether a dimension is in one run with those after it."""
    return formulas.compare("==", shape.strides[k], distance) or formulas.compare(
        "==", shape.sizes[k], formulas.constant(1)
    )


def flatten(formulas: Formulas, shape: Shape, start: Any = None, end: Any = None) -> Shape:
    """Tensor.flatten where it makes a view"""
    count = len(shape.sizes)
    if not count:
        raise NoRule
    first = 0 if start is None else _place(_fixed(formulas, start), count)
    last = count - 1 if end is None else _place(_fixed(formulas, end), count)
    if last < first:
        raise NoRule
    if last == first:
        return shape._replace(offset=formulas.constant(0))
    merged = product(formulas, shape.sizes[first : last + 1])
    return view(formulas, shape, [*shape.sizes[:first], merged, *shape.sizes[last + 1 :]])


def transpose(formulas: Formulas, shape: Shape, one: Any, two: Any) -> Shape:
    """Tensor.transpose"""
    count = len(shape.sizes)
    a, b = (_place(_fixed(formulas, each), count) for each in (one, two))
    order = list(range(count))
    order[a], order[b] = order[b], order[a]
    return _ordered(formulas, shape, order)


def transposed(formulas: Formulas, shape: Shape) -> Shape:
    """Tensor.t, Tensor.T, Tensor.mT of a matrix."""
    if len(shape.sizes) != 2:
        raise NoRule
    return _ordered(formulas, shape, [1, 0])


def permute(formulas: Formulas, shape: Shape, *args: Any) -> Shape:
    """Tensor.permute"""
    count = len(shape.sizes)
    order = [_place(_fixed(formulas, each), count) for each in _listed(args)]
    if sorted(order) != list(range(count)):
        raise NoRule
    return _ordered(formulas, shape, order)


def _ordered(formulas: Formulas, shape: Shape, order: Sequence[int]) -> Shape:
    return Shape(
        tuple(shape.sizes[k] for k in order),
        tuple(shape.strides[k] for k in order),
        formulas.constant(0),
    )


def unsqueeze(formulas: Formulas, shape: Shape, dim: Any) -> Shape:
    """Tensor.unsqueeze"""
    count = len(shape.sizes)
    at = _place(_fixed(formulas, dim), count + 1)
    one = formulas.constant(1)
    stride = formulas.apply("*", shape.sizes[at], shape.strides[at]) if at < count else one
    sizes, strides = list(shape.sizes), list(shape.strides)
    sizes.insert(at, one)
    strides.insert(at, stride)
    return Shape(tuple(sizes), tuple(strides), formulas.constant(0))


def squeeze(formulas: Formulas, shape: Shape, dim: Any) -> Shape:
    """Tensor.squeeze of one dimension."""
    at = _place(_fixed(formulas, dim), len(shape.sizes))
    if not formulas.compare("==", shape.sizes[at], formulas.constant(1)):
        return shape._replace(offset=formulas.constant(0))
    return Shape(
        (*shape.sizes[:at], *shape.sizes[at + 1 :]),
        (*shape.strides[:at], *shape.strides[at + 1 :]),
        formulas.constant(0),
    )


def select(formulas: Formulas, shape: Shape, dim: Any, index: Any) -> Shape:
    """Tensor.select"""
    at = _place(_fixed(formulas, dim), len(shape.sizes))
    if type(index) is not int:
        raise NoRule
    size, zero = shape.sizes[at], formulas.constant(0)
    if formulas.compare("<", index, zero):
        index = formulas.apply("+", index, size)
    if formulas.compare("<", index, zero) or not formulas.compare("<", index, size):
        raise NoRule
    return Shape(
        (*shape.sizes[:at], *shape.sizes[at + 1 :]),
        (*shape.strides[:at], *shape.strides[at + 1 :]),
        formulas.apply("*", index, shape.strides[at]),
    )


def narrow(formulas: Formulas, shape: Shape, dim: Any, start: Any, length: Any) -> Shape:
    """Tensor.narrow"""
    at = _place(_fixed(formulas, dim), len(shape.sizes))
    if type(start) is not int or type(length) is not int:
        raise NoRule
    return _cut(formulas, shape, at, start, formulas.apply("+", start, length), 1)


def _cut(formulas: Formulas, shape: Shape, at: int, start: int, stop: int, step: int) -> Shape:
    """The part of one dimension from `start` to `stop`, both within it."""
    size, zero = shape.sizes[at], formulas.constant(0)
    ordered = formulas.compare("<=", start, stop)
    inside = formulas.compare("<=", zero, start) and formulas.compare("<=", stop, size)
    if not ordered or not inside:
        raise NoRule
    every = formulas.constant(step)
    length = formulas.apply("cdiv", formulas.apply("-", stop, start), every)
    sizes, strides = list(shape.sizes), list(shape.strides)
    sizes[at] = length
    offset = formulas.apply("*", start, strides[at])
    strides[at] = formulas.apply("*", strides[at], every)
    return Shape(tuple(sizes), tuple(strides), offset)


def item(formulas: Formulas, shape: Shape, key: Any) -> Shape:
    """Tensor.__getitem__ with integers, slices of positive steps, None and an ellipsis."""
    keys = list(key) if isinstance(key, tuple) else [key]
    taking = [each for each in keys if each is not None and each is not ...]
    if ... in keys:
        k = keys.index(...)
        keys[k : k + 1] = [slice(None)] * (len(shape.sizes) - len(taking))
    made, at, offset = shape, 0, formulas.constant(0)
    for each in keys:
        if each is None:
            made = unsqueeze(formulas, made, formulas.constant(at))
        elif isinstance(each, slice):
            made = _sliced(formulas, made, at, each)
        elif type(each) is int:
            made = select(formulas, made, formulas.constant(at), each)
            at -= 1
        else:
            raise NoRule
        offset = formulas.apply("+", offset, made.offset)
        at += 1
    return made._replace(offset=offset)


def _sliced(formulas: Formulas, shape: Shape, at: int, key: slice) -> Shape:
    """A slice whose bounds are formulas."""
    if at >= len(shape.sizes):
        raise NoRule
    size = shape.sizes[at]
    step = 1 if key.step is None else _fixed(formulas, key.step)
    if step < 1:
        raise NoRule
    start = _bound(formulas, formulas.constant(0) if key.start is None else key.start, size)
    stop = size if key.stop is None else _bound(formulas, key.stop, size)
    return _cut(formulas, shape, at, start, formulas.apply("max", start, stop), step)


def _bound(formulas: Formulas, bound: Any, size: int) -> int:
    """A bound of a slice, within the dimension."""
    if type(bound) is not int:
        raise NoRule
    zero = formulas.constant(0)
    if formulas.compare("<", bound, zero):
        bound = formulas.apply("max", formulas.apply("+", bound, size), zero)
    return formulas.apply("min", bound, size)


def broadcast(formulas: Formulas, every: Sequence[Sequence[int]]) -> list[int]:
    """The sizes to which tensors of these sizes are expanded together.

    >>> these = Formulas()
    >>> rows, columns, one = map(these.constant, (5, 3, 1))
    >>> [these.value(each) for each in broadcast(these, [(rows, one), (columns,)])]
    [5, 3]
    """
    one = formulas.constant(1)
    made: list[int] = []
    for k in range(1, 1 + max(map(len, every))):
        found = one
        for size in (sizes[-k] for sizes in every if len(sizes) >= k):
            if formulas.compare("==", size, one):
                continue
            if found == one:
                found = size
            elif not formulas.compare("==", size, found):
                raise NoRule
        made.insert(0, found)
    return made


def expand(formulas: Formulas, shape: Shape, *args: Any) -> Shape:
    """Tensor.expand"""
    wanted = _listed(args)
    new = len(wanted) - len(shape.sizes)
    if new < 0:
        raise NoRule
    zero, one, keep = formulas.constant(0), formulas.constant(1), formulas.constant(-1)
    sizes: list[int] = []
    strides: list[int] = []
    for k in reversed(range(len(wanted))):
        target, is_new = wanted[k], k < new
        if not is_new and formulas.compare("==", target, keep):
            target = shape.sizes[k - new]
        elif not formulas.compare(">=", target, zero):
            raise NoRule
        size = one if is_new else shape.sizes[k - new]
        if formulas.compare("==", size, target):
            whole = formulas.apply("*", sizes[0], strides[0]) if sizes else one
            strides.insert(0, whole if is_new else shape.strides[k - new])
        elif formulas.compare("==", size, one):
            strides.insert(0, zero)
        else:
            raise NoRule
        sizes.insert(0, target)
    return Shape(tuple(sizes), tuple(strides), zero)


Rule = Callable[..., Shape]

VIEWS: Mapping[str, Rule] = {
    **dict.fromkeys(["Tensor.view", "Tensor.reshape", "reshape"], view),
    **dict.fromkeys(["Tensor.view_as", "Tensor.reshape_as"], view_as),
    **dict.fromkeys(["Tensor.flatten", "flatten"], flatten),
    **dict.fromkeys(["Tensor.transpose", "transpose", "Tensor.swapaxes"], transpose),
    **dict.fromkeys(["Tensor.t", "t", "Tensor.T.__get__", "Tensor.mT.__get__"], transposed),
    **dict.fromkeys(["Tensor.permute"], permute),
    **dict.fromkeys(["Tensor.unsqueeze", "unsqueeze"], unsqueeze),
    **dict.fromkeys(["Tensor.squeeze", "squeeze"], squeeze),
    **dict.fromkeys(["Tensor.select", "select"], select),
    **dict.fromkeys(["Tensor.narrow", "narrow"], narrow),
    **dict.fromkeys(["Tensor.expand", "expand"], expand),
    "Tensor.__getitem__": item,
}
"""What functions that return views make of a tensor's geometry. Their arguments are formulas, and
what contains them."""
