"""A hostile world: changes between calls that replays must notice, known ones and random ones."""
