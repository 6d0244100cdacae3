"""Native code replays a plan over sizes for sizes that were never seen."""
# ruff: noqa: F401, F811 (fixtures are imported, and go by their names as parameters)

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.native.native_plans import add_kernel, native, scale_kernel
from tests.native.sized_plans import adding, pair


def test_a_size_never_seen_is_replayed(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100)
    for n in (101, 7, 300, 1000, 5001):
        x, y = pair(n)
        torch.testing.assert_close(kernel(x, y), x + y)
    assert (kernel.misses, kernel.twins) == (0, 0)
    assert kernel._count() == 1
