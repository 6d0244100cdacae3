"""The names that a function's bytecode loads: globals, closure variables, imports, attributes.

    code ── LOAD_GLOBAL torch, LOAD_ATTR empty ──► Values.read(the global 'torch', ["empty"])
         ── IMPORT_NAME, LOAD_DEREF, LOAD_ATTR ──► likewise
         ── STORE_GLOBAL, STORE_ATTR ────────────► Unreplayable

Enters: a function. Leaves: every name that its code loads, given to `Values`, which calls back for
each helper function. It must not know what makes a value safe to read.
"""

from __future__ import annotations

import builtins
import dis
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from tzero.reading.bytecode import ATTRIBUTES, CELLS, NAMES, chain_at, implied, names_of
from tzero.reading.findings import Findings, Line, Variable
from tzero.reading.guards import Absent, Check, Same
from tzero.reading.purity import IMPURE_BUILTINS
from tzero.reading.values import Values

__all__ = ["NameReader"]

Globals = dict[str, Any]
Cells = dict[str, CellType]


class NameReader:
    """Reads functions, each once, and has `values` look at what their names hold."""

    def __init__(self, found: Findings) -> None:
        self._found = found
        self._seen: set[int] = set()
        self.values = Values(found, self.function)

    def function(self, function: FunctionType) -> None:
        """Read a function's code, and the functions defined in it."""
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        caller = self._found.line
        own: Any = function  # not every version of mypy knows the attribute
        if own.__builtins__ is not vars(builtins):
            raise self._found.refuse(f"{function.__name__} has builtins of its own")
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._code(function.__code__, function.__globals__, dict(cells))
        self._found.line = caller

    def _code(self, code: CodeType, namespace: Globals, cells: Cells) -> None:
        instructions = list(dis.get_instructions(code))
        modules: dict[str, ModuleType] = {}  # imported by this code, by their local names
        of_local = False  # whether the next attribute is loaded from a local or a result
        self._found.catches |= bool(code.co_exceptiontable)
        for k, instruction in enumerate(instructions):
            name, names = instruction.opname, names_of(instruction)
            last = names[-1] if names else ""
            self._at(code, instruction)
            if name in ATTRIBUTES:
                self.values.attribute(last, of_local)
            else:
                of_local = name not in NAMES and last not in (*cells, *modules)
            sign = last if name == "COMPARE_OP" else instruction.argrepr
            for method in implied(name, sign):
                self.values.tensor_attribute(method)
            if name in NAMES:
                called = name == "LOAD_GLOBAL" and bool((instruction.arg or 0) & 1)
                self._global(last, namespace, chain_at(instructions, k + 1), called)
            elif name in CELLS and last in cells:
                self._cell(last, cells[last], chain_at(instructions, k + 1))
            elif name == "IMPORT_NAME":
                modules.update(self._imported(instructions, k, namespace))
            elif name.startswith("LOAD_FAST"):
                for each in [one for one in names if one in modules]:
                    chain = chain_at(instructions, k + 1) if each == last else []
                    self.values.module(modules[each].__name__, modules[each], chain)
            elif name.startswith(("STORE", "DELETE")):
                self._stored(instruction, cells)
            elif name == "MATCH_CLASS":
                raise self._found.refuse("it uses a class pattern, which reads attributes by place")
            elif name == "IS_OP" and not _is_constant(instructions[k - 1]):
                raise self._found.refuse("it compares two objects by `is`, and guards their values")
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                own = {*inner.co_varnames, *code.co_cellvars}
                self._code(inner, namespace, {n: c for n, c in cells.items() if n not in own})

    def _at(self, code: CodeType, instruction: dis.Instruction) -> None:
        positions = instruction.positions
        number = positions.lineno if positions is not None else None
        self._found.line = Line(code.co_filename, number or self._found.line.number)

    def _stored(self, instruction: dis.Instruction, cells: Cells) -> None:
        name = instruction.opname
        if name.endswith("_GLOBAL"):
            raise self._found.refuse(f"it assigns the global {instruction.argval!r}")
        if name.endswith("_ATTR"):
            raise self._found.refuse(f"it assigns the attribute {instruction.argval!r}")
        if name.endswith("_DEREF") and any(each in cells for each in names_of(instruction)):
            raise self._found.refuse(f"it assigns the nonlocal {instruction.argval!r}")

    # -- globals and closures ------------------------------------------------------------------

    def _global(self, name: str, namespace: Globals, chain: list[str], called: bool) -> None:
        found = self._found
        found.names.add(name)
        if name in namespace:
            variable = Variable(f"the global {name!r}", namespace, name, namespace[name])
            self.values.read(variable, chain, called)
        elif name in IMPURE_BUILTINS and hasattr(builtins, name):
            raise found.refuse(f"it calls {name}, which has side effects or reads hidden state")
        elif hasattr(builtins, name):
            found.add(Absent(f"no global {name!r}", namespace, name))
            own = vars(builtins)
            variable = Variable(f"the builtin {name!r}", own, name, own[name])
            self.values.read(variable, chain, called)
            if hasattr(torch.Tensor, f"__{name}__"):
                self.values.tensor_attribute(f"__{name}__")
        else:  # loading it raises NameError
            held, missing = {"where": namespace}, lambda now: name not in now
            found.add(Check(f"the global {name!r}", held, "where", None, missing))

    def _cell(self, name: str, cell: CellType, chain: list[str]) -> None:
        text = f"the closure variable {name!r}"
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet: loading it raises NameError
            empty = lambda now: now == CellType()  # noqa: E731
            self._found.add(Check(text, {"where": cell}, "where", None, empty))
            return
        self.values.read(Variable(text, cell, "", content), chain)

    # -- imports -------------------------------------------------------------------------------

    def _imported(
        self, instructions: list[dis.Instruction], k: int, namespace: Globals
    ) -> dict[str, ModuleType]:
        """The modules that an import statement binds to local names. Other names that it imports
        are read here, as attributes of their module."""
        level, names, named = (each.argval for each in instructions[k - 2 : k + 1])
        package = namespace.get("__package__") or namespace.get("__name__", "")
        full = importlib.util.resolve_name("." * level + named, package)
        module = sys.modules.get(full)
        if module is None:
            raise self._found.refuse(f"it imports {full!r}, which is not imported yet")
        self._found.add(Same(f"the module {full!r}", sys.modules, full, module))
        importing = vars(builtins)["__import__"]
        if not isinstance(importing, BuiltinFunctionType):
            raise self._found.refuse("the program has replaced __import__")
        self._found.add(Same("the builtin '__import__'", vars(builtins), "__import__", importing))
        if names:
            return dict(self._imported_from(module, instructions[k + 1 :]))
        after = iter(instructions[k + 1 :])
        stored = next(each for each in after if each.opname.startswith("STORE"))
        if stored.opname != "STORE_FAST":
            raise self._found.refuse(f"it imports {named!r} into a variable of inner functions")
        plain = instructions[k + 1] is stored  # `import a.b` binds a; `import a.b as c` binds a.b
        return {stored.argval: sys.modules[named.partition(".")[0]] if plain else module}

    def _imported_from(
        self, module: ModuleType, after: list[dis.Instruction]
    ) -> Iterator[tuple[str, ModuleType]]:
        for taken, stored in itertools.pairwise(after):
            if taken.opname == "POP_TOP":
                return
            if taken.opname != "IMPORT_FROM":
                continue
            name = taken.argval
            found = vars(module).get(name)
            if isinstance(found, ModuleType) and stored.opname == "STORE_FAST":
                self._found.add(Same(f"{module.__name__}.{name}", vars(module), name, found))
                yield stored.argval, found
            else:
                self.values.module(module.__name__, module, [name])


def _is_constant(instruction: dis.Instruction) -> bool:
    """Whether an instruction loads one of the objects of which there is only one."""
    singletons = (type(None), bool, type(...))
    return instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, singletons)
