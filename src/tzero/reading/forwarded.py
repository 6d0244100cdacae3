"""Which parameters a host function only forwards to launches: read from its source.

    def scale(x, n, by):                    n: forwarded to the launch in line 3
        out = torch.empty_like(x)           by: read in line 4
        k[grid](x, out, n)
        if by: ...

Enters: a host function. Leaves: for each parameter that is used only as an argument of
``something[...](...)``, the positions of those calls. Whether a call is a launch of a kernel shows
when it is made; any other call may read its arguments. It must not know how calls are recorded.
"""

from __future__ import annotations

import ast
import dis
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from tzero.reading.bytecode import Span, assigned, names_of, read_source

__all__ = ["Passing", "read_passing"]

Place = int | str


@dataclass(frozen=True, slots=True)
class Passing:
    """Where parameters are forwarded. `calls` maps the span of a call, and the position or name of
    an argument, to a parameter; `uses` maps a parameter to all calls that it is forwarded to.

    >>> Passing({}, {}).uses
    {}
    """

    calls: dict[Span, dict[Place, str]]
    uses: dict[str, frozenset[Span]]


def read_passing(
    function: Callable[..., Any], parameters: Sequence[str], launcher: str = ""
) -> Passing:
    """Read a host function; without source, no parameter is forwarded. `launcher` is the name of a
    function that launches kernels, as ``launcher(kernel, grid, ...)``.

    >>> read_passing(lambda k, n: k[1](n), ("k", "n")).uses
    {}
    """
    code = getattr(function, "__code__", None)
    if not isinstance(function, FunctionType) or not isinstance(code, CodeType):
        return Passing({}, {})
    source = read_source(function)
    body = source.tree.body[0] if source is not None and source.tree.body else None
    if source is None or not isinstance(body, ast.FunctionDef):  # such as a lambda
        return Passing({}, {})
    changed = {*assigned(code), *code.co_cellvars}
    steady = [name for name in parameters if name not in changed]
    calls: dict[Span, dict[Place, str]] = {}
    uses: dict[str, set[Span]] = {name: set() for name in steady}
    passed = dict.fromkeys(steady, 0)
    for node in ast.walk(body):
        if not isinstance(node, ast.Call):
            continue
        kernel, before = _launched(node, launcher)
        if kernel in (None, *code.co_varnames):  # a local may hold another kernel in each call
            continue
        at = source.span(node)
        for place, name in _places(node, uses, before):
            passed[name] += 1
            uses[name].add(at)
            calls.setdefault(at, {})[place] = name
    loads = Counter(
        name
        for instruction in dis.get_instructions(code)
        if instruction.opname.startswith("LOAD_FAST")
        for name in names_of(instruction)
    )
    only = {n: frozenset(uses[n]) for n in steady if passed[n] and loads[n] == passed[n]}
    kept = {at: {p: n for p, n in places.items() if n in only} for at, places in calls.items()}
    return Passing({at: places for at, places in kept.items() if places}, only)


def _root(node: ast.expr) -> str | None:
    """The name in ``name.a.b``; None for any other expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _launched(node: ast.Call, launcher: str) -> tuple[str | None, int]:
    """The name of the kernel that a call may launch, and how many arguments precede its own."""
    if isinstance(node.func, ast.Subscript):
        return _root(node.func.value), 0
    named = isinstance(node.func, ast.Name) and node.func.id == launcher
    return (_root(node.args[0]), 2) if named and len(node.args) >= 2 else (None, 0)


def _places(node: ast.Call, names: Container[str], before: int = 0) -> Iterator[tuple[Place, str]]:
    """The names among a call's arguments, skipping the first `before`; none if there is a star."""
    if any(isinstance(arg, ast.Starred) for arg in node.args):
        return
    for k, arg in enumerate(node.args[before:]):
        if isinstance(arg, ast.Name) and arg.id in names:
            yield k, arg.id
    for keyword in node.keywords:
        if keyword.arg and isinstance(keyword.value, ast.Name) and keyword.value.id in names:
            yield keyword.arg, keyword.value.id
