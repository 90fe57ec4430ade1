"""The services that need no file of their own: one row each.

A row's facts are as old and as sure as its `source` and `confidence` say; a wrong one costs a line of advice, never a
checkpoint. Users' own tokens (HF_TOKEN, DATABRICKS_TOKEN, MODAL_TOKEN_ID, LIGHTNING_API_KEY, MODELSCOPE_API_TOKEN, …)
are set on laptops too, and are not among the markers.
"""

from __future__ import annotations

from dataclasses import dataclass

from colabkeep.core.system import Environment
from colabkeep.platforms.base import FOLDER, Confidence, DefaultStorage, Menus, Platform, SessionLimits, in_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One service.

    `markers`: it is this one if all signs of any of them hold; a sign is a variable ("NAME" is not empty, or
    "NAME=value") or a folder ("/path"). `folders`: where files outlive a session, the best first ("~" is the home
    folder); `persists`: do they (None: not proven)? `keeping` says so in a sentence, `remedy` what to do where that is
    not sure or none of the folders is there. `max_seconds`, `idle_seconds`: of a session. `enable`, `offered`: as in
    `Menus`. `source`, `confidence`: of both limits.
    """

    name: str
    title: str
    markers: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...] = ()
    persists: bool | None = True
    keeping: str
    remedy: str
    max_seconds: float | None = None
    idle_seconds: float | None = None
    enable: str | None = None
    offered: str = ""
    source: str
    confidence: Confidence


_HOUR = 3600.0

ROWS = (
    Row(
        name="studiolab",
        title="SageMaker Studio Lab",
        markers=(("SAGEMAKER_INTERNAL_IMAGE_URI", "/home/studio-lab-user"),),
        folders=("/home/studio-lab-user",),
        keeping="The home folder (15 GB) is kept from session to session.",
        remedy='Name a folder in your home: storage="/home/studio-lab-user/checkpoints".',
        max_seconds=4 * _HOUR,
        enable="Stop the runtime on the project's page, choose GPU as compute type, and start it again.",
        offered="one T4 for 4 hours a day",
        source="4 hours per session, staff in the issues of aws/studio-lab-examples, July 2023",
        confidence="medium",
    ),
    Row(
        name="gradient",
        title="Paperspace Gradient",
        markers=(("PAPERSPACE_NOTEBOOK_REPO_ID",), ("PAPERSPACE_NOTEBOOK_ID",)),
        folders=("/notebooks", "/storage"),
        keeping="/notebooks is kept with the notebook (5 GB free of charge).",
        remedy='Name the folder that all your notebooks share: storage="/storage/checkpoints".',
        max_seconds=6 * _HOUR,
        source="a free machine stops after 6 hours, Paperspace's documentation before 2024",
        confidence="low",
    ),
    Row(
        name="lightning",
        title="Lightning AI Studio",
        markers=(("LIGHTNING_CLOUD_SPACE_ID",), ("/teamspace/studios/this_studio",)),
        folders=("/teamspace/studios/this_studio",),
        keeping="The Studio's own folder is kept when its machine stops or is switched.",
        remedy='Name the Studio\'s folder: storage="/teamspace/studios/this_studio/checkpoints".',
        idle_seconds=600.0,
        enable="Click the machine in the Studio's right-hand bar and switch it to one with a GPU.",
        source="stopped after about 10 idle minutes, users' reports, 2024; markers as in lightning_sdk, October 2026",
        confidence="low",
    ),
    Row(
        name="spaces",
        title="Hugging Face Spaces",
        markers=(("SPACE_ID", "SYSTEM=spaces"), ("SPACE_ID", "SPACE_HOST")),
        folders=("/data",),
        persists=None,
        keeping="/data outlives a restart only if persistent storage was bought for this Space.",
        remedy="See the Space's Settings → Storage; without it every file is gone at the next restart or sleep.",
        enable="The Space's Settings → Hardware: choose one with a GPU (paid).",
        source="asleep after some time without visitors on free hardware, Hugging Face's documentation",
        confidence="medium",
    ),
    Row(
        name="deepnote",
        title="Deepnote",
        markers=(("DEEPNOTE_PROJECT_ID",),),
        folders=("~/work", "/work"),
        keeping="The project's work folder is kept when its machine stops.",
        remedy='Name the project\'s folder: storage="/work/checkpoints".',
        source="the machine stops when idle, after how long is not known",
        confidence="medium",
    ),
    Row(
        name="codespaces",
        title="GitHub Codespaces",
        markers=(("CODESPACES=true", "CODESPACE_NAME"),),
        folders=("/workspaces",),
        keeping="/workspaces is kept when the codespace stops, until it is deleted: after 30 days without use.",
        remedy='Name a folder there: storage="/workspaces/checkpoints".',
        idle_seconds=1800.0,
        source="stopped after 30 idle minutes unless set otherwise, GitHub's documentation",
        confidence="medium",
    ),
    Row(
        name="databricks",
        title="Databricks",
        markers=(("DATABRICKS_RUNTIME_VERSION", "/databricks"),),
        keeping="Databricks keeps what lies in a volume; the cluster's own disk goes with the cluster.",
        remedy='Name a folder of a volume: storage="/Volumes/<catalog>/<schema>/<volume>/checkpoints".',
        source="ends with the cluster or its quota",
        confidence="medium",
    ),
    Row(
        name="modelscope",
        title="ModelScope or Alibaba PAI-DSW",
        # DSW_INSTANCE_ID is read by aliyun/pai-python-sdk, MODELSCOPE_ENVIRONMENT by modelscope/modelscope.
        markers=(("DSW_INSTANCE_ID", "/mnt/workspace"), ("MODELSCOPE_ENVIRONMENT", "/mnt/workspace")),
        folders=("/mnt/workspace",),
        persists=None,
        keeping="/mnt/workspace is kept by what users report; it cannot be proven from here.",
        remedy="Download what matters, or name a mounted bucket's folder as storage=….",
        max_seconds=8 * _HOUR,
        enable="The card is chosen when the instance is started: stop it, and start the GPU environment.",
        source="free GPU instances run for 8 hours at most, issues of modelscope/modelscope before 2025",
        confidence="low",
    ),
    Row(
        name="runpod",
        title="RunPod",
        markers=(("RUNPOD_POD_ID",),),
        folders=("/workspace", "/runpod-volume"),
        keeping="The pod's volume is kept when the pod stops, and deleted with the pod unless it is a network volume.",
        remedy="Give the pod a volume, which appears as /workspace; the container's own disk is lost when it stops.",
        source="paid by the hour, without a limit",
        confidence="medium",
    ),
    Row(
        name="modal",
        title="Modal",
        markers=(("MODAL_TASK_ID",),),
        keeping="A Modal container keeps only what lies in a mounted Volume.",
        remedy='Mount a Volume and name a folder of it: storage="/<volume>/checkpoints"; commit() it at the end.',
        source="ends at the function's own timeout=",
        confidence="low",
    ),
    Row(
        name="binder",
        title="Binder",
        # Set for each server by BinderHub (`binderhub/launcher.py` hands them on, its helm chart's spawner sets them).
        markers=(("BINDER_LAUNCH_HOST",), ("BINDER_REPO_URL",)),
        keeping="Binder keeps no file at all: the machine is deleted when it is left.",
        remedy='Name a service that any machine reaches: storage="hf://<you>/<name>", or storage="drive://colabkeep" '
        "after `colabkeep auth`.",
        idle_seconds=600.0,
        source="deleted after 10 idle minutes, mybinder.org's documentation; it has no GPU",
        confidence="high",
    ),
    Row(
        name="workbench",
        title="Vertex AI Workbench",
        markers=(("VERTEX_PRODUCT=WORKBENCH_INSTANCE",),),
        folders=("/home/jupyter",),
        keeping="/home/jupyter lies on the instance's own disk, which is kept when it stops.",
        remedy='Name a folder there: storage="/home/jupyter/checkpoints".',
        source="paid by the hour; it stops when idle if it was set up so",
        confidence="medium",
    ),
)


def rows() -> tuple[TablePlatform, ...]:
    """A platform for each row."""
    return tuple(map(TablePlatform, ROWS))


class TablePlatform(Platform):
    """The platform of a row. Its kinds are "notebook", "terminal" and "process"."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.name = row.name
        self.title = row.title

    def matches(self, environment: Environment) -> bool:
        return any(all(_holds(sign, environment) for sign in signs) for signs in self.row.markers)

    def home(self, environment: Environment) -> DefaultStorage:
        row = self.row
        for folder in row.folders:
            absolute = folder.replace("~", environment.environ.get("HOME") or "/root", 1)
            if environment.is_dir(absolute):
                remedy = "" if row.persists else row.remedy
                return in_folder(environment.path(f"{absolute}/{FOLDER}"), row.persists, row.keeping, remedy)
        missing = f" There is no {' and no '.join(row.folders)} here." if row.folders else ""
        return in_folder(environment.folder / FOLDER, False, f"{row.keeping}{missing}", row.remedy)

    def limits(self, environment: Environment) -> SessionLimits:
        row = self.row
        return SessionLimits(
            max_seconds=row.max_seconds,
            idle_seconds=row.idle_seconds,
            idle_confidence=row.confidence,
            source=row.source,
            confidence=row.confidence,
        )

    def menus(self, environment: Environment) -> Menus:
        return Menus(enable=self.row.enable, switch=self.row.enable, offered=self.row.offered)


def _holds(sign: str, environment: Environment) -> bool:
    if sign.startswith("/"):
        return environment.is_dir(sign)
    name, equals, value = sign.partition("=")
    told = environment.environ.get(name, "").strip()
    return told.lower() == value.lower() if equals else bool(told)
