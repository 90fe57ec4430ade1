"""The check as a whole: the verdict on what came, and what else is worth knowing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import BadAccelerator, ColabKeepError
from colabkeep.core.system import Clock, Environment
from colabkeep.hardware.catalogue import advised_precision
from colabkeep.session.machine import earlier_cards, machine_id
from colabkeep.session.open import choose_name, find_store
from colabkeep.ui.check.facts import Device, Facts, best_gpu, gather, prove
from colabkeep.ui.check.verdict import Verdict, judge

_NOTEWORTHY = 512 * 2**20  # bytes in use by others; a driver alone takes less
_LITTLE = 2 * 2**30  # bytes free; two checkpoints of a small model with Adam are about one GiB
_SOON = 30 * 60  # seconds
_PADDLE_ONLY = (
    "'s environments are made for PaddlePaddle: they refused to install torch in 2023, and staff called GPU "
    "environments Paddle's alone (PaddlePaddle/Paddle, issue 54520); whether that is still so is not known. colabkeep "
    "works with both alike."
)
_CHOOSE_PADDLE = (
    "choose an environment with PaddlePaddle when it is started. Others' frameworks were refused there in 2023 "
    "(PaddlePaddle/Paddle, issue 54520)."
)
_RECIPES: Mapping[str, str] = {  # said before CUDA wakes: afterwards it is too late for the first line
    "torch": 'import os; os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"; '
    "import torch; torch.use_deterministic_algorithms(True)",
    "paddle": "import paddle; "
    'paddle.set_flags({"FLAGS_cudnn_deterministic": True, "FLAGS_embedding_deterministic": 1})',
}
_CHOOSE: Mapping[str, str] = {"torch": 'model.to("cuda:{}")', "paddle": 'paddle.set_device("gpu:{}")'}
_PRECISIONS = {"32-true": "precision-fp32", "16-mixed": "precision-fp16", "bf16-mixed": "precision-bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One line. `code` does not change from version to version. `warns`: shown even where lines are few."""

    code: str
    text: str
    warns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The facts of a session, the verdict on its accelerator, and the advice."""

    facts: Facts
    verdict: Verdict
    advice: tuple[Advice, ...]


def check_up(environment: Environment, clock: Clock, *, probe: bool = False, previous: Sequence[str] = ()) -> Checkup:
    """Check this session, in five seconds at most. Raises nothing for what the machine is like.

    `probe`: where it is in doubt whether the framework can use the GPU, try in another process, which imports the
    framework and may take a minute more. `previous`: the cards that earlier sessions got, the latest last.
    """
    facts = gather(environment, clock, previous=previous)
    return _checkup(prove(facts, environment) if probe else facts)


def judge_again(checkup: Checkup, previous: Sequence[str]) -> Checkup:
    """The same machine, which is not asked again, in the light of the cards that came before."""
    return _checkup(replace(checkup.facts, previous=tuple(previous)))


def _checkup(facts: Facts) -> Checkup:
    return Checkup(facts=facts, verdict=judge(facts), advice=advise(facts))


def refuse_bad(verdict: Verdict) -> None:
    """Go on only with an accelerator worth keeping.

    Raises:
        BadAccelerator: the verdict is another; nothing was trained.
    """
    if verdict.word != "keep":
        raise BadAccelerator(
            problem=f"Nothing was trained, because of the accelerator ({verdict.word}). {verdict.reason}",
            remedy=f'{verdict.action} To train on it anyway: on_bad_gpu="advise".',
        )


def cards_before(storage: Any, run_name: str | None) -> tuple[str, ...]:
    """The cards of the last machines of the run before this one, the latest last; none where the storage cannot be
    read."""
    try:
        store = find_store(storage)
        try:
            here = Environment.here()
            name, _ = choose_name(run_name, store, here)
            return earlier_cards(Repository(store, name), machine_id(here))
        finally:
            if store is not storage:
                store.close()
    except ColabKeepError:
        return ()  # the training opens the same storage next, and says what is wrong with it


def advise(facts: Facts) -> tuple[Advice, ...]:
    """All advice on these facts, what matters for the card first."""
    gpu = best_gpu(facts)
    on_gpu = () if gpu is None else _on_gpu(facts, gpu)
    return (*on_gpu, *_on_framework(facts), *_on_storage(facts), *_on_session(facts))


def _on_gpu(facts: Facts, gpu: Device) -> Iterator[Advice]:
    accelerator, framework = gpu.accelerator, facts.framework
    if gpu.supported is not False:
        precision = advised_precision(accelerator, framework)
        yield Advice(code=_PRECISIONS[precision.word], text=precision.text)
        if framework == "torch" and accelerator.capability is not None and accelerator.capability < (8, 0):
            yield Advice(  # emulation counts as support by default: pytorch/pytorch #148322
                code="bf16-emulated",
                text="Do not believe torch.cuda.is_bf16_supported(): bf16 is emulated on this card, and slow.",
            )
        if accelerator.kind == "cuda" and not facts.deterministic and framework in _RECIPES:
            yield Advice(
                code="same-bits",
                text="For the same bits after a resume, let this be the first cell (it costs some speed): "
                f"{_RECIPES[framework]}",
            )
    if gpu.supported is None and gpu.works is None and facts.build is not None:
        tried = "" if facts.probe is None else f" (a trial said nothing: {facts.probe.detail})"
        yield Advice(
            code="kernels-unknown",
            text=f"Whether {facts.build.framework} {facts.build.version} has kernels for this card is not known"
            f"{tried}; colabkeep.check(probe=True) tries it in another process.",
            warns=True,
        )
    yield from _on_more_gpus(facts)
    used = accelerator.used_bytes
    if used is not None and used > _NOTEWORTHY:
        whose = "by this kernel or another one" if facts.in_use else "outside this kernel"
        total = "" if accelerator.memory_bytes is None else f" of {_gib(accelerator.memory_bytes)}"
        yield Advice(
            code="memory-in-use",
            text=f"{_gib(used)}{total} of the GPU's memory are in use {whose}. Shut down other notebooks on this "
            "machine if training runs out of memory.",
            warns=not facts.in_use,  # what a cell allocated before is no news
        )


def _on_more_gpus(facts: Facts) -> Iterator[Advice]:
    """What to do with those that a training leaves idle. Of a card's slices (MIG) a process sees one only."""
    gpus = [one for one in facts.devices or () if one.accelerator.kind in ("cuda", "rocm")]
    usable = [
        number
        for number, one in enumerate(gpus)
        if one.supported is not False and one.works is not False and " MIG " not in f" {one.accelerator.name} "
    ]
    if len(usable) < 2:
        return
    second = f"a second experiment on the next: {_CHOOSE[facts.framework].format(usable[1])}"
    text = (
        f"{len(usable)} GPUs, and a training here uses one of them. You can start {second} (another run_name, "
        "another process)."
    )
    alike = len(usable) == len(gpus) and len({one.accelerator.name for one in gpus}) == 1
    if facts.framework == "torch" and alike:
        them = "both" if len(usable) == 2 else "all of them"
        text = (
            f'{gpus[0].accelerator.name} x{len(usable)}: resumable_fit(…, devices="auto") trains on {them}, without '
            "it on one. The gain depends on the model: if it is no faster, a line says so in the first steps "
            f"(colabkeep has not run on two real GPUs yet). Or start {second} (another run_name, another process)."
        )
    yield Advice(code="second-gpu-idle", text=text, warns=True)


