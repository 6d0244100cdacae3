"""What the commands of ``tzero`` do; `tzero.cli` parses their arguments and prints their results.

doctor    whether tzero works here, what would make it faster, and how to get there
"""
