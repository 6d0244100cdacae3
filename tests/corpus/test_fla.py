"""Cases of the corpus: fla."""

from __future__ import annotations

from tests.corpus import checks
from tests.corpus.case import Case


@checks.of("fla", known=True)
def test_a_call_does_what_the_plain_call_does(case: Case) -> None:
    checks.check_right(case)


@checks.of("fla", known=False)
def test_calls_are_made_as_recorded(case: Case) -> None:
    checks.check_status(case)
