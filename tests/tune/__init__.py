"""Tuning: spaces, searches, timing, records, and choosing by size."""
