"""Kaggle notebooks.

Sources: Kaggle/docker-python (August 2026), Kaggle/kaggle-cli and its documentation (July 2026), Kaggle/kagglehub
(May 2026); kagglesdk 0.1.38 for the words of KAGGLE_KERNEL_RUN_TYPE. The variables KAGGLE_USERNAME, KAGGLE_KEY,
KAGGLE_API_TOKEN and KAGGLE_CONFIG_DIR are the user's own, on any laptop, and say nothing.
"""

from __future__ import annotations

from colabkeep.platforms.base import Home, Menus, SessionLimits
from colabkeep.platforms.kaggle.inputs import earlier_runs
from colabkeep.platforms.local import FOLDER
from colabkeep.vocabulary.environment import Environment

__all__ = ["KagglePlatform"]

_WORKING = "/kaggle/working"
_RUN_TYPE = "KAGGLE_KERNEL_RUN_TYPE"
_SERVICE = ("KAGGLE_URL_BASE", "KAGGLE_CONTAINER_NAME", "KAGGLE_DATA_PROXY_URL")
_WEEK = (
    "A week has about 30 GPU hours (Kaggle's documentation), so a chain is two or three such runs a week; `kaggle "
    "quota` on any machine says what is left."
)
_NEXT = "Next time add this notebook's output as an input (Add Input → Your Work) and run again: it goes on."


class KagglePlatform:
    """The first word of its kind is "interactive" (the editor), "batch" (Save Version, a schedule, a push) or "rerun"
    (the hidden one of a competition); " tpu" follows on that image, and a run type that is not known, in brackets.
    """

    name = "kaggle"
    title = "Kaggle"

    def matches(self, environment: Environment) -> bool:
        variables = environment.environ
        return bool(variables.get(_RUN_TYPE, "").strip()) or (
            environment.is_dir(_WORKING) and any(variables.get(name) for name in _SERVICE)
        )

    def kind(self, environment: Environment) -> str:
        told = environment.environ.get(_RUN_TYPE, "").strip()
        word = _word(environment)
        tpu = " tpu" if _has_tpu(environment) else ""
        known = told.lower() in ("", "interactive", "batch")
        return f"{word}{tpu}" if known else f"{word}{tpu} ({told[:40]!a})"

    def home(self, environment: Environment) -> Home:
        folder = str(environment.path(f"{_WORKING}/{FOLDER}"))
        persists, reason, remedy = _keeping(environment)
        return Home(
            storage=folder,
            folder=folder,
            persists=persists,
            reason=reason,
            remedy=remedy,
            earlier=earlier_runs(environment),
        )

    def mount(self, environment: Environment, *, timeout: float) -> Home:
        return self.home(environment)

    def limits(self, environment: Environment) -> SessionLimits:
        hours = 9 if _has_tpu(environment) else 12
        return SessionLimits(
            max_seconds=hours * 3600.0,
            ends_cleanly=_word(environment) != "interactive",
            source=f"Kaggle's documentation: {hours} hours per session {'with' if hours == 9 else 'without'} a TPU, "
            f"about {20 if hours == 9 else 30} {'TPU' if hours == 9 else 'GPU'} hours a week",
            confidence="high",
        )

    def menus(self, environment: Environment) -> Menus:
        choose = "Settings → Accelerator → GPU T4 x2 (or Session options in the right-hand panel)"
        after = "the machine is replaced: Save Version first, if /kaggle/working holds anything"
        verified = "Where GPUs are greyed out: verify your phone number at kaggle.com/settings."
        if _word(environment) != "interactive":
            after = "then Save Version → Save & Run All again"
            choose = f"open the notebook in the editor, {choose}"
        click = f"{choose[0].upper()}{choose[1:]}; {after}. {verified}"
        return Menus(
            enable=click,
            reconnect="The power button on top stops the session, and the next cell starts another; same kind of card.",
            switch=click,
            # Kaggle/kaggle-cli, pull request 1198 (2026-09): the P100 and the TPU v3-8 are retired.
            offered="GPU T4 x2 and TPU v5e-8",
        )

    def secret(self, environment: Environment, name: str, *, timeout: float) -> str:
        from colabkeep.platforms.kaggle.secrets import ask  # what it needs of urllib takes longer than the detection

        return environment.environ.get(name) or ask(name, timeout)

    def google_user(self, environment: Environment) -> None:
        return None


def _word(environment: Environment) -> str:
    if environment.environ.get("KAGGLE_IS_COMPETITION_RERUN", "").strip().lower() not in ("", "0", "false"):
        return "rerun"
    return "batch" if environment.environ.get(_RUN_TYPE, "").strip().lower() == "batch" else "interactive"


def _has_tpu(environment: Environment) -> bool:
    return environment.environ.get("ISTPUVM", "").strip().lower() not in ("", "0", "false")


def _keeping(environment: Environment) -> tuple[bool | None, str, str]:
    """Does the working folder outlive the machine, why, and what to do where that is not sure."""
    if not environment.is_dir(_WORKING):
        return (
            False,
            f"There is no {_WORKING} here, so this is not a Kaggle machine.",
            'Unset COLABKEEP_PLATFORM; or name a folder: storage="checkpoints".',
        )
    word = _word(environment)
    if word == "batch":
        reason = (
            f"This is a batch run: {_WORKING} (up to about 20 GB) becomes the output of its version if the run ends "
            "cleanly, so training stops by itself before the session's limit."
        )
        return True, f"{reason} {_NEXT} {_WEEK}", ""
    if word == "rerun":
        return (
            None,
            "This is a competition's re-run of your notebook: it starts from what is attached, and Kaggle shows nobody "
            "what it saved.",
            "Train in a batch run (Save Version), and attach its output to the notebook that you submit.",
        )
    return (
        None,
        f"{_WORKING} is kept with a saved version, or with Persistence switched on; neither can be seen from here.",
        "Train in the background and keep it: Save Version → Save & Run All. Or, before this session ends: Session "
        f"options → Persistence → Files only. {_NEXT} {_WEEK}",
    )
