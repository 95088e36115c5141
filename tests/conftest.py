"""How hard the tests look: Hypothesis' profiles."""

from hypothesis import HealthCheck, settings

EXAMPLES = 25

# A busy machine is no fault of a test, so nothing here is judged by time.
patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

# `make test`: few examples, and the same ones every time, so that a red test means a change in the code.
settings.register_profile("default", max_examples=EXAMPLES, derandomize=True, database=None, **patient)

# `make laws`: a hundred times as many, and others every time.
settings.register_profile("laws", max_examples=100 * EXAMPLES, print_blob=True, **patient)

settings.load_profile("default")
