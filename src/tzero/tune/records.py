"""Tuning results on disk: in the user's cache by a strict key, in shipped files by a loose one.

::

    strict(**facts) ──► key ── Memory ── tuned/ in the cache directory: every candidate's Outcome
                                  └ known(key, configs): those that need not be timed again
    (source, arguments, hardware) ── Pretuned ── a JSON file that is shipped, or a lookup table
                                  └ find: a config, or why there is none

Enters: configs and their outcomes. Leaves: configs, outcomes, reasons. It must not know torch,
kernels or how candidates are timed.

A damaged record in the cache is a miss: an event of kind ``cache`` says so, and the next write
replaces it. A damaged file that the user named is an error, `PretunedDamaged`. `tzero.cache.disk`
gives the directory, its permissions, and atomic writes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from tzero.cache.digest import canonical, cpu_features, parse
from tzero.cache.disk import Disk
from tzero.cache.place import place_of
from tzero.cache.store import location
from tzero.config import Config
from tzero.errors import InvalidConfig, PretunedDamaged
from tzero.events import Event, emit
from tzero.settings import Settings
from tzero.tune.outcome import Outcome

if TYPE_CHECKING:
    from tzero.cache.fleet import Fleet

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
    "digest_of",
    "merge",
    "strict",
]

SCHEMA = 1
"""Of shipped files; incremented when the format or its meaning changes. Older files are then an
error."""

RECORDS = 2
"""Of records in the local cache, likewise. Older records are then timed again."""

MOST_NEAR = 256
"""The most entries among which the nearest shapes are searched."""

MOST_AGREED = 1000
"""The most configs of a record that is sent to a fleet."""

_LIMIT = 64 << 20  # bytes of all records; they are small texts


# -- locally, by a strict key ---------------------------------------------------------------------


def strict(**facts: Any) -> str:
    """A key of everything that can change which config is fastest, as canonical JSON.

    >>> strict(source="ab12", arguments="f32[1024]", device="cuda:sm_90 NVIDIA H200")
    '{"arguments":"f32[1024]","device":"cuda:sm_90 NVIDIA H200","source":"ab12","tuned":2}'
    """
    return canonical({**facts, "tuned": RECORDS})


@dataclass(frozen=True, slots=True)
class Record:
    """The outcomes that are remembered under one key.

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
        """The config with the least median, of these or of all; None where none is usable. Of equal
        ones it is the first by its text, the same in every process."""
        wanted = self.outcomes if configs is None else frozenset(configs)
        found = [
            (outcome.median, config.to_json(), config)
            for config, outcome in self.outcomes.items()
            if outcome.usable and config in wanted
        ]
        return min(found, key=lambda each: each[:2])[2] if found else None

    def shortened(self, most: int = MOST_AGREED) -> Record:
        """The same with the fastest configs only, where there are many."""
        if len(self.outcomes) <= most:
            return self
        rows = sorted(self.outcomes.items(), key=lambda row: (not row[1].usable, row[1].median))
        return Record(self.key, dict(rows[:most]))

    def encode(self) -> bytes:
        """The record as canonical JSON, configs in order."""
        rows = [(config.to_json(), asdict(outcome)) for config, outcome in self.outcomes.items()]
        value = {"schema": RECORDS, "key": self.key, "outcomes": sorted(rows, key=_text_of)}
        return canonical(value).encode("utf-8", "surrogatepass")

    @staticmethod
    def decode(data: bytes, key: str) -> Record:
        """The record of this key from its bytes; ValueError, with the reason, for other bytes.

        >>> record = Record("key", {Config(BLOCK=64): Outcome(2.0)})
        >>> Record.decode(record.encode(), "key") == record
        True
        """
        value = parse(data.decode("utf-8", "surrogatepass"))
        if not isinstance(value, dict) or value.keys() != {"schema", "key", "outcomes"}:
            raise ValueError("it is not a record of tuning results")
        if value["schema"] != RECORDS:
            raise ValueError(f"its schema is {value['schema']!r}, and this tzero reads {RECORDS}")
        if value["key"] != key:
            raise ValueError(f"its key is {value['key']!r}, and {key!r} was asked for")
        try:
            outcomes = {Config.from_json(text): Outcome(**row) for text, row in value["outcomes"]}
        except TypeError as error:
            raise ValueError(f"its outcomes have unknown fields: {error}") from error
        return Record(key, outcomes)


