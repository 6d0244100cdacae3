"""Marks on a redis server, which drops each of them when its lease ends.

Enters: names and marks. Leaves: marks. It must not know what a mark means.
"""

from __future__ import annotations

from typing import Any

from tzero.cache.remote import connected, shown

__all__ = ["Redis"]

_SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1])
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
"""


class Redis:
    """A board at a URL; connects at the first call.

    ::

        Redis("redis://host:6379/0").read("tzero/1/open/claims/ab12")
    """

    def __init__(self, url: str) -> None:
        self.shown = shown(url)
        self._client = connected(url)
        self._swap: Any = self._client.register_script(_SWAP)

    def read(self, name: str) -> str:
        """Return the mark of a name; empty: none."""
        found = self._client.get(name)
        if found is None or isinstance(found, bytes):
            return (found or b"").decode(errors="replace")
        raise TypeError(f"redis replied with a {type(found).__name__}")

    def swap(self, name: str, seen: str, mark: str, seconds: float) -> bool:
        """Replace the mark that was seen by another; return False if another is there now."""
        milliseconds = max(int(seconds * 1000), 1)
        if not seen and mark and self._client.set(name, mark, nx=True, px=milliseconds) is True:
            return True
        # Also after that: an empty value is no mark, and keeps the name from being set.
        return bool(self._swap(keys=[name], args=[seen, mark, milliseconds]) == 1)
