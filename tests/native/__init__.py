"""The native extension: its module, native plans, their guards and lifetime."""
