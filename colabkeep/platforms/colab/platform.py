"""Google Colab, in four kinds: where checkpoints live there, how long it lets one have a machine, and what to click."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from colabkeep.core.errors import MountError
from colabkeep.core.system import Environment
from colabkeep.platforms.base import DefaultStorage, Menus, Platform, SessionLimits, front_end, in_folder
from colabkeep.platforms.colab.drive import Drive, find_drive, is_only_a_folder, mount_drive
from colabkeep.platforms.colab.page import clicks, find_secret, sign_in_user, why_unreachable

_HOUR = 3600.0

_HOSTED_LIMITS = SessionLimits(
    max_seconds=12 * _HOUR,
    idle_seconds=90 * 60.0,
    idle_confidence="medium",
    source="Colab's FAQ: 12 hours at most, often less, up to 24 with Pro+; about 90 minutes idle is what the "
    "documentation of googlecolab/google-colab-cli says (2026-07)",
    confidence="high",
    usual_seconds=2.5 * _HOUR,
    usual_source="users report 1.5 to 3.5 hours on free machines and 1 to 5 on paid ones (googlecolab/colabtools "
    "issues 1759, 5566 and 5793, 2025-09 to 2026-09)",
)
_ENTERPRISE_LIMITS = SessionLimits(
    max_seconds=18 * _HOUR,
    idle_seconds=180 * 60.0,
    idle_confidence="medium",
    source="Google Cloud's documentation of Colab Enterprise: a default runtime is deleted 18 hours after it was made, "
    "and stops after 180 idle minutes; runtimes of other templates differ",
    confidence="medium",
)
_LOCAL_LIMITS = SessionLimits(max_seconds=None, source="a machine of your own sets no limit", confidence="high")

_HOSTED_MENUS = Menus(
    enable="Runtime > Change runtime type > Hardware accelerator: T4 GPU > Save, then run the notebook from the top.",
    reconnect="Runtime > Disconnect and delete runtime > Yes, then Connect (top right), and run the notebook "
    "from the top.",
    switch="Runtime > Change runtime type > another hardware accelerator > Save, then run the notebook from the top.",
    # googlecolab/colabtools #5566 (2025-09) for the free ones, the option lists of google-colab-cli (2026-07)
    # and colab-vscode (2026-08) for the others. The free GPUs of 2019-22 (K80, P4, P100) were drawn by chance.
    offered="free: T4 GPU and TPU v5e-1, when there are any; with compute units also L4, G4, A100 and H100 GPUs and "
    "TPU v6e-1 (as of 2026)",
    draws=True,
)
_ENTERPRISE_MENUS = Menus(
    enable="Google Cloud console > Colab Enterprise > Runtime templates > New template with an accelerator, "
    "then in the notebook: Connect > Connect to a runtime > that template.",
    reconnect="Google Cloud console > Colab Enterprise > Runtimes > Delete, then Connect in the notebook.",
    switch="Google Cloud console > Colab Enterprise > Runtime templates > New template with another accelerator.",
    offered="the GPUs of the project's region and quota; none is free",
)
_LOCAL_MENUS = Menus(
    enable="Stop the container and start it with the machine's GPUs: docker run --gpus=all …, "
    "then Connect > Connect to a local runtime.",
    offered="the GPUs of the machine that runs the container",
)


def limits_of(kind: str) -> SessionLimits:
    """How long a session of that kind lasts at most."""
    return {"enterprise": _ENTERPRISE_LIMITS, "local": _LOCAL_LIMITS}.get(kind, _HOSTED_LIMITS)


_LOCAL = "/content/colabkeep-local"  # survives a restart of the kernel, not of the machine
_HOSTED = "/var/colab/hostname"  # the file by which drive.mount itself decides (googlecolab/colabtools, 2026-04)
_TAGS = ("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION")


class ColabPlatform(Platform):
    """Google Colab. Ask Kaggle first: its image is built on Colab's and carries the same variables.

    The kinds:

    * "hosted": a machine of Google's, and this code runs in the notebook's kernel. Which front end shows the notebook
      (browser, VS Code, terminal client) is told by no variable: `page.py` says what is known.
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
        drive, kind = find_drive(environment), self.kind(environment)
        if drive is not None and drive.folder is not None:
            return _on_drive(environment, drive, drive.folder)
        folder = environment.path(_LOCAL)
        if kind == "enterprise":
            return in_folder(
                folder,
                False,
                "Colab Enterprise cannot mount Google Drive, and /content is deleted with this runtime.",
                "Mount a Cloud Storage bucket with gcsfuse and name a folder in it: "
                'storage="/content/bucket/colabkeep".',
            )
        if kind == "local":
            return in_folder(
                folder,
                None,
                "/content lies in the container: it outlives a restart, and is gone when the container is removed.",
                "Start the container with a folder of your own machine in this place: "
                f"docker run -v ~/colabkeep:{_LOCAL} … (once, before training).",
            )
        again = "this cell again" if front_end(environment) == "notebook" else "start this program again"
        remedy = f"Run this in a cell of the notebook:  import colabkeep; colabkeep.mount()  and then {again}."
        return in_folder(folder, False, _without_drive(environment, drive), remedy)

    def mount(self, environment: Environment, *, timeout: float) -> DefaultStorage:
        kind = self.kind(environment)
        if kind == "enterprise":
            home = self.home(environment)
            if home.persists is False:
                raise MountError(problem=home.reason, remedy=home.remedy)
            return home
        if kind == "local" and why_unreachable(environment):
            return self.home(environment)
        try:
            mount_drive(environment, timeout)
        except MountError as error:
            # Colab refuses here at once. It is asked all the same, in case the hosted machines lose their mark one day.
            if kind != "local" or not isinstance(error.__cause__, NotImplementedError):
                raise
        return self.home(environment)

    def limits(self, environment: Environment) -> SessionLimits:
        return limits_of(self.kind(environment))

    def menus(self, environment: Environment) -> Menus:
        menus = {"enterprise": _ENTERPRISE_MENUS, "local": _LOCAL_MENUS}.get(self.kind(environment), _HOSTED_MENUS)
        return replace(
            menus,
            enable=clicks(environment, menus.enable or ""),
            reconnect=clicks(environment, menus.reconnect or "") or None,
            switch=clicks(environment, menus.switch or "") or None,
        )

    def secret(self, environment: Environment, name: str, *, timeout: float) -> str:
        return find_secret(environment, name, timeout)

    def google_user(self, environment: Environment) -> Callable[[], None]:
        return partial(sign_in_user, environment)


def _on_drive(environment: Environment, drive: Drive, mine: str) -> DefaultStorage:
    folder = str(environment.path(f"{mine}/colabkeep"))
    storage = f"{environment.path(_LOCAL)} + mounted://{quote(folder)}"
    reason = (
        f"Google Drive is mounted at {drive.point}: checkpoints are written to this machine's disk and then uploaded "
        "to Drive."
    )
    if drive.listed:
        return DefaultStorage(storage=storage, folder=folder, persists=True, reason=reason)
    reason = f"{mine} looks like Google Drive, but the machine's table of mounts does not say that it is."
    remedy = "After the first save, look into the folder colabkeep at https://drive.google.com: it must be there."
    return DefaultStorage(storage=storage, folder=folder, persists=None, reason=reason, remedy=remedy)


def _without_drive(environment: Environment, drive: Drive | None) -> str:
    if drive is not None:
        return f"Google Drive is mounted at {drive.point} but cannot be reached{drive.said}."
    reason = "Google Drive is not mounted, and /content is deleted with this machine."
    if is_only_a_folder(environment):
        reason += " /content/drive/MyDrive is an ordinary folder here: what was written to it is not in Drive."
    return reason
