"""Files of other trainers that are pickles by their format, and which torch may read them."""

from __future__ import annotations

from pathlib import Path

import torch

from colabkeep.core.errors import UsageError

__all__ = ["refuse_old_torch"]

SAFE_FROM = "2.10"
"""Before it, `torch.load(weights_only=True)` runs code of a crafted file (before 2.6: CVE-2025-32434), or lets one
corrupt memory (before 2.10: CVE-2026-24747)."""


def refuse_old_torch(path: Path) -> None:
    """To be asked before `torch.load(weights_only=True)` of a file that a run begins from.

    Raises:
        UsageError: in this torch, not even that is safe.
    """
    if torch.__version__ < SAFE_FROM:  # as versions, not as texts
        raise UsageError(
            problem=f"{path} is not opened: in torch {torch.__version__}, a crafted file of this kind can run code or "
            "corrupt memory, even when only its numbers are read (CVE-2025-32434, CVE-2026-24747).",
            remedy="Update torch to 2.10 or newer. If you trust the file, load its weights into the model yourself, "
            "and begin the run without resume_from.",
        )
