"""Conversions of ``tl.float8e4b15``, which MLIR does not have.

Enters: a tensor while a kernel is compiled, and the type to convert it to. Leaves: a tensor of that
type, computed by integer operations: Triton's front end passes the format as 8-bit integers and
leaves its conversions to the backend. It must not know how operations are lowered.

The format is the upper byte of a float16 shifted left by one, so it has neither infinities nor NaN.
Results are those of Triton's CUDA backend, bit for bit.
"""

from __future__ import annotations

from typing import Any

__all__ = ["convert"]

_LARGEST = 0x3F00  # 1.75 as float16


def convert(
    value: Any, target: Any, fp_downcast_rounding: object = None, _semantic: Any = None
) -> Any:
    """Convert to or from float8e4b15. Narrowing rounds to nearest, ties away from zero, after any
    wider type was truncated to float16; beyond 1.75 it saturates, NaN included."""
    if value.dtype.is_fp8e4b15():
        return _semantic.cast(_widened(value, _semantic), target)
    return _narrowed(value, _semantic)


def _widened(value: Any, semantic: Any) -> Any:
    import triton.language as tl  # not at the top: Triton is being imported when this module is

    bits = semantic.cast(semantic.bitcast(value, _shaped(value, tl.uint8)), tl.uint16)
    sign = semantic.shl(semantic.and_(bits, _number(0x80, semantic)), _number(8, semantic))
    rest = semantic.shl(semantic.and_(bits, _number(0x7F, semantic)), _number(7, semantic))
    return semantic.bitcast(semantic.or_(sign, rest), _shaped(value, tl.float16))


def _narrowed(value: Any, semantic: Any) -> Any:
    import triton.language as tl

    if not value.dtype.is_fp16():
        value = semantic.cast(semantic.cast(value, tl.float32), tl.float16, "rtz")
    bits = semantic.bitcast(value, _shaped(value, tl.uint16))
    sign = semantic.lshr(semantic.and_(bits, _number(0x8000, semantic)), _number(8, semantic))
    rest = semantic.and_(bits, _number(0x7FFF, semantic))
    is_large = semantic.greater_than(rest, _number(_LARGEST, semantic))
    rest = semantic.where(is_large, _number(_LARGEST, semantic), rest)
    half = semantic.add(rest, _number(0x40, semantic), sanitize_overflow=False)
    code = semantic.or_(sign, semantic.lshr(half, _number(7, semantic)))
    return semantic.bitcast(semantic.cast(code, tl.uint8), _shaped(value, tl.float8e4b15))


def _number(value: int, semantic: Any) -> Any:
    import triton.language as tl

    return semantic.scalar_constant(value, tl.uint16)


def _shaped(value: Any, dtype: Any) -> Any:
    return value.type.with_element_ty(dtype) if value.type.is_block() else dtype
