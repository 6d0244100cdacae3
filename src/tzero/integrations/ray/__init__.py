"""Ray: kernels compiled on any node of a cluster, and timed where the device class matches.

::

    this process ── Cluster ── pipe ──► bridge, a child process ── Ray ──► nodes: compile_there,
        ▲                                  │                                      search_there
        └── futures ◄── answers ◄──────────┘

``cluster``: the executor; ``bridge``: the child process, which alone is connected to Ray. Ray ends
a process whose cluster is lost. So this process must not be the one that is connected.

Enters: calls of importable functions. Leaves: futures of their results. It must not know what is
compiled or timed. ``tzero.ray`` is this package.
"""

from tzero.integrations.ray.cluster import Cluster, executor

__all__ = ["Cluster", "executor"]
