"""Operations that move elements: views, joins, ranges, pointer offsets, gathers, histograms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tzero.cpu.lower.elems import ELEMS
from tzero.cpu.lower.poly import ZERO, Poly, flat
from tzero.cpu.lower.tiles import (
    Bitcast,
    Body,
    Index,
    Map,
    Offset,
    Range,
    Ref,
    Stored,
    Tile,
    Uniform,
    View,
    opaque,
    reshaped,
)
from tzero.cpu.ttir import Op, Type

if TYPE_CHECKING:
    from tzero.cpu.lower.lowering import Lowering


def _view(lowering: Lowering, op: Op, remap: Callable[[Index], Index]) -> None:
    source = lowering.tile(op.operands[0])
    if isinstance(source, Uniform):
        lowering.env[op.result] = Uniform(op.result.type, source.text)
        return
    lowering.bind(op.result, View(op.result.type, source, lambda index, _: remap(index)))


def splat(lowering: Lowering, op: Op) -> None:
    """A tile with the same scalar in every element."""
    lowering.env[op.result] = Uniform(op.result.type, lowering.scalar(op.operands[0]))


def unsplat(lowering: Lowering, op: Op) -> None:
    """The only element of a tile of one."""
    _view(lowering, op, lambda _: (ZERO,) * len(op.operands[0].type.shape))


def broadcast(lowering: Lowering, op: Op) -> None:
    """Repeat dimensions of size one."""
    shape = op.operands[0].type.shape
    _view(
        lowering,
        op,
        lambda index: tuple(ZERO if n == 1 else i for n, i in zip(shape, index, strict=True)),
    )


def expand_dims(lowering: Lowering, op: Op) -> None:
    """Add a dimension of size one."""
    axis = op.integer("axis")
    _view(lowering, op, lambda index: index[:axis] + index[axis + 1 :])


def trans(lowering: Lowering, op: Op) -> None:
    """Permute dimensions."""
    order = op.integers("order")

    def remap(index: Index) -> Index:
        source = list(index)
        for at, axis in zip(index, order, strict=True):
            source[axis] = at
        return tuple(source)

    _view(lowering, op, remap)


def reshape(lowering: Lowering, op: Op) -> None:
    """The same elements in row-major order under another shape."""
    source = lowering.tile(op.operands[0])
    if isinstance(source, Uniform):
        lowering.env[op.result] = Uniform(op.result.type, source.text)
        return
    tile = reshaped(op.result.type, source)
    if tile is None:
        tile = reshaped(op.result.type, lowering.stored_for(op, op.operands[0]))
        assert tile is not None, "a stored tile can always be reshaped"
    lowering.bind(op.result, tile)


def bitcast(lowering: Lowering, op: Op) -> None:
    """Change the type, keep the bits."""
    source = lowering.tile(op.operands[0])
    type_ = op.result.type
    if type_.elem == "ptr" or source.type.elem == "ptr":
        lowering.bind(op.result, Map(type_, [source], lambda a: a, 0))
    else:
        lowering.bind(op.result, Bitcast(type_, source))


class _Joined(Tile):
    """Two tiles interleaved along a new last dimension."""

    def __init__(self, type_: Type, parts: tuple[Tile, Tile]) -> None:
        super().__init__(
            type_, 1 + sum(p.cost for p in parts), depth=1 + max(p.depth for p in parts)
        )
        self.parts = parts

    def at(self, index: Index, body: Body) -> Ref:
        """One side's element, chosen by the last index."""
        which = index[-1].constant()
        if which is not None:
            return body.at(self.parts[which], index[:-1])
        a, b = (body.at(p, index[:-1]) for p in self.parts)
        return body.let(self.elem.carried, "(", index[-1], ") ? ", b, " : ", a)


def join(lowering: Lowering, op: Op) -> None:
    """Two tiles as one with a new last dimension of two."""
    a, b = (lowering.tile(v) for v in op.operands)
    lowering.bind(op.result, _Joined(op.result.type, (a, b)))


def split(lowering: Lowering, op: Op) -> None:
    """The two tiles along a last dimension of two."""
    source = lowering.tile(op.operands[0])
    for k, value in enumerate(op.results):
        if isinstance(source, Uniform):
            lowering.env[value] = Uniform(value.type, source.text)
            continue

        def remap(index: Index, _: Body, k: int = k) -> Index:
            return (*index, Poly.of(k))

        lowering.bind(value, View(value.type, source, remap))


