"""Helion: one row for each feature of its language, with and without tzero."""
