"""How hard the tests look: Hypothesis' profiles; what every test may take for granted; and tests that need a GPU."""

import gc
import signal
import threading

import pytest
from hypothesis import HealthCheck, settings

# Before the first import, so that a failing contract shows the values it compared.
for contract in ("capability", "reading", "store"):
    pytest.register_assert_rewrite(f"headrace.testing.{contract}_contract")

pytest_plugins = ["servers.fixtures"]  # tests/servers/__init__.py says what is there

EXAMPLES = 25

# A busy machine is no fault of a test, so nothing here is judged by time.
patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

# `make test`: few examples, and the same ones every time, so that a red test means a change in the code.
settings.register_profile("default", max_examples=EXAMPLES, derandomize=True, database=None, **patient)

# `make laws`: a hundred times as many, and others every time.
settings.register_profile("laws", max_examples=100 * EXAMPLES, print_blob=True, **patient)

# Continuous integration runs every suite in less than an hour: `make laws PROFILE=laws-in-ci`.
settings.register_profile("laws-in-ci", max_examples=20 * EXAMPLES, print_blob=True, **patient)

settings.load_profile("default")

# A shell that starts us in the background has us ignore Ctrl-C, and our children inherit that; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NO_CUDA = "needs a CUDA device"


@pytest.fixture
def busy_threads():
    """Threads that hardly rest, beside which a process is forked at an awkward moment."""
    over = threading.Event()

    def spin():
        while not over.wait(0.0005):
            sum(range(2000))

    threads = [threading.Thread(target=spin) for _ in range(4)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch  # here, since most runs of a few tests have no use for it

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=NO_CUDA))


def pytest_collection_finish():
    # The objects of thousands of tests stay to the end. Walking through them costs a fifth of a second a collection.
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    # By the reason: reports come from other processes under xdist, without their markers.
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(NO_CUDA) for report in skipped)
    if count:
        tests = "1 test needs" if count == 1 else f"{count} tests need"
        terminalreporter.write_line(f"{tests} CUDA and {'was' if count == 1 else 'were'} skipped", yellow=True)
