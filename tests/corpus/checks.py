"""The tests that every project's cases get.

Enters: the cases of a project. Leaves: parameters for a test of each case, and its two checks. A
case that is not part of `make test` is a soak test.
"""

from __future__ import annotations

import functools

import pytest

from tests.corpus.case import Case
from tests.corpus.cases import CASES, missing
from tests.corpus.judge import Verdict, judge
from tests.corpus.record import Entry, read, versions

__all__ = ["Raised", "check_right", "check_status", "of"]


class Raised(Exception):
    """A call raises with tzero and not plainly."""


@functools.cache
def recorded(name: str) -> Entry | None:
    return read().entries.get(name)


@functools.cache
def verdict(name: str) -> Verdict:
    """The verdict of a case, which both tests use."""
    return judge(CASES[name])


def of(project: str, *, known: bool) -> pytest.MarkDecorator:
    """Run a test for each case of a project. With `known`, a case that is recorded as raising is
    expected to."""
    parameters = []
    for case in CASES.values():
        if case.project == project:
            marks = [] if case.in_ci else [pytest.mark.soak]
            entry = recorded(case.id)
            if known and entry is not None and entry.status == "raises":
                marks.append(pytest.mark.xfail(raises=Raised, strict=True, reason=entry.reason))
            parameters.append(pytest.param(case, id=case.name, marks=marks))
    return pytest.mark.parametrize("case", parameters)


def check_right(case: Case) -> None:
    """Results, arguments and aliasing are those of plain calls; nothing raises with tzero alone."""
    if missing(case):
        pytest.skip(missing(case))
    found = verdict(case.id)
    if found.status == "skipped":
        pytest.skip(f"it cannot run on the CPU: {found.reason}")
    if found.status == "raises":
        raise Raised(found.reason)


def check_status(case: Case) -> None:
    """Calls are made as they were when `status.json` was written."""
    if missing(case):
        pytest.skip(missing(case))
    entry, here = recorded(case.id), versions()
    assert entry is not None, f"run `python -m tests.corpus --write {case.id}`"
    made = read().versions
    if here != made:
        pytest.skip(f"status.json was made with {made}, and here is {here}")
    found = verdict(case.id)
    assert (found.status, found.reason) == (entry.status, entry.reason), (
        f"{case.id} has changed; `python -m tests.corpus --write {case.id}` records it"
    )
