"""Reductions, scans and elementwise maps: operations with a region.

A reduction along the last axis computes one partial result per lane and combines the lanes at the
end, which vectorises for any combine function. Along another axis it combines whole rows. An axis
of at most four elements, as in sorting networks, is combined where the result is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tzero.cpu.lower.code import Buffer, Nest, Stmt, full
from tzero.cpu.lower.elems import ELEMS
from tzero.cpu.lower.poly import ZERO, Loop, Poly, flat
from tzero.cpu.lower.regions import apply_region, unrounded
from tzero.cpu.lower.schedule import EXPENSIVE, UNROLLED
from tzero.cpu.lower.tiles import (
    Body,
    Index,
    Ref,
    Stored,
    Tile,
    Uniform,
    conditions,
    interval,
    nest,
)
from tzero.cpu.ttir import Op, Type

if TYPE_CHECKING:
    from tzero.cpu.lower.lowering import Lowering

LANES = 64
"""Lanes of a reduction: four vectors of sixteen floats."""
MANY_ROWS = 8
"""From this many rows on, the lanes of all rows are combined together, not row by row."""
ROW_LANES = 16
"""Lanes per row in that case."""


class _Combined(Tile):
    """One result of a reduction over a short axis, combined on demand."""

    def __init__(self, lowering: Lowering, op: Op, which: int, tiles: Sequence[Tile]) -> None:
        cost = EXPENSIVE // 2 + 2 * sum(t.cost for t in tiles)
        super().__init__(op.results[which].type, cost, depth=2 + max(t.depth for t in tiles))
        self.lowering, self.op, self.which, self.tiles = lowering, op, which, tiles

    def at(self, index: Index, body: Body) -> Ref:
        """The elements of the axis, combined from the left."""
        axis, block = self.op.integer("axis"), self.op.regions[0]
        folded: list[Ref] = []
        for k in range(self.tiles[0].type.shape[axis]):
            place = (*index[:axis], Poly.of(k), *index[axis:])
            new = [body.at(t, place) for t in self.tiles]
            folded = apply_region(self.lowering, block, folded + new, body) if k else new
        return folded[self.which]


def reduce(lowering: Lowering, op: Op) -> None:
    """Reduce tiles along an axis with a combine region."""
    axis = op.integer("axis")
    tiles = [lowering.tile(v) for v in op.operands]
    shape = tiles[0].type.shape
    if shape[axis] <= UNROLLED and op.results[0].type.shape:
        # The result is computed where it is read, possibly several times: store expensive tiles.
        tiles = [
            lowering.stored_for(op, v) if t.cost >= EXPENSIVE else t
            for v, t in zip(op.operands, tiles, strict=True)
        ]
        for k, value in enumerate(op.results):
            lowering.bind(value, _Combined(lowering, op, k, tiles))
        return
    outs = [lowering.buffer(r.type) for r in op.results]
    if axis == len(shape) - 1:
        _reduce_rows(lowering, op, tiles, outs)
    else:
        _reduce_columns(lowering, op, tiles, outs, axis)
    lowering.finish_deferred(op)
    for value, buffer in zip(op.results, outs, strict=True):
        if value.type.shape:
            lowering.env[value] = Stored(value.type, buffer)
            continue
        elem = ELEMS[value.type.elem]
        bits = lowering.declare(elem.storage, buffer, "[0]")
        text = lowering.declare(elem.carried, elem.load(bits)) if elem.narrow else bits
        lowering.env[value] = Uniform(value.type, text)


def _partials(lowering: Lowering, tiles: Sequence[Tile], shape: tuple[int, ...]) -> list[Stored]:
    """Buffers for partial results; f16 and bf16 are kept as f32."""
    types = [Type(shape, _carried(t.type.elem), t.type.pointee) for t in tiles]
    return [Stored(t, lowering.buffer(t)) for t in types]


def _carried(name: str) -> str:
    return "f32" if ELEMS[name].narrow else name


def _reduce_rows(lowering: Lowering, op: Op, tiles: Sequence[Tile], outs: Sequence[Buffer]) -> None:
    """Reduce along the last axis: into lanes, then the lanes into one."""
    shape = tiles[0].type.shape
    count = tiles[0].type.numel // shape[-1]
    lanes = min(LANES if count < MANY_ROWS else ROW_LANES, shape[-1])
    rows, row = lowering.index(shape[:-1])
    held = shape[:-1] if count >= MANY_ROWS else (1,) * (len(shape) - 1)
    place = row if count >= MANY_ROWS else (ZERO,) * len(row)
    partials = _partials(lowering, tiles, (*held, lanes))
    stmts = _fold_into_lanes(lowering, op, tiles, partials, row, place)
    if count < MANY_ROWS:
        stmts += _fold_lanes(lowering, op, partials)
        last = lowering.body()
        _store_results(
            last, op, outs, [last.raw(p, (*place, ZERO)) for p in partials], flat(held, row)
        )
        lowering.stmts += _in_loops(rows, stmts + nest([], last))
        return
    lowering.stmts += _in_loops(rows, stmts)
    transposed = [_transposed(lowering, p, count) for p in partials]
    _reduce_columns(lowering, op, transposed, outs, axis=0)


def _transposed(lowering: Lowering, partial: Stored, rows: int) -> Tile:
    """A transposed copy where that is fast (f32, multiples of 16), else a transposed view."""
    lanes = partial.type.shape[-1]
    view = _Transposed(partial)
    if partial.type.elem != "f32" or lanes % 16 or rows % 16:
        return view
    lowering.include("transpose.h")
    copy = Stored(view.type, lowering.buffer(view.type))
    lowering.emit(f"tz_transpose_f32({rows}, {lanes}, ", partial.buffer, ", ", copy.buffer, ");")
    return copy


class _Transposed(Tile):
    """A view with the lanes first, so that a reduction over them vectorises over the rows."""

    def __init__(self, source: Stored) -> None:
        shape = source.type.shape
        super().__init__(Type((shape[-1], *shape[:-1]), source.type.elem, source.type.pointee))
        self.source = source

    def at(self, index: Index, body: Body) -> Ref:
        """The source's element, whose lane is the last index."""
        return body.at(self.source, (*index[1:], index[0]))


