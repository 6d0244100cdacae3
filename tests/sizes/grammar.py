"""What generated programs say about sizes: integers, conditions, views, allocations, launches.

Enters: nothing. Leaves: templates in source text. ``{i}`` stands for an integer, ``{s}`` for a
small one that is not negative, ``{x}`` for a tensor, ``{c}`` for a condition. It must not know how
programs are run.
"""

from __future__ import annotations

__all__ = ["ALLOCATED", "BLOCKS", "CONDITIONS", "CORE", "GEOMETRY", "GRIDS", "INTEGERS", "LAUNCHES"]
__all__ += ["OPS", "SMALL", "VALUES", "VIEWS"]

CORE = """
import collections, dataclasses, functools, itertools, math, operator
import torch, triton
import tzero
from tests.sizes.kernels import (
    classed, copied, copy, given, increase, increased, note, rows, stamped
)

BLOCK = 32
LIMIT = 6
TABLE = {1: 3, 2: 5, 4: 7}

def larger(a, b): return a if a > b else b
def halved(a, by=2): return (a + by - 1) // by
def elements(x):
    total = 1
    for size in x.shape:
        total *= size
    return total
def clamp(value, low=0, high=8):
    if value < low:
        return low
    return high if value > high else value
def parts(x):
    n = x.shape[0] // 2
    return x[:n], x[n:]
@dataclasses.dataclass
class Box:
    n: int
    def twice(self): return self.n * 2
class Pair(collections.namedtuple("Pair", "a b")):
    pass
"""

GEOMETRY = (
    *("{x}.numel()", "{x}.shape[-1]", "{x}.shape[0]", "{x}.size(-1)", "{x}.size(0)"),
    *("{x}.size()[-1]", "{x}.stride(0)", "{x}.stride()[-1]", "{x}.stride(-1)", "len({x})"),
    *("{x}.nelement()", "{x}.dim()", "{x}.ndim", "{x}.shape.numel()", "{x}.storage_offset()"),
    *("{x}.nbytes", "{x}.element_size()", "math.prod({x}.shape)", "sum({x}.shape)"),
    *("max({x}.shape)", "elements({x})", "len({x}.shape)", "torch.numel({x})", "{x}.stride()[0]"),
    *("list({x}.shape)[0]", "{x}.shape[-1:][0]", "int({x}.is_contiguous())"),
    *("{x}.numel() * {x}.element_size()", "{x}.shape[:-1].numel()"),
    *("next(iter({x}.shape))", "[*{x}.shape][-1]", "{x}.size(dim=0)", "tuple({x}.size())[0]"),
    *("max(size * step for size, step in zip({x}.shape, {x}.stride()))", "sorted({x}.shape)[0]"),
    *("functools.reduce(operator.mul, {x}.shape, 1)", "{x}.T.shape[0]", "{x}.t().shape[0]"),
    *("sum(1 for size in {x}.shape if size > 2)", "(lambda *sizes: sizes[-1])(*{x}.shape)"),
    *("{x}[0].numel()", "torch.empty_like({x}).numel()"),
)

INTEGERS = (
    *("({i} + {i})", "({i} - {i})", "({i} * {i})", "({i} + 1)", "({i} * 2)", "(3 - {i})"),
    *("({i} // {i})", "({i} % {i})", "({i} // 4)", "({i} % 4)", "({i} // -3)", "({i} % -3)"),
    *("({s} ** 2)", "(2 ** {s})", "(1 << {s})", "({i} >> {s})", "({i} & 7)", "({i} | 1)"),
    *("({i} ^ 5)", "(~{i})", "(-{i})", "abs({i})", "min({i}, {i})", "max({i}, {i})", "(+{i})"),
    *("max({i}, {i}, 2)", "min([{i}, 5])", "triton.cdiv({i}, 4)", "triton.cdiv({i}, {i})"),
    *("triton.next_power_of_2({i})", "triton.next_power_of_2(max({i}, 1))", "int({i})"),
    *("math.ceil({i} / 4)", "math.floor({i} / 3)", "int({i} / 2)", "math.ceil({i} / {i})"),
    *("round({i} / 4)", "divmod({i}, 4)[0]", "divmod({i}, 3)[1]", "math.gcd({i}, 12)"),
    *("math.isqrt(abs({i}))", "({i} if {c} else {i})", "int({c})", "(({c}) + 1)", "larger({i}, 3)"),
    *("halved({i})", "halved({i}, by=4)", "clamp({i})", "Box({i}).n", "Box({i}).twice()"),
    *("Pair({i}, 2).a", "[{i}, 3][0]", "({i}, {i})[-1]", "{{'k': {i}}}['k']", "sum([{i}, {i}])"),
    *("sorted([{i}, 4])[0]", "int(f'{{{i}}}')", "int(str({i}))", "(lambda v: v + 1)({i})"),
    *("TABLE.get({i}, 2)", "len(range({s}))", "sum(range({s}))", "({i}).bit_length()"),
    *("[k * {i} for k in range(3)][-1]", "functools.reduce(larger, [{i}, {i}, 2])"),
    *("({i} and {i})", "({i} or {i})", "(not {i}) + 0", "operator.mul({i}, 3)", "pow({i}, 2)"),
    *("pow(3, {s}, 7)", "int(math.log2(max({i}, 1)))", "int(float({s}))"),
    *("math.comb({s}, 2)", "int(bool({i}))", "({i}).__add__(2)", "int('3' * 1) + {i}"),
    *("(({i} + 15) // 16 * 16)", "({i} * 4 // 4)", "({i}).numerator", "sum(({i}, 1))"),
)

