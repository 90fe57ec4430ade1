"""An AI Studio environment and a Kaggle machine that fit into a folder, and what such fakes share."""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeAlias
from urllib.error import HTTPError, URLError
from uuid import NAMESPACE_URL, uuid5

from colabkeep.core.system import Environment

__all__ = [
    "FakeAIStudio",
    "FakeKaggle",
    "SecretsService",
    "Sign",
    "fake_aistudio",
    "fake_kaggle",
    "host_name",
    "new_root",
    "write",
]


def new_root(world: Path) -> Path:
    """A disk for the next machine of this world, empty but for the mark of its boot."""
    world.mkdir(parents=True, exist_ok=True)
    root = world / f"machine-{len(list(world.glob('machine-*'))) + 1}"
    root.mkdir()
    write(root, "/proc/sys/kernel/random/boot_id", f"{uuid5(NAMESPACE_URL, str(root))}\n")
    return root.resolve()


def host_name(root: Path) -> str:
    """The name of the machine with this disk: twelve hexadecimal digits, as a container has, and no other has the
    same."""
    return sha256(str(root).encode()).hexdigest()[:12]


def write(root: Path, absolute: str, text: str) -> Path:
    """Put a file on a disk."""
    place = root / absolute.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


# ::
#
#     with fake_aistudio(tmp_path) as studio:
#         ...                                  # train into studio.environment's home
#     with fake_aistudio(tmp_path) as studio:  # the next start: finds it
#         ...


Sign: TypeAlias = Literal["hostname", "prefix", "variables", "webide", "folders"]
"""What users have shown of it: the host's name, conda's prefix, variables, `~/.webide`, and `work` beside `data`, which
anybody may have."""

_SHELL = "<ipykernel.zmqshell.ZMQInteractiveShell object at 0x7f1b2c3d4e5f>"
_ALL: tuple[Sign, ...] = ("hostname", "prefix", "variables", "webide", "folders")


class FakeAIStudio:
    """One environment, from its start to its stop. Made by `fake_aistudio`.

    `root`: its disk. `environ`: its variables, which a test may change. `home`, `work`, `data` and `libraries`
    (external-libraries): the user's folders.
    """

    def __init__(self, world: Path, signs: Collection[Sign]) -> None:
        self.root = new_root(world)
        self.home = self.root / "home" / "aistudio"
        self.work = self.home / "work"
        self.data = self.home / "data"
        self.libraries = self.home / "external-libraries"
        self.environ = {"HOME": "/home/aistudio", "AISTUDIO_ACCESS_TOKEN": "0123456789abcdef"}
        if "variables" in signs:
            self.environ |= {"STUDIO_MODEL_API_URL_PREFIX": "https://aistudio.baidu.com", "WEBIDE_USERID": "1234567"}
        self._hostname = "jupyter-1234567-7654321" if "hostname" in signs else "5b0c2d"
        self._prefix = "/opt/conda/envs/python35-paddle120-env" if "prefix" in signs else "/usr"
        self.home.mkdir(parents=True)
        if "folders" in signs:
            self.work.mkdir()
            self.data.mkdir()
        if "webide" in signs:
            write(self.root, "/home/aistudio/.webide/proxy_config.json", "{}\n")
        write(self.root, "/proc/uptime", "600.00 1100.00\n")

    @property
    def environment(self) -> Environment:
        """What detection is handed."""
        return Environment(
            environ=dict(self.environ),
            root=self.root,
            folder=self.home,
            modules=frozenset({"IPython", "ipykernel"}),
            hostname=self._hostname,
            prefix=self._prefix,
            shell=_SHELL,
        )


@contextmanager
def fake_aistudio(
    folder: Path, *, signs: Collection[Sign] = _ALL, data: Mapping[str, str] | None = None
) -> Iterator[FakeAIStudio]:
    """A started environment. `folder`: the user's world, in which `work` and `external-libraries` are kept from start
    to start.

    `signs`: those of the service that it shows. `data`: name → text of the attached data sets' files, the only ones
    in its `data`, whatever lay there before.
    """
    studio = FakeAIStudio(folder, signs)
    kept = {folder / "work": studio.work, folder / "external-libraries": studio.libraries}
    for there, here in kept.items():
        if there.is_dir():
            shutil.copytree(there, here, symlinks=True, dirs_exist_ok=True)
    for name, text in (data or {}).items():
        write(studio.root, f"/home/aistudio/data/{name}", text)
    try:
        yield studio
    finally:
        for there, here in kept.items():
            if here.is_dir():
                shutil.rmtree(there, ignore_errors=True)
                shutil.copytree(here, there, symlinks=True)


# ::
#
#     with fake_kaggle(tmp_path, run_type="Batch") as first:
#         ...                                         # train into first.environment's home
#         output = first.save_version()
#     with fake_kaggle(tmp_path, inputs={"notebooks/me/first": output}) as second:
#         ...                                         # finds the run, and goes on
#
# The image is built on Colab's, so the machine looks like one of Colab's too. While the block runs, `kaggle_secrets` is
# a fake with the classes, the order of events and the handling of errors of Kaggle/docker-python (patches/, read
# 2026-08).


SecretsService: TypeAlias = Literal[
    "answers", "offline", "times out", "refuses", "fails", "hangs", "changed", "page", "cut", "silent"
]
"""What the service for secrets does: works; no network; the client's 40 s are over; code 403; code 500; does not come
back while the machine lives; answers in another form, the value included; with a web page; with a part of the answer,
the value included; with nothing."""

_KAGGLE_SHELL = "<ipykernel.zmqshell.ZMQInteractiveShell object at 0x7a1b2c3d4e5f>"
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
            shell=_KAGGLE_SHELL,
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
