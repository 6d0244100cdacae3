"""What a kernel does with a value that its host function gives to `specialize`.

Enters: the value, and the call in which it was given. Leaves: a key that has it from now on, or
`InvalidArgument` where the arguments do not decide it. It must not know how calls are made.
"""

from __future__ import annotations

from typing import Any

from tzero.calls.bound import BoundKernel
from tzero.calls.bound_table import BoundTable, Raw
from tzero.calls.specialize import Value, hold, unsettled
from tzero.calls.tally import Tally
from tzero.errors import InvalidArgument

__all__ = ["Noting"]


class Noting:
    """The two ways in which a value is noted, depending on what was called.

    ::

        Noting(table, tally).in_call(base, bound, args, number, value)
    """

    def __init__(self, table: BoundTable[Any], tally: Tally) -> None:
        self._table, self._tally = table, tally

    def in_call(
        self, base: Raw, bound: BoundKernel[Any], args: tuple[Any, ...], number: int, value: Value
    ) -> None:
        """In a call of the kernel, which found this bound kernel."""
        extra = unsettled(value, bound, args)
        if extra is None:
            return
        if extra in bound.facts:
            self._hold(bound, number, value, in_key=True)
        else:  # this call began before the value was part of the key, and is the last that does
            self._table.join(base, extra, number)

    def alone(
        self, base: Raw, bound: BoundKernel[Any], args: tuple[Any, ...], number: int, value: Value
    ) -> None:
        """In a call of the bound kernel itself, which goes on though its key lacks the value."""
        extra = unsettled(value, bound, args)
        if extra is None:
            return
        if extra not in bound.facts:
            self._table.join(base, extra, number)
        self._hold(bound, number, value, in_key=extra in bound.facts)

    def _hold(self, bound: BoundKernel[Any], number: int, value: Value, in_key: bool) -> None:
        try:
            hold(bound, number, value, in_key=in_key)
        except InvalidArgument as error:
            self._tally.refused(error)
            raise
