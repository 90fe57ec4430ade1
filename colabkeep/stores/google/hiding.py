"""Addresses that are secrets, as the addresses of uploads are: whoever has one may write that file.

requests, urllib3 and google-auth write the address of each request into their logs, if these are asked to say all. So
they are given a stand-in for its query, which is exchanged for the real one by the connection itself, when it writes
the first line of the request.
"""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["Hidden", "revealing"]


class Hidden:
    """Stand-ins, and what they stand for. Used by several threads at once."""

    def __init__(self) -> None:
        self._queries: dict[str, str] = {}

    def hide(self, address: str) -> str:
        """The address with a stand-in for its query, always the same one."""
        from requests.utils import requote_uri

        base, _, query = address.partition("?")
        stand_in = f"hidden={hashlib.sha256(query.encode()).hexdigest()[:16]}"
        self._queries[stand_in] = requote_uri(query)
        return f"{base}?{stand_in}"

    def reveal(self, address: str) -> str:
        """The real address of one that was hidden; any other as it is."""
        base, _, query = address.partition("?")
        return f"{base}?{self._queries[query]}" if query in self._queries else address


def revealing(hidden: Hidden) -> Any:
    """An adapter for a requests session, whose connections know what the stand-ins stand for."""
    from requests.adapters import HTTPAdapter
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Plain(HTTPConnection):
        def putrequest(self, method: str, url: str, *args: Any, **options: Any) -> None:
            super().putrequest(method, hidden.reveal(url), *args, **options)

    class Secure(HTTPSConnection):
        def putrequest(self, method: str, url: str, *args: Any, **options: Any) -> None:
            super().putrequest(method, hidden.reveal(url), *args, **options)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    pools = {"http": PlainPool, "https": SecurePool}

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, **options)
            self.poolmanager.pool_classes_by_scheme = pools

        def proxy_manager_for(self, proxy: Any, **options: Any) -> Any:
            manager = super().proxy_manager_for(proxy, **options)
            manager.pool_classes_by_scheme = pools
            return manager

    return Adapter()
