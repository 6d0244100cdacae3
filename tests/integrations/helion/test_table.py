"""docs/helion.md lists exactly the rows."""

from __future__ import annotations

from tests.integrations.helion.table import PAGE, page


def test_the_page_is_what_the_rows_say() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run `python -m tests.integrations.helion.table`"