def _text_of(row: tuple[str, Any]) -> str:
    return row[0]


class Memory:
    """The tuning results of this user. Disk errors are not raised: an event of kind ``cache``
    reports them, and the configs are timed again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     memory = Memory(Disk(root))
    ...     memory.keep("key", {Config(BLOCK=64): Outcome(2.0)})
    ...     known = memory.known("key", [Config(BLOCK=64), Config(BLOCK=128)])
    ...     {config: outcome.median for config, outcome in known.items()}
    {Config(BLOCK=64): 2.0}
    """

    def __init__(self, disk: Disk | None, fleet: Fleet | None = None) -> None:
        self._disk = disk
        self._fleet = fleet

    @classmethod
    def of(cls, settings: Settings) -> Memory:
        """The memory in the cache directory of these settings, and what the fleet agrees on; where
        there is neither, one that keeps nothing."""
        disk = _disk(os.path.join(location(settings), "tuned")) if settings.cache else None
        if place_of(settings) is None:
            return cls(disk)
        from tzero.cache.fleet import fleet_of  # here, because few have one

        return cls(disk, fleet_of(settings))

    def record(self, key: str) -> Record | None:
        """The record of a key: what the fleet agrees on, else what is on disk. None where there is
        none, or a damaged one."""
        return self.agreed(key) or self._on_disk(key)

    def agreed(self, key: str) -> Record | None:
        """The record that counts in the fleet; None without one."""
        data = None if self._fleet is None else self._fleet.agreed(digest_of(key))
        return None if data is None else _decoded(data, key)

    def agree(self, key: str) -> Record | None:
        """Propose the record on disk to the fleet, and return the one that counts: the first that
        was proposed. None without a fleet, or without a record."""
        record = self._on_disk(key)
        return None if record is None else self._propose(record)

    def _propose(self, record: Record) -> Record | None:
        if self._fleet is None:
            return None
        data = self._fleet.agree(digest_of(record.key), record.shortened().encode())
        return None if data is None else _decoded(data, record.key)

    def _on_disk(self, key: str) -> Record | None:
        data = None if self._disk is None else self._disk.get(digest_of(key))
        return None if data is None else _decoded(data, key)

    def known(self, key: str, configs: Iterable[Config]) -> dict[Config, Outcome]:
        """The remembered outcomes of these configs, in their order; the others need timing."""
        record = self.record(key)
        if record is None:
            return {}
        return {each: record.outcomes[each] for each in configs if each in record.outcomes}

    def keep(self, key: str, outcomes: Mapping[Config, Outcome], *, anew: bool = False) -> None:
        """Remember outcomes under a key, except problems that pass. Those of other configs stay, or
        go where `anew`. Of two processes that write at once, one may lose its outcomes; they are
        then timed again."""
        if self._disk is None and self._fleet is None:
            return
        before = None if anew else self._on_disk(key)
        lasting = {config: each for config, each in outcomes.items() if not each.passing}
        merged = {**(before.outcomes if before is not None else {}), **lasting}
        if self._disk is not None and (before is None or merged != before.outcomes):
            self._disk.put(digest_of(key), Record(key, merged).encode())
        self._propose(Record(key, merged))


def _decoded(data: bytes, key: str) -> Record | None:
    try:
        return Record.decode(data, key)
    except ValueError as error:
        digest = digest_of(key)
        facts = {"layer": "tuned", "digest": digest, "key": key}
        words = f"tuning results are not used: {error}. They are timed again and replaced."
        emit(Event("cache", digest[:12], words, facts))
        return None


