"""Kaggle notebooks: recognising them, and the output of their earlier versions."""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from colabkeep.core.system import Environment
from colabkeep.platforms.base import FOLDER, DefaultStorage, Menus, SessionLimits

__all__ = [
    "KagglePlatform",
    "earlier_runs",
]

# Where an output appears depends on how it was attached (/kaggle/input/<slug>, or deeper, as in
# /kaggle/input/notebooks/<owner>/<slug>), so it is searched for, and never assumed.


_INPUT = "/kaggle/input"

# Bounds for the datasets that are attached as well: with a million files they must not hold up the start.
_DEEPEST = 8  # folders below the input folder
_MOST_FOLDERS = 1000
_MOST_ENTRIES = 1000  # of one folder, in the order of the disk, which is none
_MOST_BRANCHES = 100  # folders of one folder that are searched


def earlier_runs(environment: Environment) -> tuple[str, ...]:
    """The folders below the input folder that contain runs, each a folder with a `run.json` and `checkpoints`.

    Links are not followed, and what cannot be read is passed over. The search is bounded, so of a folder with very many
    entries some are left out; but our own names are looked for by name, and in a folder of our own nothing is left out.
    """
    found, queue = set(), deque([(environment.path(_INPUT), 0)])
    for _ in range(_MOST_FOLDERS):
        if not queue:
            break
        folder, depth = queue.popleft()
        if depth > 0 and _is_run(folder):
            found.add(str(folder.parent))
            continue  # what a run holds is known
        if depth == _DEEPEST:
            continue
        if S_ISDIR(_mode(folder / FOLDER)):
            queue.appendleft((folder / FOLDER, depth + 1))
        names = _folders(folder, None if folder.name == FOLDER else _MOST_ENTRIES)
        if folder.name == FOLDER and any(_is_run(folder / name) for name in names):
            found.add(str(folder))
        queue.extend((folder / name, depth + 1) for name in names[:_MOST_BRANCHES] if name != FOLDER)
    return tuple(sorted(found))


def _is_run(folder: Path) -> bool:
    return S_ISREG(_mode(folder / "run.json")) and S_ISDIR(_mode(folder / "checkpoints"))


def _mode(place: Path) -> int:
    """Of the place itself, should it be a link; 0, which is of no kind, where it cannot be looked at."""
    try:
        return place.lstat().st_mode
    except OSError:
        return 0


def _folders(folder: Path, most: int | None) -> list[str]:
    """The names of the folders in a folder, links left out; of the first `most` entries, if that is not None."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, most) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


# Sources: Kaggle/docker-python (August 2026), Kaggle/kaggle-cli and its documentation (July 2026), Kaggle/kagglehub
# (May 2026); kagglesdk 0.1.38 for the words of KAGGLE_KERNEL_RUN_TYPE. The variables KAGGLE_USERNAME, KAGGLE_KEY,
# KAGGLE_API_TOKEN and KAGGLE_CONFIG_DIR are the user's own, on any laptop, and say nothing.


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

    def home(self, environment: Environment) -> DefaultStorage:
        folder = str(environment.path(f"{_WORKING}/{FOLDER}"))
        persists, reason, remedy = _keeping(environment)
        return DefaultStorage(
            storage=folder,
            folder=folder,
            persists=persists,
            reason=reason,
            remedy=remedy,
            earlier=earlier_runs(environment),
        )

    def mount(self, environment: Environment, *, timeout: float) -> DefaultStorage:
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
