"""A `Run` as one page of HTML, which needs nothing else: no network, no script, no other file.

    what to look at first ── kernels ── fallbacks ── timeline ── searches ── plans ── events

Enters: a `Run`. Leaves: a page, for wide and narrow screens, light and dark. It must not know how
the run was seen. Whatever a program has named is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files

from tzero.commands import timeline
from tzero.commands.record import AUTOTUNER, Candidate, Kernel, Plan, Run, Search, Told
from tzero.cures import Cure, cure
from tzero.events import one_line
from tzero.shown import counted

__all__ = ["page"]

MOST_EVENTS = 500
MOST_COMPILES = 200
"""The most rows of a kind; the record has all."""


def page(run: Run) -> str:
    """The page of a run.

    >>> page(Run(("app.py",), 0, 1.5, "2026-11-18", {}, "the CPU")).startswith("<!doctype html>")
    True
    """
    style = files("tzero.commands").joinpath("report.css").read_text(encoding="utf-8")
    title = _safe(" ".join(run.program))
    sections = [(name, words) for name, words in _sections(run) if words]
    links = "".join(f'<a href="#{_id(name)}">{name}</a>' for name, _ in sections)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}: tzero report</title><style>{style}</style></head><body>",
        f"<header><h1>{title}</h1>{_about(run)}</header><nav>{links}</nav>",
        *(
            f'<section id="{_id(name)}"><h2>{name}</h2>{words}</section>'
            for name, words in sections
        ),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _sections(run: Run) -> Iterator[tuple[str, str]]:
    yield "At a glance", _tiles(run) + _first(run)
    yield "Kernels", _kernels(run)
    yield "Fallbacks", _fallbacks(run)
    yield "Compiling and loading", _compiles(run)
    yield "Searches", "".join(map(_search, run.searches))
    yield "Plans and their guards", "".join(map(_plan, run.plans))
    yield "Events", _events(run)


def _safe(text: str) -> str:
    return html.escape(one_line(text))


def _id(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower())


def _code(text: str) -> str:
    """A reason or advice, whose words in backquotes are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _safe(text))


# -- the head --------------------------------------------------------------------------------------


def _about(run: Run) -> str:
    ended = '<span class="good">ended well</span>'
    if run.status:
        ended = f'<span class="bad">ended with status {run.status}</span>'
    versions = ", ".join(f"{name} {each}" for name, each in run.versions.items())
    return (
        f'<p class="weak">{_safe(run.began)}, {run.seconds:.2f} s, {ended}<br>'
        f"{_safe(run.machine)}<br>{_safe(versions)}</p>"
    )


def _tiles(run: Run) -> str:
    calls = sum(each.calls for each in run.kernels)
    native = sum(each.native for each in run.kernels)
    waited = sum(each.seconds for each in run.compiles if "worker" not in each.where)
    tiles = [
        (f"{calls:,}", "calls and launches"),
        (f"{native / calls:.1%}" if calls else "none", "made natively"),
        (f"{waited:.2f} s", f"waited for {counted(len(run.compiles), 'binary', 'binaries')}"),
        (f"{sum(each.seconds for each in run.searches):.2f} s", "searched for configs"),
        (f"{len(_reasons(run))}", "kernels with fallbacks"),
    ]
    return '<div class="tiles">{}</div>'.format(
        "".join(f'<div class="tile"><b>{number}</b>{words}</div>' for number, words in tiles)
    )


def _first(run: Run) -> str:
    """What to look at first, the costliest first."""
    found = [*_waits(run), *_long_searches(run), *_not_native(run)]
    if not found:
        return "<p>Nothing stands out.</p>" if run.kernels else "<p>No kernel was called.</p>"
    rows = sorted(found, key=lambda each: -each[0])[:8]
    return f"<ul>{''.join(f'<li>{words}</li>' for _, words in rows)}</ul>"


Costly = tuple[float, str]
"""Seconds, and words about them."""

MUCH = 0.02
"""The share of a run from which on something stands out."""


def _waits(run: Run) -> Iterator[Costly]:
    seconds: dict[str, float] = {}
    for each in run.compiles:
        if each.where == "compiled here":
            seconds[each.kernel] = seconds.get(each.kernel, 0.0) + each.seconds
    whole = sum(seconds.values())
    if whole > MUCH * run.seconds:
        longest = sorted(seconds, key=lambda kernel: -seconds[kernel])[:3]
        named = ", ".join(f"<code>{_safe(each)}</code> {seconds[each]:.2f} s" for each in longest)
        more = ", ..." if len(seconds) > len(longest) else ""
        kernels = counted(len(seconds), "kernel", "kernels")
        words = f"The program waited {whole:.2f} s for compiles of {kernels} ({named}{more})."
        later = "Later runs load them; <code>tzero.warmup</code> compiles them before."
        yield whole, f"{words} {later}"


