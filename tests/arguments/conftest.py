"""Rewrite asserts in the shared module, so that failures show their values."""

import pytest

pytest.register_assert_rewrite("tests.arguments.key_cases")
