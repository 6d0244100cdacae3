"""Types of arguments that contain no other values, and how each stage takes them: a row a type.

    key       what the key keeps: the type, the value, or what key.py writes for it ("other")
    forward   whether a number that is only forwarded to launches may differ between calls of a plan
    launch    whether a launch takes it without asking Triton for a description

Enters: nothing. Leaves: the table, and selections of it. It must not know how values are compared.

A type that is in none of these rows counts as a constant where it may be one, else it is refused.
"""

from __future__ import annotations

from types import NoneType
from typing import Literal, NamedTuple

import torch

__all__ = ["BY_TYPE", "BY_VALUE", "LAUNCHED", "NUMBERS", "SCALARS", "Scalar"]


class Scalar(NamedTuple):
    """How the stages take values of one type."""

    key: Literal["type", "value", "other"]
    forward: bool = False
    launch: bool = False


SCALARS: dict[type, Scalar] = {
    bool: Scalar("type", forward=True, launch=True),
    int: Scalar("type", forward=True, launch=True),
    float: Scalar("type", forward=True, launch=True),
    complex: Scalar("type"),
    NoneType: Scalar("value", launch=True),
    str: Scalar("value"),
    bytes: Scalar("value"),
    torch.dtype: Scalar("value"),
    torch.layout: Scalar("value"),
    torch.memory_format: Scalar("value"),
    torch.device: Scalar("other"),  # without an index it is the current device
    torch.Size: Scalar("other"),  # as the tuple of its items
}

BY_TYPE = tuple(kind for kind, row in SCALARS.items() if row.key == "type")
BY_VALUE = tuple(kind for kind, row in SCALARS.items() if row.key == "value")
NUMBERS = tuple(kind for kind, row in SCALARS.items() if row.forward)
LAUNCHED = tuple(kind for kind, row in SCALARS.items() if row.launch)
