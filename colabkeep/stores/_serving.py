"""The inside of a process that runs a service's client (`_process`): a request per line, a line for each answer."""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["serve"]

_IDLE_SECONDS = 120.0
_WATCH_SECONDS = 0.2


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests, both JSON, until there are none for two minutes, or nobody is left who asks."""
    asked, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever the client prints must not be taken for an answer
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    while select.select([asked], [], [], _IDLE_SECONDS)[0]:
        line = asked.readline()
        if not line:
            return
        answers.write(json.dumps(answer(json.loads(line))).encode() + b"\n")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
