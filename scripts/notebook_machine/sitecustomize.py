"""Runs first in every Python process of a notebook that is executed on a stand-in of its service: in the kernel, and
in whatever the kernel starts.

The variable COLABKEEP_STAND_IN holds the machine's facts as JSON. `Environment.here()` then tells those instead of the
real ones, and on a stand-in of Colab `import google.colab` gives the fake of `tests.fakes.platforms`.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from colabkeep.core.system import Environment


def environment(facts: dict[str, Any]) -> Environment:
    """The facts as detection takes them. A process that is no kernel has no shell, whatever it was started by."""
    ipython = sys.modules.get("IPython")
    kernel = ipython is not None and ipython.get_ipython() is not None
    return Environment(
        environ=facts["environ"],
        root=Path(facts["root"]),
        folder=Path.cwd(),
        modules=frozenset(facts["modules"] if kernel else ()),
        hostname=facts["hostname"],
        prefix=facts["prefix"],
        shell=facts["shell"] if kernel else "",
    )


class GoogleColab(MetaPathFinder, Loader):
    """Finds `google.colab` and its modules. They act on the disk that the facts describe."""

    def __init__(self, root: Path, account: Path) -> None:
        self._root, self._account = root, account
        self._modules: dict[str, ModuleType] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Only theirs."""
        return spec_from_loader(fullname, self) if f"{fullname}.".startswith("google.colab.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The fake of that name; they are loaded with the first one, for most processes ask for none."""
        if not self._modules:
            from tests.fakes.platforms.colab import FakeColab
            from tests.fakes.platforms.google_colab import google_colab

            machine = FakeColab(self._root, self._account, "hosted", "answers", "starts", {})
            self._modules.update(google_colab(machine))
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It is complete."""


if "COLABKEEP_STAND_IN" in os.environ:
    given = json.loads(os.environ["COLABKEEP_STAND_IN"])
    Environment.here = staticmethod(lambda: environment(given))  # type: ignore[assignment,method-assign]
    if given["account"] is not None:
        sys.meta_path.insert(0, GoogleColab(Path(given["root"]), Path(given["account"])))
