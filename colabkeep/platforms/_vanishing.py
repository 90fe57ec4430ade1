"""Is this machine one that is thrown away after use? No container says so of itself, so its marks are looked at."""

from __future__ import annotations

from pathlib import PurePosixPath

from colabkeep.vocabulary.environment import Environment

__all__ = ["file_system", "is_container", "may_vanish"]

_FILES = ("/.dockerenv", "/run/.containerenv")  # Docker's, and Podman's
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
    "CLOUD_ML_JOB_ID": "a Vertex AI job",
    "AIP_MODEL_DIR": "a Vertex AI job",
    "SM_TRAINING_ENV": "a SageMaker job",
    "AZUREML_RUN_ID": "an Azure ML job",
    "AWS_BATCH_JOB_ID": "an AWS Batch job",
    "ECS_CONTAINER_METADATA_URI_V4": "a container of Amazon ECS",
    "K_SERVICE": "Cloud Run",
    "CLOUD_RUN_JOB": "a Cloud Run job",
    "DATABRICKS_RUNTIME_VERSION": "Databricks",  # the driver's own disk goes with the cluster
    "SPACE_ID": "a Space of the Hugging Face Hub",
    "GITHUB_ACTIONS": "a CI job",
    "CI": "a CI job",
    "container": "a container",  # systemd's container interface: podman, systemd-nspawn, lxc
}
_LAYERS = frozenset({"overlay", "fuse.fuse-overlayfs", "aufs", "tmpfs", "ramfs"})
"""File systems of a container's own layer, or of memory alone."""

_NO = ("", "0", "false")


def may_vanish(environment: Environment) -> str:
    """Why what lies on this machine's disk may be gone with it, as words that follow "this is"; "" where nothing says
    so. A folder on a disk of its own counts as lasting only where nothing else marks a container: what is mounted
    there may be the host's, or be made anew each time."""
    for file in _FILES:
        if environment.is_file(file):
            return f"a container ({file} is there)"
    for name, what in _VARIABLES.items():
        if environment.environ.get(name, "").strip().lower() not in _NO:
            return f"{what} ({name} is set)"
    kind = file_system(environment)
    return f"a folder on {kind}, as containers and live systems have it" if kind in _LAYERS else ""


def is_container(environment: Environment) -> bool:
    """Is this one that sees only the devices that it was handed?"""
    variables = (environment.environ.get(name, "").strip().lower() for name in ("container", "KUBERNETES_SERVICE_HOST"))
    return any(map(environment.is_file, _FILES)) or any(value not in _NO for value in variables)


def file_system(environment: Environment) -> str:
    """The kind of file system that the current folder lies on; "" where that is not told (as outside Linux)."""
    folder = PurePosixPath(environment.folder)
    if folder.is_relative_to(environment.root):
        folder = "/" / folder.relative_to(environment.root)
    holding, kind = PurePosixPath(), ""
    for line in environment.text("/proc/mounts").splitlines():
        fields = line.split(" ")
        point = PurePosixPath(fields[1].replace("\\040", " ")) if len(fields) > 2 else PurePosixPath()
        # Of two mounts at one point the later one hides the earlier.
        if point.is_absolute() and folder.is_relative_to(point) and len(point.parts) >= len(holding.parts):
            holding, kind = point, fields[2]
    return kind