SMALL = (
    *("{i} % 7", "max(0, min({i}, 9))", "abs({i}) % 5", "clamp({i})", "min(abs({i}), 12)"),
    *("clamp({i}, 1, LIMIT)", "{i} % 3 + 1", "abs({i}) & 7", "min(6, triton.cdiv(abs({i}), 4))"),
)

CONDITIONS = (
    *("{i} < {i}", "{i} <= {i}", "{i} == {i}", "{i} != {i}", "{i} > {i}", "{i} >= {i}"),
    *("{i} < 4", "{i} <= 8", "{i} == 1", "{i} != 0", "{i} > 5", "{i} >= 16", "{i} % 16 == 0"),
    *("not {i}", "{i}", "1 < {i} <= 6", "{i} in (1, 2, 8)", "{i} not in TABLE", "{i} > LIMIT"),
    *("{i} > 2 and {i} < 9", "{i} == 1 or {i} == 3", "not {i} > 3", "{x}.is_contiguous()"),
    *("{x}.shape == {x}.shape", "{x}.shape[-1] == 1", "{x}.numel() == 0", "{i} / 2 > 3.5"),
    *("isinstance({i}, int)", "{x}.stride(-1) != 1", "bool({i})", "{i} is not None", "{i} & 1"),
    *("{i} > 2**31 - 1", "{i} < 2.5", "{x}.shape >= (2,)", "{i} == {i} == 2", "{i} * 1.5 > 4"),
    *("any(size > 4 for size in {x}.shape)", "all({x}.shape)", "{i} < 0", "{i} is {i}"),
    *("{x}.requires_grad", "torch.Size([2]) == {x}.shape"),
)

ALLOCATED = (
    *(
        "torch.empty_like({x})",
        "torch.empty(({s}, {s}))",
        "torch.empty({s})",
        "torch.empty({s}, 3)",
    ),
    *("torch.empty({x}.shape)", "{x}.new_empty({x}.shape)", "{x}.new_empty({s}, {s})"),
    *(
        "torch.empty([{s}, {s}], dtype={x}.dtype, device={x}.device)",
        "torch.empty_like({x}.detach())",
    ),
    *("torch.empty(({x}.shape[0], {s}), device={x}.device)", "{x}.new_empty(({s},))"),
    *("torch.empty_strided(({s}, 3), (3, 1))", "torch.empty((*{x}.shape[:-1], {s}))"),
    *("torch.empty(torch.Size([{s}, 2]))", "torch.empty(size=({s},))", "torch.empty({x}.numel())"),
)
"""Tensors without values, dense, for a launch to fill."""

VALUES = (
    *("torch.zeros(({s}, {s}))", "torch.zeros_like({x})", "torch.ones({s})", "{x}.new_zeros({s})"),
    *("torch.full(({s}, 2), 3.0)", "torch.full(({s},), float({s}))", "torch.zeros({x}.shape)"),
    *("torch.full_like({x}, 2.0)", "{x}.new_ones({s}, 2)", "{x}.new_full(({s},), 1.5)"),
    *("torch.zeros({s}, dtype=torch.int64)", "torch.arange({s})", "torch.ones_like({x})"),
    *("torch.zeros({s}, {s}, 2)", "torch.eye({s})", "torch.linspace(0, 1, {s} + 1)"),
)

