"""A Triton kernel written down as tables, with everything that its code refers to.

::

    kernel ── Writer ──► tables of text and constants ── rebuild.Maker ──► a kernel like it

Enters: a kernel of this process. Leaves: tables with its source text, the source text of all
functions that it calls (transitively), the constants that it reads, and those attributes of modules
that it reads. `rebuild` makes the kernel again in a process that has none of the modules. It must
not know what the kernel is compiled for. Functions of ``triton.language`` are stored by name: the
digest of the compiler covers them.

The tables hold plain values as they are, and everything else as a dict with one key, which says
what it is: ``{"constexpr": 3}``, ``{"function": 2}``.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import sys
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, CellType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from triton import language as tl

from tzero.adapters import triton_compile, triton_launch
from tzero.adapters.triton_launch import (
    Constexpr,
    ConstexprFunction,
    Dtype,
    JITCallable,
    JITFunction,
)
from tzero.backends.triton import names as triton_names
from tzero.backends.triton.function_code import code_of, do_the_same
from tzero.backends.triton.names import Read
from tzero.backends.triton.rebuild import (
    ENUMS,
    Maker,
    NotFaithful,
    StandIn,
    is_imported_by_name,
    lookup,
)

__all__ = [
    "Checks",
    "Maker",
    "NotFaithful",
    "StandIn",
    "Trees",
    "Unwritable",
    "Writer",
    "described",
]

Trees = Mapping[int, tuple[str, ast.Module]]
"""Functions that were parsed already, by their ids: the source text, and its syntax tree."""

_MISSING = object()
_STAND_IN: dict[str, Any] = {"stand-in": None}


class Unwritable(Exception):
    """A kernel refers to something that cannot be written down; the message says what.

    >>> Writer().value({1, 2})
    Traceback (most recent call last):
    tzero.backends.triton.program.Unwritable: it reads a set
    """


class Checks:
    """The reads that were made while writing. The tables are valid as long as repeating each read
    returns the same object.

    >>> checks = Checks()
    >>> checks.attribute(tl, "load") is tl.load, checks.hold()
    (True, True)
    """

    __slots__ = ("_attributes", "_calls")

    def __init__(self) -> None:
        # Flat, three items for each read: a kernel and its checks refer to each other, so the
        # garbage collector visits what they consist of.
        self._attributes: list[Any] = []
        self._calls: list[Any] = []

    def attribute(self, holder: Any, name: str) -> Any:
        """Read an attribute; `_MISSING` if there is none."""
        found = getattr(holder, name, _MISSING)
        self._attributes += (holder, name, found)
        return found

    def call(self, read: Callable[[], Any], found: Any) -> None:
        """Add any other read, and what it returned."""
        self._calls += (read, found)

    def hold(self) -> bool:
        """Whether every read would still return the same object."""
        items, calls = iter(self._attributes), iter(self._calls)
        if any(
            getattr(holder, name, _MISSING) is not found
            for holder, name, found in zip(items, items, items, strict=True)
        ):
            return False
        return all(read() is found for read, found in zip(calls, calls, strict=True))


class Writer:
    """Writes functions and values down, each function once.

    >>> Writer().value((1, tl.float32, tl.constexpr(2.5)))
    (1, {'dtype': 'fp32'}, {'constexpr': 2.5})
    """

    def __init__(self, trees: Trees = MappingProxyType({})) -> None:
        self._trees = trees
        self.functions: list[dict[str, Any]] = []
        self.scopes: list[dict[str, Any]] = []
        self.modules: list[dict[str, Any]] = []
        self.classes: list[dict[str, Any]] = []
        self.checks = Checks()
        self._places: dict[int, int] = {}  # id of an object -> its row in its table
        self._kept: list[Any] = []  # keeps these objects alive, so that ids stay unique

    def tables(self) -> dict[str, Any]:
        """Everything that was written, for `rebuild.Maker`."""
        return {
            "classes": self.classes,
            "functions": self.functions,
            "modules": self.modules,
            "scopes": self.scopes,
        }

    # -- values --------------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        """The form that a value has in the tables; raises `Unwritable` if there is none."""
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is tuple:
            return tuple(map(self.value, value))
        if kind is list:
            # A list can change in place, so its items are compared.
            held = tuple(value)
            self.checks.call(lambda: len(value) == len(held) and all(map(_is, value, held)), True)
            return [self.value(each) for each in held]
        if kind is Constexpr:
            return {"constexpr": self.value(self.checks.attribute(value, "value"))}
        if isinstance(value, Dtype):
            return self._dtype(value)
        if isinstance(value, JITCallable):
            return self._callable(value)
        if isinstance(value, enum.Enum):
            place = self._class(kind)
            if value.name not in kind.__members__:  # a combination of flags, or no flag
                return {"flags": [place, self.value(value.value)]}
            return {"member": [place, value.name]}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return {"named": [self._class(kind), [self.value(each) for each in value]]}
        if isinstance(value, (type, BuiltinFunctionType, FunctionType)):
            return self._named(value)
        raise Unwritable(f"it reads {described(value)}")

    def _dtype(self, value: Any) -> Any:
        if type(value) is Dtype:
            return {"dtype": value.name}
        if type(value) is triton_launch.Pointer:
            return {"pointer": [self._dtype(value.element_ty), value.address_space, value.const]}
        if type(value) is triton_launch.Block:
            return {"block": [self._dtype(value.element_ty), tuple(map(int, value.shape))]}
        raise Unwritable(f"it reads the type {value}")

    def _named(self, value: Any) -> Any:
        """A class or a function that the other process can find by name."""
        name, module = getattr(value, "__qualname__", ""), getattr(value, "__module__", "") or ""
        if value is tl.static_print:
            raise Unwritable("it prints while it compiles (static_print)")
        if getattr(builtins, name, None) is value:
            return {"builtin": name}
        if module.startswith("triton.") and lookup(module, name) is value:
            return {"triton": [module, name]}
        if getattr(value, "__triton_aggregate__", False):
            raise Unwritable(f"it uses the aggregate {name}")
        if isinstance(value, type) and (issubclass(value, enum.Enum) or hasattr(value, "_fields")):
            return {"class": self._class(value)}
        raise Unwritable(f"it reads {described(value)}")

    def _class(self, kind: Any) -> int:
        """The row of an enumeration or a named tuple. Methods and additional attributes are not
        written down, so a class that has any raises `Unwritable`."""
        if id(kind) in self._places:
            return self._places[id(kind)]
        self._unchanged(vars(kind))
        _refuse_methods(kind)
        _refuse_attributes(kind)
        row: dict[str, Any] = {"module": kind.__module__, "qualname": kind.__qualname__}
        if issubclass(kind, enum.Enum):
            base = kind.__bases__[0]
            if len(kind.__bases__) != 1 or base not in ENUMS.values():
                raise Unwritable(f"the enumeration {kind.__qualname__} has other bases than Enum's")
            if getattr(kind, "_boundary_", None) is not getattr(base, "_boundary_", None):
                raise Unwritable(f"the flags {kind.__qualname__} have a boundary of their own")
            row["enum"] = base.__name__
            row["members"] = [[k, self.value(v.value)] for k, v in kind.__members__.items()]
        else:
            if kind.__mro__ != (kind, tuple, object):
                raise Unwritable(f"the named tuple {kind.__qualname__} has other bases than tuple")
            row["fields"] = list(kind._fields)
            row["defaults"] = {k: self.value(v) for k, v in kind._field_defaults.items()}
        return self._new(kind, self.classes, row)

    # -- functions -----------------------------------------------------------------------------

    def _callable(self, function: Any) -> Any:
        module = function.__module__ or ""
        if module.startswith("triton.language"):
            if lookup(module, function.__qualname__) is function:
                return {"triton": [module, function.__qualname__]}
            raise Unwritable(f"it calls {described(function)}, which is not Triton's own")
        return {"function": self.function(function)}

    def function(self, function: Any) -> int:
        """The row of a kernel, or of a function that a kernel calls."""
        if id(function) in self._places:
            return self._places[id(function)]
        is_kernel = isinstance(function, JITFunction)
        if not is_kernel and type(function) is not ConstexprFunction:
            raise Unwritable(f"it calls {described(function)}")
        if is_kernel and function.is_gluon():
            raise Unwritable("it is a Gluon kernel")
        row: dict[str, Any] = {}
        place = self._new(function, self.functions, row)  # before its reads: it may call itself
        plain = self.checks.attribute(function, "fn")
        self.checks.attribute(plain, "__code__")
        source = self.checks.attribute(function, triton_launch.RAW_SOURCE)
        row.update(
            kind="kernel" if is_kernel else "constexpr",
            module=function.__module__,
            name=function.__name__,
            qualname=function.__qualname__,
            file=plain.__code__.co_filename,
            line=function.starting_line_number,
            lines=list(function.raw_src),
            source=function.src,
            scope=self._scope(function.__globals__),
            defaults=self._defaults(plain),
        )
        known, parsed = self._trees.get(id(function), ("", None))
        if parsed is None or known is not source:
            parsed = function.parse()
        tree = parsed.body[0]
        if is_kernel:
            row["annotations"] = triton_compile.annotations_of(function)
            row["options"] = self._options(function)
            reads = triton_names.of_kernel(tree)
        else:
            _refuse_other_code(function, tree)
            if hidden := triton_names.hidden_input(tree, plain.__code__):
                raise Unwritable(f"{function.__name__!r}, which runs while it compiles, {hidden}")
            reads = triton_names.of_python(tree, plain.__code__)
        row["free"] = self._reads(function, reads, is_kernel)
        return place

    def _options(self, function: Any) -> dict[str, Any]:
        for name in ("noinline", "debug", "do_not_specialize", "do_not_specialize_on_alignment"):
            self.checks.attribute(function, name)
        return {
            "noinline": function.noinline,
            "debug": function.debug,
            "do_not_specialize": [p.num for p in function.params if p.do_not_specialize],
            "do_not_specialize_on_alignment": [
                p.num for p in function.params if p.do_not_specialize_on_alignment
            ],
        }

    def _defaults(self, plain: FunctionType) -> list[Any]:
        positional = self.checks.attribute(plain, "__defaults__")
        by_name = self.checks.attribute(plain, "__kwdefaults__") or {}
        if by_name:
            self._unchanged(by_name)
        named = {k: self.value(v) for k, v in by_name.items()}
        return [self.value(positional), named]

    def _scope(self, names: dict[str, Any]) -> int:
        if id(names) in self._places:
            return self._places[id(names)]
        return self._new(names, self.scopes, {})

    def _reads(self, function: Any, reads: list[Read], is_kernel: bool) -> dict[str, Any]:
        """Write the globals that a function reads into its scope, and return its closure
        variables."""
        around, scope = function.__globals__, self.scopes[self._scope(function.__globals__)]
        plain = function.fn
        cells = dict(zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True))
        free: dict[str, Any] = {}
        values: dict[str, Any] = {}
        allows: dict[str, bool] = {}  # whether Triton lets a kernel read it
        for name, attributes, where in reads:
            if name not in values:
                values[name] = self._looked_up(name, cells.get(name), around)
            found = values[name]
            if found is _MISSING:
                continue
            allowed = not is_kernel or where == "default"
            if not allowed:
                if name not in allows:
                    allows[name] = triton_compile.is_allowed_global(name, found)
                allowed = allows[name]
            try:
                written = self._named_value(found, attributes, where, allowed)
            except Unwritable as problem:
                what = ".".join([name, *attributes])
                raise Unwritable(f"{problem} ({what!r} in {function.__name__!r})") from None
            _put(free if name in cells else scope, name, written)
        return free

    def _looked_up(self, name: str, cell: CellType | None, around: dict[str, Any]) -> Any:
        look: Callable[[], Any]
        if cell is not None:
            look = functools.partial(_contents, cell)
        else:
            look = functools.partial(around.get, name, _MISSING)
        found = look()
        self.checks.call(look, found)
        return found

    def _named_value(
        self, value: Any, attributes: tuple[str, ...], where: str, allowed: bool
    ) -> Any:
        """The value of a name; of a module, only the attributes that are read."""
        if isinstance(value, ModuleType):
            if attributes and _is_imported_by_name(value):
                self._check_own(value, attributes)
                return {"import": value.__name__}
            if attributes and type(value) is ModuleType:
                return self._module(value, attributes, where)
            problem = f"it uses the module {value.__name__} as a value"
            return _stand_in_or_raise(problem, where, allowed)
        try:
            if attributes and isinstance(value, JITCallable):
                raise Unwritable(f"it reads an attribute of {described(value)}")
            return self.value(value)
        except Unwritable as problem:
            return _stand_in_or_raise(str(problem), where, allowed)

    def _module(self, module: ModuleType, attributes: tuple[str, ...], where: str) -> Any:
        if id(module) not in self._places:
            self._new(module, self.modules, {"name": module.__name__, "holds": {}})
        place = self._places[id(module)]
        name = attributes[0]
        found = self.checks.attribute(module, name)
        if found is not _MISSING:
            written = self._named_value(found, attributes[1:], where, True)
            _put(self.modules[place]["holds"], name, written)
        return {"module": place}

    def _check_own(self, module: ModuleType, attributes: tuple[str, ...]) -> None:
        """Check that what is read of a module imported by name is the module's own: a replaced
        attribute would not be replaced in the other process."""
        found: Any = module
        for name in attributes:
            if not isinstance(found, ModuleType):
                return
            holder, found = found, self.checks.attribute(found, name)
            if found is _MISSING:
                return
            if found is tl.static_print:
                raise Unwritable("it prints while it compiles (static_print)")
            if not triton_names.belongs(holder, name, found):
                whose = "Triton" if holder.__name__.startswith("triton") else "Python"
                raise Unwritable(f"{holder.__name__}.{name} is not {whose}'s own")

    def _new(self, thing: Any, table: list[dict[str, Any]], row: dict[str, Any]) -> int:
        self._places[id(thing)] = len(table)
        self._kept.append(thing)
        table.append(row)
        return len(table) - 1

    def _unchanged(self, names: Mapping[str, Any]) -> None:
        """Add a check for a dict that may change in place."""
        held = dict(names)

        def same() -> bool:
            return len(names) == len(held) and all(
                names.get(name, _MISSING) is each for name, each in held.items()
            )

        self.checks.call(same, True)


def _put(table: dict[str, Any], name: str, written: Any) -> None:
    """Add an entry. A real value replaces a stand-in: another function may read what this one only
    mentions."""
    if written is not _STAND_IN or name not in table:
        table[name] = written


def _stand_in_or_raise(problem: str, where: str, allowed: bool) -> Any:
    if where == "annotation" or not allowed:
        return _STAND_IN
    raise Unwritable(problem)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet, or deleted
        return _MISSING


def _is(one: Any, other: Any) -> bool:
    return one is other


def _is_imported_by_name(module: ModuleType) -> bool:
    name = module.__name__
    return is_imported_by_name(name) and sys.modules.get(name) is module


def _refuse_methods(kind: type) -> None:
    for name, held in vars(kind).items():
        code = getattr(held, "__func__", None) or getattr(held, "fget", None) or held
        own = isinstance(code, FunctionType) and code.__module__ == kind.__module__
        if own or isinstance(code, JITCallable):
            raise Unwritable(f"the class {kind.__qualname__} has the method {name!r}")


def _refuse_attributes(kind: Any) -> None:
    """Only members or fields of a class are written down."""
    if issubclass(kind, enum.Enum):
        known = set(kind.__members__)
    else:
        known = {*kind._fields, "_make", "_replace", "_asdict", "_fields", "_field_defaults"}
    for name in vars(kind):
        special = name.startswith("_") and name.endswith("_")
        if name not in known and not special:
            raise Unwritable(f"the class {kind.__qualname__} has the attribute {name!r}")


def _refuse_other_code(function: Any, tree: ast.stmt) -> None:
    """Python runs the bytecode of a constexpr function, so its source text must compile to that."""
    plain = function.fn
    made = code_of(tree, plain.__code__.co_freevars, plain.__code__.co_filename, 1)
    if not do_the_same(made, plain.__code__):
        raise Unwritable(f"the code of {function.__name__!r} is not that of its text")


def described(value: Any) -> str:
    """A value in a few words, for messages.

    >>> described(described), described([])
    ("the function 'described'", 'a list')
    """
    if isinstance(value, type):
        return f"the class {value.__qualname__!r}"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__!r}"
    if isinstance(value, (FunctionType, JITCallable)):
        return f"the function {getattr(value, '__qualname__', value)!r}"
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
