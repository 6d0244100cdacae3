"""Errors, settings, events, public names, layers, packaging, docs, and the bench's own code."""
