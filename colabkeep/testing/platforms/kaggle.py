"""A Kaggle machine that fits into a folder, and its service for secrets.

::

    with fake_kaggle(tmp_path, run_type="Batch") as first:
        ...                                         # train into first.environment's home
        output = first.save_version()
    with fake_kaggle(tmp_path, inputs={"notebooks/me/first": output}) as second:
        ...                                         # finds the run, and goes on

The image is built on Colab's, so the machine looks like one of Colab's too. While the block runs, `kaggle_secrets` is
a fake with the classes, the order of events and the handling of errors of Kaggle/docker-python (patches/, read
2026-08).
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeAlias
from urllib.error import HTTPError, URLError

from colabkeep.testing.platforms.machines import host_name, new_root, write
from colabkeep.vocabulary.environment import Environment

__all__ = ["FakeKaggle", "SecretsService", "fake_kaggle"]

SecretsService: TypeAlias = Literal[
    "answers", "offline", "times out", "refuses", "fails", "hangs", "changed", "page", "cut", "silent"
]
"""What the service for secrets does: works; no network; the client's 40 s are over; code 403; code 500; does not come
back while the machine lives; answers in another form, the value included; with a web page; with a part of the answer,
the value included; with nothing."""

_SHELL = "<ipykernel.zmqshell.ZMQInteractiveShell object at 0x7a1b2c3d4e5f>"
_URL = "https://www.kaggle.com/requests/GetUserSecretByLabelRequest"
_CODES: Mapping[SecretsService, int] = {"refuses": 403, "fails": 500}


class CredentialError(Exception):
    """`kaggle_secrets.CredentialError`: no token, or no access."""


class BackendError(Exception):
    """`kaggle_secrets.BackendError`: the service said no, or something unexpected."""


class ValidationError(Exception):
    """`kaggle_secrets.ValidationError`: an empty label."""


class FakeKaggle:
    """One machine, from the start of a session to its end. Made by `fake_kaggle`.

    `root`: its disk. `environ`: its variables, which a test may change. `secrets`: label → value of what is attached.
    `service`: how the service for secrets behaves, which may be changed at any time.
    """

    def __init__(self, world: Path, environ: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        self.root = new_root(world)
        self.environ = dict(environ)
        self.secrets = dict(secrets)
        self.service: SecretsService = "answers"
        self._world = world
        self._over = threading.Event()

    @property
    def environment(self) -> Environment:
        """What detection is handed."""
        return Environment(
            environ=dict(self.environ),
            root=self.root,
            folder=self.root / "kaggle" / "working",
            modules=frozenset({"IPython", "ipykernel", "google.colab"}),
            hostname=host_name(self.root),
            prefix="/usr",
            shell=_SHELL,
        )

    def attach(self, place: str, output: Path) -> None:
        """Make an output, or a data set, an input of this machine, under /kaggle/input/`place`."""
        shutil.copytree(output, self.root / "kaggle" / "input" / place, symlinks=True)

    def save_version(self) -> Path:
        """What the service keeps of the working folder: no links, no empty folders. Returns the output's folder."""
        output = self._world / f"version-{len(list(self._world.glob('version-*'))) + 1}"
        output.mkdir()
        working = self.root / "kaggle" / "working"
        for file in sorted(working.rglob("*")):
            if file.is_file() and not file.is_symlink():
                target = output / file.relative_to(working)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
        return output

    def answer(self, label: str) -> str:
        """The request for a secret, as `kaggle_secrets` makes it, with the errors that come out of it."""
        try:
            return self._request(label)
        except (URLError, TimeoutError) as error:  # HTTPError is a URLError, so its own handler is never reached
            raise ConnectionError("Connection error trying to communicate with service.") from error

    def end(self) -> None:
        """The machine is taken away."""
        self._over.set()

    def _request(self, label: str) -> str:
        if self.service == "hangs":
            self._over.wait()
        if self.service == "offline":
            raise URLError(OSError(-3, "Temporary failure in name resolution"))
        if self.service == "times out":
            raise TimeoutError("The read operation timed out")
        code = _CODES.get(self.service)
        if code is not None:
            raise HTTPError(_URL, code, "refused", Message(), io.BytesIO())
        if label not in self.secrets:
            answer = {"wasSuccessful": False, "errors": [f"No user secrets exist with label {label}."]}
            raise BackendError(f"Unexpected response from the service. Response: {answer}.")
        text = json.dumps({"result": self.secrets[label], "wasSuccessful": True})
        garbled = {"page": "<!DOCTYPE html><title>502</title>", "cut": text[:-9], "silent": ""}
        if self.service in garbled:
            json.loads(garbled[self.service])
        if self.service == "changed":
            raise BackendError(f"Unexpected response from the service. Response: {{'value': '{self.secrets[label]}'}}")
        return self.secrets[label]


def _kaggle_secrets(machine: FakeKaggle) -> ModuleType:
    class UserSecretsClient:
        def __init__(self) -> None:
            if machine.environ.get("KAGGLE_USER_SECRETS_TOKEN") is None:
                raise CredentialError("A JWT Token is required to use the UserSecretsClient")

        def get_secret(self, label: str) -> str:
            if not label:
                raise ValidationError("Label must be non-empty.")
            return machine.answer(label)

    module = ModuleType("kaggle_secrets")
    for one in (UserSecretsClient, CredentialError, BackendError, ValidationError):
        setattr(module, one.__name__, one)
    return module


@contextmanager
def fake_kaggle(
    folder: Path,
    *,
    run_type: str = "Interactive",
    rerun: bool = False,
    tpu: bool = False,
    inputs: Mapping[str, Path] | None = None,
    secrets: Mapping[str, str] | None = None,
    service: SecretsService = "answers",
) -> Iterator[FakeKaggle]:
    """A new machine with an empty working folder. `folder`: the user's world, in which its outputs are kept.

    `run_type`: "Interactive", "Batch", or what else KAGGLE_KERNEL_RUN_TYPE may say. `rerun`: a competition's. `inputs`:
    place below /kaggle/input → what is attached there.
    """
    environ = {
        "KAGGLE_KERNEL_RUN_TYPE": run_type,
        "KAGGLE_URL_BASE": "https://www.kaggle.com",
        "KAGGLE_DATA_PROXY_URL": "https://dp.kaggle.net",
        "KAGGLE_CONTAINER_NAME": "kaggle_3n1lqvfAcFmEbJcXOCeS",
        "KAGGLE_USER_SECRETS_TOKEN": "eyJhbGciOi",
        "COLAB_RELEASE_TAG": "release-colab-external-images_20260514-060052_RC00",
        "HOME": "/root",
        **({"KAGGLE_IS_COMPETITION_RERUN": "1"} if rerun else {}),
        **({"ISTPUVM": "1"} if tpu else {}),
    }
    machine = FakeKaggle(folder, environ, secrets or {})
    machine.service = service
    (machine.root / "kaggle" / "working").mkdir(parents=True)
    (machine.root / "kaggle" / "input").mkdir()
    (machine.root / "content").mkdir()
    write(machine.root, "/etc/build_date", "20260514\n")
    write(machine.root, "/proc/uptime", "600.00 1100.00\n")
    for place, output in (inputs or {}).items():
        machine.attach(place, output)
    before = sys.modules.get("kaggle_secrets")
    sys.modules["kaggle_secrets"] = _kaggle_secrets(machine)
    try:
        yield machine
    finally:
        machine.end()
        del sys.modules["kaggle_secrets"]
        if before is not None:
            sys.modules["kaggle_secrets"] = before