def cat(lowering: Lowering, op: Op) -> None:
    """Concatenate tiles along the first dimension."""
    buffer = lowering.buffer(op.result.type)
    start = 0
    for value in op.operands:
        tile = lowering.tile(value)
        loops, index = lowering.index(tile.type.shape)
        body = lowering.body()
        element = body.raw(tile, index)
        rest = (index[0] + Poly.of(start), *index[1:])
        body.do(buffer, "[", flat(op.result.type.shape, rest), "] = ", element, ";")
        lowering.add_nest(loops, body)
        start += tile.type.shape[0]
    lowering.env[op.result] = Stored(op.result.type, buffer)


def make_range(lowering: Lowering, op: Op) -> None:
    """Consecutive integers."""
    lowering.env[op.result] = Range(op.result.type, op.integer("start"))


def addptr(lowering: Lowering, op: Op) -> None:
    """Pointers moved by element offsets."""
    pointer, offset = (lowering.tile(v) for v in op.operands)
    item = ELEMS[pointer.type.pointee].size if pointer.type.pointee in ELEMS else 0
    if not item:
        raise lowering.unsupported(
            op, f"The CPU backend does not support pointers to {pointer.type.pointee}."
        )
    if isinstance(pointer, Uniform) and isinstance(offset, Uniform):
        text = lowering.declare("char *", f"{pointer.text} + {item} * (int64_t)({offset.text})")
        lowering.env[op.result] = Uniform(op.result.type, text)
        return
    if (
        isinstance(offset, Uniform)
        and isinstance(pointer, Offset)
        and isinstance(pointer.pointer, Uniform)
    ):  # a uniform offset moves the base
        moved = f"{pointer.pointer.text} + {item} * (int64_t)({offset.text})"
        base = Uniform(pointer.pointer.type, lowering.declare("char *", moved))
        lowering.bind(op.result, Offset(op.result.type, base, pointer.offset, item))
        return
    lowering.bind(op.result, Offset(op.result.type, pointer, offset, item))


class _Gathered(Tile):
    """Elements of a stored tile picked along an axis by an index tile."""

    def __init__(self, type_: Type, source: Tile, picks: Tile, axis: int) -> None:
        super().__init__(type_, 2 + picks.cost, depth=picks.depth + 1)
        self.source, self.picks, self.axis = source, picks, axis

    def at(self, index: Index, body: Body) -> Ref:
        """The element at the position in the index tile."""
        pick = opaque(body.at(self.picks, index))
        return body.at(self.source, (*index[: self.axis], pick, *index[self.axis + 1 :]))


def gather(lowering: Lowering, op: Op) -> None:
    """Elements picked along an axis."""
    source = lowering.tile(op.operands[0])
    if isinstance(source, Uniform):
        lowering.env[op.result] = Uniform(op.result.type, source.text)
        return
    picks = lowering.tile(op.operands[1])
    stored = lowering.stored_for(op, op.operands[0])
    lowering.bind(op.result, _Gathered(op.result.type, stored, picks, op.integer("axis")))


def histogram(lowering: Lowering, op: Op) -> None:
    """Counts of the values 0 .. bins-1; others are not counted."""
    type_ = op.result.type
    buffer = lowering.buffer(type_)
    lowering.emit("__builtin_memset(", buffer, f", 0, {buffer.nbytes});")
    source = lowering.tile(op.operands[0])
    loops, index = lowering.index(source.type.shape)
    body = lowering.body()
    value = body.at(source, index)
    mask = body.at(lowering.tile(op.operands[1]), index).text if len(op.operands) > 1 else "1"
    inside = f"(uint64_t)(int64_t){value.text} < {type_.numel}u"
    body.do(f"if ({mask} && {inside}) ", buffer, f"[{value.text}]++;")
    lowering.add_nest(loops, body, simd=False)
    lowering.env[op.result] = Stored(type_, buffer)


def poison(lowering: Lowering, op: Op) -> None:
    """A value that is never read; zero, so that the C code is defined."""
    lowering.env[op.result] = Uniform(op.result.type, "0")


HANDLERS = {
    "tt.splat": splat,
    "tt.unsplat": unsplat,
    "tt.broadcast": broadcast,
    "tt.expand_dims": expand_dims,
    "tt.trans": trans,
    "tt.reshape": reshape,
    "tt.bitcast": bitcast,
    "arith.bitcast": bitcast,
    "tt.join": join,
    "tt.split": split,
    "tt.cat": cat,
    "tt.make_range": make_range,
    "tt.addptr": addptr,
    "tt.gather": gather,
    "tt.histogram": histogram,
    "ub.poison": poison,
}
