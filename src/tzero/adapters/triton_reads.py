"""Which pointers a compiled Triton kernel only reads through, found in its intermediate code.

Enters: a compiled kernel. Leaves: names of parameters. It must not know launches.

The search gives up early: a pointer counts as read only if every operation on it, and on what is
computed from it, is a load or makes another pointer. In doubt, a kernel writes.
"""

from __future__ import annotations

import functools
import re
from typing import Any

__all__ = ["only_read", "pointers_only_read"]

_HEADER = re.compile(r"tt\.func public @\S+?\((.*)$")
_PARAMETER = re.compile(r"%(\w+): !tt\.ptr<")
_RESULT = re.compile(r"^\s*(%\w+) = ")
_OPERATION = re.compile(r"^\s*(?:%\w+ = )?\"?([\w.]+)")
_NAME = re.compile(r"%\w+")
_POINTERS = frozenset(
    ["tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.addptr"]
)
"""Operations that make pointers of pointers, and do nothing else."""


def only_read(compiled: Any) -> frozenset[str]:
    """The pointer parameters through which a compiled kernel only reads.

    ::

        only_read(add_kernel[grid](x, y, out, n, BLOCK=64))  # {"x", "y"}
    """
    asm = getattr(compiled, "asm", None)
    try:
        text = asm["ttir"] if asm is not None else None
    except (KeyError, TypeError):
        return frozenset()
    return pointers_only_read(text) if isinstance(text, str) else frozenset()


@functools.lru_cache(256)
def pointers_only_read(ttir: str) -> frozenset[str]:
    """The pointer parameters through which a kernel only reads, by its intermediate code.

    >>> sorted(pointers_only_read('''
    ...   tt.func public @copy(%x: !tt.ptr<f32>, %out: !tt.ptr<f32>) {
    ...     %0 = tt.load %x : !tt.ptr<f32>
    ...     tt.store %out, %0 : !tt.ptr<f32>
    ... '''))
    ['x']
    """
    if "int_to_ptr" in ttir or "tt.call" in ttir:
        return frozenset()
    lines = ttir.splitlines()
    start = next((k for k, line in enumerate(lines) if _HEADER.search(line)), None)
    if start is None:
        return frozenset()
    names = _PARAMETER.findall(lines[start])
    return frozenset(name for name in names if _is_only_read(name, lines[start + 1 :]))


def _is_only_read(name: str, lines: list[str]) -> bool:
    pointers = {f"%{name}"}
    for line in lines:
        if pointers.isdisjoint(_NAME.findall(line)):
            continue
        operation, result = _OPERATION.match(line), _RESULT.match(line)
        what = operation.group(1) if operation else ""
        if what in _POINTERS and result is not None:
            pointers.add(result.group(1))
        elif what != "tt.load":
            return False
    return True
