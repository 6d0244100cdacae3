"""Config: the tunable parameters of a kernel, as one frozen value.

Enters: names and values that JSON can represent. Leaves: a mapping that unpacks into a launch,
compares and hashes by content, and prints as the code that creates it. It must not know what the
names mean.

    >>> config = Config(BLOCK=128, num_warps=4)
    >>> config.BLOCK, config["num_warps"]
    (128, 4)
    >>> dict(**config)
    {'BLOCK': 128, 'num_warps': 4}
"""

from __future__ import annotations

import json
import keyword
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tzero.errors import InvalidConfig

__all__ = ["Config"]


class Config(Mapping[str, Any]):
    """The tunable parameters of a kernel, with their values.

    Values are None, booleans, numbers, strings, and lists and mappings of these; lists become
    tuples and mappings become configs, so that a config is immutable. Equal values have equal
    types: ``1``, ``1.0`` and ``True`` make three different configs, and so do ``0.0`` and
    ``-0.0``. Names must work as ``config.name``: no keywords, and no names of Config's own, such as
    ``keys``.

    >>> Config(BLOCK=64) == Config(BLOCK=64), Config(BLOCK=1) == Config(BLOCK=True)
    (True, False)
    >>> Config(BLOCK=64, stages=(2, 3))
    Config(BLOCK=64, stages=(2, 3))
    """

    __slots__ = ("_hash", "_values")
    _values: dict[str, Any]
    _hash: int

    def __init__(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        if not isinstance(values, Mapping | None):
            raise InvalidConfig(name="values", value=values, allowed="a mapping of names to values")
        merged = {**(values or {}), **named}
        for name in merged:
            _check_name(name, merged[name])
        frozen = {name: _frozen(merged[name], name) for name in merged}
        object.__setattr__(self, "_values", frozen)
        object.__setattr__(self, "_hash", hash(_identity(self)))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for optional methods
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(self._values) or "nothing"
            message = f"this config has no {name!r}; it has {known}."
            raise AttributeError(message, name=name, obj=self) from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"a Config is immutable; make another one: Config(config, {name}={value!r})."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Config is immutable, so {name!r} stays; make another one.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and _identity(self) == _identity(other)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{k}={_code(v)}' for k, v in self._values.items())})"

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Any]]]:
        return Config, (dict(self._values),)

    def to_json(self) -> str:
        """This config as one line of JSON with sorted names; equal configs give equal lines.

        >>> Config(num_warps=4, BLOCK=128).to_json()
        '{"BLOCK": 128, "num_warps": 4}'
        """
        return json.dumps(_plain(self), sort_keys=True, allow_nan=True)

    @staticmethod
    def from_json(text: str) -> Config:
        """The config that `to_json` wrote.

        >>> Config.from_json('{"BLOCK": 128, "order": [1, 0]}')
        Config(BLOCK=128, order=(1, 0))
        """
        if not isinstance(text, str | bytes | bytearray):
            raise InvalidConfig(name="JSON", value=text, allowed="a JSON string")
        try:
            values = json.loads(text)
        except ValueError as error:  # not JSON, or not UTF-8
            raise InvalidConfig(
                name="JSON", value=text, allowed=f"a JSON object ({error})"
            ) from error
        if not isinstance(values, dict):
            raise InvalidConfig(name="JSON", value=text, allowed="a JSON object")
        return Config(values)


def _check_name(name: Any, value: Any) -> None:
    """A name must be valid after a dot, and must not hide an attribute of Config."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidConfig(
            name=str(name), value=value, allowed="a name that is a Python identifier"
        )
    if name.startswith("__") or hasattr(Config, name):
        raise InvalidConfig(
            name=name, value=value, allowed="a name that Config does not use itself"
        )


def _frozen(value: Any, name: str) -> Any:
    """An immutable copy of a value that JSON can represent."""
    try:
        return _freeze(value, name)
    except RecursionError:
        kind = type(value).__name__
        raise InvalidConfig(
            name=name, value=f"<{kind}>", allowed=f"a {kind} that does not contain itself"
        ) from None


def _freeze(value: Any, name: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item, name) for item in value)
    if isinstance(value, Mapping):
        return value if isinstance(value, Config) else Config(value)
    raise InvalidConfig(
        name=name,
        value=value,
        allowed="None, a boolean, a number, a string, or a list or mapping of these",
    )


def _identity(value: Any) -> Any:
    """A hashable value that compares types too, and by which NaN equals itself."""
    if isinstance(value, Config):
        items = value._values.items()
        return (Config, frozenset((name, _identity(item)) for name, item in items))
    if isinstance(value, tuple):
        return (tuple, *(_identity(item) for item in value))
    if isinstance(value, float):
        return (float, "nan" if math.isnan(value) else value.hex())
    return (type(value), value)


def _code(value: Any) -> str:
    """The Python code of a value; infinities and NaN have no literals."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, tuple):
        inner = ", ".join(map(_code, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return {name: _plain(item) for name, item in value._values.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
