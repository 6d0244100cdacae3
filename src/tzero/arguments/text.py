"""Keys as text: the same in every process; and the first difference of two keys.

Enters: parts of keys. Leaves: text. It must not know kernels, nor how parts are made, except the
order of a tensor's facts.

    >>> text((torch.float16, torch.Size([2]), (1,)))
    '(torch.float16, (2,), (1,))'
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from types import CodeType, ModuleType
from typing import Any

import torch

from tzero.arguments.constants import Identity
from tzero.arguments.tensor_facts import FACTS

__all__ = ["difference", "first_difference", "holds_tensor", "resized", "shown", "text"]


def text(item: Hashable) -> str:
    """A part as text: equal parts have the same text in every process, so caches on disk use it.

    >>> text((int, "mean", frozenset({1})))
    "(int, 'mean', {1})"
    """
    if isinstance(item, type):
        return item.__name__ if item.__module__ == "builtins" else _dotted(item)
    if isinstance(item, tuple):
        inner = ", ".join(text(each) for each in item)
        return f"({inner},)" if len(item) == 1 else f"({inner})"
    if isinstance(item, frozenset):
        return f"{{{', '.join(sorted(text(each) for each in item))}}}"
    if isinstance(item, Identity):
        return _of_identity(item)
    if isinstance(item, CodeType):
        return f"<code {item.co_qualname} {_digest(item)}>"
    return shown(item)


def _of_identity(item: Identity) -> str:
    value = item.value
    if isinstance(value, type):
        return f"<class {_dotted(value)}>"
    if isinstance(value, ModuleType):
        return f"<module {value.__name__}>"
    return f"<{_dotted(item.kind)}>"


def _dotted(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _digest(code: CodeType) -> str:
    """A hash of a function's code in twelve digits; inner functions are among its constants."""
    facts = (
        code.co_code,
        code.co_exceptiontable,
        code.co_flags,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        code.co_consts,
    )
    return hashlib.sha256(text(facts).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def shown(value: object) -> str:
    """A value's `repr`; if that raises, the class and the error.

    >>> shown(0.5)
    '0.5'
    """
    try:
        return repr(value)
    except Exception as error:
        return f"<{_dotted(type(value))}, whose repr raises {type(error).__name__}>"


_TENSOR_FACTS = (
    *(fact.name for fact in FACTS if "key" in fact.readers),
    *("dims marked static", "64-bit indices"),  # with static_shapes=False
)


def first_difference(old: Sequence[object], new: Sequence[object]) -> int:
    """The index of the first part in which two keys differ; the length of the shorter if none does.

    >>> first_difference((1, 2), (1, 3))
    1
    """
    both = min(len(old), len(new))
    return next((k for k in range(both) if old[k] != new[k]), both)


def difference(old: Sequence[Any], new: Sequence[Any], names: Sequence[str]) -> str:
    """The first fact in which two keys differ, as a clause; empty if there is none.

    >>> difference((int, "sum"), (int, "mean"), ["n", "how"])
    "argument 'how' is 'mean', not 'sum'"
    """
    k = first_difference(old, new)
    if k == min(len(old), len(new)):
        same = len(old) == len(new)
        return "" if same else f"there are {len(new)} parts, not {len(old)}"
    name = f"argument {names[k]!r}" if k < len(names) else f"part {k} of the key"
    one, other = old[k], new[k]
    if _is_tensor(one) and _is_tensor(other):
        for fact, was, now in zip(_TENSOR_FACTS, one, other, strict=False):
            if was != now:
                return f"{name} has {fact} {text(now)}, not {text(was)}"
    was, now = text(one), text(other)
    return f"{name} is {now}, not {was}" if was != now else f"{name} is another {now}"


def resized(part: Any, like: Any) -> Any:
    """A key, or a part of one, with the sizes and strides of another, for tensors that have as many
    dimensions.

    >>> resized((int, (torch.int8, (2,), (1,))), (str, (torch.int8, (3,), (4,))))
    (<class 'int'>, (torch.int8, (3,), (4,)))
    """
    if not isinstance(part, tuple) or not isinstance(like, tuple) or len(part) != len(like):
        return part
    if _is_tensor(part) and _is_tensor(like):
        same = len(part[1]) == len(like[1])
        return (part[0], *like[1:3], *part[3:]) if same else part
    return tuple(resized(*pair) for pair in zip(part, like, strict=True))


def holds_tensor(item: object) -> bool:
    """Whether a part is or holds the part of a tensor.

    >>> holds_tensor((list, (torch.int8, (2,), (1,)))), holds_tensor((list, int))
    (True, False)
    """
    return _is_tensor(item) or (isinstance(item, tuple) and any(map(holds_tensor, item)))


def _is_tensor(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) >= 3 and isinstance(item[0], torch.dtype)
