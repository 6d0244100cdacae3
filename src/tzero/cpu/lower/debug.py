"""Assertions, prints, program ids, and the reasons why operations are unsupported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tzero.cpu.libdevice import UNSUPPORTED
from tzero.cpu.lower.code import stop_program
from tzero.cpu.lower.elems import BITS, FP8, unsigned
from tzero.cpu.lower.tiles import Uniform
from tzero.cpu.ttir import Op

if TYPE_CHECKING:
    from tzero.cpu.lower.lowering import Lowering


def program_id(lowering: Lowering, op: Op) -> None:
    """The program's index in the grid."""
    lowering.env[op.result] = Uniform(op.result.type, f"pid[{op.integer('axis')}]")


def num_programs(lowering: Lowering, op: Op) -> None:
    """The size of the grid."""
    lowering.env[op.result] = Uniform(op.result.type, f"launch->grid[{op.integer('axis')}]")


def assert_(lowering: Lowering, op: Op) -> None:
    """Stop the launch unless every element is true."""
    site = lowering.site(op, "assert", op.string("message"))
    condition = lowering.tile(op.operands[0])
    loops, index = lowering.index(condition.type.shape)
    body = lowering.body()
    body.do(f"if (!{body.at(condition, index).text}) {stop_program(site)}")
    lowering.add_nest(loops, body, simd=False)


def print_(lowering: Lowering, op: Op) -> None:
    """One line per element on standard output: program, index, prefix, value."""
    lowering.include("print.h")
    prefix = _c_string(op.string("prefix"))
    where = '"pid (%d, %d, %d)'
    if not op.operands:
        lowering.emit(f'tz_print({where}%s\\n", pid[0], pid[1], pid[2], {prefix});')
    signs = op.integers("isSigned") if "isSigned" in op.attrs else [1] * len(op.operands)
    for k, (value, signed) in enumerate(zip(op.operands, signs, strict=True)):
        tile = lowering.tile(value)
        loops, index = lowering.index(tile.type.shape)
        body = lowering.body()
        form, text = _format(
            tile.type.elem, body.at(tile, index).text, op.flag("hex"), bool(signed)
        )
        note = f"(operand {k}) " if len(op.operands) > 1 else ""
        # As wide as the largest index, as on a GPU, so that lines align and sort.
        places = ", ".join(f"%{len(str(n - 1))}lld" for n in tile.type.shape)
        parts: list[object] = [f'tz_print({where} idx ({places})%s{note}{form}\\n"']
        parts.append(", pid[0], pid[1], pid[2]")
        for at in index:
            parts += [", (long long)(", at, ")"]
        parts.append(f", {prefix}, {text});")
        body.do(*parts)  # type: ignore[arg-type]
        lowering.add_nest(loops, body, simd=False)


def _format(name: str, text: str, hexadecimal: bool, signed: bool) -> tuple[str, str]:
    """A printf conversion and its argument."""
    if name == "ptr":
        return "%p", f"(void *){text}"
    if name in FP8:
        return "%f", f"(double)tz_{FP8[name]}_to_f32({text})"
    if name not in BITS:
        return "%f", f"(double){text}"
    if hexadecimal:
        return f"0x%0{max(1, BITS[name] // 4)}llx", f"(unsigned long long)({unsigned(name)}){text}"
    if signed and name != "i1":
        return "%lld", f"(long long){text}"
    return "%llu", f"(unsigned long long)({unsigned(name)}){text}"


def _c_string(text: str) -> str:
    """A C string literal, with all but plain characters as octal escapes."""
    plain = (
        chr(b) if (chr(b).isalnum() and b < 128) or b in b" .,:;=_()[]+-*/<>" else f"\\{b:03o}"
        for b in text.encode()
    )
    return f'"{"".join(plain)}"'


def why_unsupported(op: Op) -> str:
    """Why an operation without a handler is not supported, and what to do."""
    if op.name == "tt.elementwise_inline_asm":
        return (
            "Inline assembly is specific to one GPU. Use tl operations instead, or guard it by "
            "target."
        )
    if op.name == "tt.extern_elementwise":
        symbol = op.string("symbol")
        why = UNSUPPORTED.get(symbol, "it is not a known libdevice function")
        return f"The external function {symbol} is not supported on the CPU: {why}."
    return "The CPU backend does not support this operation; use others, or a GPU."


HANDLERS = {
    "tt.get_program_id": program_id,
    "tt.get_num_programs": num_programs,
    "tt.assert": assert_,
    "tt.print": print_,
}
