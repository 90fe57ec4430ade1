"""What is known of the services behind the URLs, as data. A service that needs no code of its own is one entry here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from colabkeep.stores._asking import Words

__all__ = ["OTHER", "Kind", "kind_of"]

_WORDS = Words(
    sign_in="See the page of its fsspec package for where it looks for credentials.",
    missing="Create it, or correct its name in storage=…",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One family of services.

    `flat`: it has objects and no folders; one request lists everything below a prefix; an object appears whole, when
    its upload is completed, and can be refused if the name is taken. Otherwise it is like a file system: an object is
    written under a temporary name and moved. `digest`: the field of its description that is a digest of the bytes.
    `remote`: outside of this machine. `options`: for the file system's constructor. `install`: the
    remedy where its package is missing.
    """

    flat: bool = False
    digest: Literal["etag", "md5", "none"] = "none"
    remote: bool = True
    persists: bool | None = True
    lists_lag: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    words: Words = _WORDS
    install: str = "Install the package that fsspec names, or choose another storage=…"


_BUCKET = "Create the bucket on the service's web page, or correct its name in storage=…"

_S3 = Kind(
    flat=True,
    digest="etag",
    lists_lag=False,  # strongly consistent since December 2020: docs.aws.amazon.com, "Amazon S3 data consistency model"
    # The retries of botocore draw from Python's global generator, which belongs to the training; ours do not.
    options={"use_listings_cache": False, "config_kwargs": {"retries": {"total_max_attempts": 1}}},
    words=Words(
        sign_in="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL where it is not Amazon's) from "
        "the notebook's secrets, with the right to list, read, write and delete in this bucket.",
        missing=_BUCKET,
    ),
    install='Run: pip install "colabkeep[s3]"',
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
    ),
    install="Run: pip install gcsfs (Colab and Kaggle have it)",
)

_SFTP = Kind(
    lists_lag=False,
    words=Words(
        sign_in="Give the notebook an SSH key that the server knows, and write the user name into the URL: "
        "sftp://user@host/folder.",
        missing="Create the folder on the server, or correct the path in storage=…",
    ),
    install="Run: pip install paramiko",
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
