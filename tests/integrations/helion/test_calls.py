"""Every row of the suite, called through tzero: the same results, and replayed. Calls that are left
to Helion are in a list, so that it changes only on purpose."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, NoReturn

import helion.runtime
import pytest
import torch
from packaging.version import Version

from tests import tiers
from tests.integrations.helion import kernels_calls, kernels_limits
from tests.integrations.helion.calls import again, held_to, installed, is_replayed, settled, wrapped
from tests.integrations.helion.row import Row
from tests.integrations.helion.rows import LIMITS, ROWS
from tests.rows import by_row
from tzero.integrations.helion import planner
from tzero.reading.dependencies import Unreplayable

LEFT = {
    "matmul_epilogue": "a function with a tensor in its closure",
    "takes_closure": "a function with a number in its closure",
    "takes_named_tuple": "an object of a class",
    "takes_dataclass": "an object of a class",
}
"""Rows with arguments that plans do not support."""


tier = tiers.fixture(1, 2)


@by_row(ROWS)
def test_a_kernel_computes_the_same_through_tzero(row: Row, tier: int) -> None:
    if not row.there:
        pytest.skip(f"needs Helion {row.since}")
    kernel = wrapped(row.kernel, tier)
    settled(kernel, row, times=4)
    assert is_replayed(kernel, *row.fresh()) == (row.name not in LEFT), kernel.explain(*row.fresh())


@by_row(LIMITS)
def test_what_does_not_run_fails_alike_through_tzero(row: Row) -> None:
    kernel = wrapped(row.kernel)
    for _ in range(2):
        with pytest.raises(Exception) as caught:
            held_to(row, kernel(*row.fresh()))
        assert str(caught.value).startswith(row.error), f"{type(caught.value)}: {caught.value}"


def test_the_rows_compute_the_same_while_tzero_is_installed() -> None:
    with installed():
        for row in ROWS[::7]:
            for _ in range(3):
                held_to(row, row.kernel(*row.fresh()))


@pytest.mark.skipif(
    Version(version("helion")) < Version("1.5"),
    reason="Helion 1.4 asks for a GPU in other places too",
)
@pytest.mark.parametrize("row", [kernels_limits.persistent_blocked,
                                 kernels_limits.persistent_interleaved],
                         ids=lambda row: row.name)  # fmt: skip
def test_persistent_loops_run_where_helion_is_told_of_how_many_programs(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(device: torch.device, *, reserved_sms: int = 0) -> int:
        return 2

    monkeypatch.setattr(helion.runtime, "get_num_sm", two)
    kernel = wrapped(again(row.kernel))
    settled(kernel, row)
    assert is_replayed(kernel, *row.fresh())


def test_arguments_by_name_and_left_out_are_those_by_place(tier: int) -> None:
    row = kernels_calls.defaulted
    kernel = wrapped(again(row.kernel), tier)
    (x,) = row.fresh()
    for _ in range(3):
        torch.testing.assert_close(kernel(x), x * 4)
        torch.testing.assert_close(kernel(x, 4.0), x * 4)
        torch.testing.assert_close(kernel(x=x, scale=2.0), x * 2)
        torch.testing.assert_close(kernel(scale=3.0, x=x), x * 3)


def test_arguments_that_do_not_fit_get_helions_own_error(tier: int) -> None:
    kernel = wrapped(kernels_calls.defaulted.kernel, tier)
    with pytest.raises(TypeError) as plain:
        kernels_calls.defaulted.kernel()
    with pytest.raises(type(plain.value)) as caught:
        kernel()
    assert str(caught.value) == str(plain.value)


def test_an_output_is_a_new_tensor_in_each_call() -> None:
    row = kernels_calls.numbers
    kernel = wrapped(row.kernel)
    settled(kernel, row)
    args = row.fresh()
    one, other = kernel(*args), kernel(*args)
    assert one is not other and one.data_ptr() != other.data_ptr()


def test_with_a_pool_an_output_that_nobody_holds_is_used_again() -> None:
    row = kernels_calls.numbers
    kernel = wrapped(again(row.kernel), pool=True)
    settled(kernel, row)
    args = row.fresh()
    held = kernel(*args)
    addresses = {kernel(*args).data_ptr() for _ in range(8)}
    assert held.data_ptr() not in addresses and len(addresses) < 8


def test_calls_with_unsupported_arguments_keep_nothing_alive() -> None:
    row = kernels_calls.takes_closure
    kernel = wrapped(again(row.kernel))
    settled(kernel, row)
    assert "left to Helion" in kernel.explain(*row.fresh()).refusal
    assert kernel.stats().entries == 0


def test_a_kernel_of_which_no_call_can_be_replayed_is_left_to_helion_after_a_while(
    tier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_dependencies(function: Any) -> NoReturn:
        raise Unreplayable("it is one for tests", "", 0)

    row = kernels_calls.numbers
    kernel = wrapped(again(row.kernel), tier)
    with monkeypatch.context() as patch:
        patch.setattr(planner, "read_dependencies", read_dependencies)
        settled(kernel, row)
        assert "left to Helion" not in kernel.explain(*row.fresh()).refusal
        settled(kernel, row, times=40)
        assert "could be recorded" in kernel.explain(*row.fresh()).refusal
    settled(kernel, row)
    assert not is_replayed(kernel, *row.fresh())
    kernel.reset()
    settled(kernel, row)
    assert is_replayed(kernel, *row.fresh())
