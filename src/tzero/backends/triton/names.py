"""Which global names the source text of a function reads.

Enters: the syntax tree of a Triton kernel, of a helper, or of a function that runs at compile time.
Leaves: the global names that it reads, with the attributes read of each, in source order. It must
not know their values; except that `belongs` tells whether an attribute of a module is the one that
the module's own source defines.

A kernel is read as Triton reads it, from top to bottom: a name is local from the point where it has
certainly been assigned. So ``BLOCK = BLOCK * 2`` reads a global, and a global with the same name as
a local variable is not reported.
"""

from __future__ import annotations

import ast
import dis
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Literal, NamedTuple

__all__ = ["Read", "belongs", "compiled_names", "hidden_input", "of_kernel", "of_python"]

Where = Literal["body", "default", "annotation"]

# Builtins that have side effects, or whose result depends on more than their arguments.
_HIDDEN = frozenset({"open", "eval", "exec", "compile", "globals", "locals", "vars", "input"})
_HIDDEN |= {"print", "breakpoint", "id", "hash", "__import__", "__builtins__"}
# `math` is written in C, so its constants are listed here.
_OF_MATH = {"pi": 3.141592653589793, "e": 2.718281828459045, "tau": 6.283185307179586}
_OF_MATH |= {"inf": float("inf"), "nan": float("nan")}


class Read(NamedTuple):
    """One name, the chain of attributes read of it, and where in the function.

    >>> of_kernel(ast.parse("def f(x): return tl.math.exp(x)").body[0])
    [Read(name='tl', attributes=('math', 'exp'), where='body')]
    """

    name: str
    attributes: tuple[str, ...]
    where: Where


def of_kernel(definition: ast.stmt) -> list[Read]:
    """What a kernel reads, by Triton's scoping rules.

    >>> of_kernel(ast.parse("def f(x, N: T = 4):\\n  y = x + K\\n  return y").body[0])
    [Read(name='T', attributes=(), where='annotation'), Read(name='K', attributes=(), where='body')]
    """
    assert isinstance(definition, ast.FunctionDef)
    reader = _Reader()
    arguments = definition.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    for argument in every:
        reader.annotation(argument.annotation, set())
    for default in [*arguments.defaults, *arguments.kw_defaults]:
        reader.expression(default, set(), "default")
    reader.block(definition.body, {each.arg for each in every})
    return list(reader.found)


def of_python(definition: ast.stmt, code: CodeType) -> list[Read]:
    """What a function that Python runs reads, by Python's scoping rules.

    >>> text = "def f(x):\\n  n = math.pi\\n  return n * SCALE"
    >>> of_python(ast.parse(text).body[0], compiled_names.__code__)
    []
    """
    assert isinstance(definition, ast.FunctionDef)
    around = compiled_names(code)
    reader = _Reader()
    for statement in definition.body:
        reader.everything(statement, around)
    return list(reader.found)


def compiled_names(code: CodeType) -> frozenset[str]:
    """The global and closure names that a function and its nested functions load.

    >>> sorted(compiled_names((lambda x: [len(y) for y in x]).__code__))
    ['len']
    """
    found = set(code.co_freevars)
    for each in _codes(code):
        found.update(
            instruction.argval
            for instruction in dis.get_instructions(each)
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF")
            or instruction.opname.startswith("LOAD_FROM_DICT_OR")
        )
    return frozenset(found)


def hidden_input(definition: ast.stmt, code: CodeType) -> str:
    """Why the result of a function may depend on more than its source, arguments and globals; empty
    if it does not.

    >>> code = compile("def f(): return open('size').read()", "", "exec").co_consts[0]
    >>> hidden_input(ast.parse("def f(): return open('size').read()").body[0], code)
    "reads 'open'"
    """
    for node in ast.walk(definition):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return "has an import"
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return f"assigns {node.names[0]!r}, which is not its own"
    found = sorted(compiled_names(code) & _HIDDEN)
    return f"reads {found[0]!r}" if found else ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


