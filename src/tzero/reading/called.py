"""What a call on the path means: followed, pure, or a reason not to replay.

    a function of the program       ──► followed by `path`; nothing to do here
    a library function or class     ──► `purity` must allow it, and it reads all of its arguments
    a method of a container         ──► reads its contents, or changes it
    getattr, os.getenv, logging...  ──► reads one thing, which is guarded

Enters: a callable and its arguments, before it is called, and its result. Leaves: guards in a
`World`, or `Unreplayable`. It must not know bytecode.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import FunctionType, MethodType
from typing import Any

import torch

from tzero.adapters import triton_launch, triton_wrappers
from tzero.adapters.python_frames import Codes
from tzero.arguments.host import Host
from tzero.reading.attributes import MISSING
from tzero.reading.cached import guard_cached
from tzero.reading.contents import BY_METHODS, CONTAINERS, MODULES, STEADY, has_state
from tzero.reading.contexts import Contexts
from tzero.reading.findings import Unreplayable
from tzero.reading.hooks import Hooks
from tzero.reading.kinds import CACHED, KERNELS, is_plain
from tzero.reading.known import is_a, is_program_class
from tzero.reading.modules import (
    follow_operators,
    holds_modules,
    is_method_of_module,
    is_read_by_followed,
    is_told_apart,
)
from tzero.reading.probes import ConstantFunction
from tzero.reading.purity import impure, is_library
from tzero.reading.special import (
    Callee,
    apply,
    asks_for_modes,
    guard_autocast,
    special_read,
)
from tzero.reading.world import Pending, World

__all__ = ["Judge", "looks_at_result"]


_READING = frozenset(
    [
        *("keys", "values", "items", "index", "count", "copy", "union", "intersection"),
        *("difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint"),
        *("__contains__", "__len__", "__iter__", "__eq__", "__ne__", "__getitem__"),
    ]
)
"""Methods of containers that read all contents and change nothing."""

_VIEWS = ("keys", "values", "items")

_STORING = {"append": 0, "appendleft": 0, "__setitem__": 1, "setdefault": 1, "__setattr__": 1}
"""Methods in C that keep an argument and do not look at it, and how many they look at before it."""

_TYPE_ONLY = (isinstance, issubclass, type, callable, super, id)
"""Functions that read only the type or identity of what they are given."""

_ITERATING = (zip, enumerate, reversed, iter, list, tuple, len)
"""Builtins that read no more of a container, or of a list of modules, than what it holds."""

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_HOLD_NOTHING = frozenset(
    [*_TENSORS, int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device]
)
"""Types of arguments of which nothing needs a guard if a function reads them."""

_judged: set[types.BuiltinFunctionType] = set()
"""Functions in C of libraries that read nothing but their arguments, as was found before."""

_MIXINS = ("collections", "collections.abc", "_collections_abc")
"""Modules whose classes have methods in Python that classes of the program inherit."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()))


