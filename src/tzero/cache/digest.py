"""Canonical text for values, and facts about compilers and CPU, for the ``toolchain`` of a request.

Enters: values, a compiler's path, this machine. Leaves: text that is equal exactly if the values
are equal. It must not know any backend: each backend decides which facts affect its results, and
writes them with these functions.

    >>> toolchain(compiler="gcc 12.2", flags=("-O3",)).partition(',"tzero"')[0]
    '{"compiler":"gcc 12.2","flags":{"$tuple":["-O3"]}'
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tzero import ownership, processes
from tzero.versions import TZERO

__all__ = [
    "SCHEMA",
    "Unwritable",
    "canonical",
    "cpu_features",
    "cpu_model",
    "file_digest",
    "parse",
    "toolchain",
]

SCHEMA = 1
"""Incremented when tzero's own part of compiled code changes. All digests change with it, so older
entries are never found again."""

_quoted = json.encoder.encode_basestring
_PLAIN = {None: "null", False: "false", True: "true"}
_CPUINFO = "/proc/cpuinfo"
_PLAIN_INT = 1 << 63  # larger ones are written in hexadecimal, which int() reads at any length


class Unwritable(TypeError):
    """A value that has no canonical text.

    >>> canonical({1, 2})
    Traceback (most recent call last):
    tzero.cache.digest.Unwritable: a set has no canonical text
    """


def toolchain(**facts: Any) -> str:
    """Return the ``toolchain`` text of a request: these facts, and tzero's own schema and version.

    >>> parse(toolchain(triton="3.6.0"))["triton"]
    '3.6.0'
    """
    return canonical({**facts, "tzero": f"{TZERO} {SCHEMA}"})


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value.

    Keys are sorted and numbers are exact. Values that plain JSON would confuse differ: tuples and
    lists, integers and floats, zeros of different sign, infinities and NaN. Allowed are None, bool,
    int, float, str, bytes, list, tuple and dict, but not their subclasses; anything else raises
    `Unwritable`.

    >>> canonical({"b": (1, 2.5), "a": [True, None]})
    '{"a":[true,null],"b":{"$tuple":[1,{"$float":"0x1.4000000000000p+1"}]}}'
    """
    try:
        # Not ASCII: escaped, a pair of surrogates would equal the one character that it encodes.
        return _text(value)
    except RecursionError:
        raise Unwritable("a value that is nested too deeply has no canonical text") from None


def parse(text: str) -> Any:
    """Return the value of a canonical text; raise ValueError for any other text.

    >>> parse(canonical((1, b"x", -0.0)))
    (1, b'x', -0.0)
    """
    try:
        plain = json.loads(text, parse_float=_reject, parse_constant=_reject)
        value = _from_json(plain)
        if canonical(value) == text:
            return value
    except (RecursionError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a canonical text: {error}") from error
    raise ValueError("not a canonical text: the canonical text of its value differs")


def _text(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if kind is int:
        return repr(value) if -_PLAIN_INT < value < _PLAIN_INT else f'{{"$int":"{hex(value)}"}}'
    if kind is list:
        return f"[{','.join(map(_text, value))}]"
    if kind is tuple:
        return f'{{"$tuple":[{",".join(map(_text, value))}]}}'
    if kind is dict:
        return _dict_text(value)
    if value is None or kind is bool:
        return _PLAIN[value]
    if kind is float:
        return f'{{"$float":"{value.hex()}"}}'
    if kind is bytes:
        return f'{{"$bytes":"{value.hex()}"}}'
    article = "an" if kind.__name__[0] in "aeiouAEIOU" else "a"
    raise Unwritable(f"{article} {kind.__name__} has no canonical text")


def _dict_text(value: dict[Any, Any]) -> str:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return f"{{{','.join([f'{_quoted(key)}:{_text(value[key])}' for key in sorted(value)])}}}"
    texts = [(_text(key), _text(each)) for key, each in value.items()]
    pairs = sorted(texts, key=operator.itemgetter(0))
    return f'{{"$dict":[{",".join([f"[{key},{each}]" for key, each in pairs])}]}}'


def _from_json(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_from_json(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    mark = next(iter(plain), "")
    if len(plain) != 1 or not mark.startswith("$"):
        return {key: _from_json(each) for key, each in plain.items()}
    held = plain[mark]
    match mark:
        case "$int":
            return int(held, 16)
        case "$float":
            return float.fromhex(held)
        case "$bytes":
            return bytes.fromhex(held)
        case "$tuple":
            return tuple(_from_json(held))
        case "$dict":
            return {_from_json(key): _from_json(each) for key, each in held}
    raise ValueError(f"unknown mark {mark!r}")


def _reject(text: str) -> NoReturn:
    raise ValueError(f"the plain number {text} is not allowed")


@functools.cache
def cpu_features() -> str:
    """Return the architecture and the features that all CPU cores of this machine have. Code that
    was compiled for it runs on any machine with the same text.

    >>> cpu_features().startswith(platform.machine())
    True
    """
    sets = _feature_sets(_CPUINFO)
    if not sets:
        return " ".join([platform.machine(), platform.processor() or "unknown"])
    # Cores may differ, and a kernel may run on any of them.
    return " ".join([platform.machine(), *sorted(frozenset.intersection(*sets))])


def _feature_sets(path: str) -> list[frozenset[str]]:
    """The features of each core from /proc/cpuinfo; empty if it lists none."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []  # not Linux, or no /proc: the caller uses `platform`
    named = [line.partition(":") for line in lines]
    return [frozenset(features.split()) for name, _, features in named if name.strip() in _FIELDS]


_FIELDS = ("flags", "Features", "isa")  # on x86, on Arm, on RISC-V


@functools.cache
def cpu_model() -> str:
    """Return the models of this machine's CPU cores: machines whose cores have the same features
    may still differ in speed.

    >>> cpu_model() == cpu_model()
    True
    """
    try:
        lines = Path(_CPUINFO).read_text(errors="replace").splitlines()
    except OSError:
        lines = []  # as in `_feature_sets`
    named = [line.partition(":") for line in lines]
    found = {f"{name.strip()}: {text.strip()}" for name, _, text in named if name.strip() in _MODEL}
    return "; ".join(sorted(found)) or platform.processor() or "unknown"


# On x86; on Arm, where these are numbers; on RISC-V.
_MODEL = ("model name", "cache size", "CPU implementer", "CPU part", "CPU variant", "uarch")


def file_digest(path: str | os.PathLike[str], ask: Sequence[str] = ("--version",)) -> str:
    """Identify a compiler: return a digest of its file and of its output for these arguments.

    The path is not part of the digest, so machines with the same compiler share its results. The
    file is read and run again only if its path or its `ownership.identity` changes. Raises OSError
    if it cannot be read or run, and ``subprocess.TimeoutExpired`` if it does not end.

    >>> import sys
    >>> file_digest(sys.executable) == file_digest(sys.executable)
    True
    """
    real = os.path.realpath(path)
    return _digest_of(os.path.abspath(path), real, ownership.identity(real), tuple(ask))


@functools.lru_cache(maxsize=64)
def _digest_of(path: str, real: str, identity: tuple[int, ...], ask: tuple[str, ...]) -> str:
    # Run under the given name, not the resolved one: some compilers behave according to argv[0].
    done = processes.run([path, *ask], seconds=60, merged=True)
    with open(real, "rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    facts = (content, done.returncode, done.stdout, ask)
    return hashlib.sha256(canonical(facts).encode()).hexdigest()
