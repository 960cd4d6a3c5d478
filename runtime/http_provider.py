"""A provider that speaks HTTP: put this protocol before your own service, and deadsure knows what happened.

    POST {url}                            do it
        Idempotency-Key: KEY              the same in every attempt of one task
        Deadsure-Fence: N                 larger in every attempt; refuse (412) one smaller than the largest seen
        Deadsure-Not-After: TIME          RFC 3339, UTC; refuse (412) what arrives later
        the body: the intent's JSON, byte for byte the same in every attempt
      2xx with a receipt                  it is done
      other 4xx                           it was not done and never will be by this request: the task fails
      408, 409, 423, 425, 429             nobody knows: so do 1xx, 3xx, 5xx, a 2xx without a receipt that fits, a
                                          time-out, and a connection that breaks
    GET {url}/{KEY}                       was it done?
      200 with a receipt                  yes
      404 with the header Deadsure-Absent: authoritative      no; a bare 404 can come from any proxy on the way
      all else                            ask again later

    A receipt, in both answers:
        {"receipt_id": "r-1", "key": KEY, "fingerprint": F, "fields": {"account": "a", "amount": 5}}
    F is the SHA-256, in lower-case hexadecimal, of the intent's canonical JSON (RFC 8785): of the body itself.

Nothing is sent twice, no redirect is followed, no proxy is read from the environment, certificates are checked.
"""

from __future__ import annotations

import base64
import json
import math
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC
from urllib.parse import SplitResult, quote, unquote, urlsplit

from . import points
from .effects import Ambiguous, Call, Contract, NotSent, Receipt, Rejected, Unavailable, mismatch
from .http_exchange import Answer, Broken, Server, Unsent, exchange
from .model import JSON

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]

#: 4xx that do not say that nothing was done, or will be: RFC 9110, 8470 (425), 4918 (423), 6585 (429).
_UNDECIDED = frozenset({408, 409, 423, 425, 429})
_OURS = frozenset(
    {"idempotency-key", "deadsure-fence", "deadsure-not-after", "host", "connection", "content-length",
     "transfer-encoding", "expect", "upgrade", "te"}
)  # fmt: skip
_NAME = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_PORTS = {"http": 80, "https": 443}


class Mismatched(Ambiguous):
    """The provider answered 2xx with a receipt that does not prove this intent. It is kept as evidence."""

    def __init__(self, receipt: Receipt, why: str) -> None:
        super().__init__(f"the receipt does not prove this intent: {why}")
        self.receipt = receipt
        self.why = why