def _long_searches(run: Run) -> Iterator[Costly]:
    for each in run.searches:
        if each.seconds > MUCH * run.seconds:
            words = f"The search for <code>{_safe(each.kernel)}</code> took {each.seconds:.2f} s. "
            if each.why == AUTOTUNER:
                words += "<code>triton.autotune(..., cache_results=True)</code> keeps its result."
            else:
                words += "Later runs find its result in the cache, other machines where it is "
                words += "shipped: <code>tzero.ship</code>."
            yield each.seconds, words


def _not_native(run: Run) -> Iterator[Costly]:
    for each in run.kernels:
        left, why = _left(each)
        if left > 10 and each.microseconds is not None:
            calls = f"{left:,} of {each.calls:,} calls were not native"
            words = f"<code>{_safe(each.name)}</code>: {calls}: {_code(why)}."
            yield left * each.microseconds / 1e6, f"{words} {_advice(cure(why))}"


def _left(kernel: Kernel) -> tuple[int, str]:
    """The most common reason why calls were not native, and how many; 0 if there is none that can
    be changed."""
    usual = ("the first launch with a binary", "recorded", "replayed in Python")
    reasons = [(count, why) for why, count in kernel.others.items() if why not in usual]
    return max(reasons, default=(0, ""))


def _advice(found: Cure | None) -> str:
    return f"{_code(found.advice[:1].upper() + found.advice[1:])}." if found is not None else ""


