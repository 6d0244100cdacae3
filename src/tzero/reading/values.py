"""Values that a host function reads -> guards.

    the global 'BLOCK', 64        ──► Equal
    the global 'torch', ["empty"] ──► Same for torch, Same for torch.empty
    a helper function             ──► Same, and its code is read too
    an object, a list, a dict     ──► Check: what it holds, compared as a constant
    anything else                 ──► Unreplayable: no guard could notice a change

Enters: a `Variable`, and the chain of attributes that the code loads from it. Leaves: guards, in
`Findings`. It must not know bytecode, nor how calls are recorded or replayed.

Attributes are a special case. The program may add one to a function, a tensor or an object at any
time, and code that loads the name from a local variable would then see it. `finish` takes care of
that, when all names are known.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from tzero.adapters import triton_launch, triton_wrappers
from tzero.arguments.constants import constant
from tzero.arguments.host import Host
from tzero.errors import UnsupportedType
from tzero.reading.attributes import (
    INTROSPECTION,
    MISSING,
    class_dict,
    follow,
    functions_run,
    has_added,
    holds_only_fields,
    implementation,
    is_data_descriptor,
    is_generated,
    is_hooked,
    is_same,
    may_be_hidden,
)
from tzero.reading.classes import Classes
from tzero.reading.findings import Findings, Line, Unreplayable, Variable
from tzero.reading.guards import Absent, Check, Items, OfClass, Same, items_of, result_guard
from tzero.reading.kinds import (
    CACHED,
    EQUAL,
    KERNELS,
    LOOKED_AT,
    OPAQUE,
    OPEN,
    constant_or_none,
    is_of_program,
    is_plain,
    is_tensor,
)
from tzero.reading.probes import ConstantFunction
from tzero.reading.purity import GETTERS, READS_A_SETTING, impure, is_impure_name, is_library

__all__ = ["Values"]

_IMPURE = "which has side effects or is nondeterministic"


class Values:
    """Reads values. `read_code` is called with each helper function."""

    def __init__(self, found: Findings, read_code: Callable[[FunctionType], None]) -> None:
        self._found = found
        self._read_code = read_code
        self._wrappers: set[int] = set()  # ids of library functions whose closures were read
        self._loose: list[tuple[str, Any, Line]] = []  # values that code may give other names
        self._contained: list[tuple[str, Any, Line]] = []
        self.classes = Classes(found, self)

    def read(self, variable: Variable, chain: Sequence[str] = (), called: bool = False) -> None:
        """Guard a value. The code loads the attributes in `chain` from it, or calls it at once."""
        value, add = variable.value, self._found.add
        if is_hooked(type(value)):
            raise self._unwatchable(variable.text, value)
        if isinstance(value, ConstantFunction) and not chain:
            add(variable.same())
            return
        self._refuse_impure(value)
        self._guard_setting(variable.text, value)
        if type(value) in EQUAL:
            add(variable.equal())
        elif isinstance(value, ModuleType):
            add(variable.same())
            self.module(variable.text, value, chain)
        elif isinstance(value, OPEN):
            add(variable.same())
            self._open(variable, chain, called)
        elif isinstance(value, enum.Enum):
            add(variable.same())
            self.classes.enum_member(variable.text, value)
        elif is_plain(value):
            add(variable.same())
        elif isinstance(value, triton_launch.Constexpr):
            add(variable.same())
            self._member(variable, ["value"])
        elif isinstance(
            inspect.getattr_static(value, "host", None), Host
        ):  # another kernel of tzero
            add(variable.same())
            if not isinstance(value.host.function, FunctionType):
                raise self._found.refuse(f"{variable.text} is not a plain Python function")
            self.helper(variable.text, value.host.function)
        elif isinstance(value, OPAQUE) and not (chain and isinstance(value, CACHED)):
            add(variable.same())
            self._opaque(variable.text, value)
        elif isinstance(value, type) and not chain:
            add(variable.same())
            self.classes.use(variable.text, value)
        elif chain and type(value) not in (dict, list, set, tuple):
            self._member(variable, chain)
        else:
            self._contents(variable)

    # -- library functions ---------------------------------------------------------------------

    def _refuse_impure(self, value: Any) -> None:
        name = impure(value)
        if name:
            raise self._found.refuse(f"it uses {name}, {_IMPURE}")
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            words = "a class of modules, whose calls read more than their arguments"
            raise self._found.refuse(f"it uses {value.__name__}, {words}")

    def _guard_setting(self, text: str, value: Any) -> None:
        """Guard the result of a function that returns a setting, such as the default dtype."""
        if not callable(value):
            return
        for getter in (*GETTERS, *READS_A_SETTING):
            if value is getter:
                self._guard_result(text, READS_A_SETTING.get(getter, getter))

    def _guard_result(self, text: str, getter: Callable[[], Any]) -> None:
        try:
            guard = result_guard(getter)
        except Exception as error:
            raise self._found.refuse(
                f"it may call {text}, which raises {type(error).__name__}"
            ) from None
        self._found.add(guard)

    # -- modules -------------------------------------------------------------------------------

    def module(self, text: str, module: ModuleType, chain: Sequence[str]) -> None:
        """A module, of which the code loads ``module.a.b``."""
        if not chain:
            raise self._found.refuse(f"it uses {text}, a module, as a value")
        attribute, *rest = chain
        if not is_library(module):
            self._found.add(OfClass.of(f"the class of {module.__name__}", module))
        text = f"{module.__name__}.{attribute}"
        if is_impure_name(module.__name__, attribute):
            raise self._found.refuse(f"it uses {text}, {_IMPURE}")
        if attribute not in vars(module):
            held = Variable(module.__name__, {"module": module}, "module", module)
            self._member(held, chain)
            return
        found = vars(module)[attribute]
        variable = Variable(text, vars(module), attribute, found)
        if not is_library(module) or not is_library(type(found)) or isinstance(found, LOOKED_AT):
            self.read(variable, rest)
            return
        self._refuse_impure(found)
        self._found.add(variable.same())
        self._guard_setting(text, found)
        if rest and not callable(found) and not is_plain(found):
            self._member(variable, rest)

    # -- functions -----------------------------------------------------------------------------

    def _run(self, text: str, function: Any) -> None:
        """Something that runs when it is reached; None if nothing does."""
        if isinstance(function, FunctionType):
            self.helper(text, function)
        elif function is not None:
            self._check(text, function)

    def helper(self, text: str, function: FunctionType) -> None:
        """A function that the host function may call."""
        if "_torchdynamo_orig_callable" in vars(function):
            raise self._found.refuse(f"{text} is compiled by torch.compile")
        if is_library(function):
            self._wrapped(text, function)
            return
        named = function.__kwdefaults__ or {}
        for default in (*(function.__defaults__ or ()), *named.values()):
            if type(default).__module__ != "dataclasses":  # its marker for a default factory
                self.read(Variable.unnamed(f"a default of {text}", default))
        self._found.helpers[function] = None
        if not is_generated(function):
            self._read_code(function)

    def _wrapped(self, text: str, function: FunctionType) -> None:
        """What a library function closes over: a decorator's wrapper calls the program's code."""
        if id(function) in self._wrappers:
            return
        self._wrappers.add(id(function))
        for cell in function.__closure__ or ():
            content = cell.cell_contents if cell != CellType() else None
            if isinstance(content, FunctionType) and is_library(content):
                self._wrapped(text, content)
            elif is_of_program(content):
                self.read(Variable(f"what {text} wraps", cell, "", content))

    def _opaque(self, text: str, value: Any) -> None:
        """A callable in C: the object that it is a method of may change, and it may wrap code."""
        if isinstance(value, CACHED):  # what it has cached is not in the source
            raise self._found.refuse(f"it calls {text}, which returns what it has cached")
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, (type, ModuleType)):
            raise self._unwatchable(text, owner)
        self._run(text, getattr(value, "__wrapped__", None))

    def _kernel(self, text: str, kernel: Any) -> None:
        for layer in triton_wrappers.layers(kernel):
            for name in ("values", "configs", "pre_hook", "post_hook", "fn"):
                held = vars(layer).get(name)
                if held is not None:
                    self._found.add(Same(f"{text}.{name}", vars(layer), name, held))
                if type(held) in (list, dict):
                    self._found.add(Items.of(f"the contents of {text}.{name}", held))
        for function in triton_wrappers.functions_of(kernel):
            self._run(text, function)

    # -- attributes ----------------------------------------------------------------------------

    def attribute(self, name: str, of_local: bool) -> None:
        """A name that code loads as an attribute, from a local variable or from anything else."""
        self._found.names.add(name)
        if name in INTROSPECTION:
            raise self._found.refuse(f"it reads {name}, which gives access to hidden state")
        if not of_local:
            return
        self._found.loaded.add(name)
        if hasattr(torch.Tensor, name):
            self.tensor_attribute(name)
        else:
            self._found.attributes.add(name)

    def tensor_attribute(self, name: str) -> None:
        """An attribute of `torch.Tensor`: torch's own, unless the program replaces it."""
        self._found.of_tensors.add(name)
        text, own = f"torch.Tensor.{name}", class_dict(torch.Tensor)
        if name in own:
            self._found.add(Same(text, own, name, own[name]))
            self._run(text, implementation(own[name]))
        else:
            self._found.add(Absent(text, own, name, getattr(torch.Tensor, name, None)))

    def _open(self, variable: Variable, chain: Sequence[str], called: bool) -> None:
        """A function, a kernel or a tensor, to which the program may add attributes."""
        text, value = variable.text, variable.value
        own = getattr(value, "__dict__", {})
        if not chain:
            if not called and not isinstance(value, KERNELS):
                self._loose.append((text, value, self._found.line))
        elif (
            isinstance(value, FunctionType)
            or chain[0] in own
            or follow(value, chain[:1]) is MISSING
        ):
            self._member(variable, chain)
            return
        elif not is_data_descriptor(value, chain[0]):
            self._found.add(Absent(f"no attribute {chain[0]!r} on {text}", own, chain[0]))
        if isinstance(value, torch.Tensor):
            for each in chain:
                self.attribute(each, of_local=True)
        elif isinstance(value, KERNELS):
            self._kernel(text, value)
        else:
            self.helper(text, value)

    def finish(self) -> None:
        """Refuse attributes that the program has added and the code may read under another name of
        the object; guard against those that it may still add."""
        found = self._found
        hidden = set(filter(may_be_hidden, found.loaded)) - found.attributes
        for text, value, line in self._loose:
            hides = hidden if isinstance(value, torch.Tensor) else set()
            added = sorted((found.attributes | hides).intersection(vars(value)))
            found.line = line
            if added:
                raise found.refuse(f"it may read {text}.{added[0]}, an attribute added to it")
            for name in sorted(hides | (found.attributes if found.catches else set())):
                found.add(Absent(f"no attribute {name!r} on {text}", vars(value), name))
        for text, value, line in self._contained:
            found.line = line
            if has_added(value, found.names):
                raise found.refuse(f"it may read an attribute added to {text}")
        for name in sorted(found.attributes) if found.catches else ():
            self.tensor_attribute(name)

    # -- objects -------------------------------------------------------------------------------

    def _member(self, variable: Variable, chain: Sequence[str]) -> None:
        """Attributes of an object or a class: loaded again by the guard."""
        value = variable.value
        self._refuse_to_run(variable.text, value, chain)
        tensors = (k for k in range(1, len(chain)) if is_tensor(follow(value, chain[:k])))
        chain = chain[: next(tensors, len(chain))]  # a recording sees what is read of a tensor
        found = follow(value, chain)
        text = f"{variable.text}.{'.'.join(chain)}"
        if isinstance(found, Exception):
            raise self._found.refuse(f"it may read {text}, which raises {type(found).__name__}")
        self._refuse_impure(found)

        def add(check: Callable[[Any], bool]) -> None:
            self._found.add(Check(text, variable.where, variable.name, found, check))

        of_library = isinstance(value, type) and is_library(value)
        if found is MISSING or is_tensor(found):
            add(lambda now: follow(now, chain) is found)
        elif isinstance(found, (FunctionType, type)) and isinstance(value, (type, ModuleType)):
            add(lambda now: follow(now, chain) is found)
            if isinstance(found, type):
                self.classes.use(text, found)
            else:
                self.helper(text, found)
        elif callable(found) and (isinstance(value, ModuleType) or of_library):
            add(lambda now: is_same(follow(now, chain), found))
            if isinstance(found, types.MethodType):
                self._run(text, found.__func__)
            elif not is_library(type(found)) or isinstance(found, LOOKED_AT):
                self._check(text, found)
        elif callable(found):
            raise self._found.refuse(
                f"it calls {text}, a method of an object whose changes tzero cannot see"
            )
        else:
            known = self._constant(text, found)
            add(lambda now: constant_or_none(follow(now, chain)) == known)

    def _refuse_to_run(self, text: str, value: Any, chain: Sequence[str]) -> None:
        """Refuse attributes that code of the program computes: to read one would run it."""
        for each in chain:
            run = next(functions_run(value, each), None)
            if run is not None and not is_library(run):
                raise self._found.refuse(f"it reads {text}.{each}, which {run.__name__} computes")
            value = follow(value, [each])
            if value is MISSING or isinstance(value, Exception):
                return
            text = f"{text}.{each}"

    def _contents(self, variable: Variable) -> None:
        """A value whose contents may change while it stays the same object."""
        value, names = variable.value, self._found.names
        if type(value) in (list, dict):  # `is` may compare it with another one
            self._found.add(variable.same())
        known = self._constant(variable.text, value)
        if _is_table(value):
            self._found.add(variable.same())
            for each in _tables_in(value):
                self._found.add(Items.of(f"the contents of {variable.text}", each))
            return
        self._contained.append((variable.text, value, self._found.line))
        same = lambda now: constant_or_none(now) == known and not has_added(now, names)  # noqa: E731
        self._found.add(variable.check(same))

    def _constant(self, text: str, value: Any) -> Any:
        try:
            self._check(text, value)
            return constant(value)
        except (UnsupportedType, RecursionError) as error:
            raise self._unwatchable(text, value) from error

    def _check(self, text: str, value: Any) -> None:
        """Refuse what may change while its constant stays equal: objects of the program, and what
        holds them. Functions in a table may be called, so their code is read."""
        self._refuse_impure(value)
        if isinstance(value, enum.Enum):
            self.classes.enum_member(text, value)
        elif isinstance(value, type):
            self.classes.use(text, value)
        elif is_plain(value) or isinstance(value, ConstantFunction):
            return
        elif isinstance(value, KERNELS):
            self._kernel(text, value)
        elif type(value) in (list, tuple):
            for item in value:
                self._check(text, item)
        elif type(value) is dict:
            for item in (*value.keys(), *value.values()):
                self._check(text, item)
        elif dataclasses.is_dataclass(value) and holds_only_fields(type(value)):
            self.classes.use(text, type(value), called=False)
            for field in dataclasses.fields(value):
                self._check(text, getattr(value, field.name, None))
        elif isinstance(value, FunctionType):
            self._loose.append((text, value, self._found.line))
            self.helper(text, value)
        elif isinstance(value, OPAQUE):
            self._opaque(text, value)
        else:
            raise self._unwatchable(text, value)

    def _unwatchable(self, text: str, value: Any) -> Unreplayable:
        named = UnsupportedType(kind=type(value).__name__).named
        return self._found.refuse(f"it reads {text}, and tzero cannot see changes of {named}")


def _is_table(value: Any) -> bool:
    """Whether a value is a list, tuple or dict of such, or of what is compared by identity."""
    if type(value) in (list, tuple):
        return all(map(_is_table, value))
    if type(value) is dict:
        return all(map(_is_table, (*value.keys(), *value.values())))
    return is_plain(value) or isinstance(value, (FunctionType, type, enum.Enum, *KERNELS))


def _tables_in(value: Any) -> Iterator[Any]:
    """The lists, tuples and dicts in a value, itself included."""
    if type(value) in (list, tuple, dict):
        yield value
        for each in items_of(value):
            yield from _tables_in(each)
