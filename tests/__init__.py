"""Tests; the folders mirror the packages of `src/tzero`."""
