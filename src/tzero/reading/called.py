"""What a call on the path means: followed, pure, or a reason not to replay.

    a function of the program       ──► followed by `path`; nothing to do here
    a library function or class     ──► `purity` must allow it, and it reads all of its arguments
    a method of a container         ──► reads its contents, or changes it
    getattr, os.getenv, logging...  ──► reads one thing, which is guarded

Enters: a callable and its arguments, before it is called, and its result. Leaves: guards in a
`World`, or `Unreplayable`. It must not know bytecode.
"""

from __future__ import annotations

import functools
import gc
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from tzero.adapters import triton_launch
from tzero.arguments.host import Host
from tzero.reading.attributes import follow
from tzero.reading.findings import Unreplayable
from tzero.reading.guards import Check, Same
from tzero.reading.kinds import CACHED, KERNELS, is_plain
from tzero.reading.probes import ConstantFunction
from tzero.reading.purity import impure, is_library
from tzero.reading.special import Callee, apply, special_read
from tzero.reading.world import CONTAINERS, STEADY, World, has_state, is_program_class

__all__ = ["Judge"]


_READING = frozenset(
    [
        *("keys", "values", "items", "index", "count", "copy", "union", "intersection"),
        *("difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint"),
        *("__contains__", "__len__", "__iter__", "__eq__", "__ne__", "__getitem__"),
    ]
)
"""Methods of containers that read all contents and change nothing."""

