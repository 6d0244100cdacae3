"""Small host functions over sizes, with what must come of their integers.

Each has two tensors of sizes (6, 40) and (12,), and the number 7. `X0`, `X1`, `Y0` and `N` are
these inputs in the tables of `test_integers`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton

# ruff: noqa: B009, B010, C406, C408, C416, C417, C420, E731, F841, PIE804, RUF005, UP028, UP031, UP032

KEPT = 0


class Pair(NamedTuple):
    """A class of the program."""

    left: int
    right: int


class Holder:
    """An object of the program."""

    size = 0

    @property
    def doubled(self) -> int:
        return self.size * 2

    def __getitem__(self, key: int) -> int:
        return key + 1

    def scaled(self, by: int) -> int:
        return by * 3


def helper(n: int, block: int = 16) -> int:
    return triton.cdiv(n, block)


def outer(*sizes: int, last: int = 1) -> int:
    return sizes[0] * last + len(sizes)


def recursive(n: int) -> int:
    return 0 if n <= 1 else 1 + recursive(n // 2)


def counting(n: int) -> Iterator[int]:
    for k in range(n):
        yield k


def yielding(n: int) -> Iterator[int]:
    yield n


HELPERS = (helper, outer, recursive, counting, yielding, Holder.doubled.fget, Holder.__getitem__)
HELPERS = (*HELPERS, Holder.scaled)


# -- formulas --------------------------------------------------------------------------------------


def unpacks(x, y, n):
    m, k = x.shape
    return m * k + n


def last_size(x, y, n):
    return x.shape[-1], x.size(-1), x.size(dim=1)


def leading(x, y, n):
    return x.shape[:1] + (n,)


def starred(x, y, n):
    *batch, last = x.shape
    return batch, last


def starred_first(x, y, n):
    first, *rest = (*x.shape, n, 3)
    return first, rest


def product(x, y, n):
    return math.prod(x.shape), x.numel(), x.shape.numel(), x.nelement()


def sums(x, y, n):
    return sum(x.shape), max(x.shape), min(n, len(y), 9)


def strides(x, y, n):
    return x.stride(0), x.stride()[1], x.stride(dim=-1)


def ceilings(x, y, n):
    return triton.cdiv(n, 4), -(-n // 4), (n + 3) // 4, math.ceil(n / 4), int(n / 4)


def powers(x, y, n):
    return triton.next_power_of_2(n), 1 << (n - 1).bit_length(), 2**n, n & -n


def bits(x, y, n):
    return n >> 1, n | 8, n ^ 3, ~n, n & (n - 1), abs(-n), +n


def halves(x, y, n):
    q, r = divmod(n, 4)
    return q, r


def by_helper(x, y, n):
    return helper(n), helper(n, 8), helper(block=4, n=n), helper(n, block=x.size(0))


def spread(x, y, n):
    return outer(*x.shape), outer(*x.shape, last=n), outer(n, **{"last": n})


def closure(x, y, n):
    def grid(block: int) -> tuple[int, int]:
        return triton.cdiv(n, block), m

    m = x.size(0)
    return grid(4)


def sharing(x, y, n):
    def add(by: int) -> None:
        nonlocal total
        total += by

    total = n
    add(x.size(0))
    return total


def grid_function(x, y, n):
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    return grid({"BLOCK": 4, "N": n})


def grid_function_of_a_size(x, y, n):
    grid = lambda meta: (triton.cdiv(meta["N"], meta["BLOCK"]), meta["N"])
    return grid({"BLOCK": 4, "N": n})


def comprehension(x, y, n):
    return [s * 2 for s in x.shape], tuple([s for s in (*x.shape, n)])


def loop_over_sizes(x, y, n):
    total = 1
    for s in x.shape:
        total *= s
    return total


def lists(x, y, n):
    shape = list(x.shape)
    shape[-1] = n
    shape.append(3)
    shape += [y.size(0)]
    shape.extend((n, n))
    return shape


def dicts(x, y, n):
    meta = {"n": n, "b": 4}
    meta["m"] = x.size(0)
    meta = {**meta, "b": n + 1}
    return meta, meta["n"], {k: n for k in "ab"}


def dict_items(x, y, n):
    meta = {"n": n, "b": 4, "m": x.size(0)}
    doubled = {k: v * 2 for k, v in meta.items() if k in meta}
    total = 0
    for value in meta.values():
        total += value
    return doubled, total, "n" in meta


def dict_items_one_by_one(x, y, n):
    meta = {"n": n, "b": 4}
    pairs = iter(meta.items())
    for k, v in pairs:
        meta[k] = v + 1
        break
    for k, v in pairs:
        return k, v, meta["n"]


def dict_view_elsewhere(x, y, n):
    meta = {"n": n, "b": 4}
    return sorted(meta.items()), list({"m": x.size(0)}.values())


def dict_values_unpacked(x, y, n):
    a, b = {"n": n, "b": 4}.values()
    return a + b, [*{"m": y.size(0)}.values()]


def has_attributes(x, y, n):
    return n + hasattr(n, "dtype") + hasattr(n, "real")


def context_of_autograd(x, y, n):
    context = torch.autograd.function.FunctionCtx()
    context.n, context.sizes, context.kept = n, x.shape, [n + 1]
    context.n, m = 3, context.n
    return context.n, m, context.sizes[0], context.kept[0]


def context_changed_elsewhere(x, y, n):
    context = torch.autograd.function.FunctionCtx()
    context.n, context.m = n, x.size(0)
    context.save_for_backward(x)
    setattr(context, "n", 7)
    m = context.m
    context.m = x.size(1)
    del context.m
    context.m = 40
    return context.n, m, context.m


def context_kept(x, y, n):
    context = torch.autograd.function.FunctionCtx()
    context.n = n
    context.save_for_backward(x)
    return context.n


def named_dict(x, y, n):
    meta = dict(n=n, b=4)
    return meta, meta.get("n"), meta.get("m", x.size(0)), meta.get("m")


def late_entry(x, y, n):
    meta = {"a": 1, "b": 2}
    meta["b"] = n
    return meta


def nested(x, y, n):
    pair = ((n, x.shape), [n, {"a": n}])
    return pair[0][1][0], pair[1][1]["a"], pair


def repeated(x, y, n):
    return (n,) * 2, [1, n] * 2


def swapped(x, y, n):
    a, b = x.shape
    a, b = b, a
    return a, b


def ternary(x, y, n):
    return n if n > 3 else 3


def walrus(x, y, n):
    return (k := n + 1) + k


def deleted(x, y, n):
    k = n
    del k
    k = n * 2
    return k


def finally_(x, y, n):
    try:
        k = n + 1
    finally:
        k = n + 2
    return k


def same_tensor(x, y, n):
    z = x
    return z.size(0)


def method(x, y, n):
    return Holder().scaled(n)


def bound_size(x, y, n):
    size = x.size
    return size(0), size()[1]


def checked_type(x, y, n):
    assert isinstance(n, int)
    return n


# -- conditions ------------------------------------------------------------------------------------


def branch(x, y, n):
    if n > 5 and x.size(0) % 4 == 0:
        return 1
    return n


def truth(x, y, n):
    return 1 if n else 2


def negated(x, y, n):
    return not n


def asserted(x, y, n):
    assert n > 0, f"{n} is too small"
    assert x.size(0) * 2 == y.size(0)
    return n


def chained(x, y, n):
    return 1 if 0 < n < x.size(1) else 2


def member(x, y, n):
    return n in (1, 2), n in {3, 7}, n not in [n, 3]


def either(x, y, n):
    return n or 3, n and x.size(0)


def while_loop(x, y, n):
    count = 0
    while n > 1:
        n //= 2
        count += 1
    return count


def same_shapes(x, y, n):
    return x.shape == (6, 40), x.shape != y.shape, list(x.shape) == [6, n]


def truth_of_shape(x, y, n):
    return 1 if x.shape else 2


def is_none(x, y, n):
    return n is None


def boolean(x, y, n):
    return bool(n), not (n > 3)


def recursion(x, y, n):
    return recursive(n)


def zero_division(x, y, n):
    try:
        return n // (x.size(0) - 6)
    except ZeroDivisionError:
        return n


def quotient(x, y, n):
    q = 1 / n
    return n


# -- pinned ----------------------------------------------------------------------------------------


def printed(x, y, n):
    print(n, end="")
    return 0


def formatted(x, y, n):
    return f"{n}", "%d" % n, str(n), "{}".format(n)


def dict_key(x, y, n):
    return {n: 1}[n]


def dict_lookup(x, y, n):
    return {7: 1}.get(n, 0)


def dict_of_pairs(x, y, n):
    return dict([("n", n)])


def list_index(x, y, n):
    return [*range(10)][n]


def ranged(x, y, n):
    return sum(range(n))


def float_division(x, y, n):
    return n / 2


def floats(x, y, n):
    return float(n), n * 0.5, math.sqrt(n), round(n / 2)


def generator(x, y, n):
    return list(counting(n))


def yielded(x, y, n):
    return list(yielding(n))


def generator_expression(x, y, n):
    return tuple(s + 1 for s in x.shape)


def mapped(x, y, n):
    return list(map(lambda s: s + 1, x.shape))


def callback(x, y, n):
    return list(map(lambda s: n + s, [1]))


def reduced(x, y, n):
    return functools.reduce(operator.mul, x.shape)


def sorted_(x, y, n):
    return sorted(x.shape), list(reversed(x.shape))


def zipped(x, y, n):
    return [a * b for a, b in zip(x.shape, (1, 2), strict=True)]


def attribute(x, y, n):
    holder = Holder()
    holder.size = n
    return holder.doubled


def subscript(x, y, n):
    return Holder()[n]


def class_(x, y, n):
    return Pair(n, 1).left


def global_(x, y, n):
    global KEPT
    KEPT = n
    return 0


def default(x, y, n):
    def inner(k: int = n) -> int:
        return k

    return inner()


def partial(x, y, n):
    return functools.partial(helper, n)()


def in_set(x, y, n):
    return {n, 1}, frozenset([n])


def sliced_by(x, y, n):
    return [1, 2, 3, 4, 5, 6, 7, 8][:n]


def exception(x, y, n):
    try:
        raise ValueError(n)
    except ValueError as error:
        return error.args[0]


def list_method(x, y, n):
    shape = list(x.shape)
    shape.insert(0, n)
    shape.pop()
    return shape


def dict_method(x, y, n):
    meta = {"n": n}
    meta.update(m=n)
    return list(meta.values())


def held_list(x, y, n):
    holder, sizes = Holder(), []
    holder.size = sizes  # type: ignore[assignment]
    sizes.append(n)
    return repr(holder.size)


def iterator(x, y, n):
    sizes = iter(x.shape)
    return next(sizes)


def by_getattr(x, y, n):
    return getattr(x, "shape")[0]


def in_library(x, y, n):
    return torch.broadcast_shapes(x.shape, (1, 40))


def tensor_of_sizes(x, y, n):
    return torch.tensor([n]).item()


def tensor_power(x, y, n):
    return (torch.ones(2) * n).sum().item()


def compared_with_float(x, y, n):
    return n > 2.5, n / 2 > 3


def enumerated(x, y, n):
    return [k * s for k, s in enumerate(x.shape)]


def huge(x, y, n):
    return n << 100