def _fold_into_lanes(
    lowering: Lowering,
    op: Op,
    tiles: Sequence[Tile],
    partials: Sequence[Stored],
    row: Index,
    place: Index,
) -> list[Stmt]:
    """Reduce a row into its lanes; short rows are unrolled, long ones use a loop."""
    lanes, length = partials[0].type.shape[-1], tiles[0].type.shape[-1]
    block = unrounded(op.regions[0])
    lane = Loop(lowering.names.fresh("l"), lanes)
    at = Poly.of(lane) if lanes > 1 else ZERO
    loops = [lane] if lanes > 1 else []
    turns = length // lanes
    unrolled = turns if turns <= UNROLLED else 1
    first = lowering.body()
    folded: list[Ref] = []
    for k in range(unrolled):
        new = [first.at(t, (*row, at + Poly.of(k * lanes))) for t in tiles]
        folded = apply_region(lowering, block, folded + new, first) if k else new
    _store_partials(first, partials, (*place, at), folded)
    stmts = nest(loops, first)
    if turns == unrolled:
        return stmts

    def rest(turn: Loop, body: Body) -> list[Stmt]:
        old = [p.element(p.offset((*place, at)), body, frozenset({turn})) for p in partials]
        here = (Poly.of(turn) + Poly.of(1)).scaled(lanes) + at
        new = [body.at(t, (*row, here)) for t in tiles]
        _store_partials(
            body, partials, (*place, at), apply_region(lowering, block, old + new, body)
        )
        return nest([turn, *loops], body)

    turn = Loop(lowering.names.fresh("c"), turns - 1, ordered=True)
    probe = lowering.body()
    general = rest(turn, probe)
    bound = _unmasked_turns(lowering, probe.load_masks, row, length, lanes)
    if bound is None:
        return stmts + general
    prologue, mask, full_turns = bound
    plain = lowering.body()
    plain.true_masks.append((mask, (*row, (Poly.of(turn) + Poly.of(1)).scaled(lanes) + at)))
    return (
        stmts
        + prologue
        + _with_bounds("0", full_turns, rest(turn, plain))
        + _with_bounds(full_turns, str(turns - 1), general)
    )


