"""Is what came worth starting on? Facts in, a verdict out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeGuard

from colabkeep.hardware.base import Accelerator, Build
from colabkeep.hardware.catalogue import UNCERTAINTY, Workload, capability_of, find_card, tier
from colabkeep.hardware.support import has_wheel, is_made_for, needed_driver, runs_on, wheels_for
from colabkeep.ui.check.facts import MAIN, WORKLOADS, Device, Facts, best_gpu

__all__ = ["Verdict", "Word", "judge", "speed_text"]

Word: TypeAlias = Literal["keep", "reconnect", "switch", "enable", "unusable"]

_NEEDED = {"cuda": "CUDA", "rocm": "ROCm"}
_BY_NAME = ("mps", "xpu")  # kinds whose name is what torch calls the device
_MEASURE = "Tesla T4"  # as the catalogue calls it
_LONGEST_VALUE = 80  # characters of a variable that are shown
_LOOK = "Run !nvidia-smi in a cell: if it hangs too, restart the session."
_NAMES: Mapping[Workload, str] = {"cnn": "CNN", "transformer": "Transformer", "rnn": "RNN"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`word`: what to do. `code`: the rule that said so. `reason`: why, with the number behind it. `action`: the
    next click or line; "" where there is nothing to do. `speeds`: of the card judged, relative to a T4."""

    word: Word
    code: str
    reason: str
    action: str = ""
    speeds: Mapping[Workload, float] = field(default_factory=dict)


def judge(facts: Facts) -> Verdict:
    """The verdict on these facts. Asks for a click only where the platform has that menu."""
    gpu = best_gpu(facts)
    if gpu is not None:
        return _gpu(facts, gpu)
    if facts.devices is None:
        return _untold(facts)
    return _other(facts, facts.devices[0]) if facts.devices else _none(facts)


def speed_text(speeds: Mapping[Workload, float]) -> str:
    """Speeds relative to a T4 in words; one figure where the workloads do not differ."""
    if not speeds:
        return "not compared with a T4 yet"
    texts = {workload: _times(speeds[workload]) for workload in WORKLOADS if workload in speeds}
    sure = f"give or take {UNCERTAINTY:.0%}"
    if len(set(texts.values())) == 1:
        return f"{next(iter(texts.values()))} times as fast as a T4, {sure}"
    listed = ", ".join(f"{_NAMES[workload]} {text}" for workload, text in texts.items())
    return f"speed relative to a T4: {listed}, {sure}"


def _gpu(facts: Facts, gpu: Device) -> Verdict:
    name, menus, slow, again = gpu.accelerator.name, facts.place.menus, tier(gpu.card) == "D", ""
    # By the card itself, whatever is installed: a good card without kernels does not come right by drawing again.
    if slow and menus.draws and menus.reconnect:
        if not _same_as_before(facts, gpu):
            return _reconnect(gpu, menus.reconnect)
        again = f"{name} again, as in the session before: stop trying, another connection costs time. "
    if (
        gpu.supported is False
        and facts.build is not None
        and runs_on(gpu.accelerator.driver, facts.build.cuda) is False
    ):
        return _old_driver(facts, facts.build, gpu, again)
    if gpu.supported is False:
        return _no_kernels(facts, gpu, again)
    if gpu.works is False:
        return _trial_failed(facts, gpu, again)
    if slow and menus.switch:
        reason = f"{again}{_worth(gpu)}. Better ones can be chosen: {menus.offered or 'see the menu'}."
        return Verdict(word="switch", code="slow-card", reason=reason, action=menus.switch, speeds=gpu.speeds)
    code = "unknown-card" if gpu.card is None else "slow-card" if slow else "good-card"
    reason = f"{again}Tier {gpu.tier}, {_speed(gpu)}."
    return Verdict(word="keep", code=code, reason=reason, speeds=gpu.speeds)


def _reconnect(gpu: Device, click: str) -> Verdict:
    gain = 1 / gpu.speeds[MAIN] if gpu.speeds.get(MAIN) else None
    hope = "" if gain is None else f" On a T4 the same training would be about {_times(gain)} times as fast."
    return Verdict(
        word="reconnect",
        code="poor-draw",
        reason=(
            f"{_worth(gpu)}. Cards like it were drawn by chance here until 2022, and none should come any more; "
            f"another connection may bring a better one, and nobody outside knows how often.{hope}"
        ),
        action=(
            f"Save first, since the machine's disk is deleted with it; then {_sentence(click)} "
            f'If {gpu.accelerator.name} comes again, stop trying: check(previous=["{gpu.accelerator.name}"]) says '
            "what is left to do."
        ),
        speeds=gpu.speeds,
    )


