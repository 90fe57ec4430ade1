"""Requests to the Drive service: signed, with a deadline, explained when refused, sent again where that helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from colabkeep.stores._patience import Patience
from colabkeep.stores._silence import Silence
from colabkeep.stores.drive.refusals import no_answer, no_right, refused
from colabkeep.stores.google.account import Account
from colabkeep.vocabulary.errors import StoreError, StoreUnavailable

__all__ = ["SERVICE", "TIMEOUTS", "Api", "decoded"]

_T = TypeVar("_T")

SERVICE = "https://www.googleapis.com"

TIMEOUTS = (10.0, 90.0)
"""Seconds to connect, and for each piece of a body to leave; seconds until an answer. requests has the socket's first
timeout in force while it sends, for each `sendall` anew (urllib3 2.8, connection.py)."""


class Api:
    """The door to the service. `service`: its address, without a slash at the end. `sleep` waits between two attempts,
    `monotonic` is the time that `silence` goes by.

    Used by several threads at once.
    """

    def __init__(
        self,
        account: Account,
        *,
        service: str = SERVICE,
        sleep: Callable[[float], None],
        monotonic: Callable[[], float] = time.monotonic,
        timeouts: tuple[float, float] = TIMEOUTS,
    ) -> None:
        self.account = account
        self.service = service
        self.silence = Silence(monotonic)
        self._timeouts = timeouts
        # 1, 2, 4 … 64 seconds as the guides ask for, two minutes in all; who has more patience asks again.
        self._patience = Patience(attempts=8, first=1.0, longest=64.0, sleep=sleep)

    def patiently(self, call: Callable[[], _T]) -> _T:
        """What `call` returns, after as many attempts as are sensible.

        Raises:
            StoreError: as the last attempt.
        """
        with self.silence.asking():
            return self._patience(call)

    def ask(
        self,
        method: str,
        path: str,
        *,
        doing: str,
        query: Mapping[str, str] | None = None,
        body: object | None = None,
        accept: Collection[int] = (200,),
    ) -> dict[str, Any]:
        """The JSON object that comes back, with as many attempts as are sensible; {} for any other accepted status.

        Raises:
            StoreError: it was refused, or could not be had in all attempts.
        """
        return self.patiently(lambda: self.ask_once(method, path, doing=doing, query=query, body=body, accept=accept))

    def ask_once(self, method: str, path: str, *, doing: str, **options: Any) -> dict[str, Any]:
        """The same in one attempt; `timeouts` may be given too.

        Raises:
            StoreError: it was refused, or could not be had.
        """
        response = self.send(method, self.service + path, doing=doing, **options)
        if response.status_code != 200:
            return {}
        return decoded(response, doing)

    def send(
        self,
        method: str,
        url: str,
        *,
        doing: str,
        accept: Collection[int] = (200,),
        timeouts: tuple[float, float] | None = None,
        **options: Any,
    ) -> Any:
        """One request; the `requests.Response`, whose status is one of `accept`. `options`: `query`, `body` (sent as
        JSON), and what requests takes.

        Raises:
            StoreError: any other status, no answer, or no right to ask.
        """
        with self.silence.asking():
            return self._send(method, url, doing, accept, timeouts, options)

    def _send(
        self,
        method: str,
        url: str,
        doing: str,
        accept: Collection[int],
        timeouts: tuple[float, float] | None,
        options: dict[str, Any],
    ) -> Any:
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        options |= {"params": options.pop("query", None), "json": options.pop("body", None)}
        try:
            response = self.account.session().request(
                method, url, timeout=timeouts or self._timeouts, allow_redirects=False, **options
            )
        except GoogleAuthError as error:
            failure = no_right(error, doing)
        except (RequestException, OSError) as error:
            if isinstance(error, StoreError):
                raise  # from finding the credentials
            failure = no_answer(error, doing)
        else:
            if response.status_code in accept:
                self.silence.heard()
                return response
            failure = refused(response, doing)
            if not failure.retryable:
                self.silence.heard()
            response.close()
        raise failure  # here, so that what it is made of does not hang on to it: it may show a secret


def decoded(response: Any, doing: str) -> dict[str, Any]:
    """The JSON object of a success.

    Raises:
        StoreUnavailable: it is something else, as a gateway on the way sends.
    """
    try:
        answer: object = response.json()
    except (ValueError, OSError):  # OSError: the answer broke off
        answer = None
    if isinstance(answer, dict):
        return answer
    raise StoreUnavailable(
        problem=f"Google Drive answered with something else than was asked for (it was to {doing}).",
        remedy="Nothing needs to be done: it is tried again. If it lasts, some gateway of this network is in the way.",
    )
