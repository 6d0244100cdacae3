"""What a host function reads besides its arguments: globals, closures, and those of its helpers.

    code ── every name it loads ──► plain values, functions, kernels, tensors: a Guard each
                                    ├ a helper function: the same for its code
                                    └ what no guard can watch, or what acts on the world: refused

Enters: a host function. Leaves: the guards that must hold for a second call to be like the first,
or `Unreplayable`. It must not know how a call is recorded or replayed.

What is known is what the code names: globals, closure cells, and ``a.b.c`` of modules among these.
What the functions of torch, Triton, numpy and the standard library read is theirs to answer for;
those whose answer changes by itself (clocks, random numbers, the environment) are refused by name.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from tzero import triton_side
from tzero.config import Config
from tzero.constants import constant
from tzero.errors import UnsupportedType
from tzero.host import Host
from tzero.plan import Guard
from tzero.sites import names_of

__all__ = ["Unreplayable", "World", "read_world"]

_EQUAL = (int, str, bytes)
_SAME = (
    *(
        bool,
        float,
        complex,
        type(None),
        torch.dtype,
        torch.layout,
        torch.memory_format,
        torch.device,
        torch.Size,
    ),
    *(range, slice, type(...), Config, triton_side.Constexpr, triton_side.Dtype),
)

_KERNELS = (triton_side.KernelInterface, triton_side.JITCallable)

_LIBRARIES = sys.stdlib_module_names | {"torch", "triton", "numpy", "tzero", "helion"}

_ACTS = frozenset(
    [
        "print",
        "open",
        "input",
        "exec",
        "eval",
        "globals",
        "locals",
        "vars",
        "setattr",
        "delattr",
        "id",
        "hash",
        "getattr",
        "hasattr",
        "breakpoint",
        "__import__",
    ]
)

_CHANGES: Mapping[str, frozenset[str] | None] = {
    **dict.fromkeys(["time", "random", "secrets", "uuid", "datetime", "numpy.random", "timeit"]),
    **dict.fromkeys(["logging", "warnings", "subprocess", "shutil", "pathlib", "importlib"]),
    "os": frozenset(
        [
            *("environ", "getenv", "urandom", "getcwd", "getpid", "write", "open", "remove"),
            *("unlink", "mkdir", "makedirs", "system", "popen", "listdir", "times", "stat"),
        ]
    ),
    "sys": frozenset(["modules", "argv", "stdin", "stdout", "stderr", "_getframe"]),
    "threading": frozenset(["current_thread", "get_ident", "get_native_id", "main_thread"]),
    "torch": frozenset(
        [
            "compile",
            "manual_seed",
            "seed",
            "initial_seed",
            "set_rng_state",
            "set_default_dtype",
            "set_default_device",
            "set_num_threads",
            "set_flush_denormal",
            "use_deterministic_algorithms",
            "set_deterministic_debug_mode",
            "set_float32_matmul_precision",
            "autocast",
        ]
    ),
    "torch.cuda": frozenset(
        [
            "synchronize",
            "stream",
            "Stream",
            "ExternalStream",
            "Event",
            "current_stream",
            "default_stream",
            "set_stream",
            "set_device",
            "device",
            "graph",
            "CUDAGraph",
            "manual_seed",
            "manual_seed_all",
        ]
    ),
    "torch.random": None,
}
"""Modules, and names in them, that answer otherwise each time, or act; None is all names."""


_ANSWERS = (
    torch.get_default_dtype,
    torch.get_default_device,
    torch.get_num_threads,
    torch.get_num_interop_threads,
    torch.are_deterministic_algorithms_enabled,
    torch.is_deterministic_algorithms_warn_only_enabled,
    torch.get_deterministic_debug_mode,
    torch.get_float32_matmul_precision,
    torch.is_anomaly_enabled,
)
"""Functions without arguments that say what something is set to: they are asked in each call."""


class Unreplayable(Exception):
    """Why a host function cannot be replayed, and where."""

    def __init__(self, reason: str, file: str, line: int) -> None:
        super().__init__(reason)
        self.reason, self.file, self.line = reason, file, line


class World(NamedTuple):
    """What a host function reads besides its arguments; `tensors` are those of the guards that
    hold one, by their number. `attributes` are names that it takes of what is no global, and that
    tensors do not have unless someone puts them there.

    >>> read_world(lambda x: torch.empty_like(x)).guards[1].words
    'torch.empty_like'
    """

    guards: tuple[Guard, ...]
    tensors: Mapping[int, torch.Tensor]
    attributes: frozenset[str] = frozenset()


def read_world(function: Callable[..., Any]) -> World:
    """Read a host function's code.

    >>> BLOCK = 64
    >>> [guard.words for guard in read_world(lambda: BLOCK).guards]
    ["the global 'BLOCK'"]
    """
    reader = _Reader()
    if not isinstance(function, FunctionType):
        raise Unreplayable("it is not a plain Python function", "", 0)
    reader.function(function)
    reader.helpers_stay()
    guards = tuple(reader.guards.values())
    held = {k: guard.value for k, guard in enumerate(guards)}
    tensors = {k: v for k, v in held.items() if isinstance(v, torch.Tensor)}
    return World(guards, tensors, frozenset(reader.attributes))


class _Reader:
    def __init__(self) -> None:
        self.guards: dict[Any, Guard] = {}
        self._seen: set[int] = set()
        self._helpers: list[FunctionType] = []
        self.attributes: set[str] = set()
        self._file, self._line = "", 0

    def _refuse(self, reason: str) -> Unreplayable:
        return Unreplayable(reason, self._file, self._line)

    def function(self, function: FunctionType) -> None:
        """Every name that a function's code loads, and the code in it."""
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        around = self._file, self._line
        names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._code(function.__code__, function.__globals__, dict(names))
        self._file, self._line = around

    def _code(self, code: CodeType, world: dict[str, Any], cells: dict[str, CellType]) -> None:
        instructions = list(dis.get_instructions(code))
        modules: dict[str, ModuleType] = {}  # those that it imports, by its names for them
        of_locals = False
        for k, instruction in enumerate(instructions):
            name = instruction.opname
            self._file = code.co_filename
            if instruction.positions is not None:
                self._line = instruction.positions.lineno or self._line
            if name not in _ATTRIBUTES:
                of_locals = name not in _NAMES and instruction.argval not in (*cells, *modules)
            elif of_locals and not hasattr(torch.Tensor, instruction.argval):
                self.attributes.add(instruction.argval)
            if name in _NAMES:
                self._global(instruction.argval, world, _chain(instructions, k + 1))
            elif name in ("LOAD_DEREF", "LOAD_CLASSDEREF") and instruction.argval in cells:
                self._cell(instruction.argval, cells, _chain(instructions, k + 1))
            elif name == "IMPORT_NAME":
                modules.update(self._imported(instructions, k, world))
            elif name.startswith("LOAD_FAST") and instruction.argval in modules:
                module = modules[instruction.argval]
                self._module(module.__name__, module, _chain(instructions, k + 1))
            elif name.startswith(("STORE", "DELETE")):
                self._stored(instruction, cells)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                own = {**dict.fromkeys(inner.co_varnames), **dict.fromkeys(code.co_cellvars)}
                self._code(inner, world, {n: c for n, c in cells.items() if n not in own})

    def _stored(self, instruction: dis.Instruction, cells: dict[str, CellType]) -> None:
        name = instruction.opname
        if name.endswith("_GLOBAL"):
            raise self._refuse(f"it assigns the global {instruction.argval!r}")
        if name.endswith("_ATTR"):
            raise self._refuse(f"it assigns an attribute, {instruction.argval!r}")
        if name.endswith("_DEREF") and any(each in cells for each in names_of(instruction)):
            raise self._refuse(f"it assigns {instruction.argval!r} of the function around it")

    # -- names ---------------------------------------------------------------------------------

    def _global(self, name: str, world: dict[str, Any], chain: list[str]) -> None:
        if name in world:
            self._value(f"the global {name!r}", world, name, world[name], chain)
        elif name in _ACTS and hasattr(builtins, name):
            raise self._refuse(f"it calls {name}, which acts on more than its result")
        elif hasattr(builtins, name):
            self._add(f"no global {name!r}", world, name, None, "absent")
            own = vars(builtins)
            self._add(f"the builtin {name!r}", own, name, own[name], "is")
        else:  # reading it raises, as long as it is not there
            self._missing(f"the global {name!r}", world, lambda now: name in now)

    def _cell(self, name: str, cells: dict[str, CellType], chain: list[str]) -> None:
        try:
            content = cells[name].cell_contents
        except ValueError:  # it is assigned later; reading it now raises
            self._missing(f"the closure's {name!r}", cells[name], lambda now: now != CellType())
            return
        self._value(f"the closure's {name!r}", cells[name], "", content, chain)

    def _imported(
        self, instructions: list[dis.Instruction], k: int, world: dict[str, Any]
    ) -> dict[str, ModuleType]:
        """What is imported inside the function: names, which are looked up in their module, or a
        module, and the name that it goes by."""
        level, names, named = (each.argval for each in instructions[k - 2 : k + 1])
        package = world.get("__package__") or world.get("__name__", "")
        full = importlib.util.resolve_name("." * level + named, package)
        module = sys.modules.get(full)
        if module is None:
            raise self._refuse(f"it imports {full!r}, which is not imported yet")
        self._add(f"the module {full!r}", sys.modules, full, module, "is")
        for name in names or ():
            self._attribute(module, [name])
        if names:
            return {}
        after = iter(instructions[k + 1 :])
        stored = next(each for each in after if each.opname.startswith("STORE"))
        if stored.opname != "STORE_FAST":
            raise self._refuse(f"it imports {named!r} for functions in it")
        plain = instructions[k + 1] is stored  # else it is imported under another name
        return {stored.argval: sys.modules[named.partition(".")[0]] if plain else module}

    # -- values --------------------------------------------------------------------------------

    def _add(
        self, words: str, where: Any, name: str, value: Any, how: Any, check: Any = None
    ) -> None:
        key = (id(where), name, how, words if how == "asks" else "")
        self.guards.setdefault(key, Guard(words, where, name, value, how, check))

    def _missing(self, words: str, where: Any, is_there: Callable[[Any], bool]) -> None:
        """A guard for what is not there."""
        self._add(words, {"where": where}, "where", None, "asks", lambda now: not is_there(now))

    def _value(self, words: str, where: Any, name: str, value: Any, chain: list[str]) -> None:
        """A guard for what a name is; `chain` are the attributes that are taken of it at once."""
        self._changing(value)
        self._answer(words, where, name, value)
        same = functools.partial(self._add, words, where, name, value, "is")
        if type(value) in _EQUAL:
            self._add(words, where, name, value, "equals")
        elif isinstance(value, ModuleType):
            same()
            self._module(words, value, chain)
        elif chain and isinstance(value, _OWNING) and chain[0] in getattr(value, "__dict__", ()):
            same()
            self._member(words, where, name, value, chain)
        elif isinstance(value, (torch.Tensor, *_SAME, enum.Enum)):
            same()
        elif isinstance(value, _KERNELS):
            same()
            for function in triton_side.functions_of(value):
                self._helper(words, function)
        elif isinstance(value, FunctionType):
            same()
            self._helper(words, value)
        elif isinstance(getattr(value, "host", None), Host):  # another kernel of tzero's
            same()
            if not isinstance(value.host.function, FunctionType):
                raise self._refuse(f"{words} is not a plain Python function")
            self._helper(words, value.host.function)
        elif isinstance(value, _CALLABLE):
            same()
            self._callable(words, value)
        elif isinstance(value, type):
            same()
            if chain and not _is_library(value):
                self._member(words, where, name, value, chain)
            elif not _is_library(value):
                self._class(words, value)
        elif chain and type(value) not in (dict, list, set, tuple):
            self._member(words, where, name, value, chain)
        else:
            self._contents(words, where, name, value)

    def _changing(self, value: Any) -> None:
        """Refuse what answers otherwise each time, or acts, under whichever name it goes."""
        if isinstance(value, (FunctionType, BuiltinFunctionType, types.MethodType, type)):
            owner = getattr(value, "__self__", None)
            of = type(owner) if owner is not None and not isinstance(owner, ModuleType) else value
            module, name = getattr(of, "__module__", None) or "", value.__name__
            names = _CHANGES.get(_C_MODULES.get(module, module), frozenset())
            if names is None or name in names:
                raise self._refuse(f"it uses {module}.{name}, {_CHANGING}")

    def _module(self, words: str, module: ModuleType, chain: list[str]) -> None:
        """A module: its attributes are what is read of it."""
        if chain:
            self._attribute(module, chain)
        elif not _is_library(module) or _CHANGES.get(module.__name__, ()) is None:
            raise self._refuse(f"it uses {words}, a module, not only by names in it")

    def _attribute(self, module: ModuleType, chain: list[str]) -> None:
        """``module.a.b``, each a name of its own."""
        attribute, *rest = chain
        words = f"{module.__name__}.{attribute}"
        changing = _CHANGES.get(module.__name__, frozenset())
        if changing is None or attribute in changing:
            raise self._refuse(f"it uses {words}, {_CHANGING}")
        if attribute not in vars(module):
            self._member(module.__name__, {"module": module}, "module", module, chain)
            return
        found = vars(module)[attribute]
        if not _is_library(module) or isinstance(found, ModuleType):
            self._value(words, vars(module), attribute, found, rest)
            return
        self._changing(found)
        self._add(words, vars(module), attribute, found, "is")
        if isinstance(found, FunctionType):
            self._helper(words, found)
        self._answer(words, vars(module), attribute, found)
        if rest and not callable(found) and type(found) not in (*_EQUAL, *_SAME):
            self._member(words, vars(module), attribute, found, rest)

    def _answer(self, words: str, where: Any, name: str, found: Any) -> None:
        """A guard for what a function says, if it says what something is set to."""
        if callable(found) and any(found is each for each in _ANSWERS):
            answer = found()
            self._add(words, where, name, answer, "asks", lambda now: now() == answer)

    def _helper(self, words: str, function: Callable[..., Any]) -> None:
        if "_torchdynamo_orig_callable" in getattr(function, "__dict__", {}):
            raise self._refuse(f"{words} is compiled by torch.compile")
        if isinstance(function, FunctionType) and not _is_library(function):
            for default in (
                *(function.__defaults__ or ()),
                *(function.__kwdefaults__ or {}).values(),
            ):
                self._value(f"a default of {words}", {"default": default}, "default", default, [])
            self._helpers.append(function)
            self.function(function)

    def helpers_stay(self) -> None:
        """A guard for the helpers themselves: who edits a program while it runs puts other code,
        and other defaults, into the functions that are there."""
        known = {function: _parts(function) for function in self._helpers}
        if known:
            same = lambda now: all(_parts(f) == parts for f, parts in now.items())  # noqa: E731
            self._add("the code of its helpers", {"known": known}, "known", None, "asks", same)

    def _class(self, words: str, kind: type) -> None:
        """A class that may be called: its code is read, where nothing but code decides what its
        objects are."""
        fields = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
        if not fields and not issubclass(kind, (enum.Enum, BaseException)):
            raise self._refuse(f"it uses {words}, a class, into which tzero does not look")
        for each in vars(kind).values():
            function = getattr(each, "fget", None) or getattr(each, "__func__", each)
            if isinstance(function, FunctionType) and function.__code__.co_filename != "<string>":
                self._helper(words, function)

    def _member(self, words: str, where: Any, name: str, value: Any, chain: list[str]) -> None:
        """Attributes of an object or a class: asked for on each call."""
        held = (k for k in range(1, len(chain)) if _is_tensor(_followed(value, chain[:k])))
        chain = chain[: next(held, len(chain))]  # what is read of a tensor is seen when it is
        found = _followed(value, chain)
        words = f"{words}.{'.'.join(chain)}"
        add = functools.partial(self._add, words, where, name, found, "asks")
        if isinstance(found, Exception):
            raise self._refuse(f"it may read {words}, which raises {type(found).__name__}")
        if found is _GONE or _is_tensor(found):
            add(lambda now: _followed(now, chain) is found)
            return
        if isinstance(found, (FunctionType, type)) and isinstance(value, (type, ModuleType)):
            add(lambda now: _followed(now, chain) is found)
            self._helper(words, found)
            return
        if callable(found) and isinstance(value, ModuleType):
            add(lambda now: _followed(now, chain) is found)
            return
        if callable(found):
            raise self._refuse(f"it calls {words}, a method of an object that may change unseen")
        known = self._constant(words, found)
        add(lambda now: _constant_or_none(_followed(now, chain)) == known)

    def _contents(self, words: str, where: Any, name: str, value: Any) -> None:
        """A value whose contents may change while it stays the same object."""
        known = self._constant(words, value)
        self._add(words, where, name, value, "asks", lambda now: _constant_or_none(now) == known)

    def _constant(self, words: str, value: Any) -> Any:
        self._check(words, value)
        try:
            return constant(value)
        except UnsupportedType as error:
            raise self._unseen(words, value) from error

    def _check(self, words: str, value: Any) -> None:
        """Refuse what may change while its constant stays the same: other objects, and what holds
        them. Functions in a table of functions may be called."""
        self._changing(value)
        if isinstance(value, type) and not issubclass(value, enum.Enum) and not _is_library(value):
            self._class(words, value)
        if type(value) in _EQUAL or isinstance(value, (*_SAME, enum.Enum, type)):
            return
        if isinstance(value, _KERNELS):
            for function in triton_side.functions_of(value):
                self._helper(words, function)
        elif type(value) in (list, tuple, frozenset):
            for item in value:
                self._check(words, item)
        elif type(value) is dict:
            for item in (*value.keys(), *value.values()):
                self._check(words, item)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                self._check(words, getattr(value, field.name, None))
        elif isinstance(value, FunctionType):
            self._helper(words, value)
        elif isinstance(value, _CALLABLE):
            self._callable(words, value)
        else:
            raise self._unseen(words, value)

    def _callable(self, words: str, value: Any) -> None:
        """A function of C's: what it is a method of may change, and what it wraps may read."""
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, (type, ModuleType)):
            raise self._unseen(words, owner)
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, FunctionType):
            self._helper(words, wrapped)

    def _unseen(self, words: str, value: Any) -> Unreplayable:
        named = UnsupportedType(kind=type(value).__name__).named
        return self._refuse(f"it reads {words}, where {named} may change unseen")


