"""Matrix products.

Operands are staged: copied to buffers in the type the product is computed in, which is f32 for all
narrower floats, i32 for int8, f64 for f64. A loop-carried accumulator is updated in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tzero.cpu.lower.code import Buffer
from tzero.cpu.lower.control import fits_in_place
from tzero.cpu.lower.elementwise import elementwise
from tzero.cpu.lower.elems import ELEMS, FP8, literal
from tzero.cpu.lower.poly import ONE
from tzero.cpu.lower.tiles import Body, Index, Map, Narrowed, Ref, Stored, Tile, Uniform, opaque
from tzero.cpu.ttir import Op, Type, Value, blocks, walk

if TYPE_CHECKING:
    from tzero.cpu.lower.lowering import Lowering

_ZEROS = {literal("0", kind) for kind in ("i32", "f32", "f64", "f16")}
"""Accumulators that need not be read. -0.0 is not among them: adding to it differs from +0.0."""
_CTYPES = {"f32": "float", "f64": "double", "i32": "uint32_t"}


def dot(lowering: Lowering, op: Op) -> None:
    """`d = a @ b + c`."""
    kind = _compute_type(lowering, op)
    a, b = _operand(lowering, op, 0, kind), _operand(lowering, op, 1, kind)
    _product(lowering, op, a, b, lowering.tile(op.operands[2]), kind)


def stage_ahead(lowering: Lowering, loop: Op) -> None:
    """Stage loop-invariant operands of products before the loop."""
    inside = {value for block in blocks(loop) for op in block.ops for value in op.results}
    inside |= {value for block in blocks(loop) for value in block.args}
    for op in walk(loop.regions[0]):
        if op.name == "tt.dot":
            for k in range(2):
                value = op.operands[k]
                if value not in inside and (value, k) not in lowering.staged:
                    tile = _converted(lowering.tile(value), _compute_type(lowering, op))
                    stage = _staged if k == 0 else _rows_staged
                    lowering.staged[value, k] = stage(lowering, tile)


def _operand(lowering: Lowering, op: Op, k: int, kind: str) -> Stored:
    """A staged operand of a product."""
    ahead = lowering.staged.get((op.operands[k], k))
    if ahead is not None and ahead.type.elem == kind:
        return ahead
    tile = _converted(lowering.tile(op.operands[k]), kind)
    return _staged(lowering, tile) if k == 0 else _rows_staged(lowering, tile)


def _compute_type(lowering: Lowering, op: Op) -> str:
    """The element type in which a product is computed."""
    operand, result = op.operands[0].type.elem, op.result.type.elem
    if result in ("f64", "i32"):
        return result
    if result in ("f32", "f16", "bf16") and (operand in FP8 or ELEMS[operand].is_float):
        return "f32"
    raise lowering.unsupported(op, f"The CPU backend has no product of {operand} into {result}.")


def _converted(tile: Tile, kind: str) -> Tile:
    """A tile converted to the type of the product."""
    name = tile.type.elem
    if name == kind:
        return tile
    type_ = Type(tile.type.shape, kind)
    if name in FP8:
        return Map(type_, [tile], lambda a: f"tz_{FP8[name]}_to_f32({a})", 2)
    return _Widened(type_, [tile], lambda a: f"({ELEMS[kind].carried}){a}", 1)


class _Widened(Map):
    """A narrower tile, widened to the type of the product."""


def _product(lowering: Lowering, op: Op, left: Stored, right: Stored, c: Tile, kind: str) -> None:
    lowering.include("dot.h")
    shape = op.result.type.shape
    rows, columns, depth = shape[-2], shape[-1], left.type.shape[-1]
    fresh = isinstance(c, Uniform) and c.text in _ZEROS
    if fresh:
        out = Stored(Type(shape, kind), lowering.buffer(Type(shape, kind)))
    else:
        out = _accumulator(lowering, op, c, kind)
    batches = shape[0] if len(shape) == 3 else 1
    head, shift = "", ("", "", "")
    if batches > 1:
        z = lowering.names.fresh("z")
        head = f"for (int64_t {z} = 0; {z} < {batches}; {z}++) "
        shift = (
            f" + {z} * {rows * depth}",
            f" + {z} * {depth * columns}",
            f" + {z} * {rows * columns}",
        )
    ctype = _CTYPES[kind]
    sizes = f"{int(fresh)}, {rows}, {columns}, {depth}, {_strides(left)}"
    lowering.emit(
        f"{head}tz_dot_{kind}({sizes}, (const {ctype} *)",
        left.buffer,
        f"{shift[0]}, (const {ctype} *)",
        right.buffer,
        f"{shift[1]}, ({ctype} *)",
        out.buffer,
        f"{shift[2]});",
    )
    lowering.work += batches * rows * columns * depth // 8
    if op.result.type.elem == kind:
        lowering.env[op.result] = out
        return
    elem = ELEMS[op.result.type.elem]
    lowering.env[op.result] = Map(op.result.type, [out], elem.rounded, 1)


def _strides(left: Stored) -> str:
    """Row and column strides in A's buffer."""
    rows, depth = left.type.shape[-2:]
    return f"{depth}, 1" if left.row_major else f"1, {rows}"