def _no_kernels(facts: Facts, gpu: Device, again: str) -> Verdict:
    name, build = gpu.accelerator.name, facts.build
    if build is not None and is_made_for(build, gpu.accelerator) is False:
        needed = _NEEDED[gpu.accelerator.kind]
        return Verdict(
            word="unusable",
            code="cpu-build",
            reason=(
                f"{again}The {build.framework} installed here, {build.version}, is a build without {needed}: it trains "
                f"on the CPU while the {name} stays idle."
            ),
            action=_another_build(facts, gpu, f"Install a build with {needed}, then restart the kernel."),
            speeds=gpu.speeds,
        )
    what = "The framework installed here" if build is None else f"{build.framework} {build.version}"
    proof = (
        f" A trial on the card failed: {facts.probe.detail}" if facts.probe is not None and gpu.works is False else ""
    )
    reason = (
        f"{again}{what} has no kernels for the {name}{_capability(gpu)}: CUDA looks available, and the first "
        f"computation fails.{proof}"
    )
    menus = facts.place.menus
    if menus.switch and not _newer_than(gpu, build):
        same = "" if menus.draws else " Restarting the session gives the same card."
        reason = f"{reason}{same} {_wheels(facts, gpu)}"
        return Verdict(word="switch", code="no-kernels", reason=reason, action=menus.switch, speeds=gpu.speeds)
    return Verdict(
        word="unusable", code="no-kernels", reason=reason, action=_another_build(facts, gpu), speeds=gpu.speeds
    )


def _old_driver(facts: Facts, build: Build, gpu: Device, again: str) -> Verdict:
    """What is installed is too new for the driver, which a notebook cannot change; what is installed it can."""
    driver, cuda = gpu.accelerator.driver, build.cuda or ""
    proof = "" if gpu.works is not None else " (colabkeep.check(probe=True) tries it all the same)"
    return Verdict(
        word="unusable",
        code="driver-too-old",
        reason=(
            f"{again}{build.framework} {build.version} is built for CUDA {cuda}, which needs driver "
            f"{needed_driver(cuda)} or newer. Driver {driver} is here, so it finds no GPU and trains on the CPU: "
            f"the {gpu.accelerator.name} stays idle{proof}."
        ),
        action=_another_build(facts, gpu, "Install a build that this driver can run, then restart the kernel."),
        speeds=gpu.speeds,
    )


def _trial_failed(facts: Facts, gpu: Device, again: str) -> Verdict:
    """It should work and does not: of the card, its driver, or what is installed, nobody can tell which."""
    driver = "" if gpu.accelerator.driver is None else f" (driver {gpu.accelerator.driver})"
    menus = facts.place.menus
    said = "" if facts.probe is None else facts.probe.detail
    other = f"choose another accelerator: {_sentence(menus.switch)}" if menus.switch else "train on another machine."
    return Verdict(
        word="unusable",
        code="trial-failed",
        reason=f"{again}A trial on the {gpu.accelerator.name}{driver} failed: {said}",
        action=f"Restart the session and check again. If it fails again, {other}",
        speeds=gpu.speeds,
    )


def _untold(facts: Facts) -> Verdict:
    trouble = facts.trouble
    if trouble is not None and trouble.usable is False:
        click = facts.place.menus.reconnect
        action = f"{trouble.remedy} Here: {_sentence(click)}" if click else trouble.remedy
        return Verdict(word="unusable", code="gpu-not-usable", reason=f"{trouble.problem}.", action=action)
    untold = next((line for line in facts.untold if "accelerators" in line), "")
    why = untold.partition("(")[2].removesuffix(")") if trouble is None else trouble.problem
    return Verdict(
        word="keep",
        code="accelerator-not-told",
        reason=(
            f"Which accelerator is here could not be told{f' ({why})' if why else ''}, so nothing speaks against "
            "starting."
        ),
        action=_LOOK if trouble is None else trouble.remedy,
    )


def _other(facts: Facts, device: Device) -> Verdict:
    name, menus = device.accelerator.name, facts.place.menus
    click = menus.switch or menus.enable
    if device.accelerator.kind == "tpu" and facts.build is not None:
        reason = (
            f"A TPU came ({name}). {facts.build.framework} as installed trains on the CPU beside it, and colabkeep "
            "keeps trainings on CPUs and GPUs: code for JAX or torch_xla can use it, this one cannot."
        )
        if click:
            return Verdict(word="switch", code="tpu", reason=reason, action=click)
        return Verdict(word="unusable", code="tpu", reason=reason, action="Train on a machine with a GPU.")
    if device.accelerator.kind == "xpu" and name.startswith("Intel") and _lacks_xpu(facts.build):
        return _without_xpu(facts.build, name)
    if device.accelerator.kind == "tpu":
        reason = (
            f"A TPU came ({name}), which code for JAX or torch_xla can use. colabkeep keeps trainings of torch and "
            "Paddle on CPUs and GPUs, and neither is installed here."
        )
        return Verdict(word="keep", code="unknown-card", reason=reason)
    reason = f"{name}: an accelerator that has not been compared with GPUs; nothing speaks against starting."
    if device.accelerator.kind in _BY_NAME and facts.framework == "torch":
        action = f'It trains only what is put there: model.to("{device.accelerator.kind}"), and so the batches.'
        return Verdict(word="keep", code="unknown-card", reason=reason, action=action)
    return Verdict(word="keep", code="unknown-card", reason=reason)


