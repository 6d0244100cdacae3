"""Which arguments of a launch its grid function reads.

Enters: the arguments as Triton gives them to a grid function. Leaves: the same, as a dict that
notes the names that are read. It must not know launches or plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Meta"]


class Meta(dict[str, Any]):
    """The arguments of a launch. `read` has the names that were read; whatever may read more than
    single items reads all of them.

    >>> meta = Meta({"n": 3, "BLOCK": 64})
    >>> meta["BLOCK"], sorted(meta.read)
    (64, ['BLOCK'])
    >>> list(meta.items()), sorted(meta.read)
    ([('n', 3), ('BLOCK', 64)], ['BLOCK', 'n'])
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """An item."""
        self.read.add(name)
        return super().get(name, default)


def _reads_all(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def read(self: Meta, *args: Any, **kwargs: Any) -> Any:
        self.read.update(dict.keys(self))
        return method(self, *args, **kwargs)

    return read


for _name in (
    *("__iter__", "__reversed__", "__eq__", "__ne__", "__or__", "__ror__", "__ior__", "__repr__"),
    *("keys", "values", "items", "copy", "pop", "popitem", "setdefault", "update", "clear"),
    *("__setitem__", "__delitem__", "__reduce_ex__"),
):
    setattr(Meta, _name, _reads_all(_name))
