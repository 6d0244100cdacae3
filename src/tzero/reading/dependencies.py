"""What a host function reads besides its arguments: globals, closures, and those of its helpers.

    code ── every name it loads ──► plain values, functions, kernels, tensors: a Guard each
                                    ├ a helper function: the same for its code
                                    └ what no guard can watch, or what acts on the world: refused

Enters: a host function. Leaves: the guards that must hold for a second call to be like the first,
or `Unreplayable`. It must not know how a call is recorded or replayed.

What is known is what the code names: globals, closure cells, ``a.b.c`` of modules among these, and
methods: of classes of the program, and those that someone may put on ``torch.Tensor``. What the
functions of torch, Triton, numpy and the standard library read is theirs to answer for; which of
them act, or answer otherwise each time, is in `libraries`.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import functools
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from tzero.adapters import triton_launch
from tzero.arguments.constants import constant
from tzero.arguments.host import Host
from tzero.backends import source_kernel
from tzero.config import Config
from tzero.errors import UnsupportedType
from tzero.reading.attributes import (
    GONE,
    INSIDE,
    MAKING,
    REMAKING,
    behind,
    followed,
    has_more,
    is_made,
    is_same,
    is_set_by_class,
    look_at,
    namespace,
    parts_of,
    run_by,
)
from tzero.reading.bytecode import ATTRIBUTES, CELLS, NAMES, chain_at, implied, names_of
from tzero.reading.guards import Absent, Check, Equal, Guard, Same
from tzero.reading.purity import ACTS, ANSWERS, ASKS, changes, is_library, named_change

__all__ = ["Dependencies", "Unreplayable", "read_dependencies"]

_EQUAL = (int, str, bytes)
_SAME = (
    *(bool, float, complex, type(None), type(...), type(NotImplemented), range, slice),
    *(torch.dtype, torch.layout, torch.memory_format, torch.device, torch.Size),
    *(Config, triton_launch.Dtype),
)

_KERNELS = (triton_launch.KernelInterface, triton_launch.JITCallable, source_kernel.Kernel)


class Unreplayable(Exception):
    """Why a host function cannot be replayed, and where."""

    def __init__(self, reason: str, file: str, line: int) -> None:
        super().__init__(reason)
        self.reason, self.file, self.line = reason, file, line


class Dependencies(NamedTuple):
    """What a host function reads besides its arguments; `tensors` are those of the guards that
    hold one, by their number. `attributes` are names that it takes of what is no global, and that
    tensors do not have unless someone puts them there. `helpers` are the functions of the program
    that it may call, and whose code was read.

    >>> read_dependencies(lambda x: torch.empty_like(x)).guards[1].text
    'torch.empty_like'
    """

    guards: tuple[Guard, ...]
    tensors: Mapping[int, torch.Tensor]
    attributes: frozenset[str] = frozenset()
    helpers: tuple[FunctionType, ...] = ()


def read_dependencies(function: Callable[..., Any]) -> Dependencies:
    """Read a host function's code.

    >>> BLOCK = 64
    >>> [guard.text for guard in read_dependencies(lambda: BLOCK).guards]
    ["the global 'BLOCK'"]
    """
    reader = _Reader()
    if not isinstance(function, FunctionType):
        raise Unreplayable("it is not a plain Python function", "", 0)
    reader.function(function)
    reader.classes_stay()
    reader.helpers_stay()
    reader.nothing_is_put()
    guards = tuple(reader.guards.values())
    held = {k: guard.value for k, guard in enumerate(guards)}
    tensors = {k: v for k, v in held.items() if isinstance(v, torch.Tensor)}
    return Dependencies(guards, tensors, frozenset(reader.attributes), tuple(reader.helpers))


class _Class(NamedTuple):
    """A class that is used: under which words, whether it may be called, and where."""

    words: str
    called: bool
    place: tuple[str, int]


class _Reader:
    def __init__(self) -> None:
        self.guards: dict[Any, Guard] = {}
        self.attributes: set[str] = set()
        self._seen: set[int] = set()
        self.helpers: dict[FunctionType, None] = {}  # in the order that they are met
        self._classes: dict[type, _Class] = {}
        self._names: set[str] = set()  # that it loads, of anything
        self._loose: list[tuple[str, Any, tuple[str, int]]] = []  # what it has other names for
        self._contained: list[tuple[str, Any, tuple[str, int]]] = []
        self._catches = False
        self._called = False  # whether the name that is read just now is called at once
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
        self._catches |= bool(code.co_exceptiontable)
        for k, instruction in enumerate(instructions):
            name, names = instruction.opname, names_of(instruction)
            last = names[-1] if names else ""
            self._file = code.co_filename
            if instruction.positions is not None:
                self._line = instruction.positions.lineno or self._line
            if name in ATTRIBUTES:
                self._attribute_named(last, of_locals)
            else:
                of_locals = name not in NAMES and last not in (*cells, *modules)
            sign = last if name == "COMPARE_OP" else instruction.argrepr
            for method in implied(name, sign):
                self._of_tensors(method)
            self._called = name == "LOAD_GLOBAL" and bool((instruction.arg or 0) & 1)
            if name in NAMES:
                self._global(last, world, chain_at(instructions, k + 1))
            elif name in CELLS and last in cells:
                self._cell(last, cells, chain_at(instructions, k + 1))
            elif name == "IMPORT_NAME":
                modules.update(self._imported(instructions, k, world))
            elif name.startswith("LOAD_FAST"):
                for each in [one for one in names if one in modules]:
                    chain = chain_at(instructions, k + 1) if each == last else []
                    self._module(modules[each].__name__, modules[each], chain)
            elif name.startswith(("STORE", "DELETE")):
                self._stored(instruction, cells)
            elif name == "MATCH_CLASS":
                raise self._refuse("it matches a class, whose attributes are read unseen")
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
        self._names.add(name)
        if name in world:
            self._value(f"the global {name!r}", world, name, world[name], chain)
        elif name in ACTS and hasattr(builtins, name):
            raise self._refuse(f"it calls {name}, which acts on more than its result")
        elif hasattr(builtins, name):
            self._add(Absent(f"no global {name!r}", world, name))
            own = vars(builtins)
            self._value(f"the builtin {name!r}", own, name, own[name], chain)
            if hasattr(torch.Tensor, f"__{name}__"):
                self._of_tensors(f"__{name}__")
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
        self._add(Same(f"the module {full!r}", sys.modules, full, module))
        if names:
            return dict(self._imported_from(module, instructions[k + 1 :]))
        after = iter(instructions[k + 1 :])
        stored = next(each for each in after if each.opname.startswith("STORE"))
        if stored.opname != "STORE_FAST":
            raise self._refuse(f"it imports {named!r} for functions in it")
        plain = instructions[k + 1] is stored  # else it is imported under another name
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
                self._add(Same(f"{module.__name__}.{name}", vars(module), name, found))
                yield stored.argval, found
            else:
                self._attribute(module, [name])

    def _attribute_named(self, name: str, of_locals: bool) -> None:
        """An attribute that is taken, of a global or of anything else."""
        self._names.add(name)
        if name in INSIDE:
            raise self._refuse(f"it looks inside, by {name}")
        if not of_locals:
            return
        if hasattr(torch.Tensor, name):
            self._of_tensors(name)
        else:
            self.attributes.add(name)

    def _of_tensors(self, name: str) -> None:
        """What tensors have under a name: torch's, unless someone has put something there."""
        words, put = f"torch.Tensor.{name}", namespace(torch.Tensor)
        if name in put:
            self._add(Same(words, put, name, put[name]))
            self._runs(words, behind(put[name]))
        else:
            self._add(Absent(words, put, name, getattr(torch.Tensor, name, None)))

    # -- values --------------------------------------------------------------------------------

    def _add(self, guard: Guard) -> None:
        """Keep a guard; of several `Check`s of one name, those with different texts."""
        text = guard.text if isinstance(guard, Check) else ""
        self.guards.setdefault((id(guard.where), guard.name, type(guard), text), guard)

    def _missing(self, words: str, where: Any, is_there: Callable[[Any], bool]) -> None:
        """A guard for what is not there."""
        missing = lambda now: not is_there(now)  # noqa: E731
        self._add(Check(words, {"where": where}, "where", None, missing))

    def _value(self, words: str, where: Any, name: str, value: Any, chain: list[str]) -> None:
        """A guard for what a name is; `chain` are the attributes that are taken of it at once."""
        self._changing(value)
        self._answer(words, where, name, value)
        same = functools.partial(self._add, Same(words, where, name, value))
        member = functools.partial(self._member, words, where, name, value)
        if type(value) in _EQUAL:
            self._add(Equal(words, where, name, value))
        elif isinstance(value, ModuleType):
            same()
            self._module(words, value, chain)
        elif isinstance(value, _OWNING):
            same()
            self._owning(words, where, name, value, chain)
        elif isinstance(value, enum.Enum):
            same()
            self._enum(words, value)
        elif isinstance(value, _SAME) and is_library(type(value)):
            same()
        elif isinstance(value, triton_launch.Constexpr):
            same()
            member(["value"])
        elif isinstance(followed(value, ["host"]), Host):  # another kernel of tzero's
            same()
            if not isinstance(value.host.function, FunctionType):
                raise self._refuse(f"{words} is not a plain Python function")
            self._helper(words, value.host.function)
        elif isinstance(value, _CALLABLE) and not (chain and isinstance(value, _KEEPING)):
            same()
            self._callable(words, value)
        elif isinstance(value, type) and not chain:
            same()
            self._class(words, value)
        elif chain and type(value) not in (dict, list, set, tuple):
            member(chain)
        else:
            self._contents(words, where, name, value)

    def _changing(self, value: Any) -> None:
        """Refuse what answers otherwise each time, or acts, under whichever name it goes."""
        name = changes(value)
        if name:
            raise self._refuse(f"it uses {name}, {_CHANGING}")

    def _module(self, words: str, module: ModuleType, chain: list[str]) -> None:
        """A module: its attributes are what is read of it."""
        if not chain:
            raise self._refuse(f"it uses {words}, a module, not only by names in it")
        self._attribute(module, chain)

    def _attribute(self, module: ModuleType, chain: list[str]) -> None:
        """``module.a.b``, each a name of its own."""
        attribute, *rest = chain
        words = f"{module.__name__}.{attribute}"
        if named_change(module.__name__, attribute):
            raise self._refuse(f"it uses {words}, {_CHANGING}")
        if attribute not in vars(module):
            self._member(module.__name__, {"module": module}, "module", module, chain)
            return
        found = vars(module)[attribute]
        if not is_library(module) or not is_library(type(found)) or isinstance(found, _READ):
            self._value(words, vars(module), attribute, found, rest)
            return
        self._changing(found)
        self._add(Same(words, vars(module), attribute, found))
        self._answer(words, vars(module), attribute, found)
        if rest and not callable(found) and type(found) not in (*_EQUAL, *_SAME):
            self._member(words, vars(module), attribute, found, rest)

    def _answer(self, words: str, where: Any, name: str, found: Any) -> None:
        """A guard for what a function says, if it says what something is set to."""
        if not callable(found):
            return
        for asked in (*ANSWERS, *ASKS):
            if found is asked:
                self._asked(words, ASKS.get(asked, asked))

    def _asked(self, words: str, asks: Callable[[], Any]) -> None:
        try:
            answer = asks()
        except Exception as error:
            raise self._refuse(f"it may ask {words}, which raises {type(error).__name__}") from None
        words = f"what {asks.__name__} says"
        self._add(Check(words, {"asks": asks}, "asks", answer, lambda now: bool(now() == answer)))

    # -- functions -----------------------------------------------------------------------------

    def _runs(self, words: str, function: Any) -> None:
        """Something that is called when it is come to; nothing, where there is none."""
        if isinstance(function, FunctionType):
            self._helper(words, function)
        elif function is not None:
            self._check(words, function)

    def _helper(self, words: str, function: FunctionType) -> None:
        if "_torchdynamo_orig_callable" in vars(function):
            raise self._refuse(f"{words} is compiled by torch.compile")
        if is_library(function):
            self._wrapped(words, function)
            return
        self._defaults(words, function)
        if not is_made(function):
            self.function(function)

    def _defaults(self, words: str, function: FunctionType) -> None:
        named = function.__kwdefaults__ or {}
        for default in (*(function.__defaults__ or ()), *named.values()):
            if type(default).__module__ != "dataclasses":  # its sign for what a factory makes
                self._value(f"a default of {words}", {"default": default}, "default", default, [])
        self.helpers[function] = None

    def _wrapped(self, words: str, function: FunctionType) -> None:
        """What a function of a library closes over: a decorator's calls someone's function."""
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        for cell in function.__closure__ or ():
            content = cell.cell_contents if cell != CellType() else None
            if isinstance(content, FunctionType) and is_library(content):
                self._wrapped(words, content)
            elif _is_own(content):
                self._value(f"what {words} wraps", cell, "", content, [])

    def _callable(self, words: str, value: Any) -> None:
        """A function of C's: what it is a method of may change, and what it wraps may read."""
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, (type, ModuleType)):
            raise self._unseen(words, owner)
        self._runs(words, getattr(value, "__wrapped__", None))

    def _owning(self, words: str, where: Any, name: str, value: Any, chain: list[str]) -> None:
        """A function, a kernel or a tensor, on which anyone may put attributes."""
        own = getattr(value, "__dict__", {})
        if not chain:
            if not self._called and not isinstance(value, _KERNELS):
                self._loose.append((words, value, (self._file, self._line)))
        elif (
            isinstance(value, FunctionType) or chain[0] in own or followed(value, chain[:1]) is GONE
        ):
            self._member(words, where, name, value, chain)
            return
        elif not is_set_by_class(value, chain[0]):
            self._add(Absent(f"no {chain[0]!r} on {words}", own, chain[0]))
        if isinstance(value, torch.Tensor):
            for each in chain:
                self._attribute_named(each, True)
        elif isinstance(value, _KERNELS):
            for function in triton_launch.functions_of(value):
                self._runs(words, function)
        else:
            self._helper(words, value)

    # -- classes -------------------------------------------------------------------------------

    def _class(self, words: str, kind: type, called: bool = True) -> None:
        """A class of the program: its code is read, where nothing but code decides what its objects
        are."""
        if is_library(kind):
            return
        known = self._classes.get(kind)
        if known is not None and known.called >= called:
            return
        fields = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
        if not fields and not issubclass(kind, (enum.Enum, BaseException)):
            raise self._refuse(f"it uses {words}, a class, into which tzero does not look")
        if not is_library(type(kind)):
            raise self._refuse(f"it uses {words}, a class with a class of its own")
        self._classes[kind] = _Class(words, called, (self._file, self._line))
        if issubclass(kind, enum.Enum):
            for member in kind.__members__.values():
                self._enum(words, member)
        if called and dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                if field.default_factory is not dataclasses.MISSING:
                    factory = {"factory": field.default_factory}
                    made = f"what makes {words}.{field.name}"
                    self._value(made, factory, "factory", field.default_factory, [])

    def _enum(self, words: str, member: enum.Enum) -> None:
        """A member of an enum: what is in it may change, as its class may."""
        if is_library(type(member)) or id(member) in self._seen:
            return
        self._seen.add(id(member))
        self._class(words, type(member), called=False)
        for name, value in list(vars(member).items()):
            if not name.startswith("_") or (name == "_value_" and not _is_plain(value)):
                self._value(f"{words}.{name}", vars(member), name, value, [])

    def _of_classes(self) -> Iterator[tuple[type, str, _Class]]:
        """What is in the classes that are used and may be come to: by its name, or by none."""
        remakes = bool(REMAKING & self._names)
        for used, known in list(self._classes.items()):
            for kind in used.__mro__:
                for name in [] if is_library(kind) else list(vars(kind)):
                    special = name.startswith("__") and not name.startswith("__annotat")
                    if name in MAKING and not (known.called or remakes):
                        continue
                    if special or name in self._names:
                        yield kind, name, known

    def classes_stay(self) -> None:
        """Read what is in classes, and a guard for all of that."""
        done: set[tuple[type, str]] = set()
        while todo := [each for each in self._of_classes() if each[:2] not in done]:
            for kind, name, known in todo:
                done.add((kind, name))
                self._file, self._line = known.place
                self._in_class(f"{known.words}.{name}", name, behind(vars(kind)[name]))
        if self._classes:
            used = [
                (kind, [c for c in kind.__mro__ if not is_library(c)]) for kind in self._classes
            ]
            looks = {"looks": [look_at(*each) for each in used]}
            same = lambda now: all(look.holds() for look in now)  # noqa: E731
            self._add(Check("the classes that it uses", looks, "looks", None, same))

    def _in_class(self, words: str, name: str, thing: Any) -> None:
        if isinstance(thing, FunctionType):
            self._helper(words, thing)
        elif not _is_plain(thing) and (callable(thing) or not name.startswith("__")):
            self._value(words, {"value": thing}, "value", thing, [])

    def helpers_stay(self) -> None:
        """A guard for the helpers themselves: who edits a program while it runs puts other code,
        and other defaults, into the functions that are there."""
        known = {function: parts_of(function) for function in self.helpers}
        if known:
            same = lambda now: all(parts_of(f) == parts for f, parts in now.items())  # noqa: E731
            self._add(Check("the code of its helpers", {"known": known}, "known", None, same))

    def nothing_is_put(self) -> None:
        """Refuse what someone put on a function, a tensor or an object of the world and may be read
        where its name is another one; guards for what someone may put there yet."""
        for words, value, place in self._loose:
            put = sorted(self.attributes.intersection(vars(value)))
            self._file, self._line = place
            if put:
                raise self._refuse(f"it may read {words}.{put[0]}, which someone put there")
            for name in sorted(self.attributes) if self._catches else ():
                self._add(Absent(f"no {name!r} on {words}", vars(value), name))
        for words, value, place in self._contained:
            self._file, self._line = place
            if has_more(value, self._names):
                raise self._refuse(f"it may read what someone put on {words}")
        for name in sorted(self.attributes) if self._catches else ():
            self._of_tensors(name)

    # -- objects -------------------------------------------------------------------------------

    def _member(self, words: str, where: Any, name: str, value: Any, chain: list[str]) -> None:
        """Attributes of an object or a class: asked for on each call."""
        held = (k for k in range(1, len(chain)) if _is_tensor(followed(value, chain[:k])))
        chain = chain[: next(held, len(chain))]  # what is read of a tensor is seen when it is
        found = followed(value, chain)
        words = f"{words}.{'.'.join(chain)}"
        if isinstance(found, Exception):
            raise self._refuse(f"it may read {words}, which raises {type(found).__name__}")
        for k, each in enumerate(chain):
            for function in run_by(followed(value, chain[:k]), each):
                self._helper(words, function)
        self._changing(found)

        def add(check: Callable[[Any], bool]) -> None:
            self._add(Check(words, where, name, found, check))

        of_library = isinstance(value, type) and is_library(value)
        if found is GONE or _is_tensor(found):
            add(lambda now: followed(now, chain) is found)
        elif isinstance(found, (FunctionType, type)) and isinstance(value, (type, ModuleType)):
            add(lambda now: followed(now, chain) is found)
            self._class(words, found) if isinstance(found, type) else self._helper(words, found)
        elif callable(found) and (isinstance(value, ModuleType) or of_library):
            add(lambda now: is_same(followed(now, chain), found))
            if isinstance(found, types.MethodType):
                self._runs(words, found.__func__)
            elif not is_library(type(found)) or isinstance(found, _READ):
                self._check(words, found)
        elif callable(found):
            raise self._refuse(f"it calls {words}, a method of an object that may change unseen")
        else:
            known = self._constant(words, found)
            add(lambda now: _constant_or_none(followed(now, chain)) == known)

    def _contents(self, words: str, where: Any, name: str, value: Any) -> None:
        """A value whose contents may change while it stays the same object."""
        known, names = self._constant(words, value), self._names
        self._contained.append((words, value, (self._file, self._line)))
        same = lambda now: _constant_or_none(now) == known and not has_more(now, names)  # noqa: E731
        self._add(Check(words, where, name, value, same))

    def _constant(self, words: str, value: Any) -> Any:
        try:
            self._check(words, value)
            return constant(value)
        except (UnsupportedType, RecursionError) as error:
            raise self._unseen(words, value) from error

    def _check(self, words: str, value: Any) -> None:
        """Refuse what may change while its constant stays the same: other objects, and what holds
        them. Functions in a table of functions may be called."""
        self._changing(value)
        if isinstance(value, enum.Enum):
            self._enum(words, value)
        elif isinstance(value, type):
            self._class(words, value)
        elif _is_plain(value):
            return
        elif isinstance(value, _KERNELS):
            for function in triton_launch.functions_of(value):
                self._runs(words, function)
        elif type(value) in (list, tuple, frozenset):
            for item in value:
                self._check(words, item)
        elif type(value) is dict:
            for item in (*value.keys(), *value.values()):
                self._check(words, item)
        elif dataclasses.is_dataclass(value):
            self._class(words, type(value), called=False)
            for field in dataclasses.fields(value):
                self._check(words, getattr(value, field.name, None))
        elif isinstance(value, FunctionType):
            self._loose.append((words, value, (self._file, self._line)))
            self._helper(words, value)
        elif isinstance(value, _CALLABLE):
            self._callable(words, value)
        else:
            raise self._unseen(words, value)

    def _unseen(self, words: str, value: Any) -> Unreplayable:
        named = UnsupportedType(kind=type(value).__name__).named
        return self._refuse(f"it reads {words}, where {named} may change unseen")


