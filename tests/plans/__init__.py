"""Plans against tier 0: recordings, fallbacks, guards, aliasing, output pools."""
