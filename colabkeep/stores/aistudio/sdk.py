"""What aistudio-sdk is asked to do: make the repository, and upload a file. What it says is not believed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from colabkeep.stores._asking import Words
from colabkeep.stores._process import Process
from colabkeep.vocabulary.errors import MissingDependency, StoreError, StoreFull, StoreUnavailable

__all__ = ["CHILD", "INSTALL", "WORDS", "Sdk"]

CHILD = (sys.executable, "-m", "colabkeep.stores.aistudio.child")
"""The program of the child."""

INSTALL = 'Run: pip install "aistudio-sdk>=0.3.6"'
"""The first one with `upload_file`; 0.3.9 is the one that was read and tried."""

WORDS = Words(
    sign_in="Copy your access token from aistudio.baidu.com (your picture → 访问令牌) and type, in a cell that nobody "
    'else sees: import os, getpass; os.environ["AISTUDIO_ACCESS_TOKEN"] = getpass.getpass()',
    missing="Correct the name in storage=…: aistudio://owner/repo, the owner being your user number there or your "
    "organisation. The repository is made by colabkeep, private.",
)

_EXISTS = 10003  # aistudio_sdk.constant.err_code
_NO_TOKEN = 10002
_TELL = 60.0  # seconds: the SDK gives a question 30
_SLOWEST = 200_000  # bytes a second; a slower upload is given up
_REFUSED = re.compile(r"\b40[13]\b|unauthori[sz]ed|token (?:is )?(?:invalid|expired)|没有.{0,8}权限", re.IGNORECASE)
_FULL = re.compile(r"quota|storage (?:limit|full)|空间不足|超出.{0,6}限", re.IGNORECASE)


class Sdk:
    """For the repository `repo`, "owner/name", with this token. `environ` goes over this process's variables."""

    def __init__(
        self, repo: str, token: str, *, environ: Mapping[str, str] | None = None, command: Sequence[str] = CHILD
    ) -> None:
        self._repo = repo
        self._token = token
        self._place = f"aistudio://{repo}"
        self._process = Process(
            command,
            place=self._place,
            service="AI Studio",
            silent="It is tried again. If that goes on, see whether git.aistudio.baidu.com can be reached from here.",
            environ={**(environ or {}), "AISTUDIO_LOG": "info"},
        )

    def create(self) -> None:
        """Make the repository, private. That there is one already is no error.

        Raises:
            StoreError: it was refused, or made public all the same; `StoreUnavailable` where that may pass.
        """
        doing = "be created"
        answer = self._ask(doing, _TELL, operation="create")["answer"]
        code, said = answer.get("error_code"), f"{answer.get('error_msg')} ({answer.get('error_code')})"
        if code == _EXISTS:
            return
        if code == _NO_TOKEN or (code and _REFUSED.search(f"{said} {answer.get('biz_code')}")):
            raise StoreError(problem=self._could_not(doing, said), remedy=WORDS.sign_in)
        if code:
            raise StoreError(problem=self._could_not(doing, said), remedy=WORDS.missing)
        if answer.get("private") is not True:
            raise StoreError(
                problem=f"{self._place} was asked to be private, and AI Studio made it public. Nothing was uploaded.",
                remedy="Make it private on its page, or delete it there; then run again.",
            )

    def upload(self, path: str, name: str, size: int) -> str:
        """Have the SDK upload the file at `path` under `name`; what it said. It may have skipped the file."""
        seconds = 2 * _TELL + size / _SLOWEST
        said: str = self._ask(f"take {name!r} into", seconds, operation="upload", path=path, name=name)["said"]
        return said

    def refused(self, name: str, said: str) -> StoreError:
        """The error for a file that is not there after an upload, by what the SDK said meanwhile."""
        problem = f"{name!r} is not in {self._place} after its upload: aistudio-sdk skipped it ({said or 'no reason'})."
        if "forbidden" in said:
            return StoreError(
                problem=problem,
                remedy="AI Studio does not take files of this kind into this repository: choose another place.",
            )
        if "larger than 5MB" in said:
            return StoreError(
                problem=problem,
                remedy="Its file .gitattributes has to name it as a large one: add the line "
                "*.safetensors filter=lfs diff=lfs merge=lfs -text on the repository's page, and save again.",
            )
        if _FULL.search(said):
            return StoreFull(problem=problem, remedy="Make room there: saving goes on by itself.")
        if _REFUSED.search(said):
            return StoreError(problem=problem, remedy=WORDS.sign_in)
        return StoreUnavailable(problem=problem, remedy="It is tried again by itself. What is saved so far is safe.")

    def close(self) -> None:
        """Stop the SDK, in the middle of whatever it does."""
        self._process.close()

    def _ask(self, doing: str, timeout: float, **what: Any) -> dict[str, Any]:
        answer = self._process.ask(doing, {"token": self._token, "repo": self._repo, **what}, timeout)
        failed, said = answer.get("failed"), answer["said"]
        if failed in ("ModuleNotFoundError", "ImportError", "AttributeError"):
            raise MissingDependency(problem=f"aistudio-sdk cannot be used: {said}.", remedy=INSTALL)
        if failed is not None and what["operation"] == "create":
            raise StoreUnavailable(problem=self._could_not(doing, said), remedy="It is tried again by itself.")
        return answer

    def _could_not(self, doing: str, why: str) -> str:
        return f"{self._place} could not {doing}: {why}."
