"""What was tuned, remembered: in this user's cache by a strict key, and in files by a loose one.

::

    strict(**facts) ──► key ── Memory ── tuned/ in the cache directory: every candidate's Outcome
                                  └ known(key, configs): those that need not be timed again
    (source, arguments, hardware) ── Pretuned ── a file of JSON that ships ahead of time,
                                  └ find: a config, or why there is none    or a caller's table

Enters: configs and what timing them came to. Leaves: configs, outcomes, reasons. It must not know
torch, kernels or how candidates are timed.

A wrong answer is worse than none: what is damaged in the cache is a miss, told by an event of kind
``cache``, and is replaced when the key is kept again; what is damaged in a file that someone named
is an error, `PretunedDamaged`. The directory, its privacy, and writing by renaming are those of
`tzero.cache.disk`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from tzero.cache.digest import canonical, cpu_features, parse
from tzero.cache.disk import Disk
from tzero.cache.store import location
from tzero.config import Config
from tzero.errors import InvalidConfig, PretunedDamaged
from tzero.events import Event, emit
from tzero.settings import Settings

__all__ = [
    "SCHEMA",
    "Answer",
    "Entry",
    "Memory",
    "Merged",
    "Outcome",
    "Pretuned",
    "Record",
    "cpu_class",
    "cuda_class",
    "merge",
    "strict",
]

SCHEMA = 1
"""Raised whenever what is remembered changes its meaning, here or in files: what was remembered
before is then timed again, and older files are refused with a word."""

MOST_NEAR = 256
"""The most entries among which the nearest shapes are looked for."""

_ROOM = 64 << 20  # bytes of what was tuned; it is text, and small


# -- locally, by a strict key ---------------------------------------------------------------------


def strict(**facts: Any) -> str:
    """A key of everything that has a say in which config is fastest, as `canonical` writes it.

    >>> strict(source="ab12", arguments="f32[1024]", device="cuda:sm_90 NVIDIA H200")
    '{"arguments":"f32[1024]","device":"cuda:sm_90 NVIDIA H200","source":"ab12","tuned":1}'
    """
    return canonical({**facts, "tuned": SCHEMA})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What timing one config came to: seconds per call, or the problem because of which there are
    none. Only problems that would come again are worth remembering.

    >>> Outcome(median=2e-6, low=1.9e-6, high=2.2e-6, samples=30).usable
    True
    >>> Outcome(problem="it needs more shared memory than there is").usable
    False
    """

    median: float = math.inf
    low: float = 0.0
    high: float = math.inf
    samples: int = 0
    problem: str = ""

    def __post_init__(self) -> None:
        numbers = (self.median, self.low, self.high)
        if not all(type(each) is float for each in numbers) or not (
            0 <= self.low <= self.median <= self.high
        ):
            raise ValueError(
                f"an outcome has floats 0 <= low <= median <= high; these are low={self.low!r}, "
                f"median={self.median!r}, high={self.high!r}"
            )
        if type(self.samples) is not int or self.samples < 0 or type(self.problem) is not str:
            raise ValueError(
                f"an outcome has a number of samples and a text for its problem; these are "
                f"samples={self.samples!r}, problem={self.problem!r}"
            )
        if bool(self.problem) == math.isfinite(self.median):
            raise ValueError(
                f"an outcome has either a median or a problem; this has median={self.median!r} "
                f"and problem={self.problem!r}"
            )

    @property
    def usable(self) -> bool:
        """Whether the config ran, and was right."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class Record:
    """All that is remembered under one key.

    >>> record = Record("key", {Config(BLOCK=64): Outcome(2.0), Config(BLOCK=128): Outcome(1.0)})
    >>> record.best()
    Config(BLOCK=128)
    >>> record.best([Config(BLOCK=64), Config(BLOCK=32)])
    Config(BLOCK=64)
    """

    key: str
    outcomes: Mapping[Config, Outcome]

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcomes", MappingProxyType(dict(self.outcomes)))

    def best(self, configs: Iterable[Config] | None = None) -> Config | None:
        """The config with the least median, of these or of all; of equal ones the one that comes
        first as text, so that every process says the same. None where none is usable."""
        wanted = self.outcomes if configs is None else frozenset(configs)
        found = [
            (outcome.median, config.to_json(), config)
            for config, outcome in self.outcomes.items()
            if outcome.usable and config in wanted
        ]
        return min(found, key=lambda each: each[:2])[2] if found else None

    def encode(self) -> bytes:
        """The record as canonical text, configs in order."""
        rows = [(config.to_json(), asdict(outcome)) for config, outcome in self.outcomes.items()]
        value = {"schema": SCHEMA, "key": self.key, "outcomes": sorted(rows, key=_text_of)}
        return canonical(value).encode("utf-8", "surrogatepass")

    @staticmethod
    def decode(data: bytes, key: str) -> Record:
        """The record of this key that bytes hold; ValueError, with what is wrong, for any other.

        >>> record = Record("key", {Config(BLOCK=64): Outcome(2.0)})
        >>> Record.decode(record.encode(), "key") == record
        True
        """
        value = parse(data.decode("utf-8", "surrogatepass"))
        if not isinstance(value, dict) or value.keys() != {"schema", "key", "outcomes"}:
            raise ValueError("it is no record of what was tuned")
        if value["schema"] != SCHEMA:
            raise ValueError(f"its schema is {value['schema']!r}, and this tzero's is {SCHEMA}")
        if value["key"] != key:
            raise ValueError(f"its key is {value['key']!r}, and {key!r} was asked for")
        try:
            outcomes = {Config.from_json(text): Outcome(**row) for text, row in value["outcomes"]}
        except TypeError as error:
            raise ValueError(f"it has other fields than outcomes have: {error}") from error
        return Record(key, outcomes)


def _text_of(row: tuple[str, Any]) -> str:
    return row[0]


class Memory:
    """What this user tuned. Nothing the environment does raises: it is told by an event of kind
    ``cache``, and costs the time to tune again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     memory = Memory(Disk(root))
    ...     memory.keep("key", {Config(BLOCK=64): Outcome(2.0)})
    ...     memory.known("key", [Config(BLOCK=64), Config(BLOCK=128)])
    {Config(BLOCK=64): Outcome(median=2.0, low=0.0, high=inf, samples=0, problem='')}
    """

    def __init__(self, disk: Disk | None) -> None:
        self._disk = disk

    @classmethod
    def of(cls, settings: Settings) -> Memory:
        """The memory in the cache directory of these settings; one that keeps nothing where they
        have the cache switched off.

        >>> Memory.of(Settings(cache=False)).record("key") is None
        True
        """
        if not settings.cache:
            return cls(None)
        return cls(_disk(os.path.join(location(settings), "tuned")))

    def record(self, key: str) -> Record | None:
        """All that is remembered under a key; None where nothing is, or nothing that is whole."""
        digest = _digest(key)
        data = None if self._disk is None else self._disk.get(digest)
        if data is None:
            return None
        try:
            return Record.decode(data, key)
        except ValueError as error:
            facts = {"layer": "tuned", "digest": digest, "key": key}
            words = f"what was tuned is not used: {error}. It is timed anew, and replaced."
            emit(Event("cache", digest[:12], words, facts))
            return None

    def known(self, key: str, configs: Iterable[Config]) -> dict[Config, Outcome]:
        """The outcomes there are for these configs, in their order; the others need timing."""
        record = self.record(key)
        if record is None:
            return {}
        return {each: record.outcomes[each] for each in configs if each in record.outcomes}

    def keep(self, key: str, outcomes: Mapping[Config, Outcome], *, anew: bool = False) -> None:
        """Remember outcomes, together with those of other configs under this key, or `anew` in
        their place. Of two processes that do it at once, one may forget what the other found; it
        is timed again then."""
        if self._disk is None:
            return
        before = None if anew else self.record(key)
        merged = {**(before.outcomes if before is not None else {}), **outcomes}
        if before is None or merged != before.outcomes:
            self._disk.put(_digest(key), Record(key, merged).encode())


@functools.lru_cache(maxsize=32)
def _disk(root: str) -> Disk:
    return Disk(root, _ROOM)  # one for all: it tells each trouble once


def _digest(key: str) -> str:
    return hashlib.sha256(f"tuned {SCHEMA} {key}".encode("utf-8", "surrogatepass")).hexdigest()


# -- hardware classes -----------------------------------------------------------------------------


def cuda_class(major: int, minor: int) -> str:
    """The class of a CUDA device, by its compute capability.

    >>> cuda_class(9, 0), cuda_class(12, 1)
    ('cuda:sm_90', 'cuda:sm_121')
    """
    return f"cuda:sm_{major}{minor}"


_LEVELS = (
    ("avx512", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    ("avx2", ("avx2", "fma")),
    ("sve2", ("sve2",)),
    ("sve", ("sve",)),
    ("neon", ("asimd",)),
)


def cpu_class(features: str | None = None) -> str:
    """The class of a CPU: its architecture and the widest vectors it has; of this machine's, unless
    features are given as `cpu_features` gives them.

    >>> cpu_class("x86_64 avx avx2 fma sse"), cpu_class("aarch64 asimd sve"), cpu_class("riscv64")
    ('cpu:x86_64-avx2', 'cpu:aarch64-sve', 'cpu:riscv64')
    """
    machine, *has = (cpu_features() if features is None else features).split()
    level = next((name for name, needs in _LEVELS if set(needs) <= set(has)), None)
    return f"cpu:{machine}" if level is None else f"cpu:{machine}-{level}"


# -- ahead of time, by a loose key ----------------------------------------------------------------


Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One config that is known to be the best, and for what.

    >>> Entry("matmul", "ab12", "f16[*,*]", "cuda:sm_90", Config(BLOCK=128)).place
    ('ab12', 'f16[*,*]', 'cuda:sm_90')
    """

    kernel: str
    """Its name, for people and for reasons."""
    source: str
    """The digest of the kernel's source."""
    arguments: str
    """The arguments' specialization, as text."""
    hardware: str
    """The class of the hardware, such as ``cuda:sm_90`` or ``cpu:x86_64-avx512``."""
    config: Config
    shapes: tuple[tuple[int, ...], ...] = ()
    """Those of the tensors given, so that other shapes can be compared with them."""

    @property
    def place(self) -> Place:
        """What it is looked up by."""
        return (self.source, self.arguments, self.hardware)

    def _line(self) -> str:
        texts = {name: getattr(self, name) for name in _TEXTS}
        # A config writes itself, so that it is read as it was.
        shapes = f', "shapes": {json.dumps(self.shapes)}' if self.shapes else ""
        return json.dumps(texts)[:-1] + f', "config": {self.config.to_json()}{shapes}}}'


