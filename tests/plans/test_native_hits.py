"""A hit at the native tier runs no Python code, whatever the host function reads on its path."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.plans import cases_followed
from tests.plans.case import Case
from tests.plans.tiers import available, of_tier
from tests.rows import by_row

pytestmark = pytest.mark.usefixtures("replaying")


def code_run(kernel: Any, args: tuple[Any, ...]) -> list[str]:
    """The names of the Python functions that a call runs."""
    ran: list[CodeType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            ran.append(frame.f_code)

    outer = sys.getprofile()
    sys.setprofile(note)
    try:
        kernel(*args)
    finally:
        sys.setprofile(outer)
    return [code.co_qualname for code in ran]


@by_row(cases_followed.CASES, "case")
def test_a_hit_runs_no_python_code(case: Case) -> None:
    available(2)
    kernel = of_tier(2, case.host)
    for _ in range(3):
        kernel(*case.build())
    assert code_run(kernel, case.build()) == []