@functools.lru_cache(maxsize=32)
def _disk(root: str) -> Disk:
    return Disk(root, _LIMIT)  # shared, because it reports each problem once


def digest_of(key: str) -> str:
    """The name of the record of a key.

    >>> len(digest_of("key"))
    64
    """
    return hashlib.sha256(f"tuned {RECORDS} {key}".encode("utf-8", "surrogatepass")).hexdigest()


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
    """The class of a CPU: its architecture and its widest vector instructions. Without features, as
    from `cpu_features`, the class of this machine.

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
    """A config, and what it is the best for.

    >>> Entry("matmul", "ab12", "f16[*,*]", "cuda:sm_90", Config(BLOCK=128)).place
    ('ab12', 'f16[*,*]', 'cuda:sm_90')
    """

    kernel: str
    """Its name, for messages."""
    source: str
    """The digest of the kernel's source."""
    arguments: str
    """The arguments' specialization, as text."""
    hardware: str
    """The class of the hardware, such as ``cuda:sm_90`` or ``cpu:x86_64-avx512``."""
    config: Config
    shapes: tuple[tuple[int, ...], ...] = ()
    """Those of the tensor arguments, to find the nearest entry for other shapes."""

    @property
    def place(self) -> Place:
        """The key of the entry."""
        return (self.source, self.arguments, self.hardware)

    def _line(self) -> str:
        texts = {name: getattr(self, name) for name in _TEXTS}
        # A config writes its own JSON, which is read as an equal config.
        shapes = f', "shapes": {json.dumps(self.shapes)}' if self.shapes else ""
        return json.dumps(texts)[:-1] + f', "config": {self.config.to_json()}{shapes}}}'


_FIELDS = tuple(field.name for field in fields(Entry))
_TEXTS = tuple(name for name in _FIELDS if name not in ("config", "shapes"))

