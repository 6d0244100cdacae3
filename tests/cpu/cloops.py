"""C functions of the runtime headers, applied to arrays.

Enters: functions by C name with their element types. Leaves: callables from numpy arrays to a
numpy array, each a C loop around one function, compiled together. It must not know what the
functions compute.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import tzero.cpu
from tzero.cpu import toolchain

RUNTIME = Path(tzero.cpu.__file__).parent / "runtime"

C_TYPES = {f"{s}{w}": f"{'u' if s == 'u' else ''}int{w}_t" for s in "iu" for w in (8, 16, 32, 64)}
C_TYPES |= {"f32": "float", "f64": "double"}
DTYPES: dict[str, npt.DTypeLike] = {
    **{f"{s}{w}": f"{s}{w // 8}" for s in "iu" for w in (8, 16, 32, 64)},
    "f32": "f4",
    "f64": "f8",
}
Array = npt.NDArray[Any]


class Loop(NamedTuple):
    """One function: tags of its arguments and its result, and the C text of the call."""

    args: tuple[str, ...]
    result: str
    call: str


def loop(signature: str, call: str) -> Loop:
    """From "f32 f32 -> i32" and either a C name or an expression in a, b, c, d."""
    args, result = signature.split("->")
    tags = tuple(args.split())
    text = call if "(" in call else f"{call}({', '.join('abcd'[: len(tags)])})"
    return Loop(tags, result.strip(), text)


def source(loops: Mapping[str, Loop], header: str) -> str:
    """One C function per loop, one line each."""
    lines = [f'#include "{header}"']
    for name, each in loops.items():
        inputs = [f"const {C_TYPES[t]} *restrict p{i}" for i, t in enumerate(each.args)]
        params = ", ".join([*inputs, f"{C_TYPES[each.result]} *restrict out", "int64_t n"])
        reads = " ".join(f"{C_TYPES[t]} {'abcd'[i]} = p{i}[k];" for i, t in enumerate(each.args))
        body = f"{reads} out[k] = ({C_TYPES[each.result]})({each.call});"
        # The prefix avoids the names of C library functions.
        lines.append(
            f"void loop_{name}({params}) {{ for (int64_t k = 0; k < n; k++) {{ {body} }} }}"
        )
    return "\n".join(lines) + "\n"


class Loops:
    """The compiled loops: ``loops("name", array, ...)``."""

    def __init__(
        self,
        loops: Mapping[str, Loop],
        header: str,
        flags: Iterable[str] = (),
        optimization: int = 3,
    ) -> None:
        self._loops = dict(loops)
        binary = toolchain.find().build(
            source(loops, header),
            "numeric loops",
            include_dirs=[RUNTIME],
            extra_flags=[*flags, "-lm"],
            optimization=optimization,
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "loops.so")
            path.write_bytes(binary)
            self._library = ctypes.CDLL(str(path))

    def __call__(self, name: str, *inputs: npt.ArrayLike) -> Array:
        each = self._loops[name]
        assert len(inputs) == len(each.args), name
        raw = [np.asarray(x, DTYPES[t]) for x, t in zip(inputs, each.args, strict=True)]
        arrays = [np.ascontiguousarray(x) for x in np.broadcast_arrays(*raw)]
        out = np.empty(arrays[0].shape, DTYPES[each.result])
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*arrays, out)]
        self._library[f"loop_{name}"](*pointers, ctypes.c_int64(out.size))
        return out
