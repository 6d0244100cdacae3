"""A module that host functions read, and that cases change."""

from __future__ import annotations

import torch

NUMBER = 2.0
MODE = "double"


def factor() -> float:
    return NUMBER


def shape_of(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


class Setting:
    by = 2.0
