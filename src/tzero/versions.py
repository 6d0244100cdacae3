"""The versions of Python, torch, Triton and Helion that tzero supports, in one table.

Enters: names of packages, at the places that are about to import them. Leaves: an
`UnsupportedVersion` where one is too old, and one warning per process where one is newer than any
that was tested. It must not know what tzero uses of these packages, and it imports none of them.

pyproject.toml, the constraints, the Makefile and the README name these versions too;
`tests/unit/test_packaging.py` compares all of them with this table. The native extension compares
its version with `TZERO` when it is imported.

    >>> for each in SUPPORTED:
    ...     print(each)
    Python 3.11 to 3.14
    torch 2.10 to 2.13
    Triton 3.6 to 3.9
    Helion 1.4 to 1.5
"""

from __future__ import annotations

import platform
import re
import sys
import warnings
from dataclasses import dataclass

from tzero.errors import UnsupportedVersion

__all__ = [
    "SUPPORTED",
    "Supported",
    "how_to_get",
    "installed",
    "is_free_threaded",
    "is_newer_than_tested",
    "is_too_old",
    "order",
    "require",
    "require_same",
]

TZERO = "0.1.0"
"""tzero's own version. It is part of every key of a cache: another tzero may compile otherwise."""


@dataclass(frozen=True, slots=True)
class Supported:
    """One row: a package, the oldest version that works and the newest that was tested.

    Every release of the newest minor version counts as tested.

    >>> Supported("triton", "Triton", "3.6", "3.9").newest
    '3.9'
    """

    package: str
    title: str
    oldest: str
    newest: str

    def __str__(self) -> str:
        return f"{self.title} {self.oldest} to {self.newest}"


SUPPORTED = (
    Supported("python", "Python", "3.11", "3.14"),
    Supported("torch", "torch", "2.10", "2.13"),
    Supported("triton", "Triton", "3.6", "3.9"),
    Supported("helion", "Helion", "1.4", "1.5"),
)

_VERSION = re.compile(
    r"\s*v?(?P<release>\d+(?:\.\d+)*)(?P<pre>[-_.]?(?:dev|alpha|beta|preview|pre|rc|a|b|c)(?![a-z]))?"
)
_ROWS = {row.package: row for row in SUPPORTED}
_warned: set[str] = set()
"""The packages that a warning was given for."""


def require(*packages: str) -> None:
    """Raise `UnsupportedVersion` where a package is too old, or Python is built without the GIL;
    warn, once, where a package is newer than tested. What is not installed passes, because
    importing it says so; and so does a build whose version is no number.

    >>> require("python")
    """
    for row in map(_ROWS.__getitem__, packages):
        found = installed(row.package)
        if found is None:
            continue
        if row.package == "python" and is_free_threaded():
            raise UnsupportedVersion(
                package=row.title,
                found=f"{found}t",
                oldest=row.oldest,
                problem="is built without the GIL, which tzero's guards rely on",
                advice=f"use the ordinary build, python{'.'.join(found.split('.')[:2])}",
            )
        if is_too_old(row, found):
            raise UnsupportedVersion(
                package=row.title, found=found, oldest=row.oldest, advice=how_to_get(row)
            )
        if is_newer_than_tested(row, found) and row.package not in _warned:
            _warned.add(row.package)
            warnings.warn(
                f"{row.title} {found} is newer than {row.newest}, the newest that this tzero was "
                "tested with. If something fails, upgrade tzero-runtime, or install "
                f"{row.title} {row.newest}.",
                stacklevel=3,
            )


def require_same(extension: str) -> None:
    """Raise `UnsupportedVersion` unless the native extension is this version's. The extension calls
    it when it is imported: one that an older installation has left behind reads other objects.

    >>> require_same(TZERO)
    """
    if extension != TZERO:
        raise UnsupportedVersion(
            package="The extension tzero._native",
            found=extension,
            oldest=TZERO,
            problem=f"is not of this tzero, {TZERO}, but of another one",
            advice="run `pip install --force-reinstall --no-deps tzero-runtime`, or in a checkout "
            "`python setup.py build_ext --inplace`",
        )


def is_free_threaded() -> bool:
    """Whether this Python is built without the GIL, also if one is enabled.

    >>> is_free_threaded() in (True, False)
    True
    """
    return "t" in getattr(sys, "abiflags", "")


def is_too_old(row: Supported, found: str) -> bool:
    """Whether a version is older than any that works; false for one that is no number.

    >>> is_too_old(SUPPORTED[2], "3.5.1")
    True
    """
    return _VERSION.match(found) is not None and order(found) < order(row.oldest)


def is_newer_than_tested(row: Supported, found: str) -> bool:
    """Whether a version is newer than any that was tested; false for one that is no number.

    >>> is_newer_than_tested(SUPPORTED[2], "99.0")
    True
    """
    return _VERSION.match(found) is not None and _minor(found) > _minor(row.newest)


def order(version: str) -> tuple[tuple[int, ...], int]:
    """What to compare versions by: pre-releases come before their release, post-releases are taken
    for the release itself, and what follows a ``+`` says how it was built, not how old it is.

    >>> order("2.10.0.dev20260101") < order("2.10") == order("2.10.0+cpu") == order("2.10.post1")
    True
    >>> order("3.9.1") < order("3.10.0rc1") < order("3.10")
    True
    """
    match = _VERSION.match(version)
    if match is None:
        raise ValueError(f"{version!r} does not start with a number, so it cannot be compared.")
    release = tuple(map(int, match["release"].split(".")))
    while release[-1:] == (0,):  # 3.6.0 is 3.6
        release = release[:-1]
    return release, -1 if match["pre"] else 0


def _minor(version: str) -> tuple[int, ...]:
    return (*order(version)[0], 0, 0)[:2]


def installed(package: str) -> str | None:
    """A package's version: its module's own where it is imported, else its distribution's; None if
    it is not installed.

    >>> installed("python") == platform.python_version()
    True
    """
    if package == "python":
        return platform.python_version()
    own = getattr(sys.modules.get(package), "__version__", None)
    if own is not None:
        return str(own)
    import importlib.metadata as metadata  # it is slow to import

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def how_to_get(row: Supported) -> str:
    """How to get a version that works. Each torch wants its own Triton, so they go together.

    >>> how_to_get(SUPPORTED[0])
    'use Python 3.11 or newer'
    """
    if row.package == "python":
        return f"use Python {row.oldest} or newer"
    pair = ("torch", "triton") if row.package in ("torch", "triton") else (row.package,)
    wanted = " ".join(f"'{name}>={_ROWS[name].oldest}'" for name in pair)
    return f"run `pip install {wanted}`"
