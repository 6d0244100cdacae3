"""`tzero doctor` and `tzero explain`: what works here, and how a function is called.

Enters: arguments. Leaves: text or JSON, and an exit code. It must not do the work.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tzero.cli.printing import AsJson, console, exit_on_errors, output_on_stderr
from tzero.errors import InvalidArgument, InvalidSetting

__all__ = ["doctor", "explain"]


def doctor(as_json: AsJson = False) -> None:
    """Say whether tzero works here, and what would make it faster."""
    from tzero.commands.doctor import examine

    findings = list(examine())
    if as_json:
        print(json.dumps([asdict(each) for each in findings]))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for each in findings:
            sign, style = _SIGNS[each.state]
            table.add_row(Text(sign, style), Text(each.subject, "bold"), Text(each.found))
            if each.cure:
                table.add_row("", "", Text(f"→ {each.cure}", style))
        console().print(table)
        console().print(_diagnosis([each.state for each in findings]))
    raise typer.Exit(1 if any(each.state == "broken" for each in findings) else 0)


_SIGNS = {
    "ok": ("✓", "green"),
    "note": ("·", "dim"),
    "slow": ("!", "yellow"),
    "broken": ("✗", "red"),
}


def _diagnosis(states: list[str]) -> str:
    broken, slow = states.count("broken"), states.count("slow")
    if broken:
        return f"tzero does not work here: {broken} of {len(states)} findings must be mended."
    if slow:
        return f"tzero works, and could be faster: see {slow} of the {len(states)} findings."
    return "tzero works, at full speed."


def explain(
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="module:function, or file.py:function.")
    ],
    call: Annotated[
        str,
        typer.Option(
            "--call",
            help="The arguments of a call, as Python code: 'torch.randn(8, 64, device=device), "
            "2.0'. It sees the names of the file or module, torch, and device, where kernels run.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Call a function that launches kernels, and explain how tzero makes its calls.

    The file is run, or the module imported, except for what is below `if __name__ == "__main__"`.
    Then the function is called three times, with arguments that are computed anew each time: what
    it does besides launching kernels happens three times too.
    """
    from tzero.calls import program
    from tzero.commands.explaining import explain as explained

    with exit_on_errors(), output_on_stderr() if as_json else nullcontext():
        try:
            found = explained(place, call)
        except (InvalidArgument, InvalidSetting):
            raise
        except Exception as error:  # the module's or the function's own
            program.show_failure(error)
            raise typer.Exit(1) from error
    if as_json:
        replay = found.replay
        how, why = ("", found.refusal) if replay is None else (replay.how, replay.why)
        facts = {"kernel": found.kernel, "hit": found.hit, "tier": found.tier, "replayed": how}
        facts |= {"why": why, "change": found.change, "stages": dict(found.stages)}
        print(json.dumps(facts))
    else:
        print(found)
