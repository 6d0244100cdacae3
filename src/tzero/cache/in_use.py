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
    if key not in _named:
        with _change:
            if key not in _named:
                _named[key] = _opened(*key)
    named = _named[key]
    return _loaded if named is None else (*_loaded, named)


def _opened(path: str, key: str | None) -> Bundle | None:
    try:
        return Bundle(os.path.expanduser(path), key)
    except BundleRefused as error:
        emit(Event("cache", "TZERO_BUNDLE", str(error)))
        return None
