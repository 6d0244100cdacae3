"""Asserts in what the tests share show their values, as those in the tests do."""

import pytest

pytest.register_assert_rewrite("tests.arguments.key_cases")