_SYMBOLS = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
_NO_NAMES = {
    ast.Constant,
    str,
    type(None),
    *(each for s in _SYMBOLS for each in s.__subclasses__()),
}
"""What a node may hold that has no names in it."""


class _Reader:
    """Visits a function, with the set of names that are local at each point (`own`)."""

    def __init__(self) -> None:
        self.found: dict[Read, None] = {}

    def everything(self, node: ast.AST, around: frozenset[str]) -> None:
        """Record every attribute chain that starts with a name in `around`."""
        chain = _chain(node)
        if chain is not None:
            if chain[0] in around:
                self.found[Read(*chain, "body")] = None
            return
        for child in ast.iter_child_nodes(node):
            self.everything(child, around)

    # -- statements ----------------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt], own: set[str]) -> None:
        for statement in statements:
            self.statement(statement, own)
            if isinstance(statement, ast.Return):
                return  # like Triton, which ignores what follows

    def statement(self, node: ast.stmt, own: set[str]) -> None:
        match node:
            case ast.Assign():
                self.expression(node.value, own)
                for target in node.targets:
                    self.target(target, own)
            case ast.AugAssign():
                if isinstance(node.target, ast.Name) and node.target.id not in own:
                    self.found[Read(node.target.id, (), "body")] = None
                self.expression(node.value, own)
                self.target(node.target, own)
            case ast.AnnAssign():
                self.annotation(node.annotation, own)
                self.expression(node.value, own)
                if node.value is not None:
                    self.target(node.target, own)
            case ast.If():
                self.expression(node.test, own)
                yes, no = set(own), set(own)
                self.block(node.body, yes)
                self.block(node.orelse, no)
                own |= yes & no
            case ast.For():
                self.expression(node.iter, own)
                inside = set(own)
                self.target(node.target, inside)
                self.block(node.body, inside)
                self.block(node.orelse, set(own))
            case ast.While():
                self.expression(node.test, own)
                self.block(node.body, set(own))
                self.block(node.orelse, set(own))
            case ast.With():
                for item in node.items:
                    self.expression(item.context_expr, own)
                    if item.optional_vars is not None:
                        self.target(item.optional_vars, own)
                self.block(node.body, own)
            case _:
                self.children(node, own, "body")

    def target(self, node: ast.expr, own: set[str]) -> None:
        match node:
            case ast.Name():
                own.add(node.id)
            case ast.Tuple() | ast.List():
                for each in node.elts:
                    self.target(each, own)
            case ast.Starred():
                self.target(node.value, own)
            case _:
                self.expression(node, own)

    # -- expressions ---------------------------------------------------------------------------

    def annotation(self, node: ast.expr | None, own: set[str]) -> None:
        """Triton compares a plain annotation with `constexpr`, and evaluates any other."""
        plain = isinstance(node, ast.Constant) or (node is not None and _chain(node) is not None)
        self.expression(node, own, "annotation" if plain else "body")

    def expression(self, node: ast.AST | None, own: set[str], where: Where = "body") -> None:
        if node is None:
            return
        chain = _chain(node)
        if chain is not None:
            if chain[0] not in own:
                self.found[Read(*chain, where)] = None
            return
        match node:
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self.comprehension(node, own, where)
            case ast.NamedExpr():
                self.expression(node.value, own, where)
                own.add(node.target.id)
            case _:
                self.children(node, own, where)

    def comprehension(
        self,
        node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        own: set[str],
        where: Where,
    ) -> None:
        inside = set(own)
        for each in node.generators:
            self.expression(each.iter, inside, where)
            self.target(each.target, inside)
            for condition in each.ifs:
                self.expression(condition, inside, where)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in parts:
            self.expression(part, inside, where)

    def children(self, node: ast.AST, own: set[str], where: Where) -> None:
        for name in node._fields:
            child: Any = getattr(node, name, None)
            for each in child if type(child) is list else (child,):
                kind = type(each)
                if kind is ast.Name:  # most nodes are of these kinds
                    if each.id not in own and type(each.ctx) is ast.Load:
                        self.found[Read(each.id, (), where)] = None
                elif kind in _NO_NAMES:
                    continue
                elif isinstance(each, ast.stmt):
                    self.statement(each, own)
                elif isinstance(each, ast.AST):
                    self.expression(each, own, where)


