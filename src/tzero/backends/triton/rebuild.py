"""A Triton kernel made again from the tables that `program.Writer` wrote.

Enters: tables, in a process that has none of the kernel's modules. Leaves: a kernel that compiles
to the same code as the original, with the functions that it calls. It must not know what the kernel
is compiled for.
"""

from __future__ import annotations

import ast
import builtins
import collections
import enum
import re
import sys
from collections.abc import Mapping
from types import CellType, FunctionType, ModuleType
from typing import Any

from tzero.adapters import triton_compile, triton_launch
from tzero.adapters.triton_launch import Constexpr
from tzero.backends.triton.function_code import code_of

__all__ = ["ENUMS", "Maker", "NotFaithful", "StandIn", "is_imported_by_name", "lookup"]

ENUMS: dict[str, Any] = {
    each.__name__: each for each in (enum.Enum, enum.IntEnum, enum.StrEnum, enum.Flag, enum.IntFlag)
}
"""The base classes that an enumeration may have, by name."""

_IMPORTED_BY_NAME = ("triton.language", "math", "copy")


def is_imported_by_name(module: str) -> bool:
    """Whether a module is imported in the other process, instead of being written down: the digest
    of the compiler covers Triton's language, and Python's version covers the others.

    >>> is_imported_by_name("triton.language.math"), is_imported_by_name("numpy")
    (True, False)
    """
    return any(module == each or module.startswith(f"{each}.") for each in _IMPORTED_BY_NAME)


class NotFaithful(RuntimeError):
    """A program from which the original functions cannot be made.

    >>> raise NotFaithful("triton.language has no 'dot' here")
    Traceback (most recent call last):
    tzero.backends.triton.rebuild.NotFaithful: triton.language has no 'dot' here
    """


class StandIn:
    """Replaces a global that Triton does not let a kernel read: reading it fails as it would with
    the original.

    >>> StandIn().anything is None
    True
    """

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def lookup(module: str, name: str) -> Any:
    """The object with a qualified name in a module that is imported; None if there is none.

    >>> lookup("collections", "abc.Mapping") is Mapping
    True
    """
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


class Maker:
    """Makes functions and values from the tables of a `program.Writer`.

    >>> Maker({"functions": [], "scopes": [], "modules": [], "classes": []}).value({"constexpr": 3})
    constexpr[3]
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._rows: list[dict[str, Any]] = tables["functions"]
        self._scopes = [{"__builtins__": builtins} for _ in tables["scopes"]]
        self._modules = [ModuleType(row["name"]) for row in tables["modules"]]
        self._class_rows: list[dict[str, Any]] = tables["classes"]
        self._classes: dict[int, Any] = {}
        self._functions: dict[int, Any] = {}
        self._cells: list[tuple[CellType, Any]] = []
        for place in range(len(self._rows)):
            self.function(place)
        # All functions exist now, so scopes, modules and cells can refer to them.
        for scope, row in zip(self._scopes, tables["scopes"], strict=True):
            scope.update({name: self.value(each) for name, each in row.items()})
        for module, row in zip(self._modules, tables["modules"], strict=True):
            vars(module).update({name: self.value(each) for name, each in row["holds"].items()})
        for cell, written in self._cells:
            cell.cell_contents = self.value(written)

    def function(self, place: int) -> Any:
        """The function in a row of the table."""
        if place not in self._functions:
            self._functions[place] = self._made(self._rows[place])
        return self._functions[place]

    def _made(self, row: dict[str, Any]) -> Any:
        plain = self._plain(row)
        if row["kind"] == "constexpr":
            return triton_compile.make_constexpr_function(plain, row["lines"], row["source"])
        plain.__annotations__ = row["annotations"]
        return triton_compile.make_kernel(plain, row["lines"], row["source"], row["options"])

    def _plain(self, row: dict[str, Any]) -> FunctionType:
        tree = ast.parse(row["source"]).body[0]
        code = code_of(
            tree, tuple(row["free"]), row["file"], _definition(row["lines"], row["line"])
        )
        cells = []
        for name in code.co_freevars:
            cells.append(CellType())
            self._cells.append((cells[-1], row["free"][name]))
        positional, named = row["defaults"]
        made = FunctionType(
            # Triton looks for the source text at its first line, which may be a decorator's.
            code.replace(co_firstlineno=row["line"]),
            self._scopes[row["scope"]],
            row["name"],
            self.value(positional),
            tuple(cells),
        )
        made.__kwdefaults__ = {name: self.value(each) for name, each in named.items()}
        made.__module__, made.__qualname__ = row["module"], row["qualname"]
        return made

    def value(self, written: Any) -> Any:
        """A value from the form that it has in the tables."""
        if isinstance(written, tuple):
            return tuple(map(self.value, written))
        if isinstance(written, list):
            return [self.value(each) for each in written]
        if not isinstance(written, dict):
            return written
        ((kind, held),) = written.items()
        match kind:
            case "constexpr":
                return Constexpr(self.value(held))
            case "dtype":
                return triton_compile.dtype_of(held)
            case "pointer":
                return triton_launch.Pointer(self.value(held[0]), *held[1:])
            case "block":
                return triton_launch.Block(self.value(held[0]), list(held[1]))
            case "function":
                return self.function(held)
            case "module":
                return self._modules[held]
            case "import":
                return _imported(held)
            case "triton":
                return _from_triton(*held)
            case "builtin":
                return getattr(builtins, held)
            case "class":
                return self._class(held)
            case "member":
                return self._class(held[0])[held[1]]
            case "flags":
                return self._class(held[0])(self.value(held[1]))
            case "named":
                return self._class(held[0])(*map(self.value, held[1]))
            case "stand-in":
                return StandIn()
        raise NotFaithful(f"a program has a {kind!r}, which this version does not know")

    def _class(self, place: int) -> Any:
        if place not in self._classes:
            row = self._class_rows[place]
            name = row["qualname"].rpartition(".")[2]
            made: Any
            if "enum" in row:
                members = [(key, self.value(each)) for key, each in row["members"]]
                made = ENUMS[row["enum"]](name, members)
            else:
                defaults = [self.value(each) for each in row["defaults"].values()]
                make: Any = collections.namedtuple
                made = make(name, row["fields"], defaults=defaults)
            made.__module__, made.__qualname__ = row["module"], row["qualname"]
            self._classes[place] = made
        return self._classes[place]


def _definition(lines: list[str], line: int) -> int:
    """The line of the file with the function's ``def``."""
    starts = (at for at, text in enumerate(lines) if re.match(r"\s*def\s", text))
    return line + next(starts, 0)


def _imported(name: str) -> ModuleType:
    if not is_imported_by_name(name):
        raise NotFaithful(f"a program imports {name!r}, which is not Triton's")
    return __import__(name, fromlist=["__name__"])


def _from_triton(module: str, name: str) -> Any:
    if not module.startswith("triton."):
        raise NotFaithful(f"a program refers to {module!r}, which is not Triton's")
    __import__(module)
    found = lookup(module, name)
    if found is None:
        raise NotFaithful(f"{module} has no {name!r} here")
    return found