_FIELDS = tuple(field.name for field in fields(Entry))
_TEXTS = tuple(name for name in _FIELDS if name not in ("config", "shapes"))

Verdict = Literal["found", "no entry", "other source", "other hardware", "other arguments"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A config, or None, and why.

    >>> answer = Pretuned([]).find(kernel="add", source="", arguments="", hardware="cuda:sm_90")
    >>> answer.config, answer.verdict
    (None, 'no entry')
    >>> answer.reason
    "the pretuned table has none for 'add'"
    """

    config: Config | None
    verdict: Verdict
    reason: str


class Pretuned:
    """Configs known ahead of time, from a file or a table; it does not change.

    >>> known = Pretuned([Entry("add", "ab12", "f32[*]", "cuda:sm_90", Config(BLOCK=1024))])
    >>> known.find(kernel="add", source="ab12", arguments="f32[*]", hardware="cuda:sm_90").config
    Config(BLOCK=1024)
    >>> known.find(kernel="add", source="ab12", arguments="f32[*]", hardware="cuda:sm_80").reason
    "the pretuned table has 'add' for cuda:sm_90 only, and this is cuda:sm_80"
    """

    def __init__(self, entries: Iterable[Entry], name: str = "the pretuned table") -> None:
        self.name = name
        """Where they come from, for reasons."""
        self._entries: dict[Place, Entry] = {}
        for entry in sorted(entries, key=lambda each: (each.kernel, each.place)):
            other = self._entries.setdefault(entry.place, entry)
            if other is not entry:
                words = f"{entry.kernel!r} for {entry.arguments!r} on {entry.hardware}"
                raise PretunedDamaged(source=name, problem=f"it has two entries of {words}")

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries, in order of kernel, source, arguments and hardware."""
        return tuple(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pretuned) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # equal by what it holds, which may be much

    def __repr__(self) -> str:
        return f"<Pretuned {self.name!r}: {len(self)} configs>"

    @classmethod
    def of(
        cls, table: Mapping[str, Mapping[str, Any]], *, kernel: str, source: str, hardware: str
    ) -> Pretuned:
        """A caller's table for one kernel on this hardware: configs by arguments.

        >>> table = {"f32[*]": {"BLOCK": 256}}
        >>> Pretuned.of(table, kernel="add", source="ab12", hardware="cuda:sm_90").entries[0].config
        Config(BLOCK=256)
        """
        name = f"the lookup table of {kernel}"
        rows = [
            dict(zip(_FIELDS, (kernel, source, arguments, hardware, config), strict=False))
            for arguments, config in table.items()
        ]
        return cls((_entry(row, f"entry {k}", name) for k, row in enumerate(rows, 1)), name)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Pretuned:
        """The configs of a file; `PretunedDamaged` where it is not such a file, and OSError where
        it cannot be read.

        ::

            Pretuned.read("pretuned.json").find(kernel="add", ...)
        """
        name = os.fspath(path)
        with open(name, "rb") as file:
            data = file.read()
        return cls((_entry(row, at, name) for at, row in _rows(data, name)), name)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file, one entry to a line and in order, in place of what may be there: a reader
        sees the old one or the new one, whole.

        ::

            Pretuned(entries).write("pretuned.json")
        """
        lines = ",\n".join(f"    {entry._line()}" for entry in self.entries)
        body = f"[\n{lines}\n  ]" if lines else "[]"
        text = f'{{\n  "tzero_pretuned": {SCHEMA},\n  "entries": {body}\n}}\n'
        _replace(os.path.realpath(path), text.encode())

    def find(self, *, kernel: str, source: str, arguments: str, hardware: str) -> Answer:
        """The config for exactly this source, these arguments and this hardware; or none, and the
        first of these three that has no entry."""
        entry = self._entries.get((source, arguments, hardware))
        if entry is not None:
            return Answer(entry.config, "found", f"{self.name} has it for {hardware}")
        mine = [each for each in self._entries.values() if each.source == source]
        if not mine:
            if any(each.kernel == kernel for each in self._entries.values()):
                words = (
                    f"{self.name} has {kernel!r} with another source; it changed since: tune it, "
                    "and ship it again"
                )
                return Answer(None, "other source", words)
            return Answer(None, "no entry", f"{self.name} has none for {kernel!r}")
        if not any(each.hardware == hardware for each in mine):
            classes = ", ".join(sorted({each.hardware for each in mine}))
            words = f"{self.name} has {kernel!r} for {classes} only, and this is {hardware}"
            return Answer(None, "other hardware", words)
        words = f"{self.name} has {kernel!r} for other arguments than {arguments}"
        return Answer(None, "other arguments", words)

    def foreign(self, hardware: str) -> str | None:
        """A warning, in words, where nothing in here is for this hardware; None where something is.

        >>> known = Pretuned([Entry("add", "ab12", "", "cuda:sm_90", Config())], "add.json")
        >>> known.foreign("cuda:sm_90")
        >>> known.foreign("cpu:x86_64-avx2")
        'add.json is for cuda:sm_90, and this is cpu:x86_64-avx2: nothing in it is used here'
        """
        classes = sorted({entry.hardware for entry in self._entries.values()})
        if hardware in classes:
            return None
        theirs = ", ".join(classes) or "no hardware"
        return f"{self.name} is for {theirs}, and this is {hardware}: nothing in it is used here"


@dataclass(frozen=True, slots=True)
class Merged:
    """Two collections as one, and what the second replaced in the first.

    >>> merge(Pretuned([]), Pretuned([])).replaced
    ()
    """

    pretuned: Pretuned
    replaced: tuple[Entry, ...]
    """Entries of the first for which the second has another config."""


def merge(first: Pretuned, second: Pretuned) -> Merged:
    """What either has; where both have an entry, that of the second.

    >>> old = Pretuned([Entry("add", "ab12", "", "cuda:sm_90", Config(BLOCK=64))])
    >>> new = Pretuned([Entry("add", "ab12", "", "cuda:sm_90", Config(BLOCK=128))])
    >>> merge(old, new).pretuned == new, len(merge(old, new).replaced)
    (True, 1)
    """
    newer = {entry.place: entry for entry in second.entries}
    kept = [entry for entry in first.entries if entry.place not in newer]
    both = [entry for entry in first.entries if entry.place in newer]
    replaced = tuple(entry for entry in both if newer[entry.place].config != entry.config)
    return Merged(Pretuned([*kept, *second.entries], second.name), replaced)


# Reading and writing files.


def _rows(data: bytes, name: str) -> Iterable[tuple[str, Any]]:
    """The entries of a file as JSON has them, each with where it is."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or JSON without end
        raise PretunedDamaged(source=name, problem=f"it is no JSON ({error})") from error
    if not isinstance(value, dict) or "tzero_pretuned" not in value:
        problem = "it is JSON, but holds no pretuned configs (it has no 'tzero_pretuned')"
        raise PretunedDamaged(source=name, problem=problem)
    schema = value["tzero_pretuned"]
    if type(schema) is not int or schema != SCHEMA:
        problem = f"its schema is {schema!r}, and this tzero reads {SCHEMA}"
        raise PretunedDamaged(source=name, problem=problem)
    if value.keys() != {"tzero_pretuned", "entries"} or not isinstance(value["entries"], list):
        problem = f"it has {', '.join(map(repr, value))}, not 'tzero_pretuned' and a list 'entries'"
        raise PretunedDamaged(source=name, problem=problem)
    return [(f"entry {k}", row) for k, row in enumerate(value["entries"], 1)]


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON's objects may have a name twice, and most readers take either."""
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {twin!r} twice")
    return made


def _entry(row: Any, at: str, name: str) -> Entry:
    if not isinstance(row, dict):
        raise PretunedDamaged(source=name, problem=f"{at} is no object")
    for field in (*_TEXTS, "config"):
        if field not in row:
            raise PretunedDamaged(source=name, problem=f"{at} has no {field!r}")
    for field, value in row.items():
        if field not in _FIELDS:
            allowed = ", ".join(_FIELDS)
            problem = f"{at} has {field!r}; what entries have is {allowed}"
            raise PretunedDamaged(source=name, problem=problem)
        if field in _TEXTS and not isinstance(value, str):
            raise PretunedDamaged(source=name, problem=f"{at} has {field}={value!r}, no text")
    if not isinstance(row["config"], Mapping):
        problem = f"{at} has config={row['config']!r}, no names with values"
        raise PretunedDamaged(source=name, problem=problem)
    try:
        config = Config(row["config"])
    except InvalidConfig as error:
        raise PretunedDamaged(source=name, problem=f"{at}: {str(error).rstrip('.')}") from error
    texts = {field: row[field] for field in _TEXTS}
    return Entry(**texts, config=config, shapes=_shapes(row.get("shapes", []), at, name))


def _shapes(value: Any, at: str, name: str) -> tuple[tuple[int, ...], ...]:
    lists = isinstance(value, list) and all(isinstance(shape, list) for shape in value)
    if lists and all(type(n) is int and 0 <= n < 1 << 63 for shape in value for n in shape):
        return tuple(map(tuple, value))
    raise PretunedDamaged(source=name, problem=f"{at} has shapes={value!r}, no lists of sizes")


def _replace(path: str, data: bytes) -> None:
    """Put a file there as a whole. Unlike the cache's files it is for others to read."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(16)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o644), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            os.unlink(temporary)
        raise
