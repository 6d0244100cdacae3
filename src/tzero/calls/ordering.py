"""Puts a call's arguments in the order of the parameters, with defaults filled in.

Enters: positional and keyword arguments. Leaves: a tuple with one value for each parameter, the
same for every way to write the call; or `InvalidArgument`. It must not know keys or kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tzero.arguments.host import Host
from tzero.errors import InvalidArgument

__all__ = ["Ordering"]


class Ordering:
    """Orders the arguments of one host function.

    ::

        Ordering(host)((x,), {"y": y})  # (x, y)
    """

    def __init__(self, host: Host[Any]) -> None:
        self._host = host
        self._parameters, self._defaults = host.parameters, host.defaults
        self._arity = len(host.parameters)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments in order. A plain loop, because torch.compile traces it."""
        if not kwargs and len(args) == self._arity:
            return args
        found, named = list(args), 0
        for name in self._parameters[len(args) :]:
            if name in kwargs:
                found.append(kwargs[name])
                named += 1
            elif name in self._defaults:
                found.append(self._defaults[name])
            else:
                raise self._misfit(args, kwargs)
        if len(found) != self._arity or named != len(kwargs):
            raise self._misfit(args, kwargs)
        return tuple(found)

    def listed(self, args: Any) -> tuple[Any, ...]:
        """Arguments given as one tuple or list, in order."""
        if not isinstance(args, (tuple, list)):
            raise InvalidArgument(
                kernel=self._host.name,
                problem=f"its arguments are given as one {type(args).__name__}",
                advice="Pass a tuple or list of them.",
            )
        return self(tuple(args), {})

    def _misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InvalidArgument:
        """The error for arguments that do not fit, with Python's own message."""
        message = "they do not fit"
        try:
            self._host.signature.bind(*args, **kwargs)
        except TypeError as error:
            message = str(error)
        taken = ", ".join(self._parameters) or "no arguments"
        return InvalidArgument(
            kernel=self._host.name,
            problem=f"{message}: {len(args)} positional and {sorted(kwargs)} by name",
            advice=f"It takes {taken}.",
        )
