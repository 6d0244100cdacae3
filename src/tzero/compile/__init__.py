"""Compiling beside the program: requests out, artifacts back."""