VIEWS = (
    *("{x}.view(-1)", "{x}.reshape(-1)", "{x}.flatten()", "{x}[1:]", "{x}[:{s}]", "{x}[{s}:]"),
    *("{x}[::2]", "{x}[{s}:{s}:2]", "{x}.unsqueeze(0)", "{x}.unsqueeze(-1)", "{x}.squeeze()"),
    *(
        "{x}.transpose(0, -1)",
        "{x}.T",
        "{x}.mT",
        "{x}.view({x}.shape)",
        "{x}.view(-1, {x}.shape[-1])",
    ),
    *("{x}.reshape({x}.shape[-1], -1)", "{x}.narrow(0, 0, {s})", "{x}.select(0, 0)", "{x}[0]"),
    *(
        "{x}[-1]",
        "{x}[..., 0]",
        "{x}[..., :{s}]",
        "{x}[..., ::2]",
        "{x}[None]",
        "{x}.expand(2, *{x}.shape)",
    ),
    *("{x}.chunk(2)[0]", "{x}.chunk(2)[-1]", "{x}.split({s} + 1)[0]", "{x}.unbind(0)[0]"),
    *("{x}.view({s}, -1)", "{x}.view(1, -1)", "{x}.view(*{x}.shape, 1)", "{x}.movedim(0, -1)"),
    *("{x}.contiguous()", "{x}.permute(*reversed(range({x}.dim())))", "{x}.detach()"),
    *("{x}.as_strided(({s},), (1,))", "{x}.as_strided((2, {s}), (1, 1), 0)", "{x}.diagonal()"),
    *("{x}.expand({x}.shape)", "{x}.view_as({x})", "parts({x})[0]", "parts({x})[1]"),
    *("{x}[{s}]", "{x}[-{s}:]", "{x}.unflatten(0, (-1, 1))", "{x}.swapaxes(0, -1)", "{x}[:, None]"),
    *(
        "{x}.squeeze(0)",
        "{x}.reshape({x}.numel())",
        "{x}.unfold(0, 2, 1)",
        "{x}.tensor_split(2)[1]",
    ),
    *(
        "{x}.view({x}.numel() // 2, 2)",
        "{x}.reshape(2, -1)",
        "torch.broadcast_to({x}, (2, *{x}.shape))",
    ),
)

OPS = (
    *(
        "{x} + 1.0",
        "{x} * {x}",
        "{x} + {x}",
        "{x}.relu()",
        "{x}.clone()",
        "{x}.flip(0)",
        "{x}.sum()",
    ),
    *("{x}.sum(0)", "{x}.sum(-1, keepdim=True)", "{x}.to(torch.float64)", "{x} * {i}", "{x} - {s}"),
    *(
        "torch.cat([{x}, {x}])",
        "torch.stack([{x}, {x}])",
        "{x}.amax(-1)",
        "{x}.repeat(2, *[1] * ({x}.dim() - 1))",
    ),
    *("torch.nn.functional.pad({x}, (0, {s}))", "{x}.mean()", "{x}.add_(1.0)", "{x}.mul_({s})"),
    *("{x}.zero_()", "{x}.fill_({s})", "torch.where({x} > 1, {x}, {x})", "{x}.roll({s}, 0)"),
    *(
        "{x}.copy_({x})",
        "{x} / max({x}.shape[0], 1)",
        "{x}.float()",
        "{x}.softmax(-1)",
        "{x}.t() @ {x}",
    ),
    *(
        "torch.maximum({x}, {x})",
        "{x}.cumsum(0)",
        "{x}.tril()",
        "{x}.flip(-1)",
        "{x}.add({x}, alpha={s})",
    ),
)

GRIDS = (
    *("({s} + 1,)", "({s} + 1, {s} + 1)", "(1, 1, {s} + 1)", "({s},)", "[{s} + 1]"),
    *("(triton.cdiv(abs({i}) % 99, 4) + 1,)", "lambda meta: ({s} + 1,)"),
)

LAUNCHES = (
    "note[{g}](log, {i}, {i}, {i})",
    "note[{g}](log, a={i}, c={i}, b=3)",
    "note[{g}](log, *[{i}, {s}], {i})",
    "classed[{g}](log, {i})",
    "classed[(1,)](log, {s})",
    "classed[(1,)](log, value={s} * 16)",
    "given[(1,)](log, VALUE={b})",
    "given[{g}](log, {b})",
)

BLOCKS = (
    *("triton.next_power_of_2(max(1, {s}))", "{i} % 4", "min(3, {s})", "{c}", "16 << ({s} % 3)"),
    *(
        "(32 if {c} else 64)",
        "4 if {i} > 8 else 2",
        "triton.next_power_of_2(min(abs({i}) + 1, 64))",
    ),
)
"""Constants that depend on sizes and have few values, because each is compiled."""
