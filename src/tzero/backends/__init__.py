"""The compilers tzero brings along, one module each."""
