"""A Triton kernel written down, with all that its code refers to, and made again from that.

::

    kernel ── Writer ──► tables of text and constants ── Maker ──► a kernel like it

Enters: a kernel of this process. Leaves: tables that hold its text and, transitively, that of the
functions it calls, the constants it reads, and of each module only what is read of it; and in
another process, which has none of the modules, a kernel that compiles to the same. It must not know
what the kernel is compiled for. Functions of ``triton.language`` go by name, for the digest of the
compiler covers them.

The tables hold plain values as they are, and everything else as a dict with one key that says what
it is: ``{"constexpr": 3}``, ``{"function": 2}``.
"""

from __future__ import annotations

import ast
import builtins
import collections
import dis
import enum
import functools
import re
import sys
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

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
from tzero.backends.triton.names import Read

__all__ = ["Check", "Maker", "NotFaithful", "StandIn", "Unwritable", "Writer", "described"]

_MISSING = object()
_STAND_IN: dict[str, Any] = {"stand-in": None}
_BY_NAME = ("triton.language", "math", "copy")
_ENUMS: dict[str, Any] = {
    each.__name__: each for each in (enum.Enum, enum.IntEnum, enum.StrEnum, enum.Flag, enum.IntFlag)
}


class Unwritable(Exception):
    """Something that a kernel refers to and that cannot be written down; the message says what.

    >>> Writer().value({1, 2})
    Traceback (most recent call last):
    tzero.backends.triton.program.Unwritable: it reads a set
    """


class NotFaithful(RuntimeError):
    """A program that does not make the functions it was written of.

    >>> raise NotFaithful("the code of 'add' is another")
    Traceback (most recent call last):
    tzero.backends.triton.program.NotFaithful: the code of 'add' is another
    """


class StandIn:
    """What a kernel has in place of a value that Triton does not let it read: reading it fails as
    it would with the value.

    >>> StandIn().anything is None
    True
    """

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Check(NamedTuple):
    """One thing that was read while writing: what is written stands as long as the same object is
    read again.

    >>> read, found = Check(lambda: None, None)
    >>> read() is found
    True
    """

    read: Callable[[], Any]
    found: Any


