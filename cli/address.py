"""Where the API listens: `HOST:PORT`, an IPv6 address in brackets."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address

_FORM = "expected ADDRESS:PORT, such as 127.0.0.1:8470 or [::1]:8470"


@dataclass(frozen=True, slots=True)
class Address:
    """A numeric address and a port; port 0 lets the kernel choose one."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ip_address(self.host).is_loopback

    @property
    def reachable(self) -> Address:
        """Where a client on this machine finds it: a wildcard is no address to connect to."""
        if not ip_address(self.host).is_unspecified:
            return self
        return Address("::1" if ":" in self.host else "127.0.0.1", self.port)

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse it. Names are refused, apart from `localhost`: what a name stands for is not ours to guess.

    Raises ValueError.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ValueError(_FORM)
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"the port {port!r} is not a number from 0 to 65535")
    return Address(_literal(host[1:-1] if bracketed else host), int(port))


def _literal(host: str) -> str:
    if host == "localhost":
        return "127.0.0.1"
    try:
        return str(ip_address(host))
    except ValueError:
        raise ValueError(f"{host!r} is not an IP address; {_FORM}") from None


def listen(address: Address) -> socket.socket:
    """Bind and listen, before anything else is started. Raises OSError: somebody else listens there, or may not we."""
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