Verdict = Literal["found", "no entry", "other source", "other hardware", "other arguments"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A config or None, and the reason.

    >>> answer = Pretuned([]).find(kernel="add", source="", arguments="", hardware="cuda:sm_90")
    >>> answer.config, answer.verdict
    (None, 'no entry')
    >>> answer.reason
    "the pretuned table has no config for 'add'"
    """

    config: Config | None
    verdict: Verdict
    reason: str


class Pretuned:
    """Configs known ahead of time, from a file or a table; immutable.

    >>> known = Pretuned([Entry("add", "ab12", "f32[*]", "cuda:sm_90", Config(BLOCK=1024))])
    >>> known.find(kernel="add", source="ab12", arguments="f32[*]", hardware="cuda:sm_90").config
    Config(BLOCK=1024)
    >>> known.find(kernel="add", source="ab12", arguments="f32[*]", hardware="cuda:sm_80").reason
    "the pretuned table has 'add' for cuda:sm_90 only, and this is cuda:sm_80"
    """

    def __init__(self, entries: Iterable[Entry], name: str = "the pretuned table") -> None:
        self.name = name
        """The file or table, for messages."""
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

    __hash__ = None  # type: ignore[assignment]  # hashing all entries would be slow

    def __repr__(self) -> str:
        return f"<Pretuned {self.name!r}: {len(self)} configs>"

    @classmethod
    def of(
        cls, table: Mapping[str, Mapping[str, Any]], *, kernel: str, source: str, hardware: str
    ) -> Pretuned:
        """A lookup table for one kernel on this hardware: configs by arguments.

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
        """The configs of a file; `PretunedDamaged` where its contents are wrong, and OSError where
        it cannot be read.

        ::

            Pretuned.read("pretuned.json").find(kernel="add", ...)
        """
        name = os.fspath(path)
        with open(name, "rb") as file:
            return cls.decode(file.read(), name)

    @classmethod
    def decode(cls, data: bytes, name: str) -> Pretuned:
        """The configs of a file's contents; `name` is for messages.

        >>> Pretuned.decode(Pretuned([]).encode(), "empty")
        <Pretuned 'empty': 0 configs>
        """
        return cls((_entry(row, at, name) for at, row in _rows(data, name)), name)

    def encode(self) -> bytes:
        """The contents of a file, one entry per line, in order."""
        lines = ",\n".join(f"    {entry._line()}" for entry in self.entries)
        body = f"[\n{lines}\n  ]" if lines else "[]"
        return f'{{\n  "tzero_pretuned": {SCHEMA},\n  "entries": {body}\n}}\n'.encode()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file atomically.

        ::

            Pretuned(entries).write("pretuned.json")
        """
        _replace(os.path.realpath(path), self.encode())

    def find(self, *, kernel: str, source: str, arguments: str, hardware: str) -> Answer:
        """The config for exactly this source, hardware and arguments. Where there is none, the
        verdict is the first of these three that has no entry."""
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
            return Answer(None, "no entry", f"{self.name} has no config for {kernel!r}")
        if not any(each.hardware == hardware for each in mine):
            classes = ", ".join(sorted({each.hardware for each in mine}))
            words = f"{self.name} has {kernel!r} for {classes} only, and this is {hardware}"
            return Answer(None, "other hardware", words)
        words = f"{self.name} has {kernel!r} for other arguments than {arguments}"
        return Answer(None, "other arguments", words)

    def foreign(self, hardware: str) -> str | None:
        """A warning text where no entry is for this hardware; else None.

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
    """Two collections as one, and what the second replaced in the first."""

    pretuned: Pretuned
    replaced: tuple[Entry, ...]
    """Entries of the first for which the second has another config."""


def merge(first: Pretuned, second: Pretuned) -> Merged:
    """The entries of both; where both have an entry with the same key, that of the second.

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
    """The JSON values of the entries of a file, each with its number."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise PretunedDamaged(source=name, problem=f"it is not JSON ({error})") from error
    if not isinstance(value, dict) or "tzero_pretuned" not in value:
        problem = "it is JSON, but not a file of pretuned configs (it has no 'tzero_pretuned')"
        raise PretunedDamaged(source=name, problem=problem)
    schema = value["tzero_pretuned"]
    if type(schema) is not int or schema != SCHEMA:
        problem = f"its schema is {schema!r}, and this tzero reads {SCHEMA}"
        raise PretunedDamaged(source=name, problem=problem)
    if value.keys() != {"tzero_pretuned", "entries"} or not isinstance(value["entries"], list):
        problem = f"it has {', '.join(map(repr, value))}, not 'tzero_pretuned' and a list 'entries'"
        raise PretunedDamaged(source=name, problem=problem)
    return [(f"entry {k}", row) for k, row in enumerate(value["entries"], 1)]


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject a name that occurs twice in an object, of which JSON readers keep one silently."""
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {duplicate!r} twice")
    return made


def _entry(row: Any, at: str, name: str) -> Entry:
    if not isinstance(row, dict):
        raise PretunedDamaged(source=name, problem=f"{at} is not an object")
    for field in (*_TEXTS, "config"):
        if field not in row:
            raise PretunedDamaged(source=name, problem=f"{at} has no {field!r}")
    for field, value in row.items():
        if field not in _FIELDS:
            allowed = ", ".join(_FIELDS)
            problem = f"{at} has the field {field!r}; the fields of an entry are {allowed}"
            raise PretunedDamaged(source=name, problem=problem)
        if field in _TEXTS and not isinstance(value, str):
            problem = f"{at} has {field}={value!r}, which is not a string"
            raise PretunedDamaged(source=name, problem=problem)
    if not isinstance(row["config"], Mapping):
        problem = f"{at} has config={row['config']!r}, which is not an object"
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
    problem = f"{at} has shapes={value!r}, which is not a list of lists of sizes"
    raise PretunedDamaged(source=name, problem=problem)


def _replace(path: str, data: bytes) -> None:
    """Write a file atomically. Unlike the files of the cache, it is readable by other users."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(16)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o644), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            os.unlink(temporary)
        raise
