"""The facts that tell where we are."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What detection may look at: environment variables, a root folder ("/" on the real machine), the
    current folder, and the names of the loaded modules. Tests hand in their own."""

    environ: Mapping[str, str]
    root: Path
    folder: Path
    modules: frozenset[str]

    @classmethod
    def here(cls) -> Environment:
        """The real one, as it is now. The only place that reads the process's environment variables."""
        return cls(environ=dict(os.environ), root=Path("/"), folder=Path.cwd(), modules=frozenset(sys.modules))
