"""How much room the account has. The trash counts as taken, and so do mail and photos."""

from __future__ import annotations

import threading
from collections.abc import Callable

from colabkeep.stores.drive.api import Api
from colabkeep.vocabulary.errors import ColabKeepError

__all__ = ["Quota"]

_FRESH_SECONDS = 60.0
_TIMEOUTS = (3.0, 5.0)  # whoever asks for a store's properties does not want to wait


class Quota:
    """Asks at most once a minute, one thread at a time, and counts in between what this process adds and removes.

    `account`: whose room it is, an address, as of the last answer that told it.
    """

    def __init__(self, api: Api, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self._asked: float | None = None
        self._free: int | None = None
        self.account: str | None = None

    def free(self) -> int | None:
        """Bytes; None where there is no limit, or it cannot be told now."""
        old = self._asked is None or self._monotonic() - self._asked > _FRESH_SECONDS
        if old and self._turn.acquire(blocking=False):
            try:
                self._free = self._ask()
            except ColabKeepError:  # nobody is signed in, too: whoever wants more than a figure is told
                self._free = None  # one that nobody vouches for is worse than none
            finally:
                self._asked = self._monotonic()
                self._turn.release()
        return self._free

    def changed(self, size: int) -> None:
        """So many bytes more are taken; fewer, if negative."""
        if self._free is not None:
            self._free = max(0, self._free - size)

    def _ask(self) -> int | None:
        query = {"fields": "storageQuota,user(emailAddress)"}
        answer = self._api.ask_once(
            "GET", "/drive/v3/about", doing="say how full it is", query=query, timeouts=_TIMEOUTS
        )
        self.account = answer.get("user", {}).get("emailAddress", self.account)
        quota = answer.get("storageQuota", {})
        if "limit" not in quota:
            return None
        return max(0, int(quota["limit"]) - int(quota.get("usage", 0)))