_CALLABLE = (
    *(BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.MethodWrapperType, types.GetSetDescriptorType, types.ClassMethodDescriptorType),
    functools._lru_cache_wrapper,
    type(torch.ops.aten.add),
    type(torch.ops.aten.add.Tensor),
    type(torch.ops.aten),
    type(torch.ops),
)


_OWNING = (FunctionType, torch.Tensor, *_KERNELS)
"""What anyone may put attributes on."""

_CHANGING = "which acts, or answers otherwise each time"
_C_MODULES = {"_random": "random", "posix": "os", "_datetime": "datetime"}
"""Modules in C, and those whose names people know them by."""

_GONE = object()
"""In place of an attribute that is not there."""


def _is_library(thing: Any) -> bool:
    """Whether a function, class or module is of a library, which answers for what it reads."""
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    if isinstance(thing, FunctionType):  # its own word for it may be another function's
        name = thing.__globals__.get("__name__")
    return (name or "").partition(".")[0] in _LIBRARIES


def _parts(function: FunctionType) -> tuple[Any, ...]:
    """What in a function someone may replace."""
    named = function.__kwdefaults__
    return (function.__code__, _Each(function.__defaults__), _Each(named and (*named.values(),)))


class _Each(tuple[Any, ...]):
    """Values that are the same if each is the very same."""

    __slots__ = ()

    def __new__(cls, items: Any) -> _Each:
        return super().__new__(cls, items or ())

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Each) and len(self) == len(other)
        return same and all(one is two for one, two in zip(self, other, strict=True))  # type: ignore[call-overload]

    __hash__ = tuple.__hash__


def _chain(instructions: list[dis.Instruction], start: int) -> list[str]:
    """The attributes that are loaded one after the other from here on."""
    return [each.argval for each in _attributes(instructions, start)]


_NAMES = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def _attributes(instructions: list[dis.Instruction], start: int) -> Iterator[dis.Instruction]:
    for instruction in instructions[start:]:
        if instruction.opname not in _ATTRIBUTES:
            return
        yield instruction


def _followed(value: Any, chain: list[str]) -> Any:
    """An attribute of an attribute; `_GONE` where there is none."""
    try:
        return functools.reduce(getattr, chain, value)
    except AttributeError:
        return _GONE
    except Exception as error:  # a property's: whoever reads it in earnest is told
        return error


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _constant_or_none(value: Any) -> Any:
    """A value as a constant; nothing, which equals no constant, where it cannot be one."""
    try:
        return constant(value)
    except UnsupportedType:
        return None