def _chain(node: ast.AST) -> tuple[str, tuple[str, ...]] | None:
    """``a.b.c`` as a name and its attributes; None if it does not start with a name."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id, tuple(reversed(attributes))
    return None


# -- modules that are imported by name ---------------------------------------------------------


def belongs(module: ModuleType, name: str, found: Any) -> bool:
    """Whether an attribute of a module is the one that the module's own source defines, and was not
    replaced since. False if that cannot be determined.

    >>> import copy, math
    >>> belongs(copy, "copy", copy.copy), belongs(copy, "copy", copy.deepcopy)
    (True, False)
    >>> belongs(math, "pi", math.pi), belongs(math, "pi", 3.0)
    (True, False)
    """
    own = module.__name__
    if own == "math":
        is_own = isinstance(found, BuiltinFunctionType) and found.__self__ is module
        constant = repr(found) == repr(_OF_MATH.get(name))
        return (is_own and found.__name__ == name) or (type(found) is float and constant)
    if isinstance(found, ModuleType):
        return _is_module(found, ".".join(_imports(own).get(name, (own, name))))
    is_named = isinstance(found, (type, FunctionType)) or hasattr(found, "fn")
    if is_named and found.__module__ == own:
        return found.__qualname__ == name and _comes_from(found, own.partition(".")[0])
    if _is_assigned(module, name, found):
        return True
    origin = _imports(own).get(name)
    holder = None if origin is None else sys.modules.get(origin[0])
    if origin is None or holder is None or getattr(holder, origin[1], None) is not found:
        return False
    inside = origin[0].startswith("triton.language")
    return not inside or belongs(holder, origin[1], found)


def _is_module(found: ModuleType, name: str) -> bool:
    """Triton executes ``triton.language.extra.cuda`` twice, so two such modules exist."""
    known = sys.modules.get(name)
    if known is None or found is known:
        return found is known
    file = getattr(found, "__file__", None)
    return found.__name__ == name and file is not None and file == known.__file__


def _comes_from(found: Any, package: str) -> bool:
    """Whether the code of a function is from a package. Its ``__module__`` is not enough: wrappers
    copy that."""
    found = getattr(found, "fn", found)
    while isinstance(found, FunctionType):
        if found.__globals__.get("__name__", "").partition(".")[0] != package:
            return False
        found = getattr(found, "__wrapped__", None)
    return True


def _is_assigned(module: ModuleType, name: str, found: Any) -> bool:
    """Whether a constant is the one that a line of the module's source assigns."""
    text = _assignment(module.__name__, name)
    if text is None:
        return False
    try:
        made = eval(text, dict(vars(module)))
    except Exception:  # spans several lines, or uses a name that the module deleted
        return False
    return made is found or (type(made) is type(found) and repr(made) == repr(found))


@functools.cache
def _assignment(module: str, name: str) -> str | None:
    """What a line of the module's source assigns to a name; searched once, the text is long."""
    line = re.search(rf"^{name}(?::[^=\n]*)? = (.*)$", _text(module), re.MULTILINE)
    return None if line is None else line[1]


@functools.cache
def _text(module: str) -> str:
    path = getattr(sys.modules[module], "__file__", None)
    return "" if path is None else Path(path).read_text(encoding="utf-8")


@functools.cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Name -> the module and name that it is imported from, by the module's source."""
    package = getattr(sys.modules[module], "__package__", None) or module
    found = {}
    for node in ast.parse(_text(module)).body:
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            found.update({each.asname or each.name: (home, each.name) for each in node.names})
    return found
