"""Requests to the Drive service: signed, with a deadline, explained when refused, sent again where that helps; and
how much room the account has.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from colabkeep.core.errors import ColabKeepError, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.google.account import Account
from colabkeep.stores.shared.files import Silence
from colabkeep.stores.shared.retry import Patience, Throttled

# The reasons are those of "Resolve errors" and "Usage limits" (Drive API guides, 2026), and of "Using OAuth 2.0 to
# Access Google APIs". What came back is never shown as it is: a page of HTML helps nobody, and an address may carry the
# right to write.


AGAIN = "Nothing needs to be done: it is tried again by itself. If it lasts, look at the network."
_SIGN_IN = (
    "Run `colabkeep auth` once on any machine with a browser, store the line it prints as the secret COLABKEEP_DRIVE, "
    "and run this cell again."
)
_RATE_REASONS = frozenset({"userRateLimitExceeded", "rateLimitExceeded"})

_FINAL: tuple[tuple[frozenset[str], type[StoreError], str, str], ...] = (
    (
        frozenset({"storageQuotaExceeded", "quotaExceeded"}),
        StoreFull,
        "the account is full. What lies in the trash counts too",
        "Free space: https://drive.google.com/drive/quota lists the largest files; then empty the trash. Or keep fewer "
        "checkpoints: keep_last=1. Training continues meanwhile.",
    ),
    (
        frozenset({"dailyLimitExceeded", "dailyLimitExceededUnreg"}),
        StoreError,
        "the Cloud project of the OAuth client has used up its requests for today",
        "It works again tomorrow. Look at https://console.cloud.google.com > APIs & Services > Google Drive API > "
        "Quotas.",
    ),
    (
        frozenset({"insufficientPermissions", "insufficientScopes", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"}),
        StoreError,
        "what it was signed in with does not allow that",
        f"{_SIGN_IN} On the consent page, leave the box for Google Drive ticked.",
    ),
    (
        frozenset({"appNotAuthorizedToFile"}),
        StoreError,
        "the file belongs to another OAuth client or another person",
        "Use the same OAuth client on every platform (the same secret COLABKEEP_DRIVE), or another folder: "
        'storage="drive://<another name>".',
    ),
    (
        frozenset({"insufficientFilePermissions", "insufficientParentPermissions"}),
        StoreError,
        "this account may read the folder or file, and not change it: it belongs to somebody else",
        "Ask its owner to share the folder with you as Editor (in Drive: right click > Share), or train in a folder of "
        'your own: storage="drive://<another name>".',
    ),
    (
        frozenset({"accessNotConfigured", "SERVICE_DISABLED"}),
        StoreError,
        "the Drive API is not switched on in the Cloud project of the OAuth client",
        "Open https://console.cloud.google.com/apis/library/drive.googleapis.com, click Enable, wait two minutes, and "
        "run this cell again.",
    ),
    (
        frozenset({"domainPolicy"}),
        StoreError,
        "the administrator of this account's organisation does not allow that",
        "Use a personal account, or keep checkpoints elsewhere: storage=… takes other places too.",
    ),
    (
        frozenset({"numChildrenInNonRootLimitExceeded", "teamDriveFileLimitExceeded", "teamDriveHierarchyTooDeep"}),
        StoreError,
        "the folder has as many files as Drive takes",
        'Train under another folder: storage="drive://<another name>".',
    ),
)
"""Reasons for which asking again is useless, what is raised, why, and what to do."""


def refused(response: Any, doing: str) -> StoreError:
    """The error for a `requests.Response` that is no success. `doing`: what was wanted, as in "write 'run/a'"."""
    status, (reasons, message) = response.status_code, _said(response)
    if status == 429 or reasons & _RATE_REASONS:
        return Throttled(
            problem=f"Google Drive asks for a pause (it was to {doing}).",
            remedy="Nothing needs to be done: it is tried again by itself. If this lasts for hours, the "
            "account's 750 GB of uploads a day are used up, and it works again tomorrow.",
            seconds=_seconds(response.headers),
        )
    if "Service Accounts do not have storage quota" in message:
        return service_account_refused(doing)
    for known, kind, why, remedy in _FINAL:
        if reasons & known:
            return kind(problem=f"Google Drive refused to {doing}: {why}.", remedy=remedy)
    if status == 401:
        return StoreError(
            problem=f"Google Drive refused to {doing}: it does not take the sign-in any more.", remedy=_SIGN_IN
        )
    if status == 408 or status >= 500 or (status == 403 and not reasons):
        # A 403 without a reason in JSON is some gateway's on the way.
        return StoreUnavailable(problem=f"Google Drive could not {doing} just now (HTTP {status}).", remedy=AGAIN)
    named = ", ".join(sorted(reasons)) or "no reason"
    return StoreError(
        problem=f"Google Drive refused to {doing} (HTTP {status}, {named}).",
        remedy="Please report this to colabkeep, with this text. Until then use another storage=….",
    )


def no_answer(error: BaseException, doing: str) -> StoreUnavailable:
    """The error for a connection that failed: refused, reset, silent, cut."""
    unavailable = StoreUnavailable(
        problem=f"Google Drive could not be reached to {doing} ({type(error).__name__}).", remedy=AGAIN
    )
    unavailable.__cause__ = ConnectionError(_without_addresses(str(error)))
    return unavailable


def no_right(error: Any, doing: str) -> StoreError:
    """The error for a `google.auth.exceptions.GoogleAuthError`, whose own text may show what must stay secret."""
    text = str(error)
    if "invalid_grant" in text:
        return StoreError(
            problem=f"Google Drive refused to {doing}: the consent has ended or was taken back. Where the OAuth "
            'client\'s publishing status is "Testing", it ends after seven days.',
            remedy="Open https://console.cloud.google.com/auth/audience, click Publish app (nothing needs to be "
            f"verified for drive.file). {_SIGN_IN}",
        )
    if "invalid_client" in text or "unauthorized_client" in text:
        return StoreError(
            problem=f"Google Drive refused to {doing}: Google does not know the OAuth client, or its secret is wrong.",
            remedy=f"See that it still exists: https://console.cloud.google.com/auth/clients. {_SIGN_IN}",
        )
    if type(error).__name__ == "TransportError" or getattr(error, "retryable", False):
        return no_answer(error, doing)
    return StoreError(
        problem=f"Google Drive refused to {doing}: the sign-in cannot be renewed ({type(error).__name__}).",
        remedy=_SIGN_IN,
    )


def service_account_refused(doing: str) -> StoreError:
    """The error for a robot that wants to own files: it has had no storage since 2025 (nithinmurali/pygsheets, 607)."""
    return StoreError(
        problem=f"Google Drive cannot {doing}: a service account has no storage of its own, and sharing a folder "
        "with it does not help.",
        remedy='Name a shared drive that it is a member of: storage="drive://<folder>?shared_drive=<its id>". '
        "A personal account has none: run `colabkeep auth` and use your own consent.",
    )


def _seconds(headers: Mapping[str, str]) -> float:
    """Retry-After, which is a number of seconds or a date."""
    text = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        until, now = parsedate_to_datetime(text), parsedate_to_datetime(headers.get("Date", ""))
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def _said(response: Any) -> tuple[frozenset[str], str]:
    """Reasons and message of the body, which need not be JSON."""
    try:
        body: Any = json.loads(response.content)
        error = body["error"]
        listed = [*error.get("errors", ()), *error.get("details", ())]
        reasons = frozenset(str(one["reason"]) for one in listed if "reason" in one)
        return reasons, str(error.get("message", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        return frozenset(), ""


def _without_addresses(text: str) -> str:
    """The text without what follows a "?": an upload's address carries the right to write its file."""
    return re.sub(r"\?[^\s'\")]*", "?…", text)[:500]


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
        """What `call` returns, after as many attempts as are sensible."""
        with self.silence.asking():
            return self._patience(call)

    def ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The JSON object that comes back, with as many attempts as are sensible; {} for any accepted status but 200.
        `options`: as of `send`."""
        return self.patiently(lambda: self.ask_once(method, path, **options))

    def ask_once(self, method: str, path: str, *, doing: str, **options: Any) -> dict[str, Any]:
        """The same in one attempt."""
        response = self.send(method, self.service + path, doing=doing, **options)
        return decoded(response, doing) if response.status_code == 200 else {}

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
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        options |= {"params": options.pop("query", None), "json": options.pop("body", None)}
        with self.silence.asking():
            try:
                response = self.account.session().request(
                    method, url, timeout=timeouts or self._timeouts, allow_redirects=False, **options
                )
            except StoreError:
                raise  # from finding the credentials
            except GoogleAuthError as error:
                failure = no_right(error, doing)
            except (RequestException, OSError) as error:
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
    """The JSON object of a success; what a gateway on the way sends instead is a `StoreUnavailable`."""
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


_QUOTA_SECONDS = 60.0
_SOON = (3.0, 5.0)  # timeouts: whoever asks for a store's properties does not want to wait


class Quota:
    """Asks at most once a minute, one thread at a time, and counts in between what this process adds and removes.

    `account`: whose room it is, an address, as of the last answer that told it.
    """

    def __init__(self, api: Api, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self._asked = -math.inf
        self._free: int | None = None
        self.account: str | None = None

    def free(self) -> int | None:
        """Bytes; None where there is no limit, or it cannot be told now."""
        if self._monotonic() - self._asked > _QUOTA_SECONDS and self._turn.acquire(blocking=False):
            query = {"fields": "storageQuota,user(emailAddress)"}
            try:
                self._free = None  # a figure that nobody vouches for is worse than none
                answer = self._api.ask_once(
                    "GET", "/drive/v3/about", doing="say how full it is", query=query, timeouts=_SOON
                )
                self.account = answer.get("user", {}).get("emailAddress", self.account)
                quota = answer.get("storageQuota", {})
                if "limit" in quota:
                    self._free = max(0, int(quota["limit"]) - int(quota.get("usage", 0)))
            except ColabKeepError:
                pass  # nobody is signed in, too: whoever wants more than a figure is told
            finally:
                self._asked = self._monotonic()
                self._turn.release()
        return self._free

    def changed(self, size: int) -> None:
        """So many bytes more are taken; fewer, if negative."""
        if self._free is not None:
            self._free = max(0, self._free - size)
