"""Google Colab, in four kinds, and where checkpoints live there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from urllib.parse import quote

from colabkeep.core.errors import MountError
from colabkeep.core.system import Environment
from colabkeep.platforms.base import DefaultStorage, Menus, SessionLimits, front_end
from colabkeep.platforms.colab.service import Drive, find_drive, is_only_a_folder, limits_of, menus_of

__all__ = [
    "ColabPlatform",
    "find_home",
]

_LOCAL = "/content/colabkeep-local"  # survives a restart of the kernel, not of the machine
_MOUNT = "Run this in a cell of the notebook:  import colabkeep; colabkeep.mount()  "


def find_home(environment: Environment, kind: str) -> DefaultStorage:
    """The home on a Colab of that kind, as things stand now."""
    drive = find_drive(environment)
    if drive is not None and drive.folder is not None:
        return _on_drive(environment, drive, drive.folder)
    folder = str(environment.path(_LOCAL))
    if kind == "enterprise":
        return DefaultStorage(
            storage=folder,
            folder=folder,
            persists=False,
            reason="Colab Enterprise cannot mount Google Drive, and /content is deleted with this runtime.",
            remedy="Mount a Cloud Storage bucket with gcsfuse and name a folder in it: "
            'storage="/content/bucket/colabkeep".',
        )
    if kind == "local":
        return DefaultStorage(
            storage=folder,
            folder=folder,
            persists=None,
            reason="/content lies in the container: it outlives a restart, and is gone when the container is removed.",
            remedy="Start the container with a folder of your own machine in this place: "
            f"docker run -v ~/colabkeep:{_LOCAL} … (once, before training).",
        )
    return DefaultStorage(
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


def _on_drive(environment: Environment, drive: Drive, mine: str) -> DefaultStorage:
    folder = str(environment.path(f"{mine}/colabkeep"))
    return DefaultStorage(
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


_HOSTED = "/var/colab/hostname"  # the file by which drive.mount itself decides (googlecolab/colabtools, 2026-04)
_TAGS = ("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION")


class ColabPlatform:
    """Google Colab. Ask Kaggle first: its image is built on Colab's and carries the same variables.

    The kinds:

    * "hosted": a machine of Google's, and this code runs in the notebook's kernel. Which front end shows the notebook
      (browser, VS Code, terminal client) is told by no variable: `frontend.py` says what is known.
    * "process": the same machine, outside the kernel (`!python train.py`, a terminal): nothing can be asked of the
      user; a Drive that is mounted already works.
    * "enterprise": Colab Enterprise, which has no Drive.
    * "local": Colab's image on another machine, such as the docker runtime on one's own.
    """

    name = "colab"
    title = "Google Colab"

    def matches(self, environment: Environment) -> bool:
        product = environment.environ.get("VERTEX_PRODUCT")
        if product:  # Workbench, the sister product, is another platform
            return product == "COLAB_ENTERPRISE"
        image = any(environment.environ.get(tag) for tag in _TAGS) and environment.is_dir("/content")
        return image or environment.is_file(_HOSTED) or "google.colab" in environment.shell

    def kind(self, environment: Environment) -> str:
        if environment.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE":
            return "enterprise"
        if not environment.is_file(_HOSTED):
            return "local"
        return "hosted" if front_end(environment) == "notebook" else "process"

    def home(self, environment: Environment) -> DefaultStorage:
        return find_home(environment, self.kind(environment))

    def mount(self, environment: Environment, *, timeout: float) -> DefaultStorage:
        # What asking takes is loaded when somebody asks: detection is to be quick.
        from colabkeep.platforms.colab.frontend import why_unreachable
        from colabkeep.platforms.colab.mounting import mount_drive

        kind = self.kind(environment)
        if kind == "enterprise":
            return self._given(environment)
        if kind == "local" and why_unreachable(environment):
            return self.home(environment)
        try:
            mount_drive(environment, timeout)
        except MountError as error:
            # Colab refuses here at once. It is asked all the same, in case the hosted machines lose their mark one day.
            if kind == "local" and isinstance(error.__cause__, NotImplementedError):
                return self.home(environment)
            raise
        return self.home(environment)

    def _given(self, environment: Environment) -> DefaultStorage:
        """The home, where nothing can be mounted: one that lasts, or an error."""
        home = self.home(environment)
        if home.persists is False:
            raise MountError(problem=home.reason, remedy=home.remedy)
        return home

    def limits(self, environment: Environment) -> SessionLimits:
        return limits_of(self.kind(environment))

    def menus(self, environment: Environment) -> Menus:
        return menus_of(self.kind(environment), environment)

    def secret(self, environment: Environment, name: str, *, timeout: float) -> str:
        from colabkeep.platforms.colab.frontend import find_secret

        return find_secret(environment, name, timeout)

    def google_user(self, environment: Environment) -> Callable[[], None]:
        from colabkeep.platforms.colab.frontend import sign_in_user

        return partial(sign_in_user, environment)
