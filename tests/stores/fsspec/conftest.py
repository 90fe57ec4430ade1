"""An S3 service on this machine (moto)."""

from __future__ import annotations

import hashlib

import boto3
import pytest

from colabkeep.stores.fsspec import store as fsspec_store
from colabkeep.stores.shared.retry import Patience
from tests.fakes.s3 import running_s3

QUICK = Patience(first=0.0, longest=0.0)
BUCKET = "checkpoints"


@pytest.fixture(scope="session")
def _service():
    with running_s3() as door:
        yield door


@pytest.fixture
def door(_service):
    """The service's door: what it saw in this test, and what is to go wrong."""
    _service.log.clear()
    yield _service
    _service.wrong.clear()


@pytest.fixture
def environment(door, monkeypatch, tmp_path):
    """Credentials and address, as a notebook's secrets would set them; and no other ones."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", door.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for file in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(file, str(tmp_path / "none"))


@pytest.fixture
def s3(door, environment):
    """A client of the service, that shares no code with the stores; its bucket is there."""
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    door.log.clear()
    yield client
    client.close()


@pytest.fixture
def place(s3):
    """folder → a place of its own in the bucket, the same one for the same folder."""
    return lambda folder: f"s3://{BUCKET}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


@pytest.fixture
def opened():
    """url → its store, which does not wait between two attempts."""
    stores = []

    def opened(url, **options):
        stores.append(fsspec_store.open_url(url, **{"patience": QUICK, **options}))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()
