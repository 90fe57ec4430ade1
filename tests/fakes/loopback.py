"""No test leaves the machine: looking up a name, connecting or sending beyond loopback fails the test.

The attempt fails as it would on a machine without a network, and the test fails too when the code it tests swallows
that. What child processes do is not seen.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ["guarded_sockets", "only_loopback"]

# google-auth (2.62) asks there in a thread of its own, for each service account, where that may be used from;
# without an answer it goes on. Which test is under way then is chance. Refused like all others, and not told.
_LIBRARIES_OWN = frozenset({"iamcredentials.googleapis.com"})


def is_here(host: Any) -> bool:
    """Is this address, or name, this machine by loopback? Looks nothing up."""
    name = host.decode() if isinstance(host, bytes) else str(host or "localhost")
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


@pytest.fixture(scope="session", autouse=True)
def guarded_sockets() -> Iterator[list[str]]:
    """All sockets of this process are watched, background threads included; the attempts to leave, as sentences."""
    attempts: list[str] = []
    connect, connect_ex, sendto = socket.socket.connect, socket.socket.connect_ex, socket.socket.sendto
    getaddrinfo = socket.getaddrinfo

    def leaves(one: socket.socket, address: Any, what: str) -> bool:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or is_here(address[0]):
            return False
        attempts.append(f"{what} {address[0]} port {address[1]}")
        return True

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if leaves(self, address, "connected to"):
            raise OSError(errno.ENETUNREACH, "Network is unreachable (the tests' guard)")
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        return errno.ENETUNREACH if leaves(self, address, "connected to") else connect_ex(self, address)

    def guarded_sendto(self: socket.socket, data: Any, *more: Any) -> int:
        if leaves(self, more[-1], "sent to"):
            raise OSError(errno.ENETUNREACH, "Network is unreachable (the tests' guard)")
        return sendto(self, data, *more)

    def guarded_getaddrinfo(host: Any, *more: Any, **options: Any) -> Any:
        if not is_here(host) and not _is_address(host):
            if host not in _LIBRARIES_OWN:
                attempts.append(f"looked up {host!r}")
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known (the tests' guard)")
        return getaddrinfo(host, *more, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket.socket, "sendto", guarded_sendto)
        patch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
        yield attempts


@pytest.fixture(autouse=True)
def only_loopback(guarded_sockets: list[str]) -> Iterator[None]:
    """Fails the test that was under way when anything tried to leave."""
    guarded_sockets.clear()
    yield
    if guarded_sockets:
        pytest.fail(f"The test left the machine: it {'; '.join(guarded_sockets)}.", pytrace=False)


def _is_address(host: Any) -> bool:
    """A literal address is not looked up; `connect` decides about it."""
    try:
        ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host))
    except ValueError:
        return False
    return True
