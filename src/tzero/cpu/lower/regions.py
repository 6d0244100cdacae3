"""Regions of scalar operations: what reductions, scans and maps apply to elements.

Enters: the blocks of a region and the C text of its arguments. Leaves: statements in a loop body,
and the C text of what the region yields. It must not know which elements these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tzero.cpu.lower import control
from tzero.cpu.lower.code import Stmt
from tzero.cpu.lower.elementwise import elementwise
from tzero.cpu.lower.elems import ELEMS, literal
from tzero.cpu.lower.poly import Loop
from tzero.cpu.lower.tiles import Body, Ref, Uniform
from tzero.cpu.ttir import Block, Op, Value

if TYPE_CHECKING:
    from tzero.cpu.lower.lowering import Lowering


def apply_region(
    lowering: Lowering, blocks: list[Block], args: Sequence[Ref], body: Body
) -> list[Ref]:
    """Add the statements of a region of scalar operations; returns what it yields."""
    if len(blocks) > 1 or not all(_is_straight_line(op) for op in blocks[0].ops[:-1]):
        return _apply_control_flow(lowering, blocks, args, body)
    values: dict[Value, Ref] = dict(zip(blocks[0].args, args, strict=True))

    def read(value: Value) -> Ref:
        return values[value] if value in values else Ref(lowering.scalar(value))

    for op in blocks[0].ops[:-1]:
        found = elementwise(op)
        if found is None:
            text = op.attrs["value"].rpartition(" : ")[0] or op.attrs["value"]
            values[op.result] = Ref(literal(text, op.result.type.elem))
            continue
        lowering.include(found.header)
        refs = [read(v) for v in op.operands]
        deps = frozenset[Loop]().union(*(r.deps for r in refs))
        carried = ELEMS[op.result.type.elem].carried
        values[op.result] = body.let(carried, found.text(*(r.text for r in refs)), deps=deps)
    return [read(v) for v in blocks[0].ops[-1].operands]


def _is_straight_line(op: Op) -> bool:
    return op.name == "arith.constant" or elementwise(op) is not None


def _apply_control_flow(
    lowering: Lowering, blocks: list[Block], args: Sequence[Ref], body: Body
) -> list[Ref]:
    """The same for regions with calls, branches or loops, whose statements stay together."""
    stmts: list[Stmt] = []
    tiles = [Uniform(v.type, r.text) for v, r in zip(blocks[0].args, args, strict=True)]
    with lowering.into(stmts):
        results = control.inline_blocks(lowering, blocks, tiles)
    body.items += [(stmt, None) for stmt in stmts]
    deps = frozenset[Loop]().union(*(r.deps for r in args))
    return [Ref(t.text, deps) for t in results if isinstance(t, Uniform)]


def unrounded(blocks: list[Block]) -> list[Block]:
    """The region with f32 for f16 and bf16, so that a running result is rounded once, at its end,
    and not in every step. Regions with calls, branches or loops stay as they are."""
    if len(blocks) > 1 or not all(_is_straight_line(op) for op in blocks[0].ops[:-1]):
        return blocks
    wide: dict[Value, Value] = {}

    def widened(value: Value) -> Value:
        elem = ELEMS.get(value.type.elem)
        if elem is None or not elem.narrow or (value.op and value.op.name == "arith.constant"):
            return value
        if value not in wide:
            wide[value] = Value(value.name, replace(value.type, elem="f32"), value.op)
        return wide[value]

    def rewritten(op: Op) -> Op:
        operands, results = ([widened(v) for v in old] for old in (op.operands, op.results))
        return replace(op, operands=operands, results=results)

    block = blocks[0]
    args = [widened(arg) for arg in block.args]
    return [replace(block, args=args, ops=[rewritten(op) for op in block.ops])]
