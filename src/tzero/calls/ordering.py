"""Puts a call's arguments in the order of the parameters, with defaults filled in.

Enters: positional and keyword arguments. Leaves: a tuple with one value for each parameter, the
same for every way to write the call; or `InvalidArgument`. It must not know keys or kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from tzero.arguments.host import Host
from tzero.errors import InvalidArgument

__all__ = ["Ordering"]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Ordering:
    """Orders the arguments of one host function.

    ::

        Ordering(host)((x,), {"y": y})  # (x, y)
    """

    def __init__(self, host: Host[Any]) -> None:
        self._host = host
        self.name, self.parameters = host.name, host.parameters
        self._defaults = host.defaults
        self._arity = len(host.parameters)
        self._by_position = host.by_position
        positional = [kind in _POSITIONAL for kind in host.kinds]
        self._positional = sum(positional)
        self._has_rest = Parameter.VAR_POSITIONAL in host.kinds
        self._has_more = Parameter.VAR_KEYWORD in host.kinds
        self.names = frozenset(
            name
            for name, kind in zip(host.parameters, host.kinds, strict=True)
            if kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        )

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments in order. A plain loop, because torch.compile traces it."""
        if not kwargs and len(args) == self._arity and self._by_position:
            return args
        found, named = list(args[: self._positional]), 0
        for name in self.parameters[len(found) :]:
            if name in kwargs and name in self.names:
                found.append(kwargs[name])
                named += 1
            elif self._has_rest and name[:1] == "*" and name[:2] != "**":
                found.append(args[self._positional :])
            elif self._has_more and name[:2] == "**":
                more = {key: kwargs[key] for key in kwargs if key not in self.names}
                named += len(more)
                found.append(more)
            elif name in self._defaults:
                found.append(self._defaults[name])
            else:
                raise self._misfit(args, kwargs)
        too_many = len(args) > self._positional and not self._has_rest
        if too_many or named != len(kwargs):
            raise self._misfit(args, kwargs)
        return tuple(found)

    def spread(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of a call from its arguments in order."""
        positional = list(args[: self._positional])
        named: dict[str, Any] = {}
        rest = zip(self.parameters[self._positional :], args[self._positional :], strict=True)
        for name, value in rest:
            if name.startswith("**"):
                named |= value
            elif name.startswith("*"):
                positional += value
            else:
                named[name] = value
        return tuple(positional), named

    def _misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InvalidArgument:
        """The error for arguments that do not fit, with Python's own message."""
        message = "they do not fit"
        try:
            self._host.signature.bind(*args, **kwargs)
        except TypeError as error:
            message = str(error)
        taken = ", ".join(self.parameters) or "no arguments"
        named = ", ".join(map(repr, sorted(kwargs))) or "none"
        return InvalidArgument(
            kernel=self._host.name,
            problem=f"{message}; given were {len(args)} by position, {named} by name",
            advice=f"It takes {taken}.",
        )
