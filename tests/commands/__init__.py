"""The commands of ``tzero``, end to end: what they print, and their exit codes."""
