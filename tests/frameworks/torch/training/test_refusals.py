"""What cannot train is refused at the start, in one sentence, with the way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.torch.training import TorchTraining, autocast


def train_with(**options: Any) -> TorchTraining:
    model = options.pop("model", nn.Linear(4, 3))
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.1)
    return TorchTraining(TrainingOptions(model=model, optimizer=optimizer, **options))


def test_float16_weights_are_refused_in_mixed_precision() -> None:
    """Small updates would be rounded away; the error says what to call."""
    with pytest.raises(UsageError, match="weights are float16") as caught:
        train_with(model=nn.Linear(4, 3).half(), precision="16-mixed", loss_fn=F.cross_entropy)
    assert "model.float()" in caught.value.remedy


@pytest.mark.parametrize("device", ["meta", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_precision_the_device_lacks_is_refused_instead_of_ignored(device: str) -> None:
    """Where torch would only warn and compute in float32, training does not start."""
    with pytest.raises(UsageError, match=f"not possible on {device}"):
        autocast("16-mixed", torch.device(device))
