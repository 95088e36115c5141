"""How long an overloaded server asks to wait.

obstore's errors have no headers, so that Retry-After is asked for by one more request, a HEAD. That is done only after
answers that often have one: 429, and 503 over plain HTTP. S3's 503 never has, and counts every request.
"""

import email.utils
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

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
        return _retry_after_s(_url(place, request), dict(place.options.headers or {}))
    return None


def _url(place: ObjectPlace, request: tuple[Any, Any, str]) -> str:
    obstore, client, key = request
    if place.kind == "http" or place.options.anonymous:
        parts = urlsplit(place.bucket if place.kind == "http" else f"{place.options.endpoint}/{place.bucket}")
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}/{quote(key)}"
    return str(obstore.sign(client, "HEAD", key, timedelta(minutes=1)))


def _retry_after_s(url: str, headers: dict[str, str]) -> float | None:
    import urllib.error  # late: few programs ever need it
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, asked: urllib.request.Request, *answer: Any) -> urllib.request.Request:
            same = urlsplit(answer[-1])[:2] == urlsplit(asked.full_url)[:2]
            # What authorizes here is nobody else's to see.
            return urllib.request.Request(answer[-1], headers=headers if same else {}, method="HEAD")

    try:
        request = urllib.request.Request(url, headers=headers, method="HEAD")
        urllib.request.build_opener(Redirects).open(request, timeout=_TIMEOUT_S).close()
    except urllib.error.HTTPError as answer:
        with answer:
            asked = str(answer.headers.get("Retry-After", "")).strip()
        if asked.isdecimal():
            return float(asked)
        with suppress(ValueError):
            return max(0.0, email.utils.parsedate_to_datetime(asked).timestamp() - time.time())
    return None
