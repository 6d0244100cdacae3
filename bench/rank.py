"""A process that compiles what it is told to, for `bench.rows.sharing`.

Enters: how many kernels, a directory for their source, and on standard input a cache directory a
line. Leaves: on standard output
"ready", then for each line how many kernels this process compiled itself. Each time it starts with
a new service, without workers.
"""

from __future__ import annotations

import os
import sys


def main(count: int, directory: str) -> None:
    from bench.rows.building import requests
    from tzero.compile import AsyncCompile

    asked = requests(count, directory)
    print("ready", flush=True)
    for line in sys.stdin:
        os.environ["TZERO_CACHE_DIR"] = line.rstrip("\n")
        service = AsyncCompile()
        service.wait([service.submit(request) for request in asked])
        print(sum(service.stats().compiled.values()), flush=True)
        service.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
