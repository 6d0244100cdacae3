"""Formulas over sizes, and the geometry of tensors in formulas."""