class Judge:
    """Judges the calls of one recorded call."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._hooks = Hooks(world)
        self._given: dict[int, Any] = {}  # arguments of the recorded call that can be changed
        self.contexts = Contexts(world)
        self.hide: Callable[[], None] = lambda: None
        """Takes off the recorder's mode of torch functions, for a call that looks at modes."""
        self.show: Callable[[], None] = lambda: None
        """Puts it on again, if it is off."""
        self.codes = Codes()
        """Code that a call may run besides the functions of the world."""
        self.followed = world.followed
        """Code of libraries that is followed like that of the program."""
        self.made = Codes()
        """Code of functions that the followed ones make."""

    def give(self, args: Sequence[Any]) -> None:
        """Note the arguments of the recorded call: they are not new, and their key is compared."""
        for value in args:
            if not is_plain(value) and id(value) not in self._given:
                self._given[id(value)] = value
                if type(value) in _TENSORS:
                    self._world.of_arguments[id(value)] = set()
                if type(value) in CONTAINERS:
                    held = value.values() if isinstance(value, Mapping) else value
                    self.give(list(held))

    def is_new(self, value: Any) -> bool:
        """Whether an object was made during the call. Classes, modules and members of enums were
        there before, wherever they come from."""
        if is_a(value, (type, types.ModuleType, enum.Enum)):
            return False
        return not self._world.has(value) and id(value) not in self._given

    def entered(self, manager: Any) -> None:
        """A `with` block begins. A lock is as it was when the block ends; the device is the current
        one (see `_check_device`)."""
        if not isinstance(manager, (*_LOCKS, torch.cuda.device)):
            _check_pure(type(manager))
        guard_autocast(self._world, manager)

    def subscripted(self, value: Any) -> None:
        """A kernel is given its grid: heuristics and hooks around it run in the launch."""
        if type(value) is triton_launch.JITFunction:  # nothing is around it
            return
        if not isinstance(value, KERNELS) or not self._world.has(value):
            return
        for kernel in (value, *triton_wrappers.layers(value)):
            for name in ("run", "__getitem__", "__call__"):
                self._world.of_classes(type(kernel), name)
        for kernel in triton_wrappers.layers(value):
            own, name = vars(kernel), f"{self._world.name(value)}'s"
            for each in ("values", "configs", "pre_hook", "post_hook", "fn"):
                if each in own:
                    found = own[each]
                    self._world.own(f"{name} {each}", own, each)
                    self._world.contents(found)
            for function in triton_wrappers.functions_of(kernel):
                self._world.enter(function, f"a heuristic or hook of {self._world.name(value)}")

    # -- calls ---------------------------------------------------------------------------------

    def host(self, callee: Callee) -> bool:
        """The function that is recorded, which a library or a decorator of one may have made;
        whether it is to be followed. `Function.apply` of autograd is judged, as any call of it."""
        function = callee.function
        if special_read(function, callee.args) is apply:
            self.call(callee)
            return False
        if is_library(function):
            self._library(function, Callee(function, []))
        return True

    def opened(self, function: Any) -> None:
        """Note what a method or a partial function of the world calls."""
        while self._world.has(function):
            if type(function) is functools.partial:
                for name in ("func", "args", "keywords"):
                    ask = operator.attrgetter(name)
                    text = f"{self._world.name(function)}.{name}"
                    self._world.asked(text, function, ask, getattr(function, name))
                for each in (function.args, function.keywords):
                    self._world.contents(each)
                inner = function.func
            elif isinstance(function, MethodType):
                self._world.enter(function.__self__, f"the object of {self._world.name(function)}")
                inner = function.__func__
            elif isinstance(function, staticmethod):
                inner = function.__func__
            else:
                return
            self._world.enter(inner, self._world.name(function))
            function = inner

    def call(self, callee: Callee) -> Pending | None:
        """A call is about to be made; the attribute that it reads, if it is `getattr`."""
        function = callee.function
        if self._is_plain_call(callee):
            return None
        special = special_read(callee.function, callee.args)
        if is_a(function, ConstantFunction):
            self._reads_all(callee.args, self._world.name(function))
            return None
        if asks_for_modes(function):
            self._reads_all(callee.args, function.__name__)
            self.hide()
            return None
        if special is not None:
            pending = special(self._world, callee)
            if special is apply:
                self._methods(callee.args[0], "forward", "setup_context")
            return pending
        if is_a(function, FunctionType) and not is_library(function):
            return None
        if is_a(function, FunctionType) and self._is_made(function):
            return None
        if callee.args and self.follows(function, type(callee.args[0])):
            return None
        if is_method_of_module(function, callee.args) or is_read_by_followed(function):
            self._world.follow(function, function.__qualname__)
            return None
        if is_a(function, CACHED):
            self._world.enter(function.__wrapped__, self._world.name(function))
        elif is_a(function, type):
            self._class(function, callee)
        elif is_a(function, torch.nn.Module):
            self._module(function)
        elif _is_kernel_of_tzero(function):
            self._kernel_of_tzero(function)
        elif is_a(function, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._builtin(function, callee)
        elif is_a(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            self._method(callee.args[0] if callee.args else None, function, callee.args[1:])
        elif is_a(function, FunctionType):
            self._library(function, callee)
        elif is_program_class(type(function)):
            self._object(function)
        elif _is_pure_object(function):
            self._reads_all(callee.args, self._world.name(function))
        else:
            name = self._world.name(function)
            raise Unreplayable(f"it calls {name}, whose reads tzero does not see", "", 0)
        return None

    def _is_made(self, function: FunctionType) -> bool:
        """Whether a followed function of a library has made a function in this call."""
        return function.__code__ in self.made and not self._world.has(function)

    def _is_plain_call(self, callee: Callee) -> bool:
        """Judge a call quickly if nothing matters of it but its arguments, as of most calls: a
        method in C of a tensor, `triton.cdiv`, or a function in C that was judged before."""
        function, args = callee.function, callee.args
        kind = type(function)
        if kind is types.MethodDescriptorType:
            is_plain_call = bool(args) and type(args[0]) in _TENSORS
        elif kind is triton_launch.ConstexprFunction:
            is_plain_call = "host" not in vars(function)
        else:
            is_plain_call = kind is types.BuiltinFunctionType and function in _judged
        if is_plain_call:
            self._reads_all(args, function.__name__)
        return is_plain_call

    def follows(self, method: Any, kind: type) -> bool:
        """Whether a method that a class of the program has from a library is followed: one of
        `collections`, which calls methods of the class, or the `forward` of a module."""
        if not is_program_class(kind) or not is_a(method, FunctionType):
            return False
        is_forward = method.__name__ == "forward" and _module_of(method).startswith("torch.nn.")
        if not is_forward and _module_of(method) not in _MIXINS:
            return False
        if not any(each is method for base in kind.__mro__ for each in vars(base).values()):
            return False
        self._world.follow(method, method.__qualname__)
        return True

    def returned(
        self, callee: Callee, result: Any, ran_program: bool, pending: Pending | None
    ) -> None:
        """A call has returned. What a library function returns may have been there before, unless
        it is a wrapper that ran code of the program, which was followed."""
        function = callee.function
        if pending is not None and function is hasattr:
            self._world.settle_presence(pending, result)
        elif pending is not None and result is not (callee.args[2] if callee.args[2:] else pending):
            self._world.settle(pending, result)
        elif pending is not None:
            self._world.settle_presence(pending, False)
        elif function in (isinstance, issubclass):
            self._answered(callee, result)
        elif is_a(function, CACHED):
            guard_cached(self._world, function, callee, result)
        elif (
            is_a(function, FunctionType)
            and is_library(function)
            and not ran_program
            and (type(result) in CONTAINERS or self._world.is_of_program(type(result)))
        ):
            self._world.enter(result, f"the result of {function.__name__}", is_passing=True)

    def _methods(self, kind: type, *names: str) -> None:
        """Methods that a call runs without naming them."""
        for name in names:
            self._opened_wrapper(self._world.of_classes(kind, name))

    def _opened_wrapper(self, method: Any) -> None:
        """Note what a method calls that a decorator of a library has made, as torch.no_grad."""
        inner = method.__func__ if isinstance(method, (staticmethod, classmethod)) else method
        if isinstance(inner, FunctionType) and is_library(inner) and self._world.has(inner):
            self._library(inner, Callee(inner, []))

    # -- classes of objects --------------------------------------------------------------------

    def checked(self, kind: type, others: Any) -> None:
        """The class of an object, or of an exception, is compared with others."""
        self._world.line(kind)
        for each in _flat(others):
            self._world.line(each)

    def _answered(self, callee: Callee, result: bool) -> None:
        """`isinstance` or `issubclass`: a class may answer by a method of its metaclass, and from
        what was registered."""
        value, others = callee.args
        kind = value if callee.function is issubclass else type(value)
        self.checked(kind, others)
        if callee.function is isinstance and is_program_class(kind):
            self._world.of_classes(kind, "__class__")
        name = "__instancecheck__" if callee.function is isinstance else "__subclasscheck__"
        for each in _flat(others):
            found = self._world.of_classes(type(each), name)
            if type(each) is not type and is_library(type(each)) and found is not vars(type)[name]:
                text = f"whether {self._world.name(value)} is a {each.__name__}"
                ask = functools.partial(_asked_again, callee.function, each)
                self._world.asked(text, value, ask, ask(value))

    # -- kinds of callables --------------------------------------------------------------------

    def _class(self, kind: type, callee: Callee) -> None:
        if is_program_class(kind):
            self._methods(kind, "__new__", "__init__", "__post_init__")
            if self._world.of_classes(kind, "__del__") is not MISSING:  # no replay makes the object
                name = f"{kind.__name__}.__del__"
                raise Unreplayable(
                    f"it uses {name}, which has side effects or is nondeterministic", "", 0
                )
            if issubclass(kind, (*CONTAINERS, bytearray)):
                fills = "__new__" if issubclass(kind, (tuple, frozenset)) else "__init__"
                if not is_a(self._world.of_classes(kind, fills), FunctionType):  # it is in C
                    self._reads_all(callee.args, kind.__name__)
            if not is_library(type(kind)):
                self._methods(type(kind), "__call__")
            return
        if kind is torch.cuda.device:
            _check_device(callee.args[0])
            return
        _check_pure(kind)
        if issubclass(kind, torch.nn.Module):
            self._hooks.none_on_what_registers()
            self._methods(kind, "__new__", "__init__", "__setattr__")
        if kind in _ITERATING:
            self._iterates(callee.args)
        elif kind not in _TYPE_ONLY:
            self._reads_all(callee.args, kind.__name__)

    def _builtin(self, function: Any, callee: Callee) -> None:
        owner = function.__self__
        if owner is not None and not isinstance(owner, (type, types.ModuleType)):
            if self._world.has(function):  # a bound method that was there before the call
                self._world.enter(owner, f"the object of {self._world.name(function)}")
            self._method(owner, function, callee.args)
            return
        if is_a(owner, type):
            _check_pure(owner)
        _check_pure(function)
        if not is_library(owner if is_a(owner, type) else function):
            raise Unreplayable(f"it calls {function.__name__}, which is not in Python", "", 0)
        if function in _ITERATING:
            self._iterates(callee.args)
        elif function not in _TYPE_ONLY:
            _judged.add(function)
            self._reads_all(callee.args, function.__name__)

    def _object(self, value: Any) -> None:
        """An object of the program's class is called."""
        self._methods(type(value), "__call__")
        if not is_a(self._world.of_classes(type(value), "__call__"), FunctionType):
            name = self._world.name(value)
            raise Unreplayable(f"it calls {name}, whose reads tzero does not see", "", 0)

    def _method(self, owner: Any, function: Any, args: Sequence[Any]) -> None:
        """A method in C of some object."""
        name = function.__name__
        if isinstance(owner, torch.Tensor):
            self._reads_all(args, name)
            return
        if isinstance(owner, _LOCKS):
            return
        if isinstance(owner, ContextVar):
            self.contexts.called(owner, name, args)
            return
        if type(owner) in CONTAINERS and name == "get" and args:
            self._world.item(owner, args[0])
            return
        if _is_dict_get(function, owner) and self._world.has(owner) and is_plain(args[0]):
            self._world.dict_item(owner, args[0])
            return
        if not self.is_new(owner) and not is_plain(owner):
            if type(owner) not in CONTAINERS or name not in _READING:
                if isinstance(owner, STEADY):
                    self._reads_all(args, name)
                    return
                of = self._world.name(owner)
                raise Unreplayable(f"it calls {of}.{name}, which may change it", "", 0)
            is_shown = name in _VIEWS and holds_modules(owner)  # what they are is not read
            self._world.contents(owner, deep=not is_shown)
        _check_pure(function)
        stores = name in _STORING and self.is_new(owner)
        if stores and (is_a(owner, CONTAINERS) or name == "__setattr__"):
            args = args[: _STORING[name]]
        if name == "add" and type(owner) is set:
            args = [each for each in args if not is_told_apart(self._world, each)]
        self._reads_all(args, name)

    def _library(self, function: FunctionType, callee: Callee) -> None:
        _check_pure(function)
        if "_torchdynamo_orig_callable" in vars(function) and not getattr(
            function, "_torchdynamo_disable", False
        ):
            raise Unreplayable(f"{function.__name__} is compiled by torch.compile", "", 0)
        known = self._world.has(function)  # else it was made in this call, and so were its cells
        for cell in (known and function.__closure__) or ():  # a wrapper calls the program's code
            content = cell.cell_contents if cell != types.CellType() else None
            if callable(content) and not self._world.has(content):
                self._world.cell(f"what {function.__name__} wraps", cell)
                guard_autocast(self._world, content)
                if _is_kernel_of_tzero(content):
                    self._kernel_of_tzero(content)
                elif isinstance(content, FunctionType) and is_library(content):
                    self._library(content, Callee(content, []))
        wrapped = vars(function).get("__wrapped__")
        if isinstance(wrapped, FunctionType):
            self._world.enter(wrapped, function.__name__)
        self._reads_all(callee.args, function.__name__, state=True)

    def _reads_all(self, args: Sequence[Any], name: str, state: bool = False) -> None:
        """A function reads its arguments in depth, where that cannot be followed; `state`: also the
        attributes of objects in them."""
        for value in args:
            if type(value) in _HOLD_NOTHING:
                continue
            if is_a(value, types.BuiltinFunctionType):  # it may be called
                _check_pure(value)
            elif is_a(value, CONTAINERS) or not self._world.has(value):
                self._world.contents(value, deep=True, state=state)
            elif self._world.has(value) and has_state(value):
                of = self._world.name(value)
                raise Unreplayable(
                    f"it passes {of} to {name}, whose reads tzero does not see", "", 0
                )

    def _iterates(self, args: Sequence[Any]) -> None:
        for value in args:
            if type(value) in (*CONTAINERS, *MODULES):  # the modules' own methods do no more
                self._world.contents(value)
            elif is_a(value, BY_METHODS):
                follow_operators(self._world, value, ("__iter__", "__len__", "__getitem__"))
            else:
                self._reads_all([value], "a builtin")

    def _kernel_of_tzero(self, kernel: Any) -> None:
        function = kernel.host.function
        if isinstance(function, MethodType):  # the kernel of one object, of a method of its class
            if self._world.has(kernel):
                self._world.enter(function.__self__, f"the object of {kernel.name}")
            function = function.__func__
        if not isinstance(function, FunctionType):
            raise Unreplayable(f"{kernel.name} is not a plain Python function", "", 0)
        self._world.enter(function, kernel.name)
        self.codes.update([function.__code__])

    def _module(self, module: torch.nn.Module) -> None:
        """A call of a module runs its hooks and its `forward`."""
        for hook in self._hooks.on(module):
            self.opened(hook)
            self.call(Callee.of(hook, [module]))
        for name in ("__call__", "_wrapped_call_impl"):
            self._world.of_classes(type(module), name)
        for name in ("_call_impl", "_compiled_call_impl"):
            self._world.attribute(module, name)
        forward = self._world.attribute(module, "forward")
        self._opened_wrapper(forward)
        if _is_kernel_of_tzero(forward):
            self._kernel_of_tzero(forward)
        if is_a(forward, FunctionType) and is_library(forward):
            self._world.follow(forward, f"{self._world.name(module)}.forward")


def _check_pure(function: Any) -> None:
    name = impure(function)
    if name:
        raise Unreplayable(f"it uses {name}, which has side effects or is nondeterministic", "", 0)


def _check_device(device: Any) -> None:
    """``torch.cuda.device``: nothing if that is the current one, which each launch checks."""
    index = device if type(device) is int else getattr(device, "index", None)
    if index not in (None, -1, torch.cuda.current_device()):
        raise Unreplayable(f"it launches on another device than the current one: {device}", "", 0)


def _is_dict_get(function: Any, owner: Any) -> bool:
    """Whether a method is `dict.get`, also as ``super().get`` of a class that is derived from
    dict."""
    return is_a(owner, dict) and function in (dict.get, dict.get.__get__(owner))


def looks_at_result(function: Any) -> bool:
    """Whether `Judge.returned` is to be told what a call of a function gave, if it reads no
    attribute.

    >>> looks_at_result(isinstance), looks_at_result(len)
    (True, False)
    """
    if is_a(function, FunctionType):
        return is_library(function)
    return function is isinstance or function is issubclass or is_a(function, CACHED)


def _module_of(function: FunctionType) -> str:
    return str(function.__globals__.get("__name__"))


def _flat(classes: Any) -> Iterator[type]:
    """The classes that `isinstance` and `except` take: one, a union, or nested tuples."""
    if is_a(classes, (tuple, types.UnionType)):
        for each in classes if is_a(classes, tuple) else classes.__args__:
            yield from _flat(each)
    elif is_a(classes, type):
        yield classes


def _asked_again(function: Callable[[Any, type], bool], kind: type, value: Any) -> bool:
    return function(value, kind)


_IN_C = (
    *(types.BuiltinFunctionType, types.MethodWrapperType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType),
)


def _is_kernel_of_tzero(function: Any) -> bool:
    """Whether a callable is a kernel of tzero, or has the attributes of one."""
    if type(function) in _IN_C:
        return False
    if type(function) is FunctionType:
        return isinstance(vars(function).get("host"), Host)
    return isinstance(inspect.getattr_static(function, "host", None), Host)


def _is_pure_object(function: Any) -> bool:
    """Whether a callable object of a library reads only what it is given. Those of the standard
    library, such as a weak reference, hold others."""
    if type(function).__module__.partition(".")[0] in sys.stdlib_module_names:
        return is_a(function, (operator.itemgetter, types.GetSetDescriptorType))
    return True