def _with_bounds(low: str, high: str, stmts: list[Stmt]) -> list[Stmt]:
    """The same statements with the outermost loop from `low` to `high`."""
    for stmt in stmts:
        if isinstance(stmt, Nest):
            stmt.low, stmt.high = (low,), (high,)
    return stmts


def _unmasked_turns(
    lowering: Lowering, masks: Sequence[Tile], row: Index, length: int, lanes: int
) -> tuple[list[Stmt], Tile, str] | None:
    """If all loads of a row have one mask: the number of iterations in which it is all true."""
    if not masks or any(m is not masks[0] for m in masks):
        return None
    inner = Loop(lowering.names.fresh("j"), length)
    body = lowering.body()
    bounds = conditions(masks[0], (*row, Poly.of(inner)), body, inner)
    if bounds is None:
        return None
    low, high = interval(body, bounds, inner)
    if low != "0":
        return None
    name = lowering.names.fresh("full")
    body.do(f"int64_t const {name} = tz_max_i64({high} / {lanes} - 1, 0);")
    return nest([], body), masks[0], name


def _store_partials(
    body: Body, partials: Sequence[Stored], index: Index, refs: Sequence[Ref]
) -> None:
    for partial, ref in zip(partials, refs, strict=True):
        body.do(partial.buffer, "[", partial.offset(index), "] = ", ref, ";")


def _fold_lanes(lowering: Lowering, op: Op, partials: Sequence[Stored]) -> list[Stmt]:
    """Reduce the lanes of one row: the upper half into the lower, until one is left."""
    stmts: list[Stmt] = []
    block = unrounded(op.regions[0])
    outer = (ZERO,) * (len(partials[0].type.shape) - 1)
    half = partials[0].type.shape[-1] // 2
    while half:
        lane = Loop(lowering.names.fresh("l"), half)
        at = Poly.of(lane) if half > 1 else ZERO
        body = lowering.body()
        left = [body.raw(p, (*outer, at)) for p in partials]
        right = [body.raw(p, (*outer, at + Poly.of(half))) for p in partials]
        refs = apply_region(lowering, block, left + right, body)
        _store_partials(body, partials, (*outer, at), refs)
        stmts += nest([lane] if half > 1 else [], body)
        half //= 2
    return stmts


def _store_results(
    body: Body, op: Op, outs: Sequence[Buffer], refs: Sequence[Ref], offset: Poly
) -> None:
    for out, ref, value in zip(outs, refs, op.results, strict=True):
        body.do(out, "[", offset, "] = ", ELEMS[value.type.elem].store(ref.text), ";")


def _in_loops(loops: Sequence[Loop], stmts: list[Stmt]) -> list[Stmt]:
    for loop in reversed(loops):
        stmts = [full(loop, stmts)]
    return stmts


def _reduce_columns(
    lowering: Lowering, op: Op, tiles: Sequence[Tile], outs: Sequence[Buffer], axis: int
) -> None:
    """Reduce along another axis: combine whole rows."""
    block, shape = unrounded(op.regions[0]), tiles[0].type.shape
    rest = shape[:axis] + shape[axis + 1 :]
    totals = _partials(lowering, tiles, rest)
    loops, index = lowering.index(rest)
    outer = loops[: sum(n > 1 for n in rest[:axis])]
    inner = loops[len(outer) :]

    def at(position: Poly) -> Index:
        return (*index[:axis], position, *index[axis:])

    first = lowering.body()
    _store_partials(first, totals, index, [first.at(t, at(ZERO)) for t in tiles])
    stmts = nest(inner, first)
    if shape[axis] > 1:
        turn = Loop(lowering.names.fresh("c"), shape[axis] - 1, ordered=True)
        body = lowering.body()
        old = [t.element(flat(rest, index), body, within=frozenset({turn})) for t in totals]
        new = [body.at(t, at(Poly.of(turn) + Poly.of(1))) for t in tiles]
        _store_partials(body, totals, index, apply_region(lowering, block, old + new, body))
        stmts += nest([turn, *inner], body)
    last = lowering.body()
    _store_results(last, op, outs, [last.raw(t, index) for t in totals], flat(rest, index))
    stmts += nest(inner, last)
    lowering.stmts += _in_loops(outer, stmts)


