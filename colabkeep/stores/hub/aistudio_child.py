"""The process in which aistudio-sdk runs: `python -m colabkeep.stores.hub.aistudio_child`.

Why a process of its own: the SDK prints and draws bars for each file, puts the cached token into the environment of the
process, sets up logging when it is imported, and waits for up to an hour.

Source: aistudio-sdk 0.3.9 (`hub.py`, `requests/hub.py`), November 2026. What it returns is told as it is; whether it
is so is for `aistudio_store` to find out, since `upload_file` returns None whether the file was uploaded or skipped.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from colabkeep.stores.shared.process import serve

__all__ = ["main"]

_URL = re.compile(r"\S*://\S*")  # a signed address is a secret
_DULL = re.compile(r"time cost|successful|^\s*\d*$")  # what it prints of each file that went well
_LINES = 6


def main() -> None:
    """Answer requests until nobody asks any more."""
    serve(_answer)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    operation = _OPERATIONS[request.pop("operation")]
    printed, heard = io.StringIO(), _Heard()
    answer: dict[str, Any] = {}
    logging.getLogger().addHandler(heard)
    try:
        with redirect_stdout(printed):
            answer = {"answer": operation(import_module("aistudio_sdk.hub"), **request)}
    except Exception as error:  # noqa: BLE001  # told to the one who asked, who knows what it means
        answer = {"failed": type(error).__name__}
        heard.lines.append(f"{type(error).__name__}: {error}")
    finally:
        logging.getLogger().removeHandler(heard)
    told = (line for line in printed.getvalue().splitlines() if not _DULL.search(line))
    return {**answer, "said": _clean([*told, *heard.lines], request["token"])}


def _create(hub: Any, token: str, repo: str) -> dict[str, Any]:
    name = repo.partition("/")[2]
    answer: dict[str, Any] = hub.create_repo(
        repo_id=repo, model_name=name, desc="Checkpoints of colabkeep", private=True, token=token
    )
    return answer


def _upload(hub: Any, token: str, repo: str, path: str, name: str) -> None:
    hub.upload_file(path_or_fileobj=path, path_in_repo=name, repo_id=repo, token=token, commit_message="colabkeep")


_OPERATIONS: dict[str, Callable[..., dict[str, Any] | None]] = {"create": _create, "upload": _upload}


class _Heard(logging.Handler):
    """What the SDK says by logging while it works; its reasons for skipping a file are told nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _clean(lines: list[str], token: str) -> str:
    """The last lines as one, short, without addresses and without the token."""
    text = " · ".join(" ".join(line.split()) for line in lines[-_LINES:])
    return _URL.sub("…", text.replace(token, "…") if token else text)[-600:]


if __name__ == "__main__":
    main()
