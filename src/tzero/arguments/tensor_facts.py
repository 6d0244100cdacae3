"""Every fact that tzero compares of a tensor, and who compares it: one row a fact.

    key        selects the bound kernel     key.py, extract.py (with static_shapes)
    situation  selects the plan             situation.py
    words      the same in native code      native/tensors.cpp; adapters/torch_layout.py checks them
    held       tensors in globals: checked  plans/wrapper.py; native/plan.cpp compares words
               before each replay
    launch     selects the binary           launch_facts.py; native/arguments.cpp

A guard on a new fact of tensors is a new row: the readers for key, situation and held are written
from the table. Add a fact of the situation to the native words too, and a pair of tensors that
differ in it to tests/arguments/test_tensor_facts.py, which checks each column against the code.

Compared besides: the device's type and compute capability, as one part of the key; which arguments
are the same tensor, by situation and words; with static_shapes=False buckets of sizes and strides,
dims marked static and whether indices need 64 bits, by the key. Layouts other than strided are
refused by the key.

Enters: the name of a reader. Leaves: an expression, or a function of a tensor. It must not know
what is done with the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

import torch

from tzero.adapters.torch_internals import is_zero_tensor

__all__ = ["FACTS", "TENSORS", "Fact", "expression", "reader"]

TENSORS = (torch.Tensor, torch.nn.Parameter)
"""The exact types of tensors whose facts can be read directly: subclasses may override anything."""

Reader = Literal["key", "situation", "words", "held", "launch"]


class Fact(NamedTuple):
    """A fact of a tensor ``{x}``, and who compares it."""

    name: str
    expression: str
    readers: frozenset[str]


_EVERY = frozenset({"key", "situation", "words", "held", "launch"})
_GEOMETRY = _EVERY - {"launch"}
_PLANS = frozenset({"situation", "words", "held"})

FACTS = (
    Fact("type", "type({x})", _PLANS - {"held"}),
    Fact("dtype", "{x}.dtype", _EVERY),
    Fact("device", "{x}.device", _PLANS),
    Fact("sizes", "{x}.size()", _GEOMETRY),
    Fact("strides", "{x}.stride()", _GEOMETRY),
    Fact("requires_grad", "{x}.requires_grad", _PLANS),
    Fact("conjugate bit", "{x}.is_conj()", _PLANS),
    Fact("negative bit", "{x}.is_neg()", _PLANS),
    Fact("known to be zero", "is_zero_tensor({x})", _PLANS - {"held"}),
    Fact("address modulo 16", "{x}.data_ptr() & 15", _PLANS - {"held"}),
    Fact("address divisible by 16", "{x}.data_ptr() & 15 == 0", frozenset({"launch"})),
)


def expression(by: Reader, x: str, without: Collection[str] = ()) -> str:
    """The facts that a reader compares, as the items of a tuple.

    >>> expression("key", "a0")
    'a0.dtype, a0.size(), a0.stride()'
    """
    chosen = [fact for fact in FACTS if by in fact.readers and fact.name not in without]
    return ", ".join(fact.expression.format(x=x) for fact in chosen)


def reader(by: Reader, without: Collection[str] = ()) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads those facts of a tensor of a type in `TENSORS`.

    >>> reader("key")(torch.zeros(2, 3))
    (torch.float32, torch.Size([2, 3]), (3, 1))
    """
    source = f"lambda x: ({expression(by, 'x', without)},)"
    namespace = {"is_zero_tensor": is_zero_tensor}
    found: Callable[[Any], tuple[Any, ...]] = eval(
        compile(source, f"<tensor facts of the {by}>", "eval"), namespace
    )
    return found
