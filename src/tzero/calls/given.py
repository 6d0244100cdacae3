"""The arguments of `Kernel`'s methods: given as in a call, or in the deprecated way, as one tuple.

    bind(x, y=y) ──► as they are
    bind((x, y)) ──► only as a list of arguments does it fit: (x, y), with a DeprecationWarning
                     └ it fits as one argument too: that it is, with a FutureWarning

Enters: what a method was given. Leaves: positional and keyword arguments of a call. It must not
know what is done with them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tzero.arguments.host import outside
from tzero.calls.ordering import Ordering
from tzero.errors import InvalidArgument

__all__ = ["AS_SET", "as_in_call", "given_options"]

_NO_NAMES: Mapping[str, Any] = MappingProxyType({})


class _AsSet:
    def __repr__(self) -> str:
        return "as set"


AS_SET: Any = _AsSet()
"""The default of an option: what the settings or the kernel's options say. Another value than None,
which may be meant for a parameter of the host function that has the option's name."""


def given_options(**options: Any) -> dict[str, Any]:
    """The options that a method was given.

    >>> given_options(effort="full", budget=AS_SET)
    {'effort': 'full'}
    """
    return {name: value for name, value in options.items() if value is not AS_SET}


def as_in_call(
    ordered: Ordering, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of the call that a method is asked about.

    ::

        as_in_call(add.ordered, "bind", (x, y), {})    # (x, y), {}
        as_in_call(add.ordered, "bind", ((x, y),), {}) # the same, with a DeprecationWarning
    """
    if not args or type(args[0]) not in (tuple, list):
        return args, kwargs
    listed = _listed(args, kwargs)
    if listed is None or not _fits(ordered, *listed):
        return args, kwargs
    what, kind, first = f"{ordered.name}.{method}", type(args[0]).__name__, ordered.parameters[0]
    if not _fits(ordered, args, kwargs):
        words = f"{what} was given its arguments in a {kind}, which is deprecated. "
        words += f"Pass them as in a call: {what}({first}, ...), or {what}(*args)."
        _warn(words, DeprecationWarning)
        return listed
    words = f"{what} was given one {kind}, which is the argument {first!r}, as it is in a call. "
    words += "In earlier versions it held all arguments: if that is meant, write "
    words += f"{what}(*args). If not, {what}({first}=...) does not warn."
    _warn(words, FutureWarning)
    return args, kwargs


def _listed(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]] | None:
    """The arguments in the deprecated form ``method(args)`` or ``method(args, kwargs)``."""
    if kwargs or len(args) > 2:
        return None
    if len(args) == 1:
        return tuple(args[0]), _NO_NAMES
    return (tuple(args[0]), args[1]) if isinstance(args[1], Mapping) else None


def _fits(ordered: Ordering, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        ordered(args, kwargs)
    except InvalidArgument:
        return False
    return True


def _warn(message: str, category: type[Warning]) -> None:
    warnings.warn(message, category, stacklevel=outside()[1] + 1)
