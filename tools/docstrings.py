"""Docstrings for the site: what they say in the markup of Sphinx becomes Markdown.

Enters: the docstring of each object that the API page shows. Leaves: the same text, which Markdown
renders. It must not know any of the objects.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Markdown"]

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")
_LITERAL = re.compile(r"(?m)^(?P<words>.*\S)?::\n\n(?=    )")


class Markdown(griffe.Extension):
    """Rewrites roles (``:class:`X```), literal blocks (``::``) and quoted code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        text = _ROLE.sub(r"`\1`", obj.docstring.value)
        text = _LITERAL.sub(lambda found: f"{found['words'] or 'Example'}:\n\n", text)
        obj.docstring.value = _fenced(text.replace("``", "`"))


def _fenced(text: str) -> str:
    """Sessions at the prompt, up to the next empty line, as blocks of Python."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith(">>> ") and not inside:
            lines += ["", "```pycon"]
            inside = True
        elif not line.strip() and inside:
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