def _staged(lowering: Lowering, tile: Tile) -> Stored:
    """A tile in a buffer; the last two axes stay swapped if they are in its source."""
    whole = _converted_whole(lowering, tile)
    if whole is not None:
        return whole
    if isinstance(tile, Stored):
        swapped = (*range(len(tile.order) - 2), len(tile.order) - 1, len(tile.order) - 2)
        return tile if tile.order in ((*range(len(tile.order)),), swapped) else lowering.store(tile)
    loops, index = lowering.index(tile.type.shape)
    body = lowering.body()
    value = body.raw(_storable(tile), index)
    order = tuple(range(len(tile.type.shape)))
    steps = [at.factor(loop) for _, at in body.reads for loop in loops[-2:]]
    if len(loops) > 1 and len(loops) == len(order) and steps == [ONE, *steps[1:2]]:
        order = (*order[:-2], order[-1], order[-2])
        loops[-2:] = loops[-1], loops[-2]
    stored = Stored(tile.type, lowering.buffer(tile.type), order)
    body.do(stored.buffer, "[", stored.offset(index), "] = ", value, ";")
    lowering.add_nest(loops, body)
    return stored


def _converted_whole(lowering: Lowering, tile: Tile) -> Stored | None:
    """A stored f16 tile as f32, or a stored f32 tile rounded to f16, converted by one call that
    uses the machine's conversion instructions; None for other tiles."""
    if not isinstance(tile, _Widened):
        return None
    source, convert = tile.operands[0], "widen_f16"
    if isinstance(source, Narrowed) and source.type.elem == "f16":
        source, convert = source.operands[0], "round_all_f16"
    wanted = "f16" if convert == "widen_f16" else "f32"
    if not isinstance(source, Stored) or source.type.elem != wanted:
        return None
    out = Stored(tile.type, lowering.buffer(tile.type), source.order)
    count = source.type.numel
    lowering.emit(f"tz_{convert}({count}, ", source.buffer, ", ", out.buffer, ");")
    return out


def _rows_staged(lowering: Lowering, tile: Tile) -> Stored:
    """A tile in a row-major buffer, transposed in blocks if needed."""
    staged = _staged(lowering, tile)
    if staged.row_major:
        return staged
    out = Stored(tile.type, lowering.buffer(tile.type))
    lowering.include("transpose.h")
    rows, columns = tile.type.shape[-2:]
    batches = tile.type.numel // (rows * columns)
    lowering.emit(
        f"for (int64_t z = 0; z < {batches}; z++) tz_transpose_{tile.type.elem}(",
        f"{columns}, {rows}, ",
        staged.buffer,
        f" + z * {rows * columns}, ",
        out.buffer,
        f" + z * {rows * columns});",
    )
    return out


def _storable(tile: Tile) -> Tile:
    """A tile that can be stored: a uniform one becomes a map."""
    return Map(tile.type, [tile], lambda a: a, 0) if isinstance(tile, Uniform) else tile


def _accumulator(lowering: Lowering, op: Op, c: Tile, kind: str) -> Stored:
    """A buffer that contains c, to which the product is added."""
    wide = _converted(c, kind)
    carried = _carried_buffer(lowering, op)
    if carried is not None and wide is c and fits_in_place(lowering, carried, c):
        if not (isinstance(c, Stored) and c.buffer is carried):
            lowering.store(_storable(c), carried)
        return Stored(op.result.type, carried)
    type_ = Type(op.result.type.shape, kind)
    return lowering.store(_storable(wide), lowering.buffer(type_))


