"""Unmodified Helion kernels on the CPU: each computes what torch does, or fails as its row says."""

from __future__ import annotations

import pytest
import torch

from tests.integrations.helion.row import Row
from tests.integrations.helion.rows import LIMITS, ROWS
from tests.rows import by_row


@by_row(ROWS)
def test_a_kernel_computes_what_torch_does(row: Row) -> None:
    check(row)


@by_row(LIMITS)
def test_what_does_not_run_fails_as_its_row_says(row: Row) -> None:
    with pytest.raises(Exception) as caught:
        check(row)
    assert str(caught.value).startswith(row.error), f"{type(caught.value)}: {caught.value}"


def check(row: Row) -> None:
    """One call, and its result."""
    if not row.there:
        pytest.skip(f"needs Helion {row.since}")
    got = row.kernel(*row.fresh())
    torch.testing.assert_close(got, row.expected(), rtol=row.rtol, atol=row.atol)


def test_an_output_that_the_caller_gives_is_written() -> None:
    from tests.integrations.helion.kernels_calls import into_output

    x, out = into_output.fresh()
    assert into_output.kernel(x, out) is None
    torch.testing.assert_close(out, x + 1)


def test_every_row_has_a_name_and_a_feature_of_its_own() -> None:
    every = (*ROWS, *LIMITS)
    assert len({row.name for row in every}) == len(every)
    assert len({row.feature for row in every}) == len(every)
    assert all(row.why and row.error for row in LIMITS)
    assert not any(row.error for row in ROWS)
