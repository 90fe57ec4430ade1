"""Is what came worth starting on? One table: the first row that fits the facts is the verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from colabkeep.hardware.base import Accelerator
from colabkeep.hardware.catalogue import UNCERTAINTY, Workload, capability_of, find_card, tier
from colabkeep.hardware.support import has_wheel, is_made_for, needed_driver, runs_on, wheels_for
from colabkeep.ui.check.facts import MAIN, WORKLOADS, Facts, best_gpu

Word: TypeAlias = Literal["keep", "reconnect", "switch", "enable", "unusable"]

_LOOK = "Run !nvidia-smi in a cell. If it hangs too, restart the session."


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
    case = _Case(facts)
    row = next(row for row in _TABLE if row.fits(case))
    reason, action = (words.format(case=case).strip() for words in (f"{{case.again}}{row.reason}", row.action))
    return Verdict(word=row.word, code=row.code, reason=reason, action=action, speeds=case.speeds)


class _Case:
    """The facts as the table needs them: what holds, and its words."""

    def __init__(self, facts: Facts) -> None:
        gpu, menus, build, trouble = best_gpu(facts), facts.place.menus, facts.build, facts.trouble
        judged = gpu or (facts.devices[0] if facts.devices else None)
        accelerator = Accelerator(kind="cuda", name="") if judged is None else judged.accelerator
        self.facts, self.gpu, self.menus, self.build, self.accelerator = facts, gpu, menus, build, accelerator
        self.other = None if gpu else judged
        self.name, self.kind, self.driver = accelerator.name, accelerator.kind, accelerator.driver
        self.speeds: Mapping[Workload, float] = gpu.speeds if gpu else {}
        self.switch, self.enable = _sentence(menus.switch), _sentence(menus.enable)
        self.reconnect = _sentence(menus.reconnect)
        self.here = f"Here: {self.reconnect}" if self.reconnect else ""
        self.offered = f"On offer: {menus.offered}." if menus.offered else ""
        self.with_driver = f" (driver {self.driver})" if self.driver else ""
        self.installed = f"{build.framework} {build.version}" if build else "The framework installed here"
        self.toolkit = "ROCm" if self.kind == "rocm" else "CUDA"
        self.cuda = (build.cuda if build else None) or ""
        self.needs = needed_driver(self.cuda)
        self.slow = gpu is not None and tier(gpu.card) == "D"
        self.idle = gpu is not None and gpu.supported is False  # the framework has nothing for it
        self.failed = gpu is not None and gpu.works is False  # in a trial
        self.for_others = build is not None and is_made_for(build, accelerator) is False
        self.old_driver = build is not None and runs_on(self.driver, build.cuda) is False
        self.problem, self.remedy = (trouble.problem, trouble.remedy) if trouble else ("", _LOOK)
        self.down = trouble is not None and trouble.usable is False
        # Cards like it are drawn by chance here, so another connection may bring a better one: unless it was tried.
        previous = find_card(Accelerator(kind="cuda", name=facts.previous[-1])) if facts.previous else None
        drawn = bool(self.slow and menus.draws and self.reconnect)
        tried = drawn and bool(facts.previous) and gpu is not None and previous == gpu.card
        self.may_draw = drawn and not tried
        self.again = (
            f"{self.name} again, as last time: stop trying, because another connection only costs time. "
            if tried
            else ""
        )

    @property
    def worth(self) -> str:
        card, level = (None, "unknown") if self.gpu is None else (self.gpu.card, self.gpu.tier)
        is_measure = card is not None and card.name == "Tesla T4"
        return f"tier {level}, {'the card that others are measured by' if is_measure else speed_text(self.speeds)}"

    @property
    def rating(self) -> str:
        return f"{self.worth[0].upper()}{self.worth[1:]}."

    @property
    def hope(self) -> str:
        speed = self.speeds.get(MAIN)
        return f" On a T4 the same training would be about {_times(1 / speed)} times as fast." if speed else ""

    @property
    def capability(self) -> str:
        told = self.accelerator.capability
        return "" if told is None else f" (compute capability {told[0]}.{told[1]})"

    @property
    def proof(self) -> str:
        return f" A trial on the card failed: {self.trial}" if self.failed else ""

    @property
    def trial(self) -> str:
        return "" if self.facts.probe is None else self.facts.probe.detail

    @property
    def untried(self) -> str:
        return " (colabkeep.check(probe=True) tries it nevertheless)" if self.gpu and self.gpu.works is None else ""

    @property
    def same_again(self) -> str:
        return "" if self.menus.draws else "A restart of the session gives you the same card. "

    @property
    def why_unknown(self) -> str:
        unanswered = next((line for line in self.facts.unanswered if "accelerators" in line), "")
        why = self.problem or unanswered.partition("(")[2].removesuffix(")")
        return f" ({why})" if why else ""

    @property
    def hidden(self) -> str:
        hidden = self.facts.hidden
        if hidden is None:
            return ""
        value = hidden.value if len(hidden.value) <= 80 else f"{hidden.value[:80]}…"
        count = "the one accelerator" if hidden.count == 1 else f"all {hidden.count} accelerators"
        return f"{hidden.variable}={value!r} hides {count} of this machine from this process"

    @property
    def lacks_xpu(self) -> bool:
        build = self.build
        return build is not None and build.framework == "torch" and "+" in build.version and "+xpu" not in build.version

    @property
    def by_name(self) -> str:
        if self.kind not in ("mps", "xpu") or self.facts.framework != "torch":
            return ""
        return f'It trains only what you move there: model.to("{self.kind}"), and the batches, too.'

    @property
    def newer(self) -> bool:
        """Is the card newer than all the build has kernels for? Then another build helps, and is the better way."""
        capability = capability_of(self.accelerator)
        if capability is None or self.build is None or not self.build.architectures:
            return False
        known = [re.match(r"sm_(\d+)(\d)", name) for name in self.build.architectures]
        return all(capability > (int(match[1]), int(match[2])) for match in known if match)

    @property
    def other_build(self) -> str:
        """The build that would work here, or the way out where there is none."""
        capability = capability_of(self.accelerator)
        if self.build is not None and self.build.framework == "paddle":
            return "https://www.paddlepaddle.org.cn/en/install/quick lists Paddle's builds by CUDA version."
        if capability is None:
            return "https://pytorch.org/get-started lists the builds."
        major, _, rest = self.facts.around.get("python", "").partition(".")
        python = (int(major), int(rest.partition(".")[0])) if rest else None
        wheels = wheels_for(capability, self.driver, python)
        if has_wheel(capability, self.driver):
            return f"{wheels} Then restart the kernel."
        own = " On a machine of your own install NVIDIA's newest driver." if has_wheel(capability) else ""
        click = self.switch or (self.reconnect if self.menus.draws else "") or f"Train on another card.{own}"
        return f"{wheels} {click}"


@dataclass(frozen=True, slots=True)
class _Row:
    """A verdict, the cases that it is for, and its words."""

    word: Word
    code: str
    fits: Callable[[_Case], object]
    reason: str
    action: str = ""


_NO_KERNELS = (
    "{case.installed} has no kernels for the {case.name}{case.capability}: CUDA looks available, but the first "
    "computation fails.{case.proof}"
)
_TPU = (
    "This machine has a TPU ({case.name}). {case.installed} trains on the CPU beside it, because colabkeep supports "
    "CPUs and GPUs only. Code for JAX or torch_xla can use the TPU."
)
_WORTH = "{case.name}: {case.worth}."

_TABLE = (
    # A GPU. First by the card itself: a good one without kernels does not come right by drawing again.
    _Row(
        "reconnect",
        "poor-draw",
        lambda case: case.may_draw,
        f"{_WORTH} Such cards were assigned by chance until 2022, and you should not get one any more. Another "
        "connection may bring a better one; how often is not published.{case.hope}",
        "Save first, because the machine's disk is deleted with it. Then: {case.reconnect} If you get a "
        '{case.name} again, stop trying: check(previous=["{case.name}"]) says what else you can do.',
    ),
    _Row(
        "unusable",
        "driver-too-old",  # a notebook can change what is installed, and not the driver
        lambda case: case.idle and case.old_driver,
        "{case.installed} is built for CUDA {case.cuda}, which needs driver {case.needs} or newer. This "
        "machine has driver {case.driver}, so it finds no GPU and trains on the CPU: the {case.name} stays "
        "idle{case.untried}.",
        "{case.other_build}",
    ),
    _Row(
        "unusable",
        "cpu-build",
        lambda case: case.idle and case.for_others,
        "{case.installed} is a build without {case.toolkit}: it trains on the CPU while the {case.name} stays idle.",
        "{case.other_build}",
    ),
    _Row(
        "switch",
        "no-kernels",
        lambda case: case.idle and case.switch and not case.newer,
        f"{_NO_KERNELS} {{case.same_again}}{{case.other_build}}",
        "{case.switch}",
    ),
    _Row("unusable", "no-kernels", lambda case: case.idle, _NO_KERNELS, "{case.other_build}"),
    _Row(
        "unusable",
        "trial-failed",  # of the card, its driver, or what is installed, nobody can tell which
        lambda case: case.failed,
        "A trial on the {case.name}{case.with_driver} failed: {case.trial}",
        "Restart the session and check again. If it fails again, choose another machine. {case.switch}",
    ),
    _Row(
        "switch",
        "slow-card",
        lambda case: case.slow and case.switch,
        f"{_WORTH} You can choose a better one. {{case.offered}}",
        "{case.switch}",
    ),
    _Row("keep", "slow-card", lambda case: case.slow, "{case.rating}"),
    _Row("keep", "good-card", lambda case: case.gpu and case.gpu.card, "{case.rating}"),
    _Row("keep", "unknown-card", lambda case: case.gpu, "{case.rating}"),
    # Nobody could tell.
    _Row(
        "unusable",
        "gpu-not-usable",
        lambda case: case.facts.devices is None and case.down,
        "{case.problem}.",
        "{case.remedy} {case.here}",
    ),
    _Row(
        "keep",
        "accelerator-not-told",
        lambda case: case.facts.devices is None,
        "The check could not find out which accelerator this machine has{case.why_unknown}. You can start "
        "nevertheless.",
        "{case.remedy}",
    ),
    # Other accelerators.
    _Row(
        "switch",
        "tpu",
        lambda case: case.other and case.kind == "tpu" and case.build and case.switch,
        _TPU,
        "{case.switch}",
    ),
    _Row(
        "unusable",
        "tpu",
        lambda case: case.other and case.kind == "tpu" and case.build,
        _TPU,
        "Train on a machine with a GPU.",
    ),
    _Row(
        "keep",
        "unknown-card",
        lambda case: case.other and case.kind == "tpu",
        "This machine has a TPU ({case.name}), which code for JAX or torch_xla can use. colabkeep supports torch and "
        "Paddle, on CPUs and GPUs only, and neither of them is installed.",
    ),
    _Row(
        "unusable",
        "cpu-build",
        lambda case: case.other and case.name.startswith("Intel") and case.lacks_xpu,
        "{case.installed} is not a build for Intel's GPUs: it trains on the CPU while the {case.name} stays idle.",
        'Install one that is, then restart the kernel: pip install --force-reinstall "torch" --index-url '
        "https://download.pytorch.org/whl/xpu.",
    ),
    _Row(
        "keep",
        "unknown-card",
        lambda case: case.other,
        "{case.name}: the check does not compare this accelerator with GPUs. You can start.",
        "{case.by_name}",
    ),
    # None.
    _Row(
        "keep",
        "gpus-hidden",
        lambda case: case.facts.hidden,
        "{case.hidden}: training runs on the CPU.",
        "If you do not want that, unset {case.facts.hidden.variable} and restart the kernel.",
    ),
    _Row(
        "enable",
        "gpu-not-enabled",
        lambda case: case.enable,
        "This session has no GPU: training would run on the CPU. {case.offered}",
        "{case.enable}",
    ),
    _Row(
        "keep",
        "accelerator-not-told",
        lambda case: case.build and "+xpu" in case.build.version,
        "{case.installed} is a build for Intel's GPUs, but no card of theirs was found. There may be a "
        "GPU in the processor.",
        "Run  import torch; torch.xpu.is_available()  in a cell: it says whether torch finds one.",
    ),
    _Row(
        "keep",
        "gpu-not-handed-over",
        lambda case: case.menus.hand_over and case.cuda,
        "This container has no GPU, but {case.installed} is built for GPUs: training runs on the CPU.",
        "If the host has a GPU: {case.menus.hand_over}",
    ),
    _Row(
        "keep",
        "no-gpu-here",
        lambda _: True,
        "No GPU was found: training runs on the CPU, well enough for small models.",
    ),
)


def speed_text(speeds: Mapping[Workload, float]) -> str:
    """Speeds relative to a T4 in words; one figure where the workloads do not differ."""
    if not speeds:
        return "not compared with a T4 yet"
    names: Mapping[Workload, str] = {"cnn": "CNN", "transformer": "Transformer", "rnn": "RNN"}
    texts = {workload: _times(speeds[workload]) for workload in WORKLOADS if workload in speeds}
    sure = f"give or take {UNCERTAINTY:.0%}"
    if len(set(texts.values())) == 1:
        return f"{next(iter(texts.values()))} times as fast as a T4, {sure}"
    return f"speed relative to a T4: {', '.join(f'{names[each]} {text}' for each, text in texts.items())}, {sure}"


def _times(speed: float) -> str:
    return f"{speed:.1f}" if speed < 9.95 else f"{speed:.0f}"


def _sentence(text: str | None) -> str:
    return "" if text is None or not text.strip() else f"{text.strip().removesuffix('.')}."