def _lacks_xpu(build: Build | None) -> TypeGuard[Build]:
    return build is not None and build.framework == "torch" and "+xpu" not in build.version and "+" in build.version


def _without_xpu(build: Build, name: str) -> Verdict:
    return Verdict(
        word="unusable",
        code="cpu-build",
        reason=f"The torch installed here, {build.version}, is no build for Intel's GPUs: it trains on the CPU "
        f"while the {name} stays idle.",
        action='Install one that is, then restart the kernel: pip install --force-reinstall "torch" --index-url '
        "https://download.pytorch.org/whl/xpu.",
    )


def _none(facts: Facts) -> Verdict:
    menus = facts.place.menus
    if facts.hidden is not None:
        variable, value = facts.hidden.variable, facts.hidden.value
        value = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"
        count = "the one accelerator" if facts.hidden.count == 1 else f"all {facts.hidden.count} accelerators"
        return Verdict(
            word="keep",
            code="gpus-hidden",
            reason=f"{variable}={value!r} hides {count} here from this process: training runs on the CPU.",
            action=f"If that is not meant: unset {variable} and restart the kernel.",
        )
    if menus.enable:
        offered = f" It offers {menus.offered}." if menus.offered else ""
        reason = f"No GPU is attached to this session: training would run on the CPU.{offered}"
        return Verdict(word="enable", code="gpu-not-enabled", reason=reason, action=menus.enable)
    build = facts.build
    if build is not None and "+xpu" in build.version:
        return Verdict(
            word="keep",
            code="accelerator-not-told",
            reason=f"No card of Intel's shows on this machine's bus, and torch {build.version} is a build for them: "
            "one that is built into the processor does not show.",
            action="Run  import torch; torch.xpu.is_available()  in a cell: it says whether torch finds it.",
        )
    if menus.hand_over and build is not None and build.cuda is not None:
        return Verdict(
            word="keep",
            code="gpu-not-handed-over",
            reason=f"No GPU is handed to this container, and {build.framework} {build.version} is built for them: "
            "training runs on the CPU.",
            action=f"If the host has a GPU: {menus.hand_over}",
        )
    return Verdict(
        word="keep",
        code="no-gpu-here",
        reason="No GPU was found: training runs on the CPU, well enough for small models.",
    )


def _same_as_before(facts: Facts, gpu: Device) -> bool:
    if not facts.previous:
        return False
    return find_card(Accelerator(kind="cuda", name=facts.previous[-1])) == gpu.card


def _newer_than(gpu: Device, build: Build | None) -> bool:
    """Is the card newer than all the build has kernels for? Then another build helps, and is the better way."""
    capability = capability_of(gpu.accelerator)
    if capability is None or build is None or not build.architectures:
        return False
    known = [re.match(r"sm_(\d+)(\d)", name) for name in build.architectures]
    return all(capability > (int(match[1]), int(match[2])) for match in known if match)


def _worth(gpu: Device) -> str:
    return f"{gpu.accelerator.name}: tier {gpu.tier}, {_speed(gpu)}"


def _speed(gpu: Device) -> str:
    if gpu.card is not None and gpu.card.name == _MEASURE:
        return "the card that others are measured by"
    return speed_text(gpu.speeds)


def _capability(gpu: Device) -> str:
    capability = gpu.accelerator.capability
    return "" if capability is None else f" (compute capability {capability[0]}.{capability[1]})"


def _wheels(facts: Facts, gpu: Device) -> str:
    """Which build would work."""
    capability, build = capability_of(gpu.accelerator), facts.build
    if build is not None and build.framework == "paddle":
        return "https://www.paddlepaddle.org.cn/en/install/quick lists Paddle's builds by CUDA version."
    if capability is None:
        return "https://pytorch.org/get-started lists the builds."
    return wheels_for(capability, gpu.accelerator.driver, _python(facts))


def _another_build(facts: Facts, gpu: Device, what: str = "") -> str:
    """What to do where another build helps: install `what`. Where none would run here, that, and the way out."""
    capability, of_torch = capability_of(gpu.accelerator), facts.build is None or facts.build.framework == "torch"
    wheels, driver = _wheels(facts, gpu), gpu.accelerator.driver
    if not of_torch or capability is None or has_wheel(capability, driver, _python(facts)):
        return f"{what} {wheels}".strip()
    if has_wheel(capability, driver):
        return wheels  # another Python is the way out
    menus = facts.place.menus
    click = menus.switch or (menus.reconnect if menus.draws else None)
    own = " On a machine of your own install NVIDIA's newest driver." if has_wheel(capability) else ""
    return f"{wheels} {_sentence(click) if click else f'Train on another card.{own}'}"


def _python(facts: Facts) -> tuple[int, int] | None:
    if facts.around is None:
        return None
    major, minor = facts.around.python.split(".")[:2]
    return int(major), int(minor)


def _times(speed: float) -> str:
    return f"{speed:.1f}" if speed < 9.95 else f"{speed:.0f}"


def _sentence(text: str) -> str:
    return text if text.rstrip().endswith(".") else f"{text.rstrip()}."
