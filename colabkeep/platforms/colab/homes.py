"""Where checkpoints live on Colab: this machine's disk in front and Drive behind it, or what there is without Drive."""

from __future__ import annotations

from urllib.parse import quote

from colabkeep.platforms._front import front_end
from colabkeep.platforms.base import Home
from colabkeep.platforms.colab.drive import Drive, find_drive, is_only_a_folder
from colabkeep.vocabulary.environment import Environment

__all__ = ["find_home"]

_LOCAL = "/content/colabkeep-local"  # survives a restart of the kernel, not of the machine
_MOUNT = "Run this in a cell of the notebook:  import colabkeep; colabkeep.mount()  "


def find_home(environment: Environment, kind: str) -> Home:
    """The home on a Colab of that kind, as things stand now."""
    drive = find_drive(environment)
    if drive is not None and drive.folder is not None:
        return _on_drive(environment, drive, drive.folder)
    folder = str(environment.path(_LOCAL))
    if kind == "enterprise":
        return Home(
            storage=folder,
            folder=folder,
            persists=False,
            reason="Colab Enterprise cannot mount Google Drive, and /content is deleted with this runtime.",
            remedy="Mount a Cloud Storage bucket with gcsfuse and name a folder in it: "
            'storage="/content/bucket/colabkeep".',
        )
    if kind == "local":
        return Home(
            storage=folder,
            folder=folder,
            persists=None,
            reason="/content lies in the container: it outlives a restart, and is gone when the container is removed.",
            remedy="Start the container with a folder of your own machine in this place: "
            f"docker run -v ~/colabkeep:{_LOCAL} … (once, before training).",
        )
    return Home(
        storage=folder,
        folder=folder,
        persists=False,
        reason=_without_drive(environment, drive),
        remedy=_MOUNT
        + (
            "and then this cell again."
            if front_end(environment) == "notebook"
            else "and then start this program again."
        ),
    )


def _on_drive(environment: Environment, drive: Drive, mine: str) -> Home:
    folder = str(environment.path(f"{mine}/colabkeep"))
    return Home(
        storage=f"{environment.path(_LOCAL)} + mounted://{quote(folder)}",
        folder=folder,
        persists=True if drive.listed else None,
        reason=f"Google Drive is mounted at {drive.point}: checkpoints are written to this machine's disk, "
        "and follow to Drive."
        if drive.listed
        else f"{mine} looks like Google Drive, but the machine's table of mounts does not say that it is.",
        remedy=""
        if drive.listed
        else "After the first save, look into the folder colabkeep at https://drive.google.com: it must be there.",
    )


def _without_drive(environment: Environment, drive: Drive | None) -> str:
    if drive is not None:
        trouble = "" if drive.trouble is None else f" ({drive.trouble.strerror})"
        return f"Google Drive is mounted at {drive.point} but cannot be reached{trouble}."
    reason = "Google Drive is not mounted, and /content is deleted with this machine."
    if is_only_a_folder(environment):
        reason += " /content/drive/MyDrive is an ordinary folder here: what was written to it is not in Drive."
    return reason
