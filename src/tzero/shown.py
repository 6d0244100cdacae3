"""How values print: in a notebook's cell as their whole text, elsewhere as one line.

Enters: values with a text. Leaves: what IPython, the interpreter and commands show of them. It must
not know what the values are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["counted", "drawn", "first_line", "in_cells"]


def in_cells(self: Any, printer: Any, cycle: bool) -> None:
    """Show a value as its text, as ``_repr_pretty_`` of its class: IPython and Jupyter call that
    for the last value of a cell.

    ::

        class Table:
            _repr_pretty_ = in_cells
    """
    lines = str(self).splitlines()
    for number, line in enumerate(lines):
        if number:
            printer.break_()
        printer.text(line)


def first_line(self: Any) -> str:
    """The first line of a value's text, with its class, as ``__repr__`` of values whose fields
    would fill a page.

    ::

        class Table:
            __repr__ = first_line
    """
    first = next(iter(str(self).splitlines()), "")
    return f"<{type(self).__name__} {first}>"


def counted(number: int, one: str, several: str) -> str:
    """A number of things, in words.

    >>> counted(1, "launch", "launches"), counted(2000, "launch", "launches")
    ('1 launch', '2,000 launches')
    """
    return f"{number:,} {one if number == 1 else several}"


def drawn(table: Table, width: int) -> str:
    """A table as plain text, whatever terminal or notebook it is for.

    >>> from rich.table import Table
    >>> print(drawn(Table("kernel", "launches", box=None), 80).split())
    ['kernel', 'launches']
    """
    from rich.console import Console  # here: few values are tables

    plain = {"no_color": True, "force_terminal": False, "force_jupyter": False}
    console = Console(width=width, highlight=False, **plain)  # type: ignore[arg-type]
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()
