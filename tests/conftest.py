"""How hard the tests look: Hypothesis' profiles; and what every test may take for granted."""

import signal

from hypothesis import HealthCheck, settings

EXAMPLES = 25

# A busy machine is no fault of a test, so nothing here is judged by time.
patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

# `make test`: few examples, and the same ones every time, so that a red test means a change in the code.
settings.register_profile("default", max_examples=EXAMPLES, derandomize=True, database=None, **patient)

# `make laws`: a hundred times as many, and others every time.
settings.register_profile("laws", max_examples=100 * EXAMPLES, print_blob=True, **patient)

settings.load_profile("default")

# A shell that starts us in the background has us ignore Ctrl-C, and our children inherit that; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
