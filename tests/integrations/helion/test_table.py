"""docs/helion.md says what the rows prove, and no more."""

from __future__ import annotations

from tests.integrations.helion.table import PAGE, page


def test_the_page_is_what_the_rows_say() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run `python -m tests.integrations.helion.table`"
