"""Launches at every tier: one row for each fact that may change, and each guard mutated."""