class Writer:
    """Writes functions and values down, each function once.

    >>> Writer().value((1, tl.float32, tl.constexpr(2.5)))
    (1, {'dtype': 'fp32'}, {'constexpr': 2.5})
    """

    def __init__(self) -> None:
        self.functions: list[dict[str, Any]] = []
        self.scopes: list[dict[str, Any]] = []
        self.modules: list[dict[str, Any]] = []
        self.classes: list[dict[str, Any]] = []
        self.checks: list[Check] = []
        self._places: dict[int, int] = {}  # by the id of what has a row in one of the tables
        self._kept: list[Any] = []  # what the ids belong to

    def tables(self) -> dict[str, Any]:
        """All that was written, for `Maker`."""
        return {
            "classes": self.classes,
            "functions": self.functions,
            "modules": self.modules,
            "scopes": self.scopes,
        }

    # -- values --------------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        """A value as the tables have it; `Unwritable` where they cannot."""
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is tuple:
            return tuple(map(self.value, value))
        if kind is list:
            # Lists change in place, so they are read again and compared.
            held = tuple(value)
            self._check(lambda: len(value) == len(held) and all(map(_is, value, held)), True)
            return [self.value(each) for each in held]
        if kind is Constexpr:
            self._check(lambda: value.value, value.value)
            return {"constexpr": self.value(value.value)}
        if isinstance(value, Dtype):
            return self._dtype(value)
        if isinstance(value, JITCallable):
            return self._callable(value)
        if isinstance(value, enum.Enum):
            place = self._class(kind)
            if value.name not in kind.__members__:  # several flags, or none
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
        """A class or a function that the other process has, too."""
        name, module = getattr(value, "__qualname__", ""), getattr(value, "__module__", "") or ""
        if value is tl.static_print:
            raise Unwritable("it prints while it compiles (static_print)")
        if getattr(builtins, name, None) is value:
            return {"builtin": name}
        if module.startswith("triton.") and _found(module, name) is value:
            return {"triton": [module, name]}
        if getattr(value, "__triton_aggregate__", False):
            raise Unwritable(f"it uses the aggregate {name}")
        if isinstance(value, type) and (issubclass(value, enum.Enum) or hasattr(value, "_fields")):
            return {"class": self._class(value)}
        raise Unwritable(f"it reads {described(value)}")

    def _class(self, kind: Any) -> int:
        """An enumeration, or a class of named tuples; without methods, whose code is not here, and
        without attributes of its own."""
        if id(kind) in self._places:
            return self._places[id(kind)]
        self._unchanged(vars(kind))
        _refuse_methods(kind)
        _refuse_attributes(kind)
        row: dict[str, Any] = {"module": kind.__module__, "qualname": kind.__qualname__}
        if issubclass(kind, enum.Enum):
            base = kind.__bases__[0]
            if len(kind.__bases__) != 1 or base not in _ENUMS.values():
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
            if _found(module, function.__qualname__) is function:
                return {"triton": [module, function.__qualname__]}
            raise Unwritable(f"it calls {described(function)}, which is not Triton's own")
        return {"function": self.function(function)}

    def function(self, function: Any) -> int:
        """The row of a kernel, or of a function that kernels use."""
        if id(function) in self._places:
            return self._places[id(function)]
        is_kernel = isinstance(function, JITFunction)
        if not is_kernel and type(function) is not ConstexprFunction:
            raise Unwritable(f"it calls {described(function)}")
        if is_kernel and function.is_gluon():
            raise Unwritable("it is a Gluon kernel")
        row: dict[str, Any] = {}
        place = self._new(function, self.functions, row)  # first, for it may refer to itself
        plain = function.fn
        self._check(lambda: function.fn, plain)
        self._check(lambda: plain.__code__, plain.__code__)
        self._check(lambda: function._src, function._src)
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
        tree = function.parse().body[0]
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
            held = getattr(function, name)
            self._check(functools.partial(getattr, function, name), held)
        return {
            "noinline": function.noinline,
            "debug": function.debug,
            "do_not_specialize": [p.num for p in function.params if p.do_not_specialize],
            "do_not_specialize_on_alignment": [
                p.num for p in function.params if p.do_not_specialize_on_alignment
            ],
        }

    def _defaults(self, plain: FunctionType) -> list[Any]:
        positional, by_name = plain.__defaults__, plain.__kwdefaults__
        self._check(lambda: plain.__defaults__, positional)
        self._check(lambda: plain.__kwdefaults__, by_name)
        self._unchanged(by_name or {})
        named = {k: self.value(v) for k, v in (by_name or {}).items()}
        return [self.value(positional), named]

    def _scope(self, names: dict[str, Any]) -> int:
        if id(names) in self._places:
            return self._places[id(names)]
        return self._new(names, self.scopes, {})

    def _reads(self, function: Any, reads: list[Read], is_kernel: bool) -> dict[str, Any]:
        """Put the globals that a function reads into its scope; the variables of functions around
        it are returned."""
        around, scope = function.__globals__, self.scopes[self._scope(function.__globals__)]
        plain = function.fn
        cells = dict(zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True))
        free: dict[str, Any] = {}
        for read in reads:
            cell = cells.get(read.name)
            look: Callable[[], Any]
            if cell is not None:
                look = functools.partial(_contents, cell)
            else:
                look = functools.partial(around.get, read.name, _MISSING)
            found = look()
            self._check(look, found)
            if found is _MISSING:
                continue
            allowed = not is_kernel or read.where == "default"
            allowed = allowed or triton_compile.is_allowed_global(read.name, found)
            try:
                written = self._held(found, read.attributes, read.where, allowed)
            except Unwritable as problem:
                what = ".".join([read.name, *read.attributes])
                raise Unwritable(f"{problem} ({what!r} in {function.__name__!r})") from None
            _put(free if cell is not None else scope, read.name, written)
        return free

    def _held(self, value: Any, attributes: tuple[str, ...], where: str, allowed: bool) -> Any:
        """What is to be had under a name, as far as attributes of it are read."""
        if isinstance(value, ModuleType):
            if attributes and _goes_by_name(value):
                self._own_of_module(value, attributes)
                return {"import": value.__name__}
            if attributes and type(value) is ModuleType:
                return self._of_module(value, attributes, where)
            problem = f"it uses the module {value.__name__} as a value"
            return _stood_in(problem, where, allowed)
        try:
            if attributes and isinstance(value, JITCallable):
                raise Unwritable(f"it reads an attribute of {described(value)}")
            return self.value(value)
        except Unwritable as problem:
            return _stood_in(str(problem), where, allowed)

    def _of_module(self, module: ModuleType, attributes: tuple[str, ...], where: str) -> Any:
        if id(module) not in self._places:
            self._new(module, self.modules, {"name": module.__name__, "holds": {}})
        place = self._places[id(module)]
        name = attributes[0]
        found = getattr(module, name, _MISSING)
        self._check(functools.partial(getattr, module, name, _MISSING), found)
        if found is not _MISSING:
            written = self._held(found, attributes[1:], where, True)
            _put(self.modules[place]["holds"], name, written)
        return {"module": place}

    def _own_of_module(self, module: ModuleType, attributes: tuple[str, ...]) -> None:
        """What is read of a module that goes by name must be the same in another process."""
        found: Any = module
        for name in attributes:
            holder, found = found, getattr(found, name, _MISSING)
            if not isinstance(holder, ModuleType):
                return
            self._check(functools.partial(getattr, holder, name, _MISSING), found)
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

    def _check(self, read: Callable[[], Any], found: Any) -> None:
        self.checks.append(Check(read, found))

    def _unchanged(self, names: Mapping[str, Any]) -> None:
        """Check what changes in place."""
        held = dict(names)

        def same() -> bool:
            return len(names) == len(held) and all(
                names.get(name, _MISSING) is each for name, each in held.items()
            )

        self._check(same, True)


