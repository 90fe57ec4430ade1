"""Asking a service or a foreign library: again where that can help, for as long as is sensible, and its errors in
our words.
"""

from __future__ import annotations

import errno
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from colabkeep.core.errors import ColabKeepError, MissingDependency, NameTaken, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.base import NEW_NAME

_T = TypeVar("_T")

_TOO_LONG = 300.0  # seconds


class Throttled(StoreUnavailable):
    """The place asks to wait `seconds` before the next try."""

    def __init__(self, *, problem: str, remedy: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(problem=problem, remedy=remedy)

    def _fields(self) -> dict[str, Any]:
        return {**super()._fields(), "seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class Patience:
    """Calls something up to `attempts` times while it raises `StoreUnavailable`, and lets the last error out.

    The pauses, in seconds, go from `first` to `longest`; a place that names a pause gets it, up to `longest`: who waits
    for longer (a store behind another one) asks again. One that wants to be left alone for many minutes is. The pauses
    carry no randomness, which would be drawn from the generator that belongs to the training.
    """

    attempts: int = 4
    first: float = 1.0
    longest: float = 30.0
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, call: Callable[[], _T]) -> _T:
        retrying = Retrying(
            stop=stop_after_attempt(self.attempts),
            retry=retry_if_exception(_may_help),
            wait=self._pause,
            sleep=self.sleep,
            reraise=True,
        )
        return retrying(call)

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        named = error.seconds if isinstance(error, Throttled) else 0.0
        grown = wait_exponential(multiplier=self.first, max=self.longest)(state)
        return min(max(named, grown), self.longest)


def _may_help(error: BaseException) -> bool:
    """To ask again within a minute or two: not where that was forbidden, and may count against us."""
    return isinstance(error, StoreUnavailable) and getattr(error, "seconds", 0.0) <= _TOO_LONG


# Names of exceptions, of all the libraries that stores use: none of them need be installed here.
_CREDENTIALS = frozenset(
    {
        "DefaultCredentialsError",  # google.auth
        "RefreshError",
        "PermissionDeniedError",  # obstore
        "UnauthenticatedError",  # obstore, kagglehub
        "CredentialError",  # kagglehub
        "AuthenticationException",  # paramiko
        "BadHostKeyException",
    }
)
_PASSING = frozenset(
    {
        "ClientError",  # aiohttp
        "TransportError",  # google.auth
        "ChecksumError",  # gcsfs
        "GenericError",  # obstore, after tries of its own
        "SSHException",  # paramiko
        "RequestException",  # requests
        "ProtocolError",  # urllib3
        "IncompleteRead",
        "TimeoutException",  # httpx, which huggingface_hub uses
        "NetworkError",
        "RemoteProtocolError",
        "ConnectionError",
        "DataCorruptionError",  # kagglehub
        "BackendError",
        "TimeoutError",
    }
)
_FULL = re.compile(r"quota ?exceeded|insufficient ?storage|storage ?full|storage limit|no space left", re.IGNORECASE)
_WAIT = re.compile(
    r"(?:retry|try) (?:this action )?(?:again )?in (?:about )?(\d+) (second|minute|hour)s?", re.IGNORECASE
)
_UNITS = MappingProxyType({"second": 1.0, "minute": 60.0, "hour": 3600.0})
_NO_ACCESS = re.compile(r"\bforbidden\b|does not have storage\.\S+ access|access ?denied", re.IGNORECASE)
_PLACE_MISSING = re.compile(r"NoSuchBucket|bucket does not exist", re.IGNORECASE)
_PASSING_ERRNOS = frozenset(
    {errno.EIO, errno.EBUSY, errno.EAGAIN, errno.EPIPE, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The remedies of one service: where it refuses for want of credentials or rights, where the place is not there,
    and where its client is not installed. `wait`: seconds to leave it alone after "too many requests", where it names
    none."""

    sign_in: str
    missing: str
    install: str
    wait: float = 0.0


class Asking:
    """Calls, on behalf of the store at `url`. With `one_at_a_time` no two threads call at once: paramiko mixes up their
    answers, and huggingface_hub's file system its memory."""

    def __init__(self, url: str, words: Words, patience: Patience, *, one_at_a_time: bool = False) -> None:
        self._url = url
        self._words = words
        self._patience = patience
        self._turn: AbstractContextManager[object] = threading.Lock() if one_at_a_time else nullcontext()

    def __call__(
        self, doing: str, call: Callable[[], _T], *, again: bool = True, missing: type[StoreError] = StoreError
    ) -> _T:
        """What `call` returns. `doing` says what for, after "could not". `again`: it may be done a second time.

        Raises:
            missing: something that was asked for is not there.
            StoreError: as the promise of stores says.
            MissingDependency: the service's client cannot be imported.
        """
        return self._patience(lambda: self._once(doing, call, missing)) if again else self._once(doing, call, missing)

    def _once(self, doing: str, call: Callable[[], _T], missing: type[StoreError]) -> _T:
        try:
            with self._turn:
                return call()
        except ColabKeepError:
            raise
        except Exception as error:
            raise self._explained(error, doing, missing) from error

    def _explained(self, error: Exception, doing: str, missing: type[StoreError]) -> ColabKeepError:
        while type(error) is RuntimeError and isinstance(error.__cause__, Exception):
            error = error.__cause__  # huggingface_hub wraps what an upload raises
        problem = f"{self._url} could not {doing}: {brief(error)}."
        status = next((found for found in map(_status, _chain(error)) if found), 0)
        names = _names(error)
        kinds = set(_kinds(error))
        if "ImportError" in kinds:
            return MissingDependency(problem=problem, remedy=self._words.install)
        if _PLACE_MISSING.search(str(error)):
            return StoreError(problem=problem, remedy=self._words.missing)
        if "FileNotFoundError" in kinds or status == 404:
            remedy = self._words.missing if missing is StoreError else "See `colabkeep show`: it may have been pruned."
            return missing(problem=problem, remedy=remedy)
        if kinds & {"FileExistsError", "AlreadyExistsError"} or status == 412:
            return NameTaken(problem=problem, remedy=NEW_NAME)
        if _is_full(error, status):
            return StoreFull(
                problem=problem,
                remedy="Make room there, or raise the quota: saving resumes by itself. What is saved so far is safe.",
            )
        if names & (_CREDENTIALS | {"PermissionError"}) or status in {401, 403} or _NO_ACCESS.search(str(error)):
            return StoreError(problem=problem, remedy=self._words.sign_in)
        if _may_pass(error, status, names):
            return self._passing(error, status, problem)
        return StoreError(problem=problem, remedy="Correct storage=…, or choose another place.")

    def _passing(self, error: Exception, status: int, problem: str) -> StoreUnavailable:
        remedy = (
            "It is tried again by itself; if it keeps failing, look at the service's status page and at the notebook's "
            "network (Kaggle: Settings → Internet)."
        )
        seconds = next(filter(None, map(_named_wait, _chain(error))), self._words.wait if status == 429 else 0.0)
        if seconds:
            return Throttled(problem=problem, remedy=remedy, seconds=seconds)
        return StoreUnavailable(problem=problem, remedy=remedy)


def brief(error: BaseException) -> str:
    """What it says, on one line, without the query of any address in it: a query may hold a signature."""
    first = (str(error).strip().splitlines() or [""])[0]
    text = re.sub(r"\?\S+", "?…", first).rstrip(".")
    name = next(iter(_kinds(error)))
    return f"{name}: {text[:300]}" if text else name


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _kinds(error: BaseException) -> tuple[str, ...]:
    """The names of its classes; of what a client in another process raised, of those there."""
    told: tuple[str, ...] | None = getattr(error, "kinds", None)
    return tuple(kind.__name__ for kind in type(error).__mro__) if told is None else told


def _names(error: BaseException) -> set[str]:
    return {name for one in _chain(error) for name in _kinds(one)}


def _status(error: BaseException) -> int:
    """The HTTP status behind it, 0 where there is none: requests, gcsfs and aiohttp each keep it elsewhere."""
    response: Any = getattr(error, "response", None)
    for place in (getattr(response, "status_code", None), getattr(error, "code", None), getattr(error, "status", None)):
        if isinstance(place, int | str) and str(place).isdigit():
            return int(place)
    return 0


def _named_wait(error: BaseException) -> float:
    """The seconds that the service wants to be left alone, 0 if it names none."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    wanted = headers.get("Retry-After") if headers is not None else getattr(error, "wait", None)
    if isinstance(wanted, float):
        return wanted
    if wanted and str(wanted).isdigit():
        return float(wanted)
    said = _WAIT.search(str(error))
    return float(said[1]) * _UNITS[said[2].lower()] if said else 0.0


def _is_full(error: Exception, status: int) -> bool:
    full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
    return full or status == 507 or (status != 429 and _FULL.search(str(error)) is not None)


def _may_pass(error: Exception, status: int, names: set[str]) -> bool:
    if status:
        return status in {408, 409, 425, 429} or status >= 500
    if isinstance(error, ConnectionError | TimeoutError | EOFError):
        return True
    if isinstance(error, OSError) and error.errno in _PASSING_ERRNOS:
        return True
    return not _PASSING.isdisjoint(names)


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Keep what libraries log about this thread's requests out of all logs: it holds signed addresses."""
    me = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        return record.thread != me

    found = [logging.getLogger(name) for name in loggers]
    for logger in found:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in found:
            logger.removeFilter(keep)


def checked(answer: Any) -> Any:
    """An answer of requests that is a success; any other is closed, and raises what requests has for it."""
    try:
        answer.raise_for_status()
    except BaseException:
        answer.close()
        raise
    return answer
