"""What Kaggle's client reports, in our words: what it means for the training, and the next thing to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colabkeep.stores._patience import Throttled
from colabkeep.vocabulary.errors import ColabKeepError, MissingDependency, ObjectNotFound, StoreError, StoreUnavailable

__all__ = ["INSTALL", "explained"]

INSTALL = 'Install Kaggle\'s client: pip install "colabkeep[kaggle]" (Kaggle and Colab have it already).'

_SIGN_IN = (
    "Inside a Kaggle notebook nothing is needed. Elsewhere: kaggle.com → Settings → API → Generate New Token, and put "
    "it into the environment variable KAGGLE_API_TOKEN before training (on Colab: keep it as a secret, then "
    'os.environ["KAGGLE_API_TOKEN"] = userdata.get("KAGGLE_API_TOKEN")). The older ~/.kaggle/kaggle.json works too.'
)
_NETWORK = frozenset({"ConnectionError", "Timeout", "ChunkedEncodingError", "DataCorruptionError", "BackendError"})
_WAIT_SECONDS = 60.0  # after 429 without Retry-After: Kaggle publishes no figure (Kaggle/kaggle-cli #931)


def explained(told: Mapping[str, Any], doing: str, handle: str) -> ColabKeepError:
    """The error for what `child` reported. `doing` completes "could not …".

    `told`: "kinds", the names of the exception's classes; "code", the HTTP status, if any; "wait", the seconds that
    Kaggle asks for; "said", the service's own words, from which addresses and credentials were taken out.
    """
    kinds, code = set(told.get("kinds", ())), told.get("code")
    said = f" ({told['said']})" if told.get("said") else ""
    what = f"Could not {doing} the Kaggle dataset {handle}"
    kept = "Checkpoints on this machine are untouched."
    if "ImportError" in kinds:
        return MissingDependency(problem=f"{what}: kagglehub cannot be loaded{said}.", remedy=INSTALL)
    if "FileNotFoundError" in kinds:
        return StoreUnavailable(
            problem=f"{what}: an object was deleted in this very moment.",
            remedy="Nothing needs to be done: it is tried again without it.",
        )
    if code == 401 or kinds & {"UnauthenticatedError", "CredentialError"}:
        return StoreError(problem=f"{what}: Kaggle does not know who asks{said}. {kept}", remedy=_SIGN_IN)
    if code == 403:
        owner = handle.partition("/")[0]
        return StoreError(
            problem=f"{what}: Kaggle does not allow it{said}. {kept}",
            remedy=f"Is {owner!r} your user name, as in kaggle.com/{owner}? Then the token belongs to another account. "
            f"{_SIGN_IN}",
        )
    if code == 404:
        return ObjectNotFound(
            problem=f"{what}: Kaggle has no such thing{said}.",
            remedy=f"Look at kaggle.com/datasets/{handle}, and whether storage= names the right dataset.",
        )
    if code == 429:
        return Throttled(
            problem=f"{what}: Kaggle asks for a pause{said}. {kept}",
            remedy="Nothing needs to be done: it is tried again after the pause.",
            seconds=float(told.get("wait") or _WAIT_SECONDS),
        )
    if kinds & _NETWORK or (isinstance(code, int) and (code == 408 or code >= 500)):
        answer = f"it answered with code {code}" if code else "the connection failed"
        return StoreUnavailable(
            problem=f"{what}: {answer}{said}. {kept}",
            remedy="It is tried again. On Kaggle: is Settings → Internet on? (It needs a verified phone number.)",
        )
    name = next(iter(told.get("kinds", ())), "unknown")
    return StoreError(
        problem=f"{what}: {name}{said}, code {code}. {kept}" if code else f"{what}: {name}{said}. {kept}",
        remedy="If it stays so, choose another storage=, and report it with these words.",
    )
