"""A function's source beside its bytecode: which instruction belongs to which expression.

Enters: a function. Leaves: its syntax tree, the position of each expression, and the names that the
code assigns, loads or calls implicitly. It must not know what they are used for.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tzero import locks

__all__ = [
    "ATTRIBUTES",
    "CELLS",
    "NAMES",
    "Source",
    "Span",
    "assigned",
    "chain_at",
    "implied",
    "names_of",
    "read_source",
    "span_of",
    "uses_low_bits",
]

NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
CELLS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
"""The instructions that load a global, a closure variable, and an attribute."""


Span = tuple[int | None, int | None, int | None, int | None]
"""First and last line, first and last column."""


_parsing = locks.lock()  # CPython 3.11's parser shares its depth counter among threads


class Source(NamedTuple):
    """A function's syntax tree, and the offsets from its lines and columns to those of its file.

    >>> read_source(read_source).tree.body[0].name
    'read_source'
    """

    tree: ast.Module
    above: int
    indent: int

    def span(self, node: ast.expr) -> Span:
        """The position of an expression in its file: start and end, since both calls in
        ``f(x).g(y)`` have one start."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        rows = (node.lineno + self.above, node.end_lineno + self.above)
        return (*rows, node.col_offset + self.indent, node.end_col_offset + self.indent)


def read_source(function: Callable[..., Any]) -> Source | None:
    """The source of a function; None if it has none that can be parsed by itself.

    >>> read_source(print) is None
    True
    """
    try:
        lines, first = inspect.getsourcelines(function)
        with _parsing:
            tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return None
    except SystemError:  # CPython 3.11, if a destructor parses in the middle of it
        return None
    return Source(tree, first - 1, len(lines[0]) - len(lines[0].lstrip()))


def assigned(code: CodeType, own: bool = True) -> Iterator[str]:
    """The local names that a function assigns or deletes, also in the functions defined in it.

    >>> sorted(assigned((lambda x: [y := x]).__code__))
    ['y']
    """
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name.startswith(("STORE", "DELETE")) and ("DEREF" in name or (own and "FAST" in name)):
            yield from names_of(instruction)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from assigned(inner, own=False)


def span_of(frame: FrameType) -> Span:
    """The position of the expression that a frame executes."""
    code, place = frame.f_code, frame.f_lasti // 2
    found = _spans.get(id(code))
    if found is None or found[0] is not code:
        if len(_spans) >= _MOST_SPANS:
            _spans.clear()
        found = _spans[id(code)] = code, tuple(code.co_positions())
    return found[1][place] if 0 <= place < len(found[1]) else (None,) * 4


# By identity: code of two functions in one line may be equal, at other positions.
_spans: dict[int, tuple[CodeType, tuple[Span, ...]]] = {}
_MOST_SPANS = 256


def uses_low_bits(frame: FrameType) -> bool:
    """Whether a frame executes ``x.data_ptr()`` and uses no more of it than the lowest four bits,
    as in ``x.data_ptr() % 16``."""
    # CPython 3.11 calls in the first or the second of two instructions, PRECALL and CALL.
    every = [each for each in dis.get_instructions(frame.f_code) if each.opname != "PRECALL"]
    at = next((k for k, each in enumerate(every) if each.offset >= frame.f_lasti), len(every))
    if not 0 < at < len(every) - 2:
        return False
    named, call, number, then = every[at - 1 : at + 3]
    return (
        named.opname in ATTRIBUTES
        and named.argval == "data_ptr"
        and (call.opname, call.arg) == ("CALL", 0)
        and number.opname in ("LOAD_CONST", "LOAD_SMALL_INT")
        and type(number.argval) is int
        and (then.opname, then.argrepr) == ("BINARY_OP", "%")
        and number.argval in (1, 2, 4, 8, 16)
    )


def names_of(instruction: dis.Instruction) -> list[str]:
    """The names in an instruction; some instructions load or store two."""
    several = isinstance(instruction.argval, tuple)
    return list(instruction.argval) if several else [instruction.argval]


def chain_at(instructions: list[dis.Instruction], start: int) -> list[str]:
    """The attributes that consecutive instructions load, from `start` on.

    >>> chain_at(list(dis.get_instructions(lambda: print.a.b)), 2)
    ['a', 'b']
    """
    rest = itertools.islice(instructions, start, None)
    return [each.argval for each in itertools.takewhile(_is_attribute, rest)]


def _is_attribute(instruction: dis.Instruction) -> bool:
    return instruction.opname in ATTRIBUTES


_SIGNS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
    "<": "lt",
    "<=": "le",
    "==": "eq",
    "!=": "ne",
    ">": "gt",
    ">=": "ge",
}
_OPERATIONS = {
    "BINARY_SUBSCR": "getitem",
    "BINARY_SLICE": "getitem",
    "STORE_SUBSCR": "setitem",
    "STORE_SLICE": "setitem",
    "UNARY_NEGATIVE": "neg",
    "UNARY_INVERT": "invert",
    "CONTAINS_OP": "contains",
    "GET_ITER": "iter",
    "UNPACK_SEQUENCE": "iter",
}


@functools.lru_cache(1024)
def implied(opname: str, sign: str) -> tuple[str, ...]:
    """The dunder methods that an instruction may call.

    >>> implied("BINARY_OP", "+="), implied("UNARY_NEGATIVE", "")
    (('__add__', '__radd__', '__iadd__'), ('__neg__',))
    """
    if opname == "BINARY_OP" and sign == "[]":
        return ("__getitem__",)
    if opname == "BINARY_OP":
        stem = _SIGNS[sign.removesuffix("=") or sign]
        in_place = [f"__i{stem}__"] if sign.endswith("=") else []
        return (f"__{stem}__", f"__r{stem}__", *in_place)
    if opname == "COMPARE_OP":
        reflected = sign.translate(str.maketrans("<>", "><"))
        return tuple(f"__{_SIGNS[each]}__" for each in dict.fromkeys([sign, reflected]))
    return (f"__{_OPERATIONS[opname]}__",) if opname in _OPERATIONS else ()
