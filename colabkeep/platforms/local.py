"""A machine of one's own, and any that is not recognised: checkpoints go to a folder beside the notebook or script."""

from __future__ import annotations

from colabkeep.core.system import Environment
from colabkeep.platforms.base import (
    FOLDER,
    DefaultStorage,
    Menus,
    Platform,
    SessionLimits,
    front_end,
    in_folder,
    is_container,
    may_vanish,
)

_AISTUDIO = "/home/aistudio"
_UNPROVEN = (
    "This is {}. Checkpoints go to the folder that Python was started in, and nobody can tell from inside whether that "
    "folder survives the machine."
)
_ELSEWHERE = (
    'Name a place that survives it: storage="<a folder of a mounted disk>", or a service that any machine reaches, '
    'such as storage="drive://colabkeep" after `colabkeep auth`, or storage="hf://<you>/<name>". If this folder does '
    'last, say so: storage="colabkeep-runs".'
)
_HAND_OVER = (
    "Start the container with the host's GPUs: docker run --gpus all … (the host needs NVIDIA's container toolkit), "
    "podman run --device nvidia.com/gpu=all …, or in Kubernetes resources: limits: nvidia.com/gpu: 1."
)


class ScriptPlatform(Platform):
    """Everything else; asked last. Its kinds are "terminal" (IPython) and "process"."""

    name = "script"
    title = "This machine"

    def matches(self, environment: Environment) -> bool:
        return True

    def home(self, environment: Environment) -> DefaultStorage:
        studio = environment.path(_AISTUDIO)
        if studio in (environment.folder, *environment.folder.parents) and environment.is_dir(f"{_AISTUDIO}/work"):
            # AI Studio has no official marker. Where it was not recognised, this folder is the better choice there, and
            # no worse one on a machine whose user happens to have that name.
            return in_folder(
                studio / "work" / FOLDER,
                None,
                f"This looks a little like Baidu AI Studio, where {_AISTUDIO}/work survives a restart: "
                "checkpoints go there.",
                "If it is AI Studio, say so with COLABKEEP_PLATFORM=aistudio; if it is not, name the folder that you "
                'want: storage="<folder>".',
            )
        folder = environment.folder / FOLDER
        if why := may_vanish(environment):
            return in_folder(folder, None, _UNPROVEN.format(why), _ELSEWHERE)
        reason = "Checkpoints lie on this machine's own disk, in the folder that Python was started in."
        return in_folder(folder, True, reason)

    def limits(self, environment: Environment) -> SessionLimits:
        if why := may_vanish(environment):
            source = f"this is {why}, and its time limit is not known"
            return SessionLimits(max_seconds=None, source=source, confidence="low")
        return SessionLimits(max_seconds=None, source="a machine of one's own has no limit", confidence="medium")

    def menus(self, environment: Environment) -> Menus:
        return Menus(hand_over=_HAND_OVER if is_container(environment) else None)


class JupyterPlatform(ScriptPlatform):
    """Plain Jupyter. Its kinds are "vscode" and "notebook", and "process" for what a notebook started."""

    name = "jupyter"
    title = "Jupyter"

    def matches(self, environment: Environment) -> bool:
        # JPY_PARENT_PID is what ipykernel finds its server by; children of a kernel inherit it.
        return front_end(environment) == "notebook" or bool(environment.environ.get("JPY_PARENT_PID"))

    def kind(self, environment: Environment) -> str:
        front = front_end(environment)
        return "vscode" if front == "notebook" and environment.environ.get("VSCODE_PID") else front
