"""State on a GPU. These need one; they are not run by CI."""

from __future__ import annotations

from typing import Any

import paddle
import pytest
from paddle import nn

from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.testing.frameworks import Keeper, addresses, captured, same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not paddle.device.is_compiled_with_cuda(), reason="needs Paddle for CUDA, and a device"),
]


def built() -> dict[str, Any]:
    model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 2))
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    return {"model": model, "optimizer": optimizer, "scaler": paddle.amp.GradScaler(init_loss_scaling=512.0)}


def step(parts: dict[str, Any]) -> None:
    with paddle.amp.auto_cast():
        loss = parts["model"](paddle.randn([8, 3, 6, 6])).square().mean()
    parts["scaler"].scale(loss).backward()
    parts["scaler"].step(parts["optimizer"])
    parts["scaler"].update()
    parts["optimizer"].clear_grad()


def test_training_on_the_gpu_goes_on_with_the_same_bits(framework: PaddleFramework) -> None:
    """Model, optimizer, scaler and the GPU's random stream, in new objects."""
    paddle.set_flags({"FLAGS_cudnn_deterministic": True})
    parts = {**built(), "rng": framework.rng()}
    for _ in range(3):
        step(parts)
    trees = captured(framework, parts)
    for _ in range(3):
        step(parts)
    after = captured(framework, parts)
    later = PaddleFramework()
    resumed = {**built(), "rng": later.rng()}
    assert list(later.check(resumed, trees)) == []
    later.restore(resumed, trees)
    for _ in range(3):
        step(resumed)
    assert same_bits(captured(later, resumed), after)


def test_a_capture_waits_for_the_kernels_before_it(framework: PaddleFramework) -> None:
    """What was queued before the capture is in it; what is queued after it is not."""
    big = paddle.zeros([2**24])
    keeper = Keeper(big)
    framework.capture({"big": keeper}).finish().release()
    for value in range(1, 50):
        big.fill_(float(value))
        snapshot = framework.capture({"big": keeper}).finish()
        big.fill_(-1.0)
        found = framework.native(snapshot.parts["big"]["state"]["value"].value["data"])
        assert float(found.min()) == float(found.max()) == value
        snapshot.release()


def test_host_memory_for_a_gpu_is_reused(framework: PaddleFramework) -> None:
    """Page-locked memory is dear: the second capture takes that of the first."""
    parts = built()
    step(parts)
    first = framework.capture(parts).finish()
    places = addresses(first.parts)
    first.release()
    step(parts)
    assert addresses(framework.capture(parts).finish().parts) == places


def test_the_stream_of_the_gpu_is_kept(framework: PaddleFramework) -> None:
    """Dropout on the device draws the numbers that it would have drawn."""
    trees = captured(framework, {"rng": framework.rng()})
    expected = paddle.rand([5]).tolist()
    later = PaddleFramework()
    later.rng().load_state_dict(later.native(trees["rng"])["state"])
    assert paddle.rand([5]).tolist() == expected
