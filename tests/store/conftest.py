import pytest

# Before the first import, so that a failing contract shows the values it compared.
pytest.register_assert_rewrite("headrace.testing.store_contract")
