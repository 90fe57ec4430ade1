"""A device whose state cannot be copied is refused before training, not at its first save."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LAZY = """
import sys, torch, colabkeep
import torch._lazy.ts_backend
torch._lazy.ts_backend.init()
model = torch.nn.Linear(4, 2).to("lazy")
optimizer = torch.optim.AdamW(model.parameters())
steps = 0
try:
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=sys.argv[1], progress=False) as run:
        steps += 1
except colabkeep.ColabKeepError as error:
    print(type(error).__name__, steps)
    print(error)
"""


def test_a_lazy_device_is_refused_at_the_start_with_the_remedy(tmp_path: Path) -> None:
    """XLA is one of its kind; torch's own, which is in every build, is tried for real."""
    done = subprocess.run(
        [sys.executable, "-c", LAZY, str(tmp_path)], check=True, stdout=subprocess.PIPE, text=True, timeout=300
    )
    first, *text = done.stdout.splitlines()
    assert first == "NotStorable 0"
    assert "kind 'lazy'" in text[0]
    assert 'model.to("cuda")' in "\n".join(text)
    assert not list(tmp_path.glob("r/checkpoints/*"))
