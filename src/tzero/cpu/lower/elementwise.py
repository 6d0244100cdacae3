"""Elementwise operations: C text per operation and element type.

Enters: an operation. Leaves: a function from C operands to a C expression, with its cost, or None
if the operation is not elementwise. Operands and results are carried values (see `elems.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tzero.cpu.libdevice import lookup
from tzero.cpu.lower.elems import BITS, ELEMS, FP8, unsigned
from tzero.cpu.lower.tiles import (
    And,
    Compare,
    Difference,
    Greater,
    GreaterEqual,
    LessEqual,
    Map,
    Narrowed,
    Product,
    Quotient,
    Select,
    Sum,
    Widened,
)
from tzero.cpu.ttir import Op

Text = Callable[..., str]


class Elementwise(NamedTuple):
    """C text of one element, its cost, the tile class of the result, and a header to include."""

    text: Text
    cost: int = 1
    tile: type[Map] = Map
    header: str = ""


COSTLY = 12
"""Cost of a division or a function call: more than storing the result and loading it again."""

_FLOAT_BINARY = {
    "arith.addf": "+",
    "arith.subf": "-",
    "arith.mulf": "*",
    "arith.divf": "/",
    "tt.precise_divf": "/",
    "tt.approx_divf": "/",
}
_FLOAT_CALL = {
    "arith.maxnumf": "maxnum",
    "arith.minnumf": "minnum",
    "arith.maximumf": "maximum",
    "arith.minimumf": "minimum",
}
_FLOAT_FUNCTION = {
    "math.exp": "exp",
    "math.exp2": "exp2",
    "math.log": "log",
    "math.log2": "log2",
    "math.sin": "sin",
    "math.cos": "cos",
    "math.sqrt": "sqrt",
    "tt.precise_sqrt": "sqrt",
    "math.rsqrt": "rsqrt",
    "math.erf": "erf",
    "math.tanh": "tanh",
    "math.floor": "floor",
    "math.ceil": "ceil",
    "math.absf": "abs",
}
_CHEAP_FUNCTIONS = {"floor", "ceil", "abs"}
_INTEGER_BINARY = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*"}
_INTEGER_TILE: dict[str, type[Map]] = {
    "arith.addi": Sum,
    "arith.subi": Difference,
    "arith.muli": Product,
}
_BITWISE = {"arith.andi": "&", "arith.ori": "|", "arith.xori": "^"}
_DIVISIONS = {
    "arith.divsi": ("divs", False),
    "arith.remsi": ("rems", False),
    "arith.divui": ("divu", True),
    "arith.remui": ("remu", True),
}
_SHIFTS = {
    "arith.shli": ("shl", False),
    "arith.shrsi": ("shrs", False),
    "arith.shrui": ("shru", True),
}
_PREDICATES = ["==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">="]
_BOUNDS: dict[int, type[Map]] = {2: Compare, 3: LessEqual, 4: Greater, 5: GreaterEqual}
_FLOAT_PREDICATES = {
    0: "0",
    1: "{a} == {b}",
    2: "{a} > {b}",
    3: "{a} >= {b}",
    4: "{a} < {b}",
    5: "{a} <= {b}",
    6: "({a} < {b}) | ({a} > {b})",
    7: "({a} == {a}) & ({b} == {b})",
    8: "!(({a} < {b}) | ({a} > {b}))",
    9: "!({a} <= {b})",
    10: "!({a} < {b})",
    11: "!({a} >= {b})",
    12: "!({a} > {b})",
    13: "{a} != {b}",
    14: "({a} != {a}) | ({b} != {b})",
    15: "1",
}


def elementwise(op: Op) -> Elementwise | None:
    """How one element of the result is computed."""
    if len(op.results) != 1 or not op.operands:
        return None
    if op.operands[0].type.elem in FP8 and op.name in _FP8_ARITHMETIC:
        return _fp8(op)
    family = op.name.split(".")[0]
    if family == "math" or op.name in _FLOAT_BINARY or op.name in _FLOAT_FUNCTION:
        return _floats(op)
    for make in (_integers, _floats, _comparisons, _casts, _others):
        found = make(op)
        if found is not None:
            return found
    return None


_FP8_ARITHMETIC = {*_FLOAT_BINARY, *_FLOAT_CALL, "arith.negf", "arith.remf", "arith.cmpf"}
_FP8_ARITHMETIC |= {"math.absf", "math.fma", "tt.clampf"}


def _fp8(op: Op) -> Elementwise | None:
    """Arithmetic of fp8, which is carried as bits: in f32, with one rounding."""
    name = FP8[op.operands[0].type.elem]
    made = _comparisons(op) or _floats(op)
    if made is None:
        return None

    def text(*operands: str) -> str:
        value = made.text(*(f"tz_{name}_to_f32({a})" for a in operands))
        return value if op.result.type.elem == "i1" else f"tz_f32_to_{name}({value})"

    return Elementwise(text, made.cost + 2 * len(op.operands))


def _floats(op: Op) -> Elementwise | None:
    source, name = ELEMS.get(op.operands[0].type.elem), op.name
    if source is None:
        return None
    kind, rounded = source.suffix, source.rounded
    if name in _FLOAT_BINARY:
        sign = _FLOAT_BINARY[name]
        tile = Quotient if name != "tt.precise_divf" and sign == "/" and kind == "f32" else Map
        cost = COSTLY if sign == "/" else 1
        return Elementwise(lambda a, b: rounded(f"{a} {sign} {b}"), cost, tile)
    if name in _FLOAT_CALL:
        return Elementwise(lambda a, b: f"tz_{_FLOAT_CALL[name]}_{kind}({a}, {b})", 3)
    if name in _FLOAT_FUNCTION:
        function = _FLOAT_FUNCTION[name]
        cost = 1 if function in _CHEAP_FUNCTIONS else COSTLY
        return Elementwise(lambda a: rounded(f"tz_{function}_{kind}({a})"), cost)
    if name == "arith.negf":
        return Elementwise(lambda a: f"-{a}")
    if name == "arith.remf":
        return Elementwise(lambda a, b: rounded(f"tz_rem_{kind}({a}, {b})"), COSTLY)
    if name == "math.fma":
        fused = f"tz_fma_{kind}({{}}, {{}}, {{}})"
        return Elementwise(lambda a, b, c: rounded(fused.format(a, b, c)))
    if name == "math.absi":
        return Elementwise(lambda a: f"tz_abs_{op.operands[0].type.elem}({a})")
    if name == "tt.clampf":
        every = 1 if op.integer("propagateNan") == 0xFFFF else 0
        return Elementwise(lambda x, low, high: f"tz_clamp_{kind}({x}, {low}, {high}, {every})", 3)
    return None


def _integers(op: Op) -> Elementwise | None:
    kind, name = op.operands[0].type.elem, op.name
    if kind not in BITS:
        return None
    signed, bare = ELEMS[kind].carried, unsigned(kind)
    if name in _INTEGER_BINARY:
        tile, sign = _INTEGER_TILE[name], _INTEGER_BINARY[name]
        if kind == "i1":
            bit = "&" if sign == "*" else "^"
            return Elementwise(lambda a, b: f"{a} {bit} {b}")
        wide = bare if kind in ("i32", "i64", "index") else "uint32_t"
        text = f"({signed})(({wide}){{}} {sign} ({wide}){{}})"
        return Elementwise(lambda a, b: text.format(a, b), 1, tile)
    if name in _BITWISE:
        sign = _BITWISE[name]
        tile = And if name == "arith.andi" and kind == "i1" else Map
        return Elementwise(lambda a, b: f"{a} {sign} {b}", 1, tile)
    if name in _DIVISIONS or name in _SHIFTS:
        function, is_unsigned = _DIVISIONS.get(name) or _SHIFTS[name]
        width = "i8" if kind == "i1" else "i64" if kind == "index" else kind
        cast = f"({bare})" if is_unsigned else ""
        text = f"({signed})tz_{function}_{width}({cast}{{}}, {cast}{{}})"
        return Elementwise(lambda a, b: text.format(a, b), COSTLY if name in _DIVISIONS else 1)
    if name in ("arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui"):
        sign = ">" if "max" in name else "<"
        cast = f"({bare})" if name.endswith("ui") else ""
        return Elementwise(lambda a, b: f"{cast}{a} {sign} {cast}{b} ? {a} : {b}")
    if name == "tt.mulhiui":
        return Elementwise(
            lambda a, b: f"({signed})tz_mulhi_u{kind[1:]}(({bare}){a}, ({bare}){b})", 2
        )
    return None


def _comparisons(op: Op) -> Elementwise | None:
    if op.name == "arith.cmpi":
        kind, predicate = op.operands[0].type.elem, op.integer("predicate")
        sign = _PREDICATES[predicate]
        cast = "" if predicate < 6 else f"({unsigned(kind)})"
        if kind == "i1" and 2 <= predicate < 6:
            cast = "-(int32_t)"  # a signed i1 is 0 or -1
        tile = _BOUNDS.get(predicate, Map) if kind != "i1" else Map
        return Elementwise(lambda a, b: f"{cast}{a} {sign} {cast}{b}", 1, tile)
    if op.name == "arith.cmpf":
        text = _FLOAT_PREDICATES[op.integer("predicate")]
        return Elementwise(lambda a, b: text.format(a=a, b=b))
    if op.name == "arith.select":
        return Elementwise(lambda c, a, b: f"{c} ? {a} : {b}", 1, Select)
    return None


def _casts(op: Op) -> Elementwise | None:
    source, target = op.operands[0].type.elem, op.result.type.elem
    into = ELEMS[target].carried if target in ELEMS else ""
    name = op.name
    if name in ("arith.extsi", "arith.index_cast"):
        text = f"({into})-(int32_t){{}}" if source == "i1" else f"({into}){{}}"
        wider = source != "i1" and BITS[target] >= BITS[source]
        return Elementwise(text.format, 1, Widened if wider else Map)
    if name in ("arith.extui", "arith.index_castui"):
        return Elementwise(lambda a: f"({into})({unsigned(source)}){a}")
    if name == "arith.trunci":
        text = "{} & 1" if target == "i1" else f"({into}){{}}"
        return Elementwise(text.format)
    if name in ("arith.sitofp", "arith.uitofp"):
        return Elementwise(_from_integer(source, target, name == "arith.uitofp"))
    if name in ("arith.fptosi", "arith.fptoui"):
        return Elementwise(_to_integer(source, target, name == "arith.fptoui"), 3)
    if name in ("arith.extf", "arith.truncf", "tt.fp_to_fp"):
        toward_zero = name == "tt.fp_to_fp" and op.attrs.get("rounding", "1 ").startswith("0")
        nearest = source == "f32" and not toward_zero
        tile = Narrowed if nearest else Map
        return Elementwise(_float_to_float(source, target, toward_zero), 2, tile)
    return None


def _from_integer(source: str, target: str, is_unsigned: bool) -> Text:
    cast = f"({unsigned(source)})" if is_unsigned else "-(int32_t)" if source == "i1" else ""
    if target == "bf16":
        kind = ("u" if is_unsigned else "i") + ("64" if source in ("i64", "index") else "32")
        return lambda a: f"tz_bf16_to_f32(tz_{kind}_to_bf16({cast}{a}))"
    target_elem = ELEMS[target]
    return lambda a: target_elem.rounded(f"({target_elem.carried}){cast}{a}")


def _to_integer(source: str, target: str, is_unsigned: bool) -> Text:
    kind = ELEMS[source].suffix
    if target == "i1":
        return lambda a: f"{a} != 0"
    width = target[1:] if target != "index" else "64"
    sign = "u" if is_unsigned else "i"
    return lambda a: f"({ELEMS[target].carried})tz_{kind}_to_{sign}{width}({a})"


def _float_to_float(source: str, target: str, toward_zero: bool) -> Text:
    """Conversions between carried floats; fp8 is carried as bits."""
    rtz = "_rtz" if toward_zero else ""
    if source in FP8:
        widened = f"tz_{FP8[source]}_to_f32({{}})"
        if target in FP8:
            return lambda a: f"tz_f32_to_{FP8[target]}{rtz}({widened.format(a)})"
        return lambda a: f"({ELEMS[target].carried}){widened.format(a)}"
    kind = ELEMS[source].suffix
    if target in FP8:
        return lambda a: f"tz_{kind}_to_{FP8[target]}{rtz}({a})"
    if target == "f64" or (target == "f32" and source in ("f16", "bf16", "f32")):
        return lambda a: f"({ELEMS[target].carried}){a}"
    if target == "f32":
        return lambda a: f"tz_f64_to_f32{rtz}({a})"
    if kind == "f32" and not toward_zero:
        return lambda a: f"tz_round_{target}({a})"
    return lambda a: f"tz_{target}_to_f32(tz_{kind}_to_{target}{rtz}({a}))"


def _others(op: Op) -> Elementwise | None:
    source, target = op.operands[0].type.elem, op.result.type.elem
    if op.name in ("tt.int_to_ptr", "tt.ptr_to_int") or (
        op.name == "tt.bitcast" and source == target == "ptr"
    ):
        return Elementwise(lambda a: f"({ELEMS[target].carried}){a}")
    if op.name == "tt.extern_elementwise":
        function = lookup(op.string("symbol"))
        if function is None:
            return None
        call = function.c_name
        return Elementwise(lambda *a: f"{call}({', '.join(a)})", COSTLY, Map, function.header)
    return None
