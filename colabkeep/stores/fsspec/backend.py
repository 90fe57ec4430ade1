"""What the store needs to be able to do at a place: eight things; what is known of the services behind the URLs,
and the digests they state.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from colabkeep.stores.base import Source
from colabkeep.stores.shared.retry import Words
from colabkeep.stores.shared.streaming import Tally

BLOCK = 8 * 2**20
"""Bytes that travel in one request. Three to four blocks are in memory at a time: ours, the library's, the wire's."""

_PARTS = 9_000  # S3 takes 10,000 in one upload: docs.aws.amazon.com, "Amazon S3 multipart upload limits"


def block_size(size: int) -> int:
    """The bytes per request for an object of `size` bytes: 8 MiB up to some 70 GiB, then as much more as is needed."""
    return max(BLOCK, -(-size // _PARTS))


class Backend(Protocol):
    """Work at one place. Names are those of the store. All raise `StoreError`s, and try again by themselves."""

    def find(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Name and size in bytes of everything below the prefix, temporary files and foreign ones too."""
        ...

    def stat(self, name: str, *, again: bool = True) -> Mapping[str, Any]:
        """What the place says about an object: "size" in bytes, a digest under the key of its library, and under
        "notes" what the writer left beside it (see `notes`). `again`: it is asked again where that can help.

        Raises:
            ObjectNotFound: there is none.
        """
        ...

    def read(self, name: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`, not included."""
        ...

    def send(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        """Make the object of the blocks, which are the source's; it appears whole, with the last one, or not at all.

        What the iterator raises comes out as it is, and nothing is left behind.

        Raises:
            NameTaken: the name exists, and the place can tell.
        """
        ...

    def remove(self, name: str) -> None:
        """Delete an object; it is no error that there is none."""
        ...

    def sweep(self, prefix: str) -> int:
        """Remove what killed writers left below the prefix; return how many."""
        ...


# Services state an MD5; a checkpoint names the SHA-256 of its objects. So a writer leaves both beside the object, as
# notes that the place gives back with its description: whoever comes later sees that the place states the MD5 of these
# very bytes.


_SHA256_NOTE, _MD5_NOTE = "colabkeep-sha256", "colabkeep-md5"

Digest = Literal["etag", "md5", "none"]
_ETAG = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")


def _said(info: Mapping[str, Any], digest: Digest) -> str:
    """The digest in a description, "" if it has none: an MD5 in hex, or the MD5 of the parts' MD5s, with their number.

    An ETag is the first of what came in one piece, and the second of what came in parts (docs.aws.amazon.com, "Checking
    object integrity"), except for objects encrypted with certain keys.
    """
    if digest == "md5":  # cloud.google.com/storage/docs/json_api/v1/objects; absent for composed objects
        return base64.b64decode(info.get("md5Hash") or "").hex()
    etag = str(info.get("ETag") or "").strip('"')
    return etag if digest == "etag" and _ETAG.fullmatch(etag) else ""


def stated(info: Mapping[str, Any], digest: Digest, tally: Tally) -> bool | None:
    """Does the description say that these are the bytes? None: it says nothing that could be compared. False means one
    of two things: these are not the bytes, or this is not their digest."""
    said = _said(info, digest)
    return said in (tally.md5.hex(), tally.md5_of_md5s) if said else None


def notes(sha256: str, md5: str | None = None) -> dict[str, str]:
    """What to leave beside an object: the digests of its bytes in hex, their MD5 as far as it is known."""
    return {_SHA256_NOTE: sha256} if md5 is None else {_SHA256_NOTE: sha256, _MD5_NOTE: md5}


def notes_of(source: Source, data: bytes) -> dict[str, str]:
    """The same for a source whose bytes are at hand."""
    return notes(source.sha256, hashlib.md5(data, usedforsecurity=False).hexdigest())


def restated(info: Mapping[str, Any], digest: Digest, sha256: str) -> bool:
    """Does the description say that these are the bytes with this SHA-256, whoever sent them?

    S3 keeps no digest of the whole of what came in parts. It has then compared each part with its own digest as it
    arrived, and made the object only of parts that were right; so the writer's note stands for the whole.
    """
    left, said = info.get("notes") or {}, _said(info, digest)
    if not said or left.get(_SHA256_NOTE) != sha256:
        return False
    return _MD5_NOTE not in left if "-" in said else said == left.get(_MD5_NOTE)


_WORDS = Words(
    sign_in="See the page of its fsspec package for where it looks for credentials.",
    missing="Create it, or correct its name in storage=…",
    install="Install the package that fsspec names, or choose another storage=…",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One family of services.

    `flat`: it has objects and no folders; one request lists everything below a prefix; an object appears whole, when
    its upload is completed, and can be refused if the name is taken. Otherwise it is like a file system: an object is
    written under a temporary name and moved. `digest`: the field of its description that is a digest of the bytes.
    `remote`: outside of this machine. `options`: for the file system's constructor.
    """

    flat: bool = False
    digest: Digest = "none"
    remote: bool = True
    persists: bool | None = True
    lists_lag: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    words: Words = _WORDS


_BUCKET = "Create the bucket on the service's web page, or correct its name in storage=…"

_S3 = Kind(
    flat=True,
    digest="etag",
    lists_lag=False,  # strongly consistent since December 2020: docs.aws.amazon.com, "Amazon S3 data consistency model"
    words=Words(
        sign_in="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL where it is not Amazon's) from "
        "the notebook's secrets, with the right to list, read, write and delete in this bucket.",
        missing=_BUCKET,
        install='Run: pip install "colabkeep[s3]"',
    ),
)

_GCS = Kind(
    flat=True,
    digest="md5",
    lists_lag=False,  # cloud.google.com/storage/docs/consistency
    options={"use_listings_cache": False},
    words=Words(
        sign_in="On Colab run google.colab.auth.authenticate_user() in a cell of its own; elsewhere set "
        "GOOGLE_APPLICATION_CREDENTIALS. The account needs the role Storage Object Admin on this bucket.",
        missing=_BUCKET,
        install="Run: pip install gcsfs (Colab and Kaggle have it)",
    ),
)

_SFTP = Kind(
    lists_lag=False,
    words=Words(
        sign_in="Give the notebook an SSH key that the server knows, and write the user name into the URL: "
        "sftp://user@host/folder.",
        missing="Create the folder on the server, or correct the path in storage=…",
        install="Run: pip install paramiko",
    ),
)

_KINDS: Mapping[str, Kind] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "sftp": _SFTP,
    "ssh": _SFTP,
    "memory": Kind(remote=False, persists=False, lists_lag=False),
    "file": Kind(remote=False, persists=None, lists_lag=False),
}

OTHER = Kind()
"""Nothing is known: the weakest promise is taken for granted."""


def kind_of(protocol: str) -> Kind:
    """The kind of the URLs that begin with `protocol`."""
    return _KINDS.get(protocol, OTHER)
