"""The bytecode of one function definition: compiled from its syntax tree, and compared.

Enters: the syntax tree of a function, or two code objects. Leaves: a code object, or whether two
code objects do the same. It must not know Triton, or where the tree comes from.
"""

from __future__ import annotations

import ast
import dis
from types import CodeType
from typing import Any

__all__ = ["code_of", "do_the_same"]


def code_of(tree: ast.stmt, free: tuple[str, ...], file: str, line: int) -> CodeType:
    """Compile one function definition, with its ``def`` on `line`, nested in a function that has
    the local variables `free`."""
    assert isinstance(tree, ast.FunctionDef)
    # Decorators and annotations would run outside the function, and only its own code is needed.
    bare = ast.FunctionDef(**{name: getattr(tree, name) for name in tree._fields})
    bare.decorator_list, bare.returns = [], None
    outer = "def outer():\n  pass"
    if free:
        outer = f"def outer({', '.join(free)}):\n  pass"
    around = ast.parse(outer)
    holder = around.body[0]
    assert isinstance(holder, ast.FunctionDef)
    holder.body = [ast.copy_location(bare, tree)]
    ast.increment_lineno(holder, line - tree.lineno)
    around = ast.fix_missing_locations(around)
    try:
        module = compile(around, file, "exec", dont_inherit=True)
    finally:
        ast.increment_lineno(holder, tree.lineno - line)  # the tree belongs to the caller
    inside = next(each for each in module.co_consts if isinstance(each, CodeType))
    return next(
        each
        for each in inside.co_consts
        if isinstance(each, CodeType) and each.co_name == tree.name
    )


def do_the_same(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects do the same, whatever their file and line numbers.

    >>> one, other = (lambda x: x + 1).__code__, (lambda x: x + 2).__code__
    >>> do_the_same(one, one), do_the_same(one, other)
    (True, False)
    """
    names = ("co_names", "co_varnames", "co_freevars", "co_cellvars")
    if any(getattr(one, name) != getattr(other, name) for name in names):
        return False
    if len(one.co_consts) != len(other.co_consts) or _steps(one) != _steps(other):
        return False
    return all(map(_same_constants, one.co_consts, other.co_consts))


def _steps(code: CodeType) -> list[tuple[str, Any]]:
    """The instructions, without what depends on the surrounding text: Python compiles a call of an
    attribute differently if it saw the import of the module, and jump distances then differ."""
    found = []
    for step in dis.get_instructions(code):
        if step.opname in ("PUSH_NULL", "NOP", "CACHE", "EXTENDED_ARG"):
            continue
        name = "LOAD_ATTR" if step.opname == "LOAD_METHOD" else step.opname
        jumps = step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
        constant = step.opcode in dis.hasconst  # constants are compared separately
        found.append((name, None if jumps else step.arg if constant else step.argval))
    return found


def _same_constants(one: Any, other: Any) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return do_the_same(one, other)
    # As text: 0.0 equals -0.0, and 1 equals True.
    same = repr(one) == repr(other) or (isinstance(one, frozenset) and one == other)
    return type(one) is type(other) and same
