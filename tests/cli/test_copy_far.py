"""`colabkeep copy` between a folder and the services, both ways, as people type it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest

from colabkeep.stores.kaggle import store as kaggle_store
from colabkeep.stores.kaggle.service import Pace
from tests.fakes.drive import lose_answer, refuse, running_drive
from tests.fakes.hub import TOKEN, Fault, running_hub
from tests.fakes.kaggle.faults import Answer
from tests.fakes.kaggle.server import FakeKaggle
from tests.fakes.s3 import Wrong, running_s3
from tests.trainings import final_state

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own

Machine = Callable[[str], None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """`machine("a")`: from now on this is another machine, whose user has a home of its own."""

    def change(name: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setenv("HOME", str(tmp_path / name))

    return change


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with running_drive(tmp_path) as fake:
        monkeypatch.setenv("COLABKEEP_DRIVE", json.dumps(fake.authorized_user()))
        fake.faults(refuse(503).on(path="/drive/v3/", skip=5), lose_answer().on("POST", "/upload/", skip=3))
        yield f"drive://runs?service={fake.url}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from huggingface_hub import constants
    from huggingface_hub.utils import _http, close_session

    from colabkeep.stores.hub import huggingface

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    if detecting := find_spec("huggingface_hub.utils._detect_agent"):  # it asks huggingface.co itself, once a day
        monkeypatch.setattr(f"{detecting.name}._registry", {"standardEnvVars": [], "harnesses": {}})
    monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None}))
    with running_hub() as fake:
        made = huggingface.HuggingFace
        monkeypatch.setattr(
            huggingface, "HuggingFace", lambda *words, **more: made(*words, **{**more, "endpoint": fake.url})
        )
        fake.faults = [Fault("POST", "/commit/main", "lost", skip=1), Fault("GET", "/tree/", "short")]
        yield "hf://ada/runs"
        close_session()


@pytest.fixture
def kaggle(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if find_spec("kagglehub") is None and not os.environ.get("CI"):
        pytest.skip("Kaggle's client is not installed here: pip install 'colabkeep[kaggle]'")
    with FakeKaggle() as fake:
        for name, value in fake.environ(Path("/nonexistent")).items():
            if name.startswith("KAGGLE"):
                monkeypatch.setenv(name, value)
        pace = Pace(retry=0.05, poll=0.01)
        made = partial(kaggle_store.Service, pace=pace, command=fake.command)
        monkeypatch.setattr(kaggle_store, "Service", made)
        fake.fault("StartBlobUpload", Answer(503))
        yield "kaggle://ada/checkpoints"


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with running_s3() as door:
        values = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_ENDPOINT_URL": door.url}
        values |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_ALLOW_HTTP": "true"}
        values |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), str(tmp_path / "none"))
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="checkpoints")
        client.close()
        door.wrong = [Wrong("PUT", "", "lost", 500, "InternalError", skip=3), Wrong("GET", "list-type", skip=1)]
        yield "s3://checkpoints/runs"


def without_bars(err: str) -> str:
    """huggingface_hub draws one when it sends a commit again, whose large files are there already."""
    return re.sub(r"\rUpload 0 LFS files.*?\]|\n$", "", err)


@pytest.mark.parametrize("place", ["drive", "hub", "kaggle", "s3"])
def test_runs_go_to_a_service_and_come_back(
    colabkeep_cli, trained: Path, tmp_path: Path, machine: Machine, request: pytest.FixtureRequest, place: str
) -> None:
    """There over a bad connection, verified; again, nothing is left to do; and back on a machine that has nothing,
    whole: what is in the checkpoints is what was."""
    url, back = request.getfixturevalue(place), tmp_path / "back"
    machine("a")
    said = colabkeep_cli("copy", trained, url)
    assert (said.status, without_bars(said.err)) == (0, "")
    assert said.out.count("Verified: each file there has the bytes that were read here.") == 2
    machine("b")
    again = colabkeep_cli("copy", trained, url, "--json").json
    assert [(run["files"], run["verified"]) for run in again["runs"]] == [(0, True), (0, True)]
    assert colabkeep_cli("verify", "--storage", url).status == 0
    machine("c")
    said = colabkeep_cli("copy", url, back)
    assert (said.status, said.err) == (0, "")
    assert said.out.count("Verified") == 2
    assert colabkeep_cli("verify", "--storage", back).status == 0
    for run in ("first", "second"):
        assert final_state(back, run) == final_state(trained, run)


def test_a_run_goes_from_one_service_to_another(
    colabkeep_cli, trained: Path, machine: Machine, drive: str, s3: str
) -> None:
    """Under another name, without a folder in between."""
    machine("a")
    assert colabkeep_cli("copy", trained, drive, "--run", "first").status == 0
    machine("b")
    said = colabkeep_cli("copy", drive, s3, "--as", "moved")
    assert (said.status, said.err) == (0, "")
    machine("c")
    assert colabkeep_cli("verify", "moved", "--storage", s3).status == 0


def test_a_drive_that_refuses_is_told_and_the_same_command_goes_on(
    colabkeep_cli, trained: Path, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sits before a silent terminal: what Drive said and what to do are told, in text and JSON, with status 4.
    When that is done, the same command ends with a copy that is verified."""
    with running_drive(tmp_path) as fake:
        monkeypatch.setenv("COLABKEEP_DRIVE", json.dumps(fake.authorized_user()))
        url = f"drive://runs?service={fake.url}"
        machine("a")
        fake.faults(refuse(403, "storageQuotaExceeded").on("POST", "/upload/", count=None))
        said = colabkeep_cli("copy", trained, url)
        assert said.status == 4
        assert "The copy of 'first' is not complete" in said.err
        assert "same command again" in said.err
        told = json.loads(colabkeep_cli("copy", trained, url, "--json").out)
        assert "is not complete" in told["error"]["problem"]
        fake.faults()
        said = colabkeep_cli("copy", trained, url)
        assert (said.status, said.out.count("Verified")) == (0, 2)
