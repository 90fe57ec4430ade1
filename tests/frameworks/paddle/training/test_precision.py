"""What is computed in, by device and by the type of the weights.

Paddle has mixed precision on accelerators only. The places here say of themselves what one on a GPU says; which
context and scaler come of it is Paddle's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import paddle
import pytest
from paddle import nn

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.paddle.training import autocast, gradient_scaler, resolve_precision, weights_type


@dataclass(frozen=True)
class Place:
    """What a parameter's `place` answers on a GPU, or on an accelerator of another kind."""

    gpu: bool = True

    def is_cpu_place(self) -> bool:
        return False

    def is_gpu_place(self) -> bool:
        return self.gpu

    def gpu_device_id(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("gpu", "capability", "precision"),
    [
        ("Pascal P100", (6, 0), "32-true"),
        ("Volta V100", (7, 0), "16-mixed"),
        ("Turing T4", (7, 5), "16-mixed"),
        ("Ampere A100", (8, 0), "bf16-mixed"),
        ("Hopper H20", (9, 0), "bf16-mixed"),
    ],
)
def test_auto_takes_the_fastest_precision_the_gpu_has_units_for(
    gpu: str, capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The V100 of AI Studio gets float16, its A100 bfloat16."""
    monkeypatch.setattr(paddle.device.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision("auto", Place(), None) == precision


def test_auto_elsewhere_is_float32() -> None:
    """On a CPU and on accelerators that nothing is known of, full precision is kept."""
    assert resolve_precision("auto", paddle.ones([1]).place, None) == "32-true"
    assert resolve_precision("auto", Place(gpu=False), None) == "32-true"


def decorated(kind: str, *, master: bool = True) -> tuple[nn.Layer, paddle.optimizer.Optimizer]:
    """As `paddle.amp.decorate(level="O2")` leaves them on a GPU: half weights but for the normalizing layer."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1D(4), nn.Linear(4, 2))
    for layer in (model[0], model[2]):
        layer.to(dtype=kind)
    return model, paddle.optimizer.AdamW(parameters=model.parameters(), multi_precision=master)


@pytest.mark.parametrize(("kind", "precision"), [("float16", "16-mixed"), ("bfloat16", "bf16-mixed")])
def test_a_decorated_model_trains_at_level_o2_in_its_own_type(kind: str, precision: str) -> None:
    """ "auto" and the type's own word both give O2; the optimizer's float32 copies are what is updated."""
    model, optimizer = decorated(kind)
    weights = weights_type(model)
    assert weights == kind
    assert resolve_precision("auto", Place(), weights) == precision
    assert resolve_precision(precision, Place(), weights) == precision
    made: Any = autocast(precision, weights, optimizer)
    assert (made.func, made.keywords) == (paddle.amp.auto_cast, {"level": "O2", "dtype": kind})


def test_a_model_in_float32_is_cast_at_level_o1() -> None:
    """Weights stay in float32, and operations that are safe in half precision use it."""
    model = nn.Linear(4, 2)
    optimizer = paddle.optimizer.SGD(parameters=model.parameters())
    assert weights_type(model) is None
    made: Any = autocast("bf16-mixed", None, optimizer)
    assert isinstance(made, partial)
    assert (made.func, made.keywords) == (paddle.amp.auto_cast, {"level": "O1", "dtype": "bfloat16"})


def test_half_weights_without_a_copy_in_float32_are_refused() -> None:
    """Small updates would be rounded away; the remedy is the line that makes the copies."""
    with pytest.raises(UsageError, match="weights are bfloat16") as caught:
        autocast("bf16-mixed", "bfloat16", decorated("bfloat16", master=False)[1])
    assert 'level="O2", dtype="bfloat16")' in caught.value.remedy


def test_a_word_that_contradicts_the_weights_is_refused() -> None:
    """float16 weights do not train in bfloat16."""
    with pytest.raises(UsageError, match="contradict") as caught:
        resolve_precision("bf16-mixed", Place(), "float16")
    assert 'precision="16-mixed"' in caught.value.remedy


def test_half_weights_may_be_computed_in_as_they_are() -> None:
    """ "32-true" means: cast nothing."""
    assert resolve_precision("32-true", Place(), "float16") == "32-true"


def test_only_float16_has_a_scaler_to_be_saved() -> None:
    """The scaler is a part of the run's state exactly where one is in use."""
    assert gradient_scaler("32-true") is None
    assert gradient_scaler("bf16-mixed") is None
    with pytest.warns(UserWarning, match="can only be enabled on CUDAPlace"):  # as this is a CPU
        assert isinstance(gradient_scaler("16-mixed"), paddle.amp.GradScaler)