def _on_framework(facts: Facts) -> Iterator[Advice]:
    is_paddles = facts.place.menus.framework == "paddle"
    if not facts.builds and not any(what.startswith("the installed") for what in facts.unanswered):
        remedy = _CHOOSE_PADDLE if is_paddles else "pip install torch, then restart the kernel."
        yield Advice(code="no-framework", text=f"Neither torch nor paddle is installed here: {remedy}", warns=True)
    elif is_paddles and facts.build is not None and facts.build.framework == "torch":
        yield Advice(code="torch-refused", text=f"torch will train here. {facts.place.title}{_PADDLE_ONLY}")
    if facts.workers is not None and facts.cpus is not None:
        cpus = "1 CPU" if facts.cpus == 1 else f"{facts.cpus} CPUs"
        yield Advice(
            code="loader-workers",
            text=f"For {cpus} use num_workers={facts.workers} where samples are decoded; 0 for tensors in memory.",
        )


def _on_storage(facts: Facts) -> Iterator[Advice]:
    """Will checkpoints, and colabkeep itself, be where the next start finds them?"""
    home = facts.home
    if home is not None and home.persists is not True:
        code = "storage-not-persistent" if home.persists is False else "storage-unproven"
        yield Advice(code=code, text=f"{home.reason} {home.remedy}".strip(), warns=True)
    copied = None if home is None else home.copied
    if copied is not None and (facts.copied_bytes or 0) >= copied.many_bytes:
        yield Advice(
            code="storage-copied-at-start",
            text=f"{copied.folder} holds {_gib(facts.copied_bytes or 0)} or more, all of which is copied at each "
            f"start. {copied.why}",
            warns=True,
        )
    if facts.free_bytes is not None and facts.free_bytes < _LITTLE:
        yield Advice(
            code="storage-nearly-full",
            text=f"Only {_gib(facts.free_bytes)} are free for checkpoints: delete what is not needed, or save less.",
            warns=True,
        )
    packages = "" if home is None else home.packages
    if packages and facts.installed_in != packages and not facts.installed_in.startswith(f"{packages}/"):
        yield Advice(
            code="packages-lost",
            text=f"colabkeep is installed in {facts.installed_in}, which the next start deletes. Make this the first "
            f'cell of the notebook: import sys; sys.path.append("{packages}"); %pip install -q -t {packages} colabkeep',
            warns=True,
        )


def _on_session(facts: Facts) -> Iterator[Advice]:
    left = None if facts.session is None else facts.session.left_seconds
    if left is not None and left < _SOON:
        yield Advice(
            code="session-nearly-over",
            text=f"This session has about {max(0, int(left // 60))} min left at most. Start a new one first, or train "
            "now: the next session continues from the last save.",
            warns=True,
        )
    if facts.unanswered:
        yield Advice(
            code="check-incomplete", text=f"The check could not find out: {'; '.join(facts.unanswered)}.", warns=True
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
