"""What is known about this session and its machine, gathered in bounded time."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from colabkeep.core.system import Clock, Environment
from colabkeep.core.timeouts import TimedCall, TimedCalls
from colabkeep.hardware import find_accelerators
from colabkeep.hardware.base import Accelerator, Build, Hidden, Trouble
from colabkeep.hardware.catalogue import Card, Workload, find_card, score, tier
from colabkeep.hardware.cpus import advised_workers, usable_cpus
from colabkeep.hardware.probe import ProbeResult, probe
from colabkeep.hardware.support import installed_build, is_made_for, supports
from colabkeep.platforms import find_platform
from colabkeep.platforms.base import DefaultStorage, Menus, Platform, file_system, front_end, may_vanish
from colabkeep.platforms.lifetime import SessionTime, session_time

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
    *("ipywidgets", "kagglehub", "numpy", "paddlepaddle", "paddlepaddle-gpu", "requests", "safetensors", "torch"),
)


def look_around(environment: Environment) -> Mapping[str, Any]:
    """What somebody far away needs to know to help, for `Report.to_dict`. "marks": names of the variables that services
    set here, never what they hold. "may_vanish": why the current folder may be gone with the machine, "" where nothing
    says so. Nothing is imported or started."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "front_end": front_end(environment),
        "vscode": environment.vscode,
        "marks": sorted(name for name in environment.environ if name.startswith(_SERVICES)),
        "packages": {name: told for name in _PACKAGES if (told := _version(name))},
        "file_system": file_system(environment),
        "may_vanish": may_vanish(environment),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


PATIENCE = 4.0
"""Seconds for all questions together; with what surrounds them a check stays within five."""

_PROBE_PATIENCE = 90.0  # seconds; importing a framework from a cold notebook disk takes up to half a minute

WORKLOADS: tuple[Workload, ...] = ("cnn", "transformer", "rnn")
MAIN: Workload = "transformer"
"""The one that stands for all where one number is asked for: tiers are drawn by it."""

