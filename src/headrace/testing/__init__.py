"""What proves a part: suites that an implementation inherits, and a store that fails on request.

A new store is one file and one test class, `class TestMyStore(StoreContract)` with `make_store`; a new format is one
object and one test class, `class TestMyFormat(FormatContract)` with `make_format` and `records`. `FaultStore` stands
between any store and the code under test. Nothing else imports this package, and only the contracts need pytest.
"""

from typing import TYPE_CHECKING

from headrace.testing.fault_store import FaultStore
from headrace.testing.faults import Break, Call, Cut, Delay, Expire, Flip, Forget, Refuse, Rule, Run, Stall, Status

if TYPE_CHECKING:
    from headrace.testing.format_contract import FormatContract
    from headrace.testing.store_contract import StoreContract

__all__ = [
    "Break",
    "Call",
    "Cut",
    "Delay",
    "Expire",
    "FaultStore",
    "Flip",
    "Forget",
    "FormatContract",
    "Refuse",
    "Rule",
    "Run",
    "Stall",
    "Status",
    "StoreContract",
]


def __getattr__(name: str) -> object:
    match name:
        case "FormatContract":
            from headrace.testing.format_contract import FormatContract

            return FormatContract
        case "StoreContract":
            from headrace.testing.store_contract import StoreContract

            return StoreContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
