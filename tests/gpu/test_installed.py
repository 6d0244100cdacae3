"""`tzero.install` on a GPU: launch attributes that reach the driver through an autotuner."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests.tiers import can_launch, needs_cuda

pytestmark = pytest.mark.gpu


def _double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def launched(config: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """What four launches compute, and the metadata of the binary."""
    kernel = triton.autotune([config], key=["n"])(triton.jit(_double))
    x, out = torch.arange(1000.0, device="cuda"), torch.zeros(4, 1000, device="cuda")
    for row in out:
        made = kernel[(8,)](x, row, 1000, **options)
    known = made.metadata._asdict()
    names = ("num_ctas", "num_warps", "launch_cooperative_grid", "launch_pdl", "shared")
    return out.cpu(), {name: known.get(name) for name in names}


@pytest.mark.parametrize(
    ("clusters", "options"),
    [
        pytest.param(2, {}, id="cluster"),
        pytest.param(1, {"launch_cooperative_grid": True}, id="cooperative"),
        pytest.param(1, {"launch_pdl": True}, id="dependent"),
    ],
)
def test_launch_attributes_through_an_autotuner(clusters: int, options: dict[str, Any]) -> None:
    can_launch(2)
    needs_cuda()
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters and dependent launches need compute capability 9.0")
    config = triton.Config({"BLOCK": 128}, num_ctas=clusters)
    plain, facts = launched(config, options)
    tzero.install()
    try:
        mine, found = launched(config, options)
    finally:
        tzero.uninstall()
    assert torch.equal(plain, mine)
    assert found == facts
    assert torch.equal(mine, torch.arange(2000.0)[::2].expand(4, -1))
