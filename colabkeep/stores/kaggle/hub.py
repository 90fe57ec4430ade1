"""Asking the child process in which Kaggle's client runs, with a bound on every answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from colabkeep.stores._process import Process
from colabkeep.stores.kaggle.refusals import explained

__all__ = ["CHILD", "Hub"]

CHILD = (sys.executable, "-m", "colabkeep.stores.kaggle.child")
"""The program of the child."""


class Hub:
    """The dataset `handle`, "owner/name"; `folder` is where downloads and the links for an upload go.

    The environment is this process's, so that Kaggle's client finds the user's credentials by itself; `environ`
    replaces it.
    """

    def __init__(
        self,
        handle: str,
        folder: str,
        *,
        command: Sequence[str] = CHILD,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.handle = handle
        self.folder = folder
        own = {
            "KAGGLEHUB_CACHE": os.path.join(folder, "downloads"),  # noqa: PTH118
            "DISABLE_KAGGLE_CACHE": "true",  # else nothing is downloaded, but attached, and waited for without a bound
            "DISABLE_COLAB_CACHE": "true",
        }
        self.process = Process(
            command,
            place=f"the Kaggle dataset {handle}",
            service="Kaggle",
            silent="It is tried again. On Kaggle, see that Settings → Internet is on.",
            environ={**(environ or {}), **own},
            inherits=environ is None,
        )

    def ask(self, doing: str, operation: str, timeout: float, **what: Any) -> dict[str, Any]:
        """The child's answer to `operation` for this dataset. `doing` completes "could not …".

        Raises:
            StoreError, MissingDependency: as `refusals.explained`.
            StoreUnavailable: there was no answer within `timeout` seconds (the child was killed), or it died.
        """
        owner, _, name = self.handle.partition("/")
        request = {"operation": operation, "owner": owner, "name": name, **what}
        answer = self.process.ask(doing, request, timeout)
        if "failed" in answer:
            raise explained(answer["failed"], doing, self.handle)
        done: dict[str, Any] = answer["done"]
        return done

    def close(self) -> None:
        """Kill the child, in the middle of whatever it does."""
        self.process.close()