def _put(table: dict[str, Any], name: str, written: Any) -> None:
    """One function may only name what another reads."""
    if written is not _STAND_IN or name not in table:
        table[name] = written


def _stood_in(problem: str, where: str, allowed: bool) -> Any:
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


def _goes_by_name(module: ModuleType) -> bool:
    name = module.__name__
    own = any(name == each or name.startswith(f"{each}.") for each in _BY_NAME)
    return own and sys.modules.get(name) is module


def _found(module: str, name: str) -> Any:
    """What a module that is there has under a qualified name; None where it has none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _refuse_methods(kind: type) -> None:
    for name, held in vars(kind).items():
        code = getattr(held, "__func__", None) or getattr(held, "fget", None) or held
        own = isinstance(code, FunctionType) and code.__module__ == kind.__module__
        if own or isinstance(code, JITCallable):
            raise Unwritable(f"the class {kind.__qualname__} has the method {name!r}")


def _refuse_attributes(kind: Any) -> None:
    """What a class has besides its members or fields is not written down."""
    if issubclass(kind, enum.Enum):
        known = set(kind.__members__)
    else:
        known = {*kind._fields, "_make", "_replace", "_asdict", "_fields", "_field_defaults"}
    for name in vars(kind):
        special = name.startswith("_") and name.endswith("_")
        if name not in known and not special:
            raise Unwritable(f"the class {kind.__qualname__} has the attribute {name!r}")


def _refuse_other_code(function: Any, tree: ast.stmt) -> None:
    """Python runs the code of such a function, so its text must be what that was made of."""
    plain = function.fn
    made = _code(tree, plain.__code__.co_freevars, plain.__code__.co_filename, 1)
    if not _alike(made, plain.__code__):
        raise Unwritable(f"the code of {function.__name__!r} is not that of its text")


def _alike(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same, wherever they come from."""
    names = ("co_names", "co_varnames", "co_freevars", "co_cellvars")
    if any(getattr(one, name) != getattr(other, name) for name in names):
        return False
    if len(one.co_consts) != len(other.co_consts) or _steps(one) != _steps(other):
        return False
    return all(map(_alike_constants, one.co_consts, other.co_consts))


