"""Copies and pickles kernels like functions: by reference, under their name.

Enters: a kernel. Leaves: itself, or the name that unpickling looks up; or `InvalidArgument` if that
name refers to something else. The step of an object is copied with the object, as its method is. It
must not know calls.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, NoReturn, Self

from tzero.errors import InvalidArgument
from tzero.plans.planner import AS_OPERATOR

__all__ = ["ByName"]


class ByName:
    """The methods of a kernel for `copy`, `pickle` and `torch.jit.script`.

    ::

        copy.deepcopy(add) is add
    """

    name: str
    function: Callable[..., Any]
    remade: Callable[[Any], Any] | None

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        method = self.function
        if self.remade is None or not isinstance(method, MethodType):
            return self
        return self.remade(MethodType(method.__func__, copy.deepcopy(method.__self__, memo)))

    def __reduce__(self) -> str:
        path: str = getattr(self, "__qualname__", self.name)
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not self:
            raise InvalidArgument(
                kernel=self.name,
                problem="it cannot be pickled, because kernels are pickled by name, and "
                f"{self.__module__}.{path} is not this kernel",
                advice="Define it in a module, outside functions, under its own name.",
            )
        return path

    def __prepare_scriptable__(self) -> NoReturn:
        """torch.jit.script calls this first; without it, it would compile this class."""
        raise InvalidArgument(
            kernel=self.name,
            problem="torch.jit.script cannot represent launches",
            advice=AS_OPERATOR,
        )