def _carried_buffer(lowering: Lowering, op: Op) -> Buffer | None:
    """The buffer of the loop-carried tile that only this product reads and updates."""
    result = op.result
    if len(result.uses) != 1 or op.block is None or op.block.parent is None:
        return None
    (last,) = result.uses
    if last.name != "scf.yield" or op.block.parent.name != "scf.for" or last.block is not op.block:
        return None
    arg = op.block.args[1 + last.operands.index(result)]
    tile = lowering.env.get(arg)
    if not isinstance(tile, Stored) or tile.type != result.type:
        return None
    return tile.buffer if _only_feeds(arg, op) else None


def _only_feeds(value: Value, op: Op) -> bool:
    """Whether a value is used only as the accumulator of `op`, directly or through arithmetic."""
    while len(value.uses) == 1:
        use = value.uses[0]
        if use is op:
            return op.operands[2] is value
        if use.block is not op.block or elementwise(use) is None:
            return False
        value = use.result
    return False


_FORMATS = {0: "f8E4M3FN", 1: "f8E5M2", 4: "e2m1", 5: "bf16", 6: "f16"}


class _Scaled(Tile):
    """A block-scaled operand as f32: decoded elements times the scale of their block.

    `axes` says which axis is the product's inner dimension; the scales' last axis follows it.
    """

    def __init__(
        self, shape: tuple[int, ...], source: Tile, scale: Tile | None, form: str, axes: _Axes
    ) -> None:
        super().__init__(Type(shape, "f32"), 8)
        self.source, self.scale, self.form, self.axes = source, scale, form, axes

    def at(self, index: Index, body: Body) -> Ref:
        """One element, scaled."""
        value = self._decoded(index, body)
        if self.scale is None:
            return value
        depth, rows = self.axes.depth, self.axes.rows
        per = self.type.shape[depth] // self.scale.type.shape[-1]
        block = opaque(body.let("int64_t", "(", index[depth], f") / {per}"))
        scale = body.at(self.scale, (*index[:-2], index[rows], block))
        if self.scale.type.elem in FP8:
            factor = f"tz_{FP8[self.scale.type.elem]}_to_f32({scale.text})"
        else:
            factor = f"tz_e8m0_to_f32((uint8_t){scale.text})"
        return body.let("float", value, f" * {factor}", deps=scale.deps)

    def _decoded(self, index: Index, body: Body) -> Ref:
        if self.form != "e2m1":
            value = body.at(self.source, index)
            if self.form not in FP8:
                return value
            return body.let("float", f"tz_{FP8[self.form]}_to_f32((uint8_t)", value, ")")
        packed = self.axes.packed
        half = opaque(body.let("int64_t", "(", index[packed], ") / 2"))
        place = tuple(half if k == packed else i for k, i in enumerate(index))
        pair = body.at(self.source, place)
        shift = body.let("int32_t", "(", index[packed], ") % 2 * 4")
        return body.let("float", "tz_e2m1_to_f32((uint8_t)", pair, " >> ", shift, " & 15)")


class _Axes:
    """The inner, outer and packed axes of an operand."""

    def __init__(self, rank: int, depth_last: bool, packed_depth: bool) -> None:
        self.depth = rank - 1 if depth_last else rank - 2
        self.rows = rank - 2 if depth_last else rank - 1
        self.packed = self.depth if packed_depth else self.rows


def dot_scaled(lowering: Lowering, op: Op) -> None:
    """`d = (a * a_scale) @ (b * b_scale) + c` with one scale per block of elements."""
    a, b, c, *scales = ([lowering.tile(v) for v in seg] for seg in op.segments())
    shape = op.result.type.shape
    sides = []
    for side, source, scale in (("a", a[0], scales[0]), ("b", b[0], scales[1])):
        form = _FORMATS.get(op.integer(f"{side}_elem_type"))
        if form is None:
            raise lowering.unsupported(op, "Operands must be e4m3, e5m2, e2m1, bf16 or fp16.")
        prefix = "lhs" if side == "a" else "rhs"
        by_depth = op.attrs.get(f"{prefix}_k_pack", "true").startswith("true")
        axes = _Axes(len(shape), side == "a", by_depth)
        dims = list(source.type.shape)
        if form == "e2m1":
            dims[axes.packed] *= 2
        held = lowering.store(_storable(source))
        sides.append(_Scaled(tuple(dims), held, scale[0] if scale else None, form, axes))
    left, right = _staged(lowering, sides[0]), _rows_staged(lowering, sides[1])
    _product(lowering, op, left, right, c[0], "f32")


HANDLERS = {"tt.dot": dot, "tt.dot_scaled": dot_scaled}