_TOOL_PATIENCE = 2.0  # seconds for the tool that lists accelerators
_FRAMEWORKS = ("torch", "paddle")
_GPUS = ("cuda", "rocm")
_MANY_FOLDERS = 5000
_INSTALLED_IN = str(Path(__file__).parents[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The platform, as far as the check needs it; by default one that could not be told."""

    name: str = "unknown"
    title: str = "This machine"
    kind: str = ""
    menus: Menus = field(default_factory=Menus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator, and what it is worth here. `card`: its row of the catalogue. `tier`: "S" to "D", "unknown".
    `speeds`: relative to a T4 with mixed precision, by workload. `supported`: has the framework kernels for it
    (None: not known)? `works`: what a trial on it proved (None: not tried)."""

    accelerator: Accelerator
    card: Card | None = None
    tier: str = "unknown"
    speeds: Mapping[Workload, float] = field(default_factory=dict)
    supported: bool | None = None
    works: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known; None is what could not be told. `build`: the framework that will train, of all `builds`
    installed. `free_bytes`: at the home of checkpoints. `probe`: what a trial on the device said, where one was made.
    `hidden`: a variable takes every accelerator away. `trouble`: why `devices` could not be told. `in_use`: the
    framework is loaded in this process, so memory in use may be its own. `copied_bytes`: in what is copied at each
    start, at least. `installed_in`: where this colabkeep was imported from. `previous`: cards of earlier sessions,
    the latest last. `deterministic`: the variable that cuBLAS needs for deterministic kernels is set.
    `unanswered`: what gave no answer, and why. `around`: as `look_around` tells it."""

    place: Place = field(default_factory=Place)
    devices: tuple[Device, ...] | None = None
    builds: tuple[Build, ...] = ()
    build: Build | None = None
    home: DefaultStorage | None = None
    free_bytes: int | None = None
    session: SessionTime | None = None
    cpus: int | None = None
    workers: int | None = None
    probe: ProbeResult | None = None
    hidden: Hidden | None = None
    trouble: Trouble | None = None
    in_use: bool = False
    copied_bytes: int | None = None
    installed_in: str = ""
    previous: tuple[str, ...] = ()
    deterministic: bool = False
    unanswered: tuple[str, ...] = ()
    around: Mapping[str, Any] = field(default_factory=dict)

    @property
    def framework(self) -> str:
        """The name of the one that will train, or of the platform's own where none is installed."""
        return self.place.menus.framework if self.build is None else self.build.framework


def gather(
    environment: Environment, clock: Clock, *, previous: Sequence[str] = (), patience: float = PATIENCE
) -> Facts:
    """Ask the machine, in `patience` seconds at most. Raises nothing for what the machine is like: what fails or
    hangs is None, and named in `unanswered`. No framework is imported, CUDA not initialised, nothing contacted."""
    timed_calls = TimedCalls(clock, patience)
    place = TimedCall("the platform", lambda: _place(find_platform(environment), environment))
    found = TimedCall("the accelerators", lambda: find_accelerators(environment, timeout=_TOOL_PATIENCE))
    installed = [TimedCall(f"the installed {name}", partial(installed_build, name)) for name in _FRAMEWORKS]
    cpus = TimedCall("the CPUs", lambda: usable_cpus(environment))
    workers = TimedCall("the loader workers", lambda: advised_workers(environment))
    around = TimedCall("the surroundings", partial(look_around, environment))

    known, platform = timed_calls.collect(place, by=0.5) or (Place(), None)
    at = session = free = worth = copied = None
    if platform is not None:
        at = TimedCall("the storage", partial(platform.home, environment))
        session = TimedCall("the session's time", partial(session_time, platform, environment, clock.time()))
    accelerators = timed_calls.collect(found, by=0.7)
    builds = tuple(told for timed_call in installed if (told := timed_calls.collect(timed_call, by=0.7)) is not None)
    build = _build_in_use(builds, environment, known.menus.framework)
    if isinstance(accelerators, tuple):
        worth = TimedCall("what the accelerators are worth", lambda: tuple(device(one, build) for one in accelerators))
    home = timed_calls.collect(at, by=0.8)
    if home is not None:
        free = TimedCall("the free space", partial(_free_bytes, home.folder))
    if home is not None and home.copied is not None:
        copied = TimedCall("the size of what is copied at each start", partial(_bytes_in, home.copied.folder))
    return Facts(
        place=known,
        devices=() if isinstance(accelerators, Hidden) else timed_calls.collect(worth),
        builds=builds,
        build=build,
        home=home,
        free_bytes=timed_calls.collect(free),
        session=timed_calls.collect(session),
        cpus=timed_calls.collect(cpus),
        workers=timed_calls.collect(workers),
        hidden=accelerators if isinstance(accelerators, Hidden) else None,
        trouble=accelerators if isinstance(accelerators, Trouble) else None,
        in_use=build is not None and build.framework in environment.modules,
        copied_bytes=timed_calls.collect(copied),
        installed_in=_INSTALLED_IN,
        previous=tuple(previous),
        deterministic="CUBLAS_WORKSPACE_CONFIG" in environment.environ,
        around=timed_calls.collect(around) or {},
        unanswered=tuple(timed_calls.untold),
    )


def device(accelerator: Accelerator, build: Build | None) -> Device:
    """What an accelerator is worth with this build of a framework."""
    card = find_card(accelerator)
    gpu = accelerator.kind in _GPUS
    supported = supports(build, accelerator) if build is not None and gpu else None
    speeds = {} if card is None else {workload: score(card, workload) for workload in WORKLOADS}
    return Device(
        accelerator=accelerator,
        card=card,
        tier=tier(card, usable=supported),
        speeds={workload: speed for workload, speed in speeds.items() if speed is not None},
        supported=supported,
    )


def best_gpu(facts: Facts) -> Device | None:
    """The GPU to train on: one that works before one that cannot, then the fastest, then the first."""

    def rank(one: Device) -> tuple[bool, bool, float]:
        return one.supported is not False, one.works is not False, one.speeds.get(MAIN, 0.0)

    gpus = [one for one in facts.devices or () if one.accelerator.kind in _GPUS]
    return max(gpus, key=rank, default=None)


def prove(facts: Facts, environment: Environment, *, timeout: float = _PROBE_PATIENCE) -> Facts:
    """The same, with a trial on the GPU in another process where it is in doubt whether the framework can use it.
    Takes `timeout` seconds at most."""
    best, build = best_gpu(facts), facts.build
    if best is None or best.supported is True or build is None or is_made_for(build, best.accelerator) is False:
        return facts  # nothing is in doubt
    framework: Literal["torch", "paddle"] = "paddle" if build.framework == "paddle" else "torch"
    result = probe(framework, best.accelerator.uuid or "", environment, timeout=timeout)
    return replace(facts, probe=result, devices=tuple(_tried(one, best, result) for one in facts.devices or ()))


def _tried(one: Device, best: Device, result: ProbeResult) -> Device:
    """A device after the trial on the best one. What the build lacks for that, it lacks for its twins; and a framework
    that sees no GPU sees none of the others either."""
    twin = result.cause == "no-kernels" and one.accelerator.name == best.accelerator.name
    if one.accelerator.kind not in _GPUS or not (one is best or twin or result.cause == "no-device"):
        return one
    supported = False if result.cause == "no-kernels" else True if result.works else one.supported
    usable = False if result.works is False else supported
    return replace(one, works=result.works, supported=supported, tier=tier(one.card, usable=usable))


def _place(platform: Platform, environment: Environment) -> tuple[Place, Platform]:
    kind, menus = platform.kind(environment), platform.menus(environment)
    return Place(name=platform.name, title=platform.title, kind=kind, menus=menus), platform


def _free_bytes(folder: str) -> int:
    """Of the disk that will hold `folder`, which need not exist yet."""
    place = Path(folder)
    while not place.exists():
        place = place.parent
    told = os.statvfs(place)
    return told.f_bavail * told.f_frsize


def _bytes_in(folder: str) -> int:
    """Of the files below `folder`; of the first ones only, where there are very many."""
    total = 0
    for number, (place, _, names) in enumerate(os.walk(folder)):
        for name in names:
            with suppress(OSError):  # deleted in the meantime
                total += os.lstat(f"{place}/{name}").st_size
        if number >= _MANY_FOLDERS:
            break
    return total


def _build_in_use(builds: Sequence[Build], environment: Environment, own: str) -> Build | None:
    """The framework that is loaded; else one made for GPUs; else the platform's `own`."""

    def rank(build: Build) -> tuple[bool, bool, bool]:
        return build.framework in environment.modules, bool(build.cuda or build.hip), build.framework == own

    return max(builds, key=rank, default=None)