def _steps(code: CodeType) -> list[tuple[str, Any]]:
    """What a code does, without how: Python calls an attribute of what it saw imported in another
    way, and has other distances to jump then."""
    found = []
    for step in dis.get_instructions(code):
        if step.opname in ("PUSH_NULL", "NOP", "CACHE", "EXTENDED_ARG"):
            continue
        name = "LOAD_ATTR" if step.opname == "LOAD_METHOD" else step.opname
        jumps = step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
        constant = step.opcode in dis.hasconst  # these are compared by themselves
        found.append((name, None if jumps else step.arg if constant else step.argval))
    return found


def _alike_constants(one: Any, other: Any) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _alike(one, other)
    # As text: 0.0 equals -0.0, and 1 equals True.
    same = repr(one) == repr(other) or (isinstance(one, frozenset) and one == other)
    return type(one) is type(other) and same


def described(value: Any) -> str:
    """A value in a few words.

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


# -- and back ----------------------------------------------------------------------------------


def _code(tree: ast.stmt, free: tuple[str, ...], file: str, line: int) -> CodeType:
    """The code of one function definition, whose first line is `line`, inside of a function that
    has the variables `free`."""
    assert isinstance(tree, ast.FunctionDef)
    # Only the function's own code is taken, and these would run outside of it.
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
        ast.increment_lineno(holder, tree.lineno - line)  # the tree is the caller's
    inside = next(each for each in module.co_consts if isinstance(each, CodeType))
    return next(
        each
        for each in inside.co_consts
        if isinstance(each, CodeType) and each.co_name == tree.name
    )


class Maker:
    """Makes functions and values of the tables of a `Writer`.

    >>> Maker(Writer().tables()).value({"constexpr": 3})
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
        # All functions are there now, and may be referred to.
        for scope, row in zip(self._scopes, tables["scopes"], strict=True):
            scope.update({name: self.value(each) for name, each in row.items()})
        for module, row in zip(self._modules, tables["modules"], strict=True):
            vars(module).update({name: self.value(each) for name, each in row["holds"].items()})
        for cell, written in self._cells:
            cell.cell_contents = self.value(written)

    def function(self, place: int) -> Any:
        """The function of a row."""
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
        code = _code(tree, tuple(row["free"]), row["file"], _definition(row["lines"], row["line"]))
        cells = []
        for name in code.co_freevars:
            cells.append(CellType())
            self._cells.append((cells[-1], row["free"][name]))
        positional, named = row["defaults"]
        made = FunctionType(
            # Triton looks for the text from where it starts, decorators and all.
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
        """A value of the tables."""
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
                return _found_or_fail(*held)
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
        raise NotFaithful(f"a program has a {kind!r}, which is nothing known")

    def _class(self, place: int) -> Any:
        if place not in self._classes:
            row = self._class_rows[place]
            name = row["qualname"].rpartition(".")[2]
            made: Any
            if "enum" in row:
                members = [(key, self.value(each)) for key, each in row["members"]]
                made = _ENUMS[row["enum"]](name, members)
            else:
                defaults = [self.value(each) for each in row["defaults"].values()]
                make: Any = collections.namedtuple
                made = make(name, row["fields"], defaults=defaults)
            made.__module__, made.__qualname__ = row["module"], row["qualname"]
            self._classes[place] = made
        return self._classes[place]


def _definition(lines: list[str], line: int) -> int:
    """The line of a file that a function's ``def`` is on."""
    starts = (at for at, text in enumerate(lines) if re.match(r"\s*def\s", text))
    return line + next(starts, 0)


def _imported(name: str) -> ModuleType:
    if not any(name == each or name.startswith(f"{each}.") for each in _BY_NAME):
        raise NotFaithful(f"a program imports {name!r}, which is not Triton's")
    return __import__(name, fromlist=["__name__"])


def _found_or_fail(module: str, name: str) -> Any:
    if not module.startswith("triton."):
        raise NotFaithful(f"a program refers to {module!r}, which is not Triton's")
    __import__(module)
    found = _found(module, name)
    if found is None:
        raise NotFaithful(f"{module} has no {name!r} here")
    return found
