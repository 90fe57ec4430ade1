"""A machine of one's own, and any that is not recognised: checkpoints go to a folder beside the notebook or script."""

from __future__ import annotations

from pathlib import Path

from colabkeep.core.system import Environment
from colabkeep.platforms.base import (
    FOLDER,
    DefaultStorage,
    Menus,
    SessionLimits,
    front_end,
    is_container,
    may_vanish,
    secret_from_variable,
)

__all__ = ["JupyterPlatform", "ScriptPlatform"]

_AISTUDIO = "/home/aistudio"
_UNPROVEN = (
    "This is {}: whether the folder that Python was started in outlives the machine cannot be told from inside, and "
    "checkpoints go there."
)
_ELSEWHERE = (
    'Name a place that outlives it: storage="<a folder of a mounted disk>", or a service that any machine reaches, '
    'such as storage="drive://colabkeep" after `colabkeep auth`, or storage="hf://<you>/<name>". If this folder does '
    'last, say so: storage="colabkeep-runs".'
)


_HAND_OVER = (
    "Start the container with the host's GPUs: docker run --gpus all … (the host needs NVIDIA's container toolkit), "
    "podman run --device nvidia.com/gpu=all …, or in Kubernetes resources: limits: nvidia.com/gpu: 1."
)


class _OwnMachine:
    """What the two have in common. Nothing is mounted, no limit is known, and no menu offers a GPU."""

    name: str
    title: str

    def home(self, environment: Environment) -> DefaultStorage:
        if _is_below(environment.folder, environment.path(_AISTUDIO)) and environment.is_dir(f"{_AISTUDIO}/work"):
            return _work_after_all(environment)
        folder = str(environment.folder / FOLDER)
        if why := may_vanish(environment):
            return DefaultStorage(
                storage=folder, folder=folder, persists=None, reason=_UNPROVEN.format(why), remedy=_ELSEWHERE
            )
        return DefaultStorage(
            storage=folder,
            folder=folder,
            persists=True,
            reason="Checkpoints lie on this machine's own disk, in the folder that Python was started in.",
        )

    def mount(self, environment: Environment, *, timeout: float) -> DefaultStorage:
        return self.home(environment)

    def limits(self, environment: Environment) -> SessionLimits:
        if why := may_vanish(environment):
            source = f"this is {why}, and nobody says when it ends"
            return SessionLimits(max_seconds=None, source=source, confidence="low")
        return SessionLimits(max_seconds=None, source="a machine of one's own has no limit", confidence="medium")

    def menus(self, environment: Environment) -> Menus:
        return Menus(hand_over=_HAND_OVER if is_container(environment) else None)

    def secret(self, environment: Environment, name: str, *, timeout: float) -> str:
        return secret_from_variable(environment, name)

    def google_user(self, environment: Environment) -> None:
        return None


class JupyterPlatform(_OwnMachine):
    """Plain Jupyter. Its kinds are "vscode" and "notebook", and "process" for what a notebook started."""

    name = "jupyter"
    title = "Jupyter"

    def matches(self, environment: Environment) -> bool:
        # JPY_PARENT_PID is what ipykernel finds its server by; children of a kernel inherit it.
        return front_end(environment) == "notebook" or bool(environment.environ.get("JPY_PARENT_PID"))

    def kind(self, environment: Environment) -> str:
        front = front_end(environment)
        return "vscode" if front == "notebook" and environment.environ.get("VSCODE_PID") else front


class ScriptPlatform(_OwnMachine):
    """Everything else; asked last. Its kinds are "terminal" (IPython) and "process"."""

    name = "script"
    title = "This machine"

    def matches(self, environment: Environment) -> bool:
        return True

    def kind(self, environment: Environment) -> str:
        return front_end(environment)


def _work_after_all(environment: Environment) -> DefaultStorage:
    # AI Studio has no official marker. Where it was not recognised, this folder is the better choice there, and
    # no worse one on a machine whose user happens to have that name.
    folder = str(environment.path(f"{_AISTUDIO}/work/{FOLDER}"))
    return DefaultStorage(
        storage=folder,
        folder=folder,
        persists=None,
        reason=(
            f"This looks a little like Baidu AI Studio, where {_AISTUDIO}/work is what survives a restart: "
            "checkpoints go there."
        ),
        remedy=(
            "If it is AI Studio, say so with COLABKEEP_PLATFORM=aistudio; if it is not, name the folder that you want: "
            'storage="<folder>".'
        ),
    )


def _is_below(folder: Path, other: Path) -> bool:
    return folder == other or other in folder.parents
