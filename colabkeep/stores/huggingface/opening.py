"""From a URL to a store: hf://owner/name, hf://owner/name/folder, hf://buckets/owner/name."""

from __future__ import annotations

import re

from colabkeep.stores._asking import Asking
from colabkeep.stores._patience import Patience
from colabkeep.stores._shown import shown
from colabkeep.stores.anywhere.hands import Hands
from colabkeep.stores.anywhere.kinds import Kind
from colabkeep.stores.anywhere.store import AnywhereStore
from colabkeep.stores.doors import Doors
from colabkeep.stores.huggingface.hub import WORDS, Hub
from colabkeep.stores.huggingface.store import HuggingFaceStore
from colabkeep.vocabulary.errors import MissingDependency, UsageError

__all__ = ["open_url"]

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_PLACE = re.compile(rf"hf://(?P<bucket>buckets/)?(?P<id>{_PART}/{_PART})(?:/(?P<folder>{_PART}(?:/{_PART})*))?/?")

_KINDS = ("buckets/", "datasets/", "spaces/", "kernels/")  # not an owner, but what kind of thing follows

_BUCKET = Kind(lists_lag=True, words=WORDS)


def open_url(
    url: str,
    doors: Doors = Doors(),
    *,
    token: str | None = None,
    endpoint: str | None = None,
    patience: Patience | None = None,
    deadline: float | None = None,
) -> HuggingFaceStore | AnywhereStore:
    """The store at a hf:// URL. Nothing is contacted yet, but for Colab's secrets, which may ask the user.

    `token` is looked for by huggingface_hub where none is given (HF_TOKEN, its own file, Colab's secrets), then among
    the platform's secrets. That is done here and now because Colab answers the main thread only. It is kept in memory,
    nowhere else. `endpoint` is another Hub than huggingface.co, or what HF_ENDPOINT says. `deadline`: after how many
    seconds without any progress a request is given up.

    Raises:
        UsageError: it names no repository or bucket.
        MissingDependency: huggingface_hub is not installed, or too old.
    """
    match = _PLACE.fullmatch(url.strip())
    if match is None or (not match["bucket"] and match["id"].startswith(_KINDS)):
        raise UsageError(
            problem=f"storage={shown(url)} names no repository of models and no bucket on the Hugging Face Hub.",
            remedy="Write hf://owner/name, or hf://owner/name/folder, the owner being your user name there.",
        )
    try:
        from huggingface_hub import get_token, list_lfs_files  # noqa: F401 - the second one is what old ones lack
    except ImportError as error:
        raise MissingDependency(
            problem=f"The store for hf:// cannot be loaded: {error}.", remedy='Run: pip install "colabkeep[hf]"'
        ) from error
    token = token or get_token() or doors.find_secret("HF_TOKEN")
    address, folder = url.strip().rstrip("/"), match["folder"] or ""
    if not match["bucket"]:
        hub = Hub(match["id"], folder, token=token, endpoint=endpoint, patience=patience, deadline=deadline or 120.0)
        return HuggingFaceStore(hub, address)

    def reach() -> Hands:
        from colabkeep.stores.huggingface.buckets import BucketHands

        ask = Asking(address, WORDS, patience or Patience(), one_at_a_time=True)
        return BucketHands.at(match["id"], folder, token=token, endpoint=endpoint, ask=ask)

    return AnywhereStore(address, _BUCKET, reach)
