"""What somebody who reads a report from afar needs to know of the machine. Of variables the names alone, for what they
hold may be a secret."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from colabkeep.platforms._front import front_end
from colabkeep.platforms._vanishing import file_system, may_vanish
from colabkeep.vocabulary.environment import Environment

__all__ = ["Surroundings", "look_around"]

_SERVICES = (
    *("AIP_", "AWS_BATCH_", "AZUREML_", "BINDER_", "CI", "CLOUD_ML_", "CLOUD_RUN_", "CODESPACE", "COLAB_"),
    *("CUDA_VISIBLE_DEVICES", "DATABRICKS_", "DEEPNOTE_", "DSW_", "ECS_", "GITHUB_ACTIONS", "ISTPUVM", "JPY_"),
    *("JUPYTERHUB_", "KAGGLE_", "KUBERNETES_", "K_SERVICE", "LIGHTNING_", "MODAL_", "MODELSCOPE_", "NVIDIA_"),
    *("PAPERSPACE_", "PJRT_", "RUNPOD_", "SAGEMAKER_", "SLURM_", "SM_", "SPACE_", "STUDIO_", "TBE_", "TPU_"),
    *("VERTEX_", "VSCODE_", "WEBIDE_", "WORLD_SIZE", "container"),
)
"""How the variables begin by which services and launchers can be told."""

_PACKAGES = (
    *("IPython", "PyDrive2", "aistudio-sdk", "google-auth", "google-colab", "huggingface_hub", "ipykernel"),
    *(
        "ipywidgets",
        "kagglehub",
        "numpy",
        "nvidia-ml-py",
        "paddlepaddle",
        "paddlepaddle-gpu",
        "requests",
        "safetensors",
    ),
    *("torch",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """`front_end`: as in `colabkeep.platforms`. `vscode`: it shows the notebook. `marks`: names of the variables that
    services set here. `packages`: what is installed, by name. `file_system`: of the current folder, and `vanishes`: why
    that may be gone with the machine, "" where nothing says so."""

    python: str
    system: str
    front_end: str
    vscode: bool
    marks: tuple[str, ...]
    file_system: str
    vanishes: str
    packages: Mapping[str, str] = field(default_factory=dict)


def look_around(environment: Environment) -> Surroundings:
    """Nothing is imported or started."""
    return Surroundings(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        front_end=front_end(environment),
        vscode=environment.vscode,
        marks=tuple(sorted(name for name in environment.environ if name.startswith(_SERVICES))),
        file_system=file_system(environment),
        vanishes=may_vanish(environment),
        packages={name: told for name in _PACKAGES if (told := _version(name))},
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
