"""`OfInstance`: what an object keeps of a kernel that is one of its methods.

Enters: a kernel with ``graph=True``, and an object of the class that has it as a method. Leaves: a
kernel for the method of that object alone. It must not know what the kernel does.

The step of a model reads the model: its plans are guarded by what they have read of this object.
So each object has a kernel of its own, with the object as a part of the function and not an
argument. It is kept in the object, and goes with it. A copy of the object has none: it gets one at
its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

__all__ = ["OfInstance"]


class OfInstance:
    """The kernel of one object, if it has one; empty in a copy.

    >>> import copy
    >>> copy.deepcopy(OfInstance(3)).kernel is None
    True
    """

    __slots__ = ("kernel",)

    def __init__(self, kernel: Any = None) -> None:
        self.kernel = kernel

    @staticmethod
    def of(
        instance: Any, kernel: Any, make: Callable[[Any], Any], function: FunctionType
    ) -> Any | None:
        """The kernel of an object; made by `make`, of its method, if there is none. None for an
        object without attributes of its own."""
        own = getattr(instance, "__dict__", None)
        if type(own) is not dict:
            return None
        key = f"_tzero_{function.__name__}_{id(kernel):x}"
        found = own.get(key)
        if found is None or found.kernel is None or found.kernel.function.__self__ is not instance:
            found = own[key] = OfInstance(make(MethodType(function, instance)))
        return found.kernel

    def __copy__(self) -> OfInstance:
        return OfInstance()

    def __deepcopy__(self, memo: dict[int, Any]) -> OfInstance:
        return OfInstance()

    def __reduce__(self) -> tuple[Any, ...]:
        return OfInstance, ()
