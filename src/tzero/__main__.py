"""``python -m tzero``: the ``tzero`` command."""

from tzero.cli import main

main()
