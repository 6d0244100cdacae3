"""`tzero.load_bundle` and `tzero.unload_bundle`: launches use the compiled kernels of a bundle.

Enters: the path of a bundle. Leaves: a process whose Triton kernels are looked up there first. It
must not know the format of a bundle.
"""

from __future__ import annotations

import os

import tzero.backends.triton  # noqa: F401 - all of Triton's kernels are looked up in bundles then
from tzero.cache import in_use
from tzero.cache.bundle import Bundle

__all__ = ["load_bundle", "unload_bundle"]


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Use the compiled kernels and tuned configs of a bundle, in the whole process from now on.

    ::

        tzero.load_bundle("app.tzb")

    A kernel that is in it, of tzero's or of Triton's own, is neither compiled nor looked up in a
    cache, and needs no compiler. One that is not is compiled as ever, and an event says why the
    bundle does not have it. Raises `BundleRefused` for a file that is damaged, no bundle, or not
    trusted. The environment variable ``TZERO_BUNDLE`` does the same for a program that does not
    call this.
    """
    return in_use.use(path)


def unload_bundle(bundle: Bundle) -> None:
    """Use a bundle of `load_bundle` no longer. Kernels that were loaded from it stay.

    ::

        bundle = tzero.load_bundle("app.tzb")
        tzero.unload_bundle(bundle)
    """
    in_use.drop(bundle)