_TYPE_ONLY = (isinstance, issubclass, type, callable, super, id)
"""Functions that read only the type or identity of what they are given."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()))


class Judge:
    """Judges the calls of one recorded call."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._given: dict[int, Any] = {}  # arguments of the recorded call that can be changed
        self.codes: set[CodeType] = set()
        """Code that a call may run besides the functions of the world."""

    def give(self, args: Sequence[Any]) -> None:
        """Note the arguments of the recorded call: they are not new, and their key is compared."""
        for value in args:
            if not is_plain(value) and id(value) not in self._given:
                self._given[id(value)] = value
                if type(value) in CONTAINERS:
                    held = value.values() if isinstance(value, Mapping) else value
                    self.give(list(held))

    def is_new(self, value: Any) -> bool:
        """Whether an object was made during the call."""
        return not self._world.has(value) and id(value) not in self._given

    def entered(self, manager: Any) -> None:
        """A `with` block begins. A lock is as it was when the block ends; the device is the current
        one (see `_cuda_device`)."""
        if not isinstance(manager, (*_LOCKS, torch.cuda.device)):
            self._check_pure(type(manager))

    def subscripted(self, value: Any) -> None:
        """A kernel is given its grid: heuristics and hooks around it run in the launch."""
        if not isinstance(value, KERNELS) or not self._world.has(value):
            return
        for kernel in (value, *triton_launch.layers(value)):
            for name in ("run", "__getitem__", "__call__"):
                self._world.of_classes(type(kernel), name)
        for kernel in triton_launch.layers(value):
            own, name = vars(kernel), f"{self._world.name(value)}'s"
            for each in ("values", "configs", "pre_hook", "post_hook", "fn"):
                if each in own:
                    found = own[each]
                    self._world.own(f"{name} {each}", own, each)
                    self._world.contents(found)
            for function in triton_launch.functions_of(kernel):
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
                for each in (*function.args, *function.keywords.values()):
                    self._world.enter(each, f"an argument in {self._world.name(function)}")
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

    def call(self, callee: Callee) -> None:
        """A call is about to be made."""
        function = callee.function
        special = special_read(callee.function, callee.args)
        if isinstance(function, ConstantFunction):
            self._reads_all(callee.args, self._world.name(function))
        elif special is not None:
            special(self._world, callee)
            if special is apply:
                self._methods(callee.args[0], "forward", "setup_context")
        elif isinstance(function, FunctionType) and not is_library(function):
            return
        elif isinstance(function, CACHED):
            self._world.enter(function.__wrapped__, self._world.name(function))
        elif isinstance(function, type):
            self._class(function, callee)
        elif isinstance(follow(function, ["host"]), Host):
            self._kernel_of_tzero(function)
        elif isinstance(function, torch.nn.Module):
            self._module(function)
        elif isinstance(function, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._builtin(function, callee)
        elif isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            self._method(callee.args[0] if callee.args else None, function, callee.args[1:])
        elif isinstance(function, FunctionType):
            self._library(function, callee)
        elif is_program_class(type(function)):
            self._methods(type(function), "__call__")
        else:
            self._reads_all(callee.args, self._world.name(function))

    def returned(self, callee: Callee, result: Any, ran_program: bool) -> None:
        """A call has returned. What a library function returns may have been there before, unless
        it is a wrapper that ran code of the program, which was followed."""
        function = callee.function
        if isinstance(function, CACHED):
            self._cached(function, callee, result)
        elif (
            isinstance(function, FunctionType)
            and is_library(function)
            and not ran_program
            and (type(result) in CONTAINERS or is_program_class(type(result)))
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

    # -- kinds of callables --------------------------------------------------------------------

    def _check_pure(self, function: Any) -> None:
        name = impure(function)
        if name:
            raise Unreplayable(
                f"it uses {name}, which has side effects or is nondeterministic", "", 0
            )

    def _class(self, kind: type, callee: Callee) -> None:
        if is_program_class(kind):
            self._methods(kind, "__new__", "__init__", "__post_init__")
            if not is_library(type(kind)):
                self._methods(type(kind), "__call__")
            return
        if kind is torch.cuda.device:
            self._cuda_device(callee.args[0])
            return
        self._check_pure(kind)
        if kind not in _TYPE_ONLY:
            self._reads_all(callee.args, kind.__name__)

    def _cuda_device(self, device: Any) -> None:
        """``torch.cuda.device``: nothing if that is the current one, which each launch checks."""
        index = device if type(device) is int else getattr(device, "index", None)
        if index not in (None, -1, torch.cuda.current_device()):
            raise Unreplayable(
                f"it launches on another device than the current one: {device}", "", 0
            )

    def _builtin(self, function: Any, callee: Callee) -> None:
        owner = function.__self__
        if owner is not None and not isinstance(owner, (type, types.ModuleType)):
            if self._world.has(function):  # a bound method that was there before the call
                self._world.enter(owner, f"the object of {self._world.name(function)}")
            self._method(owner, function, callee.args)
            return
        if isinstance(owner, type):
            self._check_pure(owner)
        self._check_pure(function)
        if function not in _TYPE_ONLY:
            self._reads_all(callee.args, function.__name__)

    def _method(self, owner: Any, function: Any, args: Sequence[Any]) -> None:
        """A method in C of some object."""
        name = function.__name__
        if isinstance(owner, torch.Tensor):
            self._reads_all(args, name)
            return
        if isinstance(owner, _LOCKS):
            return
        if type(owner) in CONTAINERS and name == "get" and args:
            self._world.item(owner, args[0])
            return
        if not self.is_new(owner) and not is_plain(owner):
            if type(owner) not in CONTAINERS or name not in _READING:
                if isinstance(owner, STEADY):
                    self._reads_all(args, name)
                    return
                of = self._world.name(owner)
                raise Unreplayable(f"it calls {of}.{name}, which may change it", "", 0)
            self._world.contents(owner, deep=True)
        self._check_pure(function)
        self._reads_all(args, name)

    def _library(self, function: FunctionType, callee: Callee) -> None:
        self._check_pure(function)
        if "_torchdynamo_orig_callable" in vars(function) and not getattr(
            function, "_torchdynamo_disable", False
        ):
            raise Unreplayable(f"{function.__name__} is compiled by torch.compile", "", 0)
        known = self._world.has(function)  # else it was made in this call, and so were its cells
        for cell in (known and function.__closure__) or ():  # a wrapper calls the program's code
            content = cell.cell_contents if cell != types.CellType() else None
            if callable(content) and not self._world.has(content):
                self._world.cell(f"what {function.__name__} wraps", cell)
                if isinstance(content, FunctionType) and is_library(content):
                    self._library(content, Callee(content, []))
        wrapped = vars(function).get("__wrapped__")
        if isinstance(wrapped, FunctionType):
            self._world.enter(wrapped, function.__name__)
        self._reads_all(callee.args, function.__name__)

    def _reads_all(self, args: Sequence[Any], name: str) -> None:
        """A function reads its arguments in depth, where that cannot be followed."""
        for value in args:
            if type(value) in CONTAINERS:
                self._world.contents(value, deep=True)
            elif isinstance(value, types.BuiltinFunctionType):  # it may be called
                self._check_pure(value)
            elif self._world.has(value) and has_state(value):
                of = self._world.name(value)
                raise Unreplayable(
                    f"it passes {of} to {name}, whose reads tzero does not see", "", 0
                )

    def _kernel_of_tzero(self, kernel: Any) -> None:
        function = kernel.host.function
        if not isinstance(function, FunctionType):
            raise Unreplayable(f"{kernel.name} is not a plain Python function", "", 0)
        self._world.enter(function, kernel.name)
        self.codes.add(function.__code__)

    def _module(self, module: torch.nn.Module) -> None:
        """A call of a module runs its hooks and its `forward`."""
        if _is_hooked(module):
            raise Unreplayable(f"{self._world.name(module)} has hooks", "", 0)
        text = f"no hooks on {self._world.name(module)}"
        hooked: Callable[[Any], bool] = lambda now: not _is_hooked(now)  # noqa: E731
        self._world.add(Check(text, {"of": module}, "of", module, hooked))
        self._opened_wrapper(self._world.attribute(module, "forward"))

    def _cached(self, function: Any, callee: Callee, result: Any) -> None:
        """A cached function has returned: guard its cache entry. An entry that is evicted, or
        computed again, is another object."""
        text = f"what {self._world.name(function)} has cached"
        # Among what it refers to are its cache, and the results in it.
        held = [each for each in gc.get_referents(function) if type(each) is dict]
        own = [each for each in held if each is not vars(function) and each is not result]
        found = [(cache, key) for cache in own for key in cache if _is_key(key, callee)]
        if len(found) != 1:
            raise Unreplayable(f"{text} cannot be found", "", 0)
        ((cache, key),) = found
        entry = cache[key]
        self._world.add(Same(f"{text} for {str(key)[:40]}", cache, key, entry))
        if isinstance(result, torch.Tensor):
            raise Unreplayable(f"{self._world.name(function)} has cached a tensor", "", 0)
        self._world.enter(result, f"the result of {self._world.name(function)}")


def _is_key(key: Any, callee: Callee) -> bool:
    """Whether a key of a cache is that of a call. With keywords there is one more object in it, a
    mark between positions and names; a cache by type has the types at its end."""
    positional = callee.positional
    if len(callee.args) == 1 and not callee.names and type(key) is not tuple:
        return type(key) is type(callee.args[0]) and bool(key == callee.args[0])
    if not isinstance(key, (tuple, list)):
        return False
    pairs = zip(callee.names, callee.args[len(positional) :], strict=True)
    named = [each for pair in pairs for each in pair]
    if not named:
        return _are_same(key, positional)
    head, tail = key[: len(positional)], key[len(positional) + 1 :]
    return _are_same(head, positional) and _are_same(tail, named)


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(
        a is b or (type(a) is type(b) and a == b) for a, b in zip(some, others, strict=True)
    )


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = (
    *("_global_forward_hooks", "_global_forward_pre_hooks"),
    *("_global_backward_hooks", "_global_backward_pre_hooks"),
)


def _is_hooked(module: torch.nn.Module) -> bool:
    of_all = vars(torch.nn.modules.module)
    return any(vars(module).get(name) for name in _HOOKS) or any(
        of_all.get(name) for name in _GLOBAL_HOOKS
    )
