"""Adds a value that a host function passes to `specialize` to the kernel's key.

Enters: the value, and the call in which it was given. Leaves: a key that contains it from now on,
or `InvalidArgument` if the arguments do not determine it. It must not know how calls are made.
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
    """Notes values for one kernel; there are two ways, depending on what was called.

    ::

        Noting(table, tally).in_call(base, bound, args, number, value)
    """

    def __init__(self, table: BoundTable[Any], tally: Tally) -> None:
        self._table, self._tally = table, tally

    def in_call(
        self, base: Raw, bound: BoundKernel[Any], args: tuple[Any, ...], number: int, value: Value
    ) -> None:
        """Note a value in a call of the kernel, which found this bound kernel."""
        if not base:  # the call has no key that the value could join
            return
        extra = unsettled(value, bound, args)
        if extra is None:
            return
        if extra in bound.facts:
            self._hold(bound, number, value, in_key=True)
        else:  # this call started before the value was part of the key
            self._table.join(base, extra, number)

    def alone(
        self, base: Raw, bound: BoundKernel[Any], args: tuple[Any, ...], number: int, value: Value
    ) -> None:
        """Note a value in a call of the bound kernel itself, which stays usable without it."""
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
