"""Kaggle notebooks: recognising them, the output of their earlier versions, and the user's secrets."""

from __future__ import annotations

import os
from collections import deque
from importlib import import_module
from itertools import islice
from json import JSONDecodeError
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from colabkeep.core.errors import SecretError
from colabkeep.core.system import Environment
from colabkeep.core.timeouts import within
from colabkeep.platforms.base import FOLDER, DefaultStorage, Menus, Platform, SessionLimits, in_folder, is_set

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
_NEXT = "Next time add this notebook's output as an input (Add Input → Your Work) and run again: it resumes."


class KagglePlatform(Platform):
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
        tpu = " tpu" if is_set(environment, "ISTPUVM") else ""
        known = told.lower() in ("", "interactive", "batch")
        return f"{word}{tpu}" if known else f"{word}{tpu} ({told[:40]!a})"

    def home(self, environment: Environment) -> DefaultStorage:
        folder = environment.path(f"{_WORKING}/{FOLDER}")
        persists, reason, remedy = _keeping(environment)
        keeps = "" if persists is False else str(environment.path(_WORKING))
        return in_folder(folder, persists, reason, remedy, earlier=earlier_runs(environment), keeps=keeps)

    def limits(self, environment: Environment) -> SessionLimits:
        hours = 9 if is_set(environment, "ISTPUVM") else 12
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
        return environment.environ.get(name) or _ask(name, timeout)


def _word(environment: Environment) -> str:
    if is_set(environment, "KAGGLE_IS_COMPETITION_RERUN"):
        return "rerun"
    return "batch" if environment.environ.get(_RUN_TYPE, "").strip().lower() == "batch" else "interactive"


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
        f"{_WORKING} is kept with a saved version, or if Persistence is on. colabkeep cannot see either from here.",
        "Train in the background and keep it: Save Version → Save & Run All. Or, before this session ends: Session "
        f"options → Persistence → Files only. {_NEXT} {_WEEK}",
    )


_ATTACH = "Add-ons → Secrets: add it there if it is missing, and tick its box, which attaches it to this notebook"


def _ask(name: str, timeout: float) -> str:
    """The value of a secret that is attached to this notebook, in `timeout` seconds (the client alone may take 40).

    Raises:
        SecretError: there is none, access is refused, or the service does not answer. The client's own error is not
            shown: its text quotes the service's answer.
    """
    if not name.strip():
        raise SecretError(problem="A secret has a name, and this one is empty.", remedy="Give the label of a secret.")

    def work() -> Any:
        try:
            return import_module("kaggle_secrets").UserSecretsClient().get_secret(name)
        except Exception as error:  # noqa: BLE001  # whatever the client raises is told apart
            raise _explained(error, name) from None

    try:
        value = within(timeout, work)
    except TimeoutError:
        raise SecretError(
            problem=f"Kaggle's service for secrets did not answer within {timeout:g} s when asked for {name!r}.",
            remedy="Run the cell again. If it stays so: Settings → Internet on, which secrets need.",
        ) from None
    if not isinstance(value, str) or not value:
        raise SecretError(
            problem=f"The secret {name!r} is attached to this notebook, and it is empty.",
            remedy="Add-ons → Secrets: give it its value, then run the cell again.",
        )
    return value


def _explained(error: Exception, name: str) -> SecretError:
    """The client's error in our words. Its classes have moved between two modules, so they are known by name.

    Its own handler for network errors stands before the one for answers with an error code, so a refusal (401, 403,
    500) comes out as a ConnectionError too; only its cause tells whether the network is off (Kaggle/docker-python,
    patches/kaggle_web_client.py, read in August 2026).
    """
    from urllib.error import HTTPError  # takes longer than the detection

    kinds = {kind.__name__ for kind in type(error).__mro__}
    code = error.__cause__.code if isinstance(error.__cause__, HTTPError) else None
    service, again = "Kaggle's service for secrets", "run the cell again in a minute."
    if "CredentialError" in kinds or code in (401, 403):
        why = "this session has no token for secrets" if code is None else f"it answered with code {code}"
        problem = f"Kaggle does not let this notebook read the secret {name!r}: {why}."
        remedy = f"{_ATTACH}. Then restart the session and run again."
    elif code is not None:
        problem = f"{service} failed when asked for {name!r}: it answered with code {code}."
        remedy = f"That is on Kaggle's side: {again}"
    elif (garbled := _garbled(error, kinds)) is not None:
        problem = f"{service} was asked for {name!r}, and answered with {garbled}."
        remedy = (
            f"That is on Kaggle's side, or of a proxy on the way: {again} Whether the secret is attached is not known."
        )
    elif "BackendError" in kinds:
        problem, remedy = f"No secret {name!r} is attached to this notebook.", f"{_ATTACH}."
    elif isinstance(error, ConnectionError):
        problem = f"{service} could not be reached ({_reason(error)})."
        remedy = "Settings → Internet on (it needs a verified phone number), then run the cell again."
    elif isinstance(error, ImportError):
        problem = f"The secret {name!r} cannot be asked for: without kaggle_secrets this is no Kaggle machine."
        remedy = f"Set the environment variable {name}; or unset COLABKEEP_PLATFORM."
    else:
        problem = f"Kaggle's client for secrets failed when asked for {name!r} ({type(error).__name__})."
        remedy = f"{_ATTACH}; then run the cell again."
    return SecretError(problem=problem, remedy=remedy)


def _garbled(error: Exception, kinds: set[str]) -> str | None:
    """What came that is no answer; None if it is one. Of its text nothing is shown: the value may be in it."""
    if isinstance(error, JSONDecodeError):
        told = error.doc.strip()
        return "a web page" if told.startswith("<") else "a part of an answer, cut short" if told else "nothing at all"
    if "HTTPException" in kinds or isinstance(error, UnicodeDecodeError):
        return "a part of an answer, cut short"
    refused = "'wasSuccessful': False" in str(error) or "exist with label" in str(error)
    return "something in a form that its client does not know" if "BackendError" in kinds and not refused else None


def _reason(error: ConnectionError) -> str:
    """What the network said, which is the cause's reason; the client's own text only guesses."""
    cause = error.__cause__ or error
    reason = getattr(cause, "reason", None) or cause
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else str(reason)
