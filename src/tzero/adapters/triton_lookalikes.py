"""What Triton takes objects for that are neither tensors nor plain numbers.

Enters: the class of an argument. Leaves: whether Triton takes its objects for pointers, as it does
with whatever has ``data_ptr()``, or for floats. It must not know how they are read.
"""

from __future__ import annotations

from typing import Any, Literal

from tzero.adapters.triton_launch import Constexpr, JITCallable

__all__ = ["lookalike"]

_TAKEN_FIRST = (tuple, int, Constexpr, JITCallable)


def lookalike(kind: type[Any]) -> Literal["pointer", "number"] | None:
    """What Triton takes objects of a class for, as far as the class decides that; None where it
    takes them for something else, or asks the object. Attributes must be looked up as `object`
    does, which the caller checks.

    >>> class Buffer:
    ...     def data_ptr(self): ...
    >>> lookalike(Buffer), lookalike(int)
    ('pointer', None)
    """
    bases = kind.__mro__[:-1]
    # A tensor descriptor is one by its class, and Triton has several.
    is_descriptor = any(each.__name__.startswith("TensorDescriptor") for each in bases)
    if is_descriptor or issubclass(kind, _TAKEN_FIRST):
        return None
    if any("__class__" in vars(each) for each in bases):  # it may say that it is another
        return None
    if any("data_ptr" in vars(each) for each in bases):
        return "pointer"
    # An object with a dict of its own may have a `data_ptr` there.
    return "number" if issubclass(kind, float) and kind.__dictoffset__ == 0 else None