# -- tables ----------------------------------------------------------------------------------------


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    def cell(name: str, words: str) -> str:
        kind = ' class="number"' if name in numbers else ""
        return f'<td{kind} data-name="{name}">{words}</td>' if words else "<td></td>"

    head = "".join(
        f'<th class="number">{name}</th>' if name in numbers else f"<th>{name}</th>"
        for name in names
    )
    lines = ["".join(cell(*each) for each in zip(names, row, strict=True)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _kernels(run: Run) -> str:
    names = ("kernel", "calls", "native", "µs a call", "of the run", "the others")
    rows = []
    for each in run.kernels:
        others = "<br>".join(f"{_code(why)} ({count:,})" for why, count in each.others.items())
        share = each.share or 0.0
        bar = f'{share:.1%}<span class="bar"><i style="width:{share:.1%}"></i></span>'
        took = "" if each.microseconds is None else f"{each.microseconds:.1f}"
        part = ""
        if each.microseconds is not None and run.seconds:
            part = f"{each.calls * each.microseconds / 1e6 / run.seconds:.1%}"
        about = f'<br><span class="weak">{each.kind}, {_safe(each.place or each.module)}</span>'
        name = f"<code>{_safe(each.name)}</code>{about}"
        calls = f"{each.calls:,}"
        if each.trials:
            calls += f'<br><span class="weak">and {each.trials:,} trials of its autotuner</span>'
        rows.append((name, calls, bar, took, part, others))
    note = (
        "µs are what the caller waits for a call; time on a device is not in them. A replay counts "
        "as one call, however many launches it makes. What an autotuner launches to time its "
        "configs is a trial, and no call."
    )
    numbers = ("calls", "µs a call", "of the run")
    return f'{_table(names, rows, numbers)}<p class="weak">{note}</p>' if rows else ""


def _reasons(run: Run) -> dict[str, list[Told]]:
    """The fallbacks, by kernel."""
    found: dict[str, list[Told]] = {}
    for each in run.events:
        if each.kind == "fallback":
            found.setdefault(each.kernel, []).append(each)
    return found


def _fallbacks(run: Run) -> str:
    rows = []
    for kernel, told in _reasons(run).items():
        for each in told:
            known = cure(each.reason)
            advice = "" if known is None else f"{_code(known.why)}. {_advice(known)}"
            name = f"<code>{_safe(kernel)}</code>"
            rows.append((name, f"{each.at:.2f} s", _code(each.reason), advice))
    if not rows:
        return "<p>None: no call took a slower path for a reason that tzero tells.</p>"
    return _table(("kernel", "at", "reason", "what to change"), rows, ("at",))


def _compiles(run: Run) -> str:
    picture = timeline.svg(run)
    if not picture:
        return ""
    keys = (
        ("--warn", "compiled"),
        ("--other", "loaded from a cache, or waited for"),
        ("--ours", "searched"),
        ("--bad", "a fallback was told"),
    )
    legend = " &nbsp; ".join(
        f'<span class="key" style="background:var({color})"></span> {words}'
        for color, words in keys
    )
    rows = [
        (
            f"<code>{_safe(each.kernel)}</code>",
            f"{each.start:.2f} s",
            f"{each.seconds:.3f} s",
            each.where,
        )
        for each in sorted(run.compiles, key=lambda each: -each.seconds)[:MOST_COMPILES]
    ]
    table = _table(("kernel", "at", "took", "how"), rows, ("at", "took"))
    more = "<details><summary>Each of them, the longest first</summary>"
    return f'<div class="scroll">{picture}</div><p class="weak">{legend}</p>{more}{table}</details>'


# -- searches, plans, events -----------------------------------------------------------------------


def _search(search: Search) -> str:
    timed = sorted(
        (each for each in search.candidates if each.seconds is not None),
        key=lambda each: each.seconds or 0.0,
    )
    widest = max((max(each.seconds or 0.0, each.high or 0.0) for each in timed), default=0.0)
    rows = [_candidate(search, each, widest or 1.0) for each in timed]
    for each in search.candidates:
        if each.seconds is None:
            why = f'<span class="bad">{_safe(each.problem) or "it failed"}</span>'
            rows.append((f"<code>{_safe(each.config)}</code>", "", "", why))
    names = ("config", "µs", "interval", "beside the slowest")
    table = _table(names, rows, ("µs", "interval")) if rows else ""
    if timed and search.chosen not in {each.config for each in _fastest(timed)}:
        table += f'<p class="weak">{_kept(search, timed)}</p>'
    about = f'<p class="weak">{_safe(search.arguments)}</p>' if search.arguments else ""
    took = f" in {search.seconds:.2f} s" if search.seconds else ""
    return (
        f"<details open><summary><code>{_safe(search.kernel)}</code>: "
        f"<code>{_safe(search.chosen)}</code>{took}</summary>"
        f"<p>{_safe(search.why)}</p>{about}{table}</details>"
    )


def _candidate(search: Search, each: Candidate, widest: float) -> tuple[str, str, str, str]:
    """The row of a config that was timed: its bar, and on it the interval of its time."""
    seconds = each.seconds or 0.0
    chosen = ' <b class="good">chosen</b>' if each.config == search.chosen else ""
    ends = mark = ""
    if each.low is not None and each.high is not None:
        ends = f"{each.low * 1e6:,.1f} to {each.high * 1e6:,.1f}"
        place = f"left:{each.low / widest:.1%};width:{(each.high - each.low) / widest:.1%}"
        mark = f'<b style="{place}"></b>'
    bar = f'<span class="bar"><i style="width:{seconds / widest:.1%}"></i>{mark}</span>'
    name = f"<code>{_safe(each.config)}</code>{chosen}"
    return name, f"{seconds * 1e6:,.1f}", ends, bar


def _fastest(timed: Sequence[Candidate]) -> list[Candidate]:
    return [each for each in timed if each.seconds == timed[0].seconds]


def _kept(search: Search, timed: Sequence[Candidate]) -> str:
    """Why the chosen config is not the one with the least time."""
    if search.chosen not in {each.config for each in timed}:
        return "The chosen config was not timed in this search."
    return (
        "The chosen config is the first one. It is kept unless another is faster by more than the "
        "spread: unless the whole interval of another lies below its own."
    )


def _plan(plan: Plan) -> str:
    steps = "\n".join(map(_safe, plan.steps))
    guards = "".join(f"<li><code>{_safe(each)}</code></li>" for each in plan.guards)
    count = counted(len(plan.guards), "guard", "guards")
    return (
        f"<details><summary><code>{_safe(plan.kernel)}</code>: {len(plan.steps) - 1} steps, "
        f"{count}</summary><pre>{steps}</pre>"
        f'<p class="weak">It is replayed while all of this holds:</p><ul>{guards}</ul></details>'
    )


def _events(run: Run) -> str:
    shown = [each for each in run.events if each.kind != "compile"]
    if not shown:
        return ""
    rows = [
        (f"{each.at:.3f} s", each.kind, f"<code>{_safe(each.kernel)}</code>", _code(each.reason))
        for each in shown[:MOST_EVENTS]
    ]
    table = _table(("at", "kind", "kernel", "reason"), rows, ("at",))
    more = f", the first {MOST_EVENTS} of {len(shown)}" if len(shown) > MOST_EVENTS else ""
    words = f"{counted(len(rows), 'event', 'events')}{more}"
    return f"<details><summary>{words}</summary>{table}</details>"
