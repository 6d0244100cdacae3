"""Pages of the docs with tables that a command writes, between two markers.

Enters: a page, the module whose command writes it, and the tables. Leaves: the page with these. It
must not know any table. It imports nothing: commands set the environment before Triton is imported.
"""

from __future__ import annotations

__all__ = ["with_tables"]

END = "<!-- end -->"


def with_tables(page: str, module: str, tables: str) -> str:
    """The page with the tables of a module between its markers, which it must have.

    >>> with_tables("<!-- begin: python -m bench.text -->old<!-- end -->.", "bench.text", "| 1 |")
    '<!-- begin: python -m bench.text -->\\n\\n| 1 |\\n\\n<!-- end -->.'
    """
    begin = f"<!-- begin: python -m {module} -->"
    start = page.index(begin) + len(begin)
    return f"{page[:start]}\n\n{tables}\n\n{page[page.index(END, start) :]}"
