"""The same kernels in Triton's interpreter, timed in a child process.

Triton decides at import whether it interprets, so one process cannot do both. Enters (the child):
row ids as arguments. Leaves: a line of JSON per row, with seconds per call or the error. The
interpreter is hundreds of times slower, so a few calls are enough, and it matters little that its
times come from another process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

__all__ = ["seconds_of"]

REPEATS = 3


def seconds_of(ids: Sequence[str], threads: int) -> Iterator[tuple[str, list[float] | str]]:
    """Yield each row's seconds per call, or why there are none, as soon as they are known."""
    command = [sys.executable, "-m", "bench.interpreter", str(threads), *ids]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        left = list(ids)
        for line in child.stdout:
            answer = json.loads(line)
            left.remove(answer["id"])
            yield answer["id"], answer.get("error") or answer["seconds"]
    for row_id in left:
        yield row_id, f"its process ended early, with status {child.returncode}"


def _measure(row_id: str) -> dict[str, object]:
    from bench.rows import ROWS

    row = next(row for row in ROWS if row.id == row_id)
    case = row.make()
    times: list[float] = []
    try:
        case.check()
        for _ in range(REPEATS):
            start = time.perf_counter()
            case.contenders[row.subject]()
            times.append(time.perf_counter() - start)
    except Exception as error:  # reported as this row's answer
        return {"id": row_id, "error": f"{type(error).__name__}: {error}"}
    return {"id": row_id, "seconds": times}


def _main(threads: str, *ids: str) -> None:
    import torch

    torch.set_num_threads(int(threads))
    for row_id in ids:
        print(json.dumps(_measure(row_id)), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
