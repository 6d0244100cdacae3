"""What the ``toolchain`` of a request is made of, and values as text, in one way only.

Enters: values, a compiler's path, this machine. Leaves: text that is equal where what it stands for
is equal, and differs where it differs. It must not know any backend: each of them says for itself
what has a say in its results, and writes it down with what is here.

    >>> toolchain(compiler="gcc 12.2", flags=("-O3",))
    '{"compiler":"gcc 12.2","flags":{"$tuple":["-O3"]},"tzero":1}'
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["SCHEMA", "Unwritable", "canonical", "cpu_features", "file_digest", "parse", "toolchain"]

SCHEMA = 1
"""Raised when tzero's own share in what is compiled changes: what was made before is then asked
for under other digests, and never found again."""

_CPUINFO = "/proc/cpuinfo"
_PLAIN_INT = 1 << 63  # beyond it: hexadecimal, which Python reads at any length


class Unwritable(TypeError):
    """A value that has no canonical text.

    >>> canonical({1, 2})
    Traceback (most recent call last):
    tzero.cache.digest.Unwritable: a set has no canonical text
    """


def toolchain(**facts: Any) -> str:
    """The facts of a toolchain as a request has them, together with tzero's own schema.

    >>> toolchain(triton="3.6.0")
    '{"triton":"3.6.0","tzero":1}'
    """
    return canonical({**facts, "tzero": SCHEMA})


def canonical(value: Any) -> str:
    """A value as JSON, in the only way there is to write it.

    Keys are sorted, numbers exact, and what JSON would mix up is told apart: tuples from lists,
    integers from floats, the zeros, infinities and NaN. What is none of None, bool, int, float,
    str, bytes, list, tuple and dict is refused, classes derived from these too.

    >>> canonical({"b": (1, 2.5), "a": [True, None]})
    '{"a":[true,null],"b":{"$tuple":[1,{"$float":"0x1.4000000000000p+1"}]}}'
    """
    try:
        # Not as ASCII: two surrogates would become the escapes of the character that they make up.
        return json.dumps(_written(value), ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise Unwritable("a value that is nested too deeply has no canonical text") from None


def parse(text: str) -> Any:
    """The value of a canonical text; ValueError for any other.

    >>> parse(canonical((1, b"x", -0.0)))
    (1, b'x', -0.0)
    """
    try:
        plain = json.loads(text, parse_float=_refused, parse_constant=_refused)
        value = _read(plain)
        if canonical(value) == text:
            return value
    except (RecursionError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"no canonical text: {error}") from error
    raise ValueError("no canonical text: the value that it stands for is written otherwise")


def _written(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_PLAIN_INT < value < _PLAIN_INT else {"$int": hex(value)}
    if kind is float:
        return {"$float": value.hex()}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind is list:
        return [_written(each) for each in value]
    if kind is tuple:
        return {"$tuple": [_written(each) for each in value]}
    if kind is dict:
        return _written_dict(value)
    article = "an" if kind.__name__[0] in "aeiouAEIOU" else "a"
    raise Unwritable(f"{article} {kind.__name__} has no canonical text")


def _written_dict(value: dict[Any, Any]) -> dict[str, Any]:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _written(value[key]) for key in sorted(value)}
    pairs = [(canonical(key), [_written(key), _written(each)]) for key, each in value.items()]
    return {"$dict": [pair for _, pair in sorted(pairs, key=lambda pair: pair[0])]}


def _read(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_read(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    mark = next(iter(plain), "")
    if len(plain) != 1 or not mark.startswith("$"):
        return {key: _read(each) for key, each in plain.items()}
    held = plain[mark]
    match mark:
        case "$int":
            return int(held, 16)
        case "$float":
            return float.fromhex(held)
        case "$bytes":
            return bytes.fromhex(held)
        case "$tuple":
            return tuple(_read(held))
        case "$dict":
            return {_read(key): _read(each) for key, each in held}
    raise ValueError(f"{mark!r} marks nothing")


def _refused(text: str) -> NoReturn:
    raise ValueError(f"{text} is written otherwise")


@functools.cache
def cpu_features() -> str:
    """What this machine's processors can do, all of them: code made for it runs where this is the
    same.

    >>> cpu_features().startswith(platform.machine())
    True
    """
    sets = _feature_sets(_CPUINFO)
    if not sets:
        return " ".join([platform.machine(), platform.processor() or "unknown"])
    # Cores may differ, and a kernel runs on any of them.
    return " ".join([platform.machine(), *sorted(frozenset.intersection(*sets))])


def _feature_sets(path: str) -> list[frozenset[str]]:
    """The features of each processor, as Linux lists them; none where it does not."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []  # not Linux, or no /proc: `platform` is asked instead
    named = [line.partition(":") for line in lines]
    return [frozenset(words.split()) for name, _, words in named if name.strip() in _LISTS]


_LISTS = ("flags", "Features", "isa")  # on x86, on Arm, on RISC-V


def file_digest(path: str | os.PathLike[str], ask: Sequence[str] = ("--version",)) -> str:
    """Which compiler this is: a digest of the file and of its answer to a question.

    The path has no part in it, so that machines with the same compiler share what it made. The file
    is read and asked again only when its path, size or time of change is another. OSError where it
    cannot be read or run; ``subprocess.TimeoutExpired`` where it does not answer.

    >>> import sys
    >>> file_digest(sys.executable) == file_digest(sys.executable)
    True
    """
    real = os.path.realpath(path)
    found = os.stat(real)
    return _asked(os.path.abspath(path), real, found.st_size, found.st_mtime_ns, tuple(ask))


@functools.lru_cache(maxsize=64)
def _asked(path: str, real: str, size: int, changed: int, ask: tuple[str, ...]) -> str:
    # Run by the name it was given: some compilers are one file that acts by its name.
    answer = subprocess.run(
        [path, *ask],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    with open(real, "rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    facts = (content, answer.returncode, answer.stdout, ask)
    return hashlib.sha256(canonical(facts).encode()).hexdigest()
