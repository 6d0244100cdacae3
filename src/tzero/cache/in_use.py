"""The bundles that this process uses: of `tzero.load_bundle`, and of ``TZERO_BUNDLE``.

Enters: paths, settings. Leaves: open bundles, the latest first. It must not know what is in them.

A bundle that `load_bundle` names and that cannot be used is an error. One that the variable names
is an event, and the program goes on without it.
"""

from __future__ import annotations

import os

from tzero import locks, settings
from tzero.cache.bundle import Bundle
from tzero.errors import BundleRefused
from tzero.events import Event, emit

__all__ = ["bundles", "drop", "use"]

_change = locks.lock()  # protects writes to these; reads take no lock
_loaded: tuple[Bundle, ...] = ()
_named: dict[tuple[str, str | None], Bundle | None] = {}
"""By the values of TZERO_BUNDLE and TZERO_CACHE_KEY; None: it cannot be used."""


def use(path: str | os.PathLike[str]) -> Bundle:
    """Open a bundle, and use it from now on; `BundleRefused` if it cannot be used.

    ::

        use("app.tzb")
    """
    global _loaded
    made = Bundle(path, settings.now().cache_key)
    with _change:
        _loaded = (made, *_loaded)
    return made


def drop(bundle: Bundle) -> None:
    """Use a bundle no longer. Kernels that were loaded from it stay.

    ::

        drop(bundle)
    """
    global _loaded
    with _change:
        _loaded = tuple(each for each in _loaded if each is not bundle)
    bundle.close()


def bundles() -> tuple[Bundle, ...]:
    """The bundles in use, the latest first, that of ``TZERO_BUNDLE`` last.

    >>> bundles()
    ()
    """
    now = settings.now()
    if now.bundle is None:
        return _loaded
    key = (now.bundle, now.cache_key)
    named = _named[key] if key in _named else _opened(*key)
    return _loaded if named is None else (*_loaded, named)


def _opened(path: str, key: str | None) -> Bundle | None:
    """Open the bundle that the variable names, once."""
    problem = ""
    with _change:
        if (path, key) not in _named:
            made = None
            try:
                made = Bundle(os.path.expanduser(path), key)
            except BundleRefused as error:
                problem = str(error)
            _named[path, key] = made
    if problem:  # told without the lock: an observer may call kernels, which ask for bundles
        emit(Event("cache", "TZERO_BUNDLE", problem))
    return _named[path, key]
