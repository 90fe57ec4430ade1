"""Sessions to check: made-up facts for the rules by themselves, and whole machines for the way to the words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import colabkeep
from colabkeep.core.system import Environment
from colabkeep.hardware import support
from colabkeep.hardware.base import Accelerator, Build
from colabkeep.platforms.base import Menus
from colabkeep.ui.check.facts import Facts, Place, device
from colabkeep.ui.check.report import CheckReport
from tests.fakes.devices import CardLike, Does, fake_nvidia_smi
from tests.fakes.platforms import fake_aistudio, fake_colab, fake_kaggle

MENUS = {
    "colab": Menus(enable="Click enable.", reconnect="Click delete.", switch="Click switch.", offered="T4", draws=True),
    "kaggle": Menus(enable="Click settings.", switch="Choose T4 x2.", offered="T4 x2"),
    "script": Menus(),
}


def build(version: str = "2.10.0+cu128", architectures: tuple[str, ...] | None = ("sm_70", "sm_75", "sm_120")) -> Build:
    """A build of torch."""
    tag = version.partition("+cu")[2]
    return Build(
        framework="torch",
        version=version,
        cuda=f"{tag[:2]}.{tag[2:]}" if tag else None,
        architectures=architectures if tag else (),
        known_from="table",
    )


def gpu(name: str = "Tesla T4", capability: tuple[int, int] | None = (7, 5), **told: Any) -> Accelerator:
    """A CUDA card."""
    return Accelerator(kind="cuda", name=name, capability=capability, **told)


K80 = gpu("Tesla K80", (3, 7))
P100 = gpu("Tesla P100-PCIE-16GB", (6, 0))
T4 = gpu()


@pytest.fixture
def session() -> Callable[..., Facts]:
    """Makes the facts of a session: on which platform, with which accelerators and which build of torch."""

    def make(platform: str, *found: Accelerator, torch: Build | None = build(), **known: Any) -> Facts:  # noqa: B008
        return Facts(
            place=Place(name=platform, title=platform.title(), menus=known.pop("menus", MENUS[platform])),
            devices=tuple(device(one, torch) for one in found),
            builds=() if torch is None else (torch,),
            build=torch,
            **known,
        )

    return make


_OTHERS = {
    "codespaces": {"CODESPACES": "true", "CODESPACE_NAME": "me"},
    "gradient": {"PAPERSPACE_NOTEBOOK_ID": "n1"},
    "jupyter": {"JPY_PARENT_PID": "17"},
    "lightning": {"LIGHTNING_CLOUD_SPACE_ID": "s1"},
    "script": {},
}
_TPU = {"vendor": "0x1ae0", "device": "0x0063", "class": "0x120000"}


class World:
    """Machines of every platform, with the cards and the frameworks that a test asks for."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.folder = folder
        self._patch = patch
        self._stack = stack
        self._driver = ""
        self.python = "3.12.13"
        """Which it says it is: what is advised to be installed depends on it."""

    def start(
        self,
        platform: str,
        cards: Sequence[CardLike] = (),
        *,
        does: Does = "answers",
        tpus: int = 0,
        driver: str = "580.82.07",
        **more: Any,
    ) -> Environment:
        """The environment of a new machine: `platform` and, after a space, its kind: "kaggle batch"."""
        self._driver = driver
        name, _, kind = platform.partition(" ")
        environ = {"PATH": "/usr/bin", **more.pop("environ", {})}
        if name == "colab":
            machine = self._stack.enter_context(fake_colab(self.folder, **{"kind": kind or "hosted", **more}))
        elif name == "kaggle":
            run = {"run_type": "Batch" if kind == "batch" else "Interactive"}
            words = {**run, "rerun": kind == "rerun", "tpu": kind == "tpu", **more}
            machine = self._stack.enter_context(fake_kaggle(self.folder, **words))
        elif name == "aistudio":
            machine = self._stack.enter_context(fake_aistudio(self.folder, **more))
        else:
            root = self.folder / f"own-{len(list(self.folder.glob('own-*')))}"
            (root / "home").mkdir(parents=True)
            self._put(root, cards, does, tpus)
            return Environment(environ={**_OTHERS[name], **environ}, root=root, folder=root / "home")
        machine.environ.update(environ)
        self._put(machine.root, cards, does, tpus)
        return machine.environment

    def install(self, *builds_: str) -> None:
        """Let these be the frameworks installed, "torch 2.10.0+cu128", and no others. None is loaded."""
        folder = self.folder / f"packages-{len(list(self.folder.glob('packages-*')))}"
        told = dict(text.split(" ") for text in builds_)
        for framework in ("torch", "paddle"):
            if framework not in told:
                self._patch.setitem(sys.modules, framework, None)
                continue
            version = told[framework]
            tag = version.partition("+cu")[2]
            cuda = repr(f"{tag[:2]}.{tag[2:]}") if tag else None
            text = f"__version__ = {version!r}\ncuda: Optional[str] = {cuda}\n"
            if framework == "paddle":
                text = f"full_version = {version.partition('+')[0]!r}\ncuda_version = {cuda or repr('False')}\n"
            file = folder / framework / ("version.py" if framework == "torch" else "version/__init__.py")
            file.parent.mkdir(parents=True)
            file.write_text(text)
            (folder / framework / "__init__.py").write_text("raise AssertionError('a framework was imported')\n")
            self._patch.delitem(sys.modules, framework, raising=False)
        folder.mkdir(parents=True, exist_ok=True)
        self._patch.syspath_prepend(str(folder))
        self._patch.setattr(support, "_machine", lambda: "x86_64")  # the wheels that the expectations are about

    def check(self, environment: Environment, **words: Any) -> CheckReport:
        """What `colabkeep.check` says there."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Environment, "here", classmethod(lambda _: environment))
            patch.setattr("platform.python_version", lambda: self.python)
            return colabkeep.check(**words)

    def _put(self, root: Path, cards: Sequence[CardLike], does: Does, tpus: int) -> None:
        if cards or does != "answers":
            fake_nvidia_smi(root / "usr/bin", cards, does=does, driver=self._driver)
        for number in range(tpus):
            place = root / f"sys/bus/pci/devices/0000:00:0{number + 4}.0"
            place.mkdir(parents=True)
            for name, text in _TPU.items():
                (place / name).write_text(f"{text}\n")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Machines that are taken away at the end, with what was installed on them."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        yield World(tmp_path / "world", patch, stack)
