"""``python -m tzero``: the ``tzero`` command."""

from tzero.cli import main

if __name__ == "__main__":
    main()
