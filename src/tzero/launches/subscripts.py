"""What a grid function or a heuristic reads of the dict of all arguments that it is given.

Enters: the code of a function, and which of its parameters gets the dict. Leaves: the keys that it
subscripts the dict with, if it does nothing else with it. Then a dict with these keys alone serves
as well, which is cheaper to make: a kernel may have 60 arguments.

What looks into the frames of its callers is not seen; no function that is called for a launch does.
"""

from __future__ import annotations

import dis
import inspect
from types import CodeType

__all__ = ["subscripts"]

_PLAIN_LOADS = ("LOAD_FAST", "LOAD_FAST_BORROW")
_LOOKS_AT_FRAMES = frozenset(["locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"])
_ODD = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def subscripts(code: CodeType, position: int) -> tuple[str, ...] | None:
    """The keys that code subscripts its positional parameter with; None if it may do more.

    >>> subscripts((lambda given: given["n"] % given["BLOCK"] == 0).__code__, 0)
    ('n', 'BLOCK')
    >>> subscripts((lambda given: sorted(given)).__code__, 0) is None
    True
    """
    if position >= code.co_argcount or code.co_flags & _ODD:
        return None
    name = code.co_varnames[position]
    if name in code.co_cellvars or not _LOOKS_AT_FRAMES.isdisjoint(code.co_names):
        return None
    found: dict[str, None] = {}
    steps = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    for at, step in enumerate(steps):
        if step.opcode not in dis.haslocal or not _names(step, name):
            continue
        key, subscript = steps[at + 1 : at + 3] if at + 2 < len(steps) else (step, step)
        is_subscript = subscript.opname == "BINARY_SUBSCR" or (
            subscript.opname == "BINARY_OP" and subscript.argrepr == "[]"  # since 3.14
        )
        if step.opname not in _PLAIN_LOADS or key.opname != "LOAD_CONST" or not is_subscript:
            return None
        if type(key.argval) is not str or key.is_jump_target or subscript.is_jump_target:
            return None
        found[key.argval] = None
    return tuple(found)


def _names(step: dis.Instruction, name: str) -> bool:
    """Whether an instruction is about a variable; some are about two."""
    about = step.argval
    return name in about if isinstance(about, tuple) else about == name
