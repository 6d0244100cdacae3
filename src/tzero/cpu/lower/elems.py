"""Element types: the C type of each in memory (stored) and in expressions (carried).

f16 and bf16 are carried as floats of the same value, so that a chain of operations converts once
and only rounds in between. fp8 is carried as its bits, because no operation computes in it.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from tzero.cpu.ttir import Type


@dataclass(frozen=True, slots=True)
class Elem:
    """C types of one element type; `narrow` names the conversions of f16 and bf16."""

    name: str
    storage: str
    carried: str
    size: int
    narrow: str = ""

    @property
    def is_float(self) -> bool:
        """Whether values are carried as float or double."""
        return self.carried in ("float", "double")

    @property
    def suffix(self) -> str:
        """Which of numeric.h's float variants applies: f32 or f64."""
        return "f64" if self.carried == "double" else "f32"

    def load(self, stored: str) -> str:
        """C text: stored bits to carried value."""
        return f"tz_{self.narrow}_to_f32({stored})" if self.narrow else stored

    def store(self, carried: str) -> str:
        """C text: carried value to stored bits."""
        return f"tz_f32_to_{self.narrow}({carried})" if self.narrow else carried

    def rounded(self, expression: str) -> str:
        """C text: an arithmetic result, rounded to this type."""
        return f"tz_round_{self.narrow}({expression})" if self.narrow else expression


ELEMS = {
    e.name: e
    for e in (
        Elem("i1", "uint8_t", "_Bool", 1),
        Elem("i8", "int8_t", "int8_t", 1),
        Elem("i16", "int16_t", "int16_t", 2),
        Elem("i32", "int32_t", "int32_t", 4),
        Elem("i64", "int64_t", "int64_t", 8),
        Elem("index", "int64_t", "int64_t", 8),
        Elem("f16", "uint16_t", "float", 2, "f16"),
        Elem("bf16", "uint16_t", "float", 2, "bf16"),
        Elem("f32", "float", "float", 4),
        Elem("f64", "double", "double", 8),
        Elem("f8E4M3FN", "uint8_t", "uint8_t", 1),
        Elem("f8E5M2", "uint8_t", "uint8_t", 1),
        Elem("f8E4M3FNUZ", "uint8_t", "uint8_t", 1),
        Elem("f8E5M2FNUZ", "uint8_t", "uint8_t", 1),
        Elem("ptr", "char *", "char *", 8),
    )
}

FP8 = {
    "f8E4M3FN": "e4m3",
    "f8E5M2": "e5m2",
    "f8E4M3FNUZ": "e4m3fnuz",
    "f8E5M2FNUZ": "e5m2fnuz",
}
"""The names of their conversions in `runtime/tz_number.h`."""

BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}


def elem(type_: Type | str) -> Elem | None:
    """The element type, or None if this backend does not have it."""
    return ELEMS.get(type_ if isinstance(type_, str) else type_.elem)


def unsigned(name: str) -> str:
    """The unsigned C type of an integer element type."""
    return "_Bool" if name == "i1" else f"uint{BITS[name]}_t"


def literal(text: str, name: str) -> str:
    """C text of an MLIR scalar literal."""
    if text in ("true", "false"):
        return "1" if text == "true" else "0"
    if name in BITS:
        return _integer(int(text), name)
    if name in FP8:
        return f"((uint8_t){int(text, 16) if text.startswith('0x') else _fp8(float(text), name)})"
    return _real(_float(text, name), name)


def _integer(value: int, name: str) -> str:
    if name == "i1":
        return str(value & 1)
    if value == -(1 << 63):
        return "INT64_MIN"
    if value == -(1 << 31):
        return "INT32_MIN"
    wide = name in ("i64", "index")
    return (
        f"(({ELEMS[name].carried}){value}{'LL' if wide else ''})"
        if value < 0 or wide
        else (f"{value}")
    )


def _float(text: str, name: str) -> float:
    if not text.startswith("0x"):
        return float(text)
    bits = int(text, 16)
    if name == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    form = {"f64": "<d<Q", "f32": "<f<I", "f16": "<e<H"}[name]
    return float(struct.unpack(form[:2], struct.pack(form[2:], bits))[0])


def _fp8(value: float, name: str) -> int:
    """Bits of a value that fp8 represents exactly, found by trying all."""
    for bits in range(256):
        found = _fp8_value(bits, name)
        if found == value and math.copysign(1, found) == math.copysign(1, value):
            return bits
    raise ValueError(f"{value} is not a {name}")


_BIASES = {"f8E4M3FN": 7, "f8E5M2": 15, "f8E4M3FNUZ": 8, "f8E5M2FNUZ": 16}


def _fp8_value(bits: int, name: str) -> float:
    exponent_bits, mantissa_bits = (4, 3) if name.startswith("f8E4M3") else (5, 2)
    bias, sign = _BIASES[name], -1.0 if bits & 128 else 1.0
    mantissa = bits & ((1 << mantissa_bits) - 1)
    exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1)
    top = (1 << exponent_bits) - 1
    if name == "f8E5M2" and exponent == top:
        return sign * float("inf") if mantissa == 0 else float("nan")
    if (name == "f8E4M3FN" and bits & 127 == 127) or (name.endswith("FNUZ") and bits == 128):
        return float("nan")
    fraction = mantissa / (1 << mantissa_bits)
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias)
    return sign * (1 + fraction) * 2.0 ** (exponent - bias)


def _real(value: float, name: str) -> str:
    suffix = "" if name == "f64" else "f"
    if value != value:
        return f'__builtin_nan{suffix}("")'
    if value in (float("inf"), float("-inf")):
        return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
    return f"({value!r}{suffix})"
