import pytest

# Before the first import, so that a failing contract shows the values it compared.
pytest.register_assert_rewrite(
    "headrace.testing.capability_contract", "headrace.testing.reading_contract", "headrace.testing.store_contract"
)
