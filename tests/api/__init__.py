"""The decorators and their options."""
