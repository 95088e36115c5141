"""What a server says of an object in headers that obstore does not pass on: by a HEAD request beside it.

The URL is signed by obstore, so that this needs no more credentials than any other request. Azure keeps the MD5 digest
of each blob that came in one request, and says it only here; of one that came in blocks it has none.
"""

import base64
import email.utils
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

from headrace.store.object_places import ObjectPlace

__all__ = ["Head", "asked", "early_s", "signed_url"]


class Head(NamedTuple):
    """The answer to a HEAD request; status 0 and nothing else where none came."""

    status: int
    headers: dict[str, str]  # names in lower case

    def meta(self) -> dict[str, Any]:
        """What obstore's own answer says; KeyError or ValueError where that is missing, or makes no sense."""
        modified = email.utils.parsedate_to_datetime(self.headers["last-modified"])
        size = int(self.headers["content-length"])
        return {"size": size, "e_tag": self.headers.get("etag"), "last_modified": modified}

    def md5(self) -> str:
        """The digest in hexadecimal, "" where the server says none; ValueError where it makes no sense."""
        return base64.b64decode(self.headers.get("content-md5", ""), validate=True).hex()


def signed_url(place: ObjectPlace, request: tuple[Any, Any, str]) -> str:
    """Where to ask for an object's headers. request is obstore, its client and the object's key.

    Raises what obstore does where it cannot sign: with signatures instead of keys, and with tokens of little right.
    For Azure "" where the URL spells the key otherwise: obstore signs what is in the URL, and Azure wants the key.
    """
    obstore, client, key = request
    if place.kind == "http" or place.options.anonymous:
        parts = urlsplit(place.bucket if place.kind == "http" else f"{place.options.endpoint}/{place.bucket}")
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}/{quote(key)}"
    method = "GET" if place.kind == "azure" else "HEAD"  # of Azure's signatures only that for GET allows to read
    url = str(obstore.sign(client, method, key, timedelta(minutes=15)))  # also where this machine's clock is behind
    return url if place.kind != "azure" or urlsplit(url).path.endswith(f"/{key}") else ""


def early_s(url: str, head: Head) -> float:
    """How long the signature in an Azure URL, which counts from now on, does not count yet by the server's clock."""
    try:
        begin = datetime.fromisoformat(parse_qs(urlsplit(url).query)["st"][0])
        return (begin - email.utils.parsedate_to_datetime(head.headers["date"])).total_seconds()
    except (KeyError, ValueError, TypeError):
        return 0.0


def asked(url: str, headers: dict[str, str], timeout_s: float) -> Head:
    """The headers of what lies at url. Raises nothing for a server that refuses, or does not answer."""
    import http.client  # late: few programs ever need these
    import urllib.error
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, asked: urllib.request.Request, *answer: Any) -> urllib.request.Request:
            same = urlsplit(answer[-1])[:2] == urlsplit(asked.full_url)[:2]
            # What authorizes here is nobody else's to see.
            return urllib.request.Request(answer[-1], headers=headers if same else {}, method="HEAD")

    try:
        request = urllib.request.Request(url, headers=headers, method="HEAD")
        with urllib.request.build_opener(Redirects).open(request, timeout=timeout_s) as answer:
            return Head(answer.status, {name.lower(): text for name, text in answer.headers.items()})
    except urllib.error.HTTPError as error:
        with error:
            return Head(error.code, {name.lower(): text for name, text in error.headers.items()})
    except (OSError, http.client.HTTPException):
        return Head(0, {})
