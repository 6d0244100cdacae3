"""Seals on compiled kernels, so that only what this user compiled is loaded from Triton's cache.

::

    compiled ── seal ──► metadata ── Triton's cache, which others may write to ──► metadata, object
                launcher: is the seal right? ── driver: is the object the one that was sealed?

Enters: a kernel's object and metadata. Leaves: a seal over both; from a sealed kernel, nothing or
`CacheRefused`. It must not know Triton or how objects are loaded.

Triton reads its cache itself, without a look at owners and modes, and passes only bytes on. A seal
is an HMAC with a key that only this user can read: it is in this user's private directory inside
Triton's cache. Other users have other keys, and so other entries.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tzero import locks, ownership
from tzero.errors import CacheRefused

__all__ = ["SEAL", "SETTING", "fingerprint", "require", "require_verified", "seal"]

SEAL = "cpu_seal"
"""The seal's name in a kernel's metadata."""

SETTING = "TRITON_CACHE_DIR"
_logger = logging.getLogger("tzero")
_KEY = "key"
_SIZE = 32
# What the launcher reads of the metadata: a wrong size would make a kernel write out of bounds.
_FACTS = (
    "name",
    "cpu_object",
    "cpu_params",
    "cpu_scratch",
    "cpu_work",
    "cpu_sites",
    "cpu_check",
    "launch_cooperative_grid",
)

_verified: set[bytes] = set()  # digests of objects; only added to


class _Here(threading.local):
    wanted: bytes | None = None
    """The digest of the object that belongs to the metadata that was accepted last, until it is
    loaded: Triton makes the launcher and then loads the object, on one thread."""


_here = _Here()
_keys: dict[Path, bytes] = {}  # by directory
_keys_lock = locks.lock()  # held while a key is read or made, so that all threads get the same


def _key(directory: Path) -> bytes:
    found = _keys.get(directory)
    if found is None:
        with _keys_lock:
            found = _keys[directory] = _keys.get(directory) or _stored_key(directory)
    return found


def _stored_key(directory: Path) -> bytes:
    """The user's key in this directory, made at first use. Where the directory is not private or
    cannot be written, the key is this process's own: nothing from the cache is then used."""
    try:
        for _ in range(2):
            found = ownership.read_private(str(directory), _KEY, SETTING, secret=True)
            if found is not None and len(found) == _SIZE:
                return found
            # Two processes may write at once: the later key stays. The entries of the earlier one
            # are not found again.
            ownership.write_private(str(directory), _KEY, secrets.token_bytes(_SIZE), SETTING)
        problem = f"the key in {directory} cannot be read back"
    except CacheRefused as error:
        problem = str(error)
    except OSError as error:
        problem = f"{directory} cannot be used: {error.strerror or error}"
    # Logged, not warned: a compile keeps its warnings in the cache, and this is about this process.
    _logger.warning("CPU kernels are compiled again by each process: %s", problem)
    return secrets.token_bytes(_SIZE)


def fingerprint(directory: Path) -> str:
    """A hash of the user's key, for cache keys; the key cannot be recovered from it."""
    return hmac.digest(_key(directory), b"the name of this key", "sha256").hex()[:16]


def seal(metadata: dict[str, Any], binary: bytes, directory: Path) -> None:
    """Add the digest of the object and the seal to a kernel's metadata."""
    metadata["cpu_object"] = hashlib.sha256(binary).hexdigest()
    metadata[SEAL] = _sealed(_key(directory), metadata)


def _sealed(key: bytes, metadata: Mapping[str, Any]) -> str:
    facts = [metadata.get(name) for name in _FACTS]
    return hmac.digest(key, json.dumps(facts).encode(), "sha256").hex()


def require(metadata: Any, directory: Path) -> None:
    """Raise `CacheRefused` unless this user sealed this metadata; its object may then be loaded."""
    _key(directory)
    facts = {name: getattr(metadata, name, None) for name in (*_FACTS, SEAL)}
    given = str(facts[SEAL]).encode("utf-8", "replace")
    # Any key of this process: a kernel may be compiled with one cache directory, and launched with
    # another.
    seals = [_sealed(key, facts).encode() for key in tuple(_keys.values())]
    if not any(hmac.compare_digest(given, each) for each in seals):
        raise _refused(str(facts["name"]), directory, "its metadata has no seal of yours")
    _here.wanted = bytes.fromhex(str(facts["cpu_object"]))
    _verified.add(_here.wanted)


def require_verified(name: str, binary: bytes, directory: Path) -> None:
    """Raise `CacheRefused` unless the object of the kernel `name` belongs to the metadata that
    `require` accepted before: with that of another kernel, it would read other arguments."""
    found, wanted = hashlib.sha256(binary).digest(), _here.wanted
    _here.wanted = None
    if found not in _verified or wanted not in (None, found):
        raise _refused(name, directory, "its object is not the one that you compiled")


def _refused(name: str, directory: Path, problem: str) -> CacheRefused:
    cache = str(directory.parent)
    return CacheRefused(
        path=cache,
        problem=f"the entry of kernel {name!r} was changed or put there by someone else: {problem}",
        cure=f"remove {cache}",
        setting=SETTING,
    )
