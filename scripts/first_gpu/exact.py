"""A training with real kernels, whole or killed by itself: `exact.py MODE whole|killed FOLDER` prints its hash.

MODE: "deterministic", as README says; "benchmark", with cuDNN's choice of kernels by speed; "warn-only"; "default".
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys

mode, stage, folder = sys.argv[1:4]
if mode in ("deterministic", "benchmark"):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch  # noqa: E402  # it reads that setting
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import colabkeep  # noqa: E402
from colabkeep.core.events import RestoredInexactly, SaveCommitted  # noqa: E402

if mode != "default":
    torch.use_deterministic_algorithms(True, warn_only=mode == "warn-only")
torch.backends.cudnn.benchmark = mode == "benchmark"


class Up(nn.Module):
    """Bilinear, whose backward adds in any order, where that is allowed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if mode in ("warn-only", "default"):
            return F.interpolate(x, scale_factor=2, mode="bilinear")
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def heard(event: object) -> None:
    if isinstance(event, SaveCommitted) and stage == "killed" and event.progress.step >= 20:
        os.kill(os.getpid(), signal.SIGKILL)
    if isinstance(event, RestoredInexactly):
        print("INEXACT", event.reason)


torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
x, y = torch.randn(512, 3, 32, 32, generator=generator), torch.randint(10, (512,), generator=generator)
first = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), Up(), nn.Conv2d(32, 32, 3, stride=2)]
model = nn.Sequential(
    *first, nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32 * 7 * 7, 10)
).cuda()
colabkeep.resumable_fit(
    model,
    DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, pin_memory=True),
    optimizer=torch.optim.AdamW(model.parameters(), fused=True),
    loss_fn=F.cross_entropy,
    max_epochs=3,
    run_name="exact",
    storage=folder,
    save_every="10 steps",
    progress=False,
    callbacks=(heard,),
    on_bad_gpu="ignore",
)
digest = hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values()))
print("BITS", digest.hexdigest()[:12])
