"""How commands show their help: options that are switches without a type, usage lines without
braces, and `help` for `--help`.

Enters: typer's commands. Leaves: the same with another help. It must not know any command.
"""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group"]


class _Plain:
    """What a command and a group show differently from typer's."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters; a switch takes no value, so that no type stands beside it."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return found

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line: ``TARGET``, not ``{TARGET}``."""
        found: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1\2", each) for each in found]


class Command(_Plain, TyperCommand):
    """One command."""


class Group(_Plain, TyperGroup):
    """Several commands. ``help``, alone or before a command, is ``--help``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line of the group."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)