class HttpProvider:
    """The provider at `url`. See the module's docstring for what it sends and understands.

    `timeout` is for a whole call, in seconds. `headers` are sent with every request: a mapping, or a function that is
    asked each time (for a secret that is read late); they are never shown. `tls` replaces the default verification,
    for a private authority or a client's certificate. Raises ValueError for what cannot be meant.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        contract: Contract | None = None,
        timeout: float = 10.0,
        headers: Headers | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = _split(url)
        if not name or not name.isprintable():
            raise ValueError("a provider's name must be printable and not empty")
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError("timeout must be a positive number of seconds")
        self.name = name
        self.contract = contract
        self.timeout = float(timeout)
        self._headers = headers if callable(headers) else _checked(headers or {})
        self._login = _login(parts)
        self._path = parts.path or "/"
        host = _host(parts)
        self._server = Server(host, parts.port or _PORTS[parts.scheme], _tls(parts.scheme, tls))
        self._host = _authority(host, parts.port, parts.scheme)
        #: Which provider this is: the URL in one form, without credentials.
        self.identity = f"{parts.scheme}://{self._host}{self._path.rstrip('/')}"

    def __repr__(self) -> str:
        return f"HttpProvider({self.identity!r}, name={self.name!r})"

    def perform(self, call: Call) -> Receipt:
        """Do it. Raises Rejected, NotSent or Ambiguous."""
        not_after = call.not_after.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        fixed = {
            "Content-Type": "application/json",
            "Idempotency-Key": call.key,
            "Deadsure-Fence": str(call.fence),
            "Deadsure-Not-After": not_after,
        }
        try:
            request = self._request("POST", self._path, fixed, call.request)
        except Exception as error:  # noqa: BLE001  the user's function may raise anything, a secret in its text
            raise NotSent(f"its headers could not be made ({type(error).__name__}); nothing was sent") from None
        try:
            answer = exchange(self._server, request, self._seconds(call), lambda: points.reach("during_call"))
        except Unsent as error:
            raise NotSent(str(error)) from None
        except Broken as error:
            raise Ambiguous(str(error)) from None
        return self._judge(answer, call)

    def lookup(self, call: Call) -> Receipt | None:
        """Was it done? None: with authority, no. Raises Unavailable when that cannot be said."""
        path = f"{self._path.rstrip('/')}/{quote(call.key, safe='')}"
        try:
            request = self._request("GET", path, {"Cache-Control": "no-cache"})
        except Exception as error:  # noqa: BLE001  as above
            raise Unavailable(f"its headers could not be made ({type(error).__name__}); nothing was asked") from None
        try:
            answer = exchange(self._server, request, self._seconds(call))
        except (Unsent, Broken) as error:
            raise Unavailable(str(error)) from None
        if answer.status == 200 and (receipt := _receipt(answer.body)) is not None:
            return receipt
        if answer.status == 404 and _authoritative(answer):
            return None
        raise Unavailable(f"the lookup was answered {answer.status}, which says neither done nor absent")

    def _judge(self, answer: Answer, call: Call) -> Receipt:
        status = answer.status
        if 200 <= status < 300:
            receipt = _receipt(answer.body)
            if receipt is None:
                raise Ambiguous(f"the provider answered {status} without a receipt")
            why = mismatch(receipt, call.key, call.intent, self.contract)
            if why is not None:
                raise Mismatched(receipt, why)
            return receipt
        if 400 <= status < 500 and status not in _UNDECIDED:
            raise Rejected(f"the provider refused it with {status}")
        raise Ambiguous(f"the provider answered {status}, which does not say whether it was done")

    def _seconds(self, call: Call) -> float:
        return min(self.timeout, call.timeout)

    def _request(self, method: str, path: str, fixed: Mapping[str, str], body: bytes = b"") -> bytes:
        given = _checked(self._headers()) if callable(self._headers) else self._headers
        usual = {"Accept": "application/json", "User-Agent": "deadsure", **self._login, **fixed}
        headers = {"Host": self._host, "Connection": "close", **given}
        headers |= {name: value for name, value in usual.items() if name.lower() not in given}
        if method == "POST":
            headers["Content-Length"] = str(len(body))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return "\r\n".join(lines).encode("latin-1") + body


def _receipt(body: bytes) -> Receipt | None:
    """The receipt in an answer; None when it holds none. Whether it proves anything is decided elsewhere."""
    try:
        found = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    id, key, fingerprint = (found.get(name) for name in ("receipt_id", "key", "fingerprint"))
    fields: JSON = found.get("fields", {})
    if not isinstance(key, str) or not isinstance(fingerprint, str) or not isinstance(fields, dict):
        return None
    return Receipt(id if isinstance(id, str) else "", key, fingerprint, fields)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _authoritative(answer: Answer) -> bool:
    """Said by the provider, now: a cache on the way (it adds Age, RFC 9111) could repeat what was true before."""
    return answer.headers.get("deadsure-absent", "").strip().lower() == "authoritative" and "age" not in answer.headers


def _can_be_sent(character: str) -> bool:
    return " " <= character <= "~" or character == "\t" or "\xa0" <= character <= "\xff"


def _split(url: str) -> SplitResult:
    """The URL in its parts. The text itself is never in an error: it may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("the provider's url cannot be read") from None
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise ValueError("the provider's url must be http://HOST[:PORT][/PATH] or https://...")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValueError("the provider's url must have no query and no fragment: the key is put behind its path")
    if not all("!" <= character <= "~" for character in parts.path):
        raise ValueError("the path of the provider's url must be percent-encoded")
    return parts


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if ":" in host or host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("the host of the provider's url is no name") from None


def _authority(host: str, port: int | None, scheme: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port in (None, _PORTS[scheme]) else f"{shown}:{port}"


def _login(parts: SplitResult) -> dict[str, str]:
    """Credentials in the URL, as RFC 7617 sends them."""
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"Authorization": "Basic " + base64.b64encode(pair).decode("ascii")}


def _tls(scheme: str, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    if scheme == "http":
        return None
    return given or ssl.create_default_context()


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """The user's headers, by name in lower case. Raises ValueError, which never shows a value."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        low = name.lower()
        if not low or not set(low) <= _NAME or low in _OURS:
            raise ValueError(f"the header {name!r} cannot be set")
        if not isinstance(value, str) or not all(map(_can_be_sent, value)):
            raise ValueError(f"the header {name!r} has a value that cannot be sent")
        found[low] = value
    return found