def scan(lowering: Lowering, op: Op) -> None:
    """Running combination along an axis; the other axes are inner loops, which vectorise."""
    axis, block = op.integer("axis"), unrounded(op.regions[0])
    tiles = [lowering.tile(v) for v in op.operands]
    shape = tiles[0].type.shape
    outs = [Stored(r.type, lowering.buffer(r.type)) for r in op.results]
    rest = shape[:axis] + shape[axis + 1 :]
    loops, index = lowering.index(rest)
    outer = loops[: sum(n > 1 for n in shape[:axis])]
    inner = loops[len(outer) :]
    backward = op.flag("reverse")
    # The results so far: what is stored, or, where that is rounded, an f32 beside it.
    totals = _partials(lowering, outs, rest) if any(o.elem.narrow for o in outs) else None

    def at(position: Poly) -> Index:
        here = Poly.of(shape[axis] - 1) - position if backward else position
        return (*index[:axis], here, *index[axis:])

    def step(body: Body, position: Poly, values: Sequence[Ref]) -> None:
        if totals is not None:
            _store_partials(body, totals, index, values)
        for out, value in zip(outs, values, strict=True):
            body.do(
                out.buffer, "[", flat(shape, at(position)), "] = ", out.elem.store(value.text), ";"
            )

    first = lowering.body()
    step(first, ZERO, [first.at(tile, at(ZERO)) for tile in tiles])
    stmts = nest(inner, first)
    if shape[axis] > 1:
        turn = Loop(lowering.names.fresh("c"), shape[axis] - 1, ordered=True)
        body, after = lowering.body(), Poly.of(turn) + Poly.of(1)
        if totals is None:
            old = [body.at(o, at(Poly.of(turn))) for o in outs]
        else:
            old = [t.element(t.offset(index), body, frozenset({turn})) for t in totals]
        new = [body.at(t, at(after)) for t in tiles]
        step(body, after, apply_region(lowering, block, old + new, body))
        stmts += nest([turn, *inner], body)
    lowering.stmts += _in_loops(outer, stmts)
    lowering.env.update(zip(op.results, outs, strict=True))


def map_elementwise(lowering: Lowering, op: Op) -> None:
    """Apply a scalar region to every element, or to groups of `pack`; it may branch."""
    pack = op.integer("pack")
    tiles = [lowering.tile(v) for v in op.operands]
    outs = [Stored(r.type, lowering.buffer(r.type)) for r in op.results]
    groups = Loop(lowering.names.fresh("g"), op.results[0].type.numel // pack)
    flats = [lowering.store(t) for t in tiles]
    body = lowering.body()
    places = [Poly.of(groups).scaled(pack) + Poly.of(k) for k in range(pack)]
    args: list[Ref] = []
    for tile in flats:
        for place in places:
            args.append(_read_flat(tile, place, body))
    results = apply_region(lowering, op.regions[0], args, body)
    for k, out in enumerate(outs):
        for place, ref in zip(places, results[k * pack : (k + 1) * pack], strict=True):
            body.do(out.buffer, "[", place, "] = ", out.elem.store(ref.text), ";")
    lowering.add_nest([groups] if groups.extent > 1 else [], body, simd=False)
    lowering.env.update(zip(op.results, outs, strict=True))


def _read_flat(tile: Stored, place: Poly, body: Body) -> Ref:
    bits = tile.element(place, body)
    if not tile.elem.narrow:
        return bits
    return body.let(tile.elem.carried, tile.elem.load(bits.text), deps=bits.deps)


HANDLERS = {"tt.reduce": reduce, "tt.scan": scan, "tt.map_elementwise": map_elementwise}
