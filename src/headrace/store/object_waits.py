"""How long an overloaded server asks to wait.

obstore's errors have no headers, so that Retry-After is asked for by one more request, a HEAD. That is done only after
answers that often have one: 429, and 503 over plain HTTP. S3's 503 never has, and counts every request.
"""

import email.utils
import time
from contextlib import suppress
from typing import Any

from headrace.store.object_heads import asked, signed_url
from headrace.store.object_places import ObjectPlace

__all__ = ["wanted_wait_s"]

_TIMEOUT_S = 5.0


def wanted_wait_s(place: ObjectPlace, status: int, request: tuple[Any, Any, str]) -> float | None:
    """The seconds that the server asks to wait after it answered with status; None where it does not say.

    request is obstore, its client and the object's key. Whatever fails here is as good as no answer.
    """
    if status != 429 and (status, place.kind) != (503, "http"):
        return None
    with suppress(Exception):
        head = asked(signed_url(place, request), dict(place.options.headers or {}), _TIMEOUT_S)
        wanted = head.headers.get("retry-after", "").strip() if head.status >= 400 else ""
        if wanted.isdecimal():
            return float(wanted)
        with suppress(ValueError):
            return max(0.0, email.utils.parsedate_to_datetime(wanted).timestamp() - time.time())
    return None
