"""Tuned configs in bundles: noted when they are chosen, collected, and read.

Enters: the entries that calls of this process have chosen; the bundles in use. Leaves: entries for
a bundle; those of bundles as `Pretuned`. It must not know how a config was found.
"""

from __future__ import annotations

import hashlib
import os
import weakref

from tzero import settings
from tzero.cache.bundle import Bundle, Item, write
from tzero.cache.digest import canonical
from tzero.cache.in_use import bundles
from tzero.errors import PretunedDamaged
from tzero.events import Event, emit
from tzero.tune.records import Entry, Place, Pretuned

__all__ = ["CONFIG", "chosen", "item", "note", "of_bundles"]

CONFIG = "config"
"""The kind of entries in a bundle."""

_chosen: dict[Place, Entry] = {}
_read: weakref.WeakKeyDictionary[Bundle, Pretuned] = weakref.WeakKeyDictionary()


def note(entry: Entry) -> None:
    """Note a config that was chosen for a call.

    ::

        note(facts.entry(config, shapes))
    """
    _chosen[entry.place] = entry
    folder = settings.now().collect
    if folder is None:
        return
    made = item(entry)
    try:
        write(os.path.join(folder, f"{made.digest}.tzb"), [made])
    except OSError as error:
        emit(Event("cache", entry.kernel, f"not collected in {folder}: {error.strerror}"))


def chosen() -> tuple[Entry, ...]:
    """The configs that calls of this process have chosen.

    >>> chosen() == chosen()
    True
    """
    return tuple(_chosen.values())


def item(entry: Entry) -> Item:
    """An entry for a bundle.

    ::

        bundle.write("app.tzb", [item(entry)])
    """
    digest = hashlib.sha256(canonical([CONFIG, *entry.place]).encode()).hexdigest()
    facts = {"hardware": entry.hardware, "arguments": entry.arguments}
    return Item(CONFIG, digest, entry.kernel, facts, Pretuned([entry]).encode())


def of_bundles() -> tuple[Pretuned, ...]:
    """The configs of the bundles in use, the latest bundle first.

    >>> of_bundles()
    ()
    """
    return tuple(map(_of, bundles()))


def _of(bundle: Bundle) -> Pretuned:
    found = _read.get(bundle)
    if found is None:
        found = _read[bundle] = _configs(bundle)
    return found


def _configs(bundle: Bundle) -> Pretuned:
    entries: dict[Place, Entry] = {}
    for listed in bundle:
        payload = bundle.get(CONFIG, listed.digest) if listed.kind == CONFIG else None
        if payload is None:
            continue
        try:
            read = Pretuned.decode(payload, bundle.path).entries
        except PretunedDamaged as error:
            emit(Event("cache", listed.name, str(error)))
            continue
        entries.update({each.place: each for each in read})
    return Pretuned(entries.values(), bundle.path)
