"""The process in which aistudio-sdk runs: `python -m colabkeep.stores.hub.aistudio_child`.

Why a process of its own: the SDK prints and draws bars for each file, puts the cached token into the environment of the
process, sets up logging when it is imported, and waits for up to an hour.

Source: aistudio-sdk 0.3.9 (`hub.py`, `requests/hub.py`), November 2026. Whether a file was uploaded is for `aistudio`
to find out, since `upload_file` returns None whether it was uploaded or skipped; what the SDK said meanwhile is told.
"""

from __future__ import annotations

import io
import logging
import re
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from colabkeep.stores.shared.process import clean, serve

_DULL = re.compile(r"time cost|successful|^\s*\d*$")  # what it prints of each file that went well
_LINES = 6


def main() -> None:
    """Answer requests until nobody asks any more."""
    serve({"create": _create, "upload": _upload}, lambda request: [request["token"]])


def _function(name: str) -> Any:
    """Of the SDK."""
    try:
        return getattr(import_module("aistudio_sdk.hub"), name)
    except AttributeError:
        raise ImportError(f"this aistudio-sdk has no {name}") from None


def _create(token: str, repo: str) -> dict[str, Any]:
    create, name = _function("create_repo"), repo.partition("/")[2]
    try:
        answer: dict[str, Any] = create(
            repo_id=repo, model_name=name, desc="Checkpoints of colabkeep", private=True, token=token
        )
    except Exception as error:  # it takes an answer of a broken service apart without a look: a KeyError, say
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    return answer


def _upload(token: str, repo: str, path: str, name: str) -> str:
    upload = _function("upload_file")
    printed, heard = io.StringIO(), _Heard()
    logging.getLogger().addHandler(heard)
    try:
        with redirect_stdout(printed):
            upload(path_or_fileobj=path, path_in_repo=name, repo_id=repo, token=token, commit_message="colabkeep")
    except Exception as error:  # noqa: BLE001  # the hub itself is asked what became of the file
        heard.lines.append(f"{type(error).__name__}: {error}")
    finally:
        logging.getLogger().removeHandler(heard)
    told = [line for line in printed.getvalue().splitlines() if not _DULL.search(line)]
    return clean(" · ".join([*told, *heard.lines][-_LINES:]), [token])


class _Heard(logging.Handler):
    """What the SDK says by logging while it works; its reasons for skipping a file are told nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


if __name__ == "__main__":
    main()
