"""Whether two calls did the same: results, arguments and aliasing, bit for bit.

Enters: the arguments and the result of two calls. Leaves: the first difference in words, or
nothing. It must not know who made the calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["aliases", "difference", "leaves"]

Leaf = tuple[str, Any]


def leaves(value: Any, path: str) -> Iterator[Leaf]:
    """The parts of a value that contain no others, each with its path; and the type and the length
    of what contains them."""
    if isinstance(value, tuple | list):
        yield f"{path}: type", type(value)
        yield f"{path}: length", len(value)
        for k, part in enumerate(value):
            yield from leaves(part, f"{path}[{k}]")
    elif isinstance(value, dict):
        yield f"{path}: keys", list(value)
        for key, part in value.items():
            yield from leaves(part, f"{path}[{key!r}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"{path}: type", type(value)
        for each in dataclasses.fields(value):
            yield from leaves(getattr(value, each.name), f"{path}.{each.name}")
    else:
        yield path, value


def difference(plain: Any, other: Any, path: str) -> str:
    """The first difference between two values; empty if there is none."""
    for (where, one), (there, two) in zip(leaves(plain, path), leaves(other, path), strict=False):
        if where != there:
            return f"{path} has another structure: {where} plainly, {there} with tzero"
        found = _leaf_difference(one, two)
        if found:
            return f"{where}: {found}"
    return ""


def aliases(values: Any) -> list[tuple[str, str, str]]:
    """For each tensor: the first one that is the same object, and the first one on its storage."""
    objects: dict[int, str] = {}
    storages: dict[int, str] = {}
    found = []
    for path, leaf in leaves(values, ""):
        if isinstance(leaf, torch.Tensor):
            storage = leaf.untyped_storage()._cdata
            same = objects.setdefault(id(leaf), path)
            found.append((path, same, storages.setdefault(storage, path)))
    return found


def _leaf_difference(one: Any, two: Any) -> str:
    if type(one) is not type(two):
        return f"{type(one).__name__} plainly, {type(two).__name__} with tzero"
    if not isinstance(one, torch.Tensor):
        same = one is two or one == two or (one != one and two != two)
        return "" if same else f"{one!r} plainly, {two!r} with tzero"
    for name, facts in (
        ("dtype", (one.dtype, two.dtype)),
        ("sizes", (tuple(one.shape), tuple(two.shape))),
        ("strides", (one.stride(), two.stride())),
        ("offset", (one.storage_offset(), two.storage_offset())),
        ("requires_grad", (one.requires_grad, two.requires_grad)),
    ):
        if facts[0] != facts[1]:
            return f"{name} {facts[0]} plainly, {facts[1]} with tzero"
    bits, others = _bits(one), _bits(two)
    if torch.equal(bits, others):
        return ""
    count = int((bits != others).sum())
    return f"{count} of {bits.numel()} bytes differ: {one.flatten()[:4]} and {two.flatten()[:4]}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
