"""Plans over sizes: formulas, shapes, and generated programs against the plain function."""