_KEEPING = functools._lru_cache_wrapper
_CALLABLE = (
    *(BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.MethodWrapperType, types.GetSetDescriptorType, types.ClassMethodDescriptorType),
    _KEEPING,
    type(torch.ops.aten.add),
    type(torch.ops.aten.add.Tensor),
    type(torch.ops.aten),
    type(torch.ops),
)


_OWNING = (FunctionType, torch.Tensor, *_KERNELS)
"""What anyone may put attributes on."""

_READ = (
    *(ModuleType, FunctionType, type, enum.Enum, list, dict, set, triton_launch.Constexpr),
    *(types.MethodType, functools.partial, _KEEPING),
)
"""What is looked into, also where a library has it: someone may have put it there."""

_CHANGING = "which acts, or answers otherwise each time"


def _is_plain(value: Any) -> bool:
    """Whether a value cannot change."""
    return type(value) in _EQUAL or (isinstance(value, _SAME) and is_library(type(value)))


def _is_own(value: Any) -> bool:
    """Whether something is no library's, or calls or holds what is not."""
    if isinstance(value, types.MethodType):
        return _is_own(value.__func__) or _is_own(value.__self__)
    if isinstance(value, (functools.partial, _KEEPING)):
        return True
    if isinstance(value, (list, tuple, dict)):
        return any(map(_is_own, value.values() if isinstance(value, dict) else value))
    return not is_library(value if isinstance(value, (FunctionType, type)) else type(value))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _constant_or_none(value: Any) -> Any:
    """A value as a constant; nothing, which equals no constant, where it cannot be one."""
    try:
        return constant(value)
    except UnsupportedType:
        return None
