"""A batch that is computed in pieces trains as the whole one does, up to rounding; what cannot be cut is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Event, Noted, RestoredInexactly
from colabkeep.frameworks.shared.training import cut
from colabkeep.frameworks.torch.pieces import is_out_of_memory


def fit(folder: Path, **changes: Any) -> tuple[torch.Tensor, Any, list[Event]]:
    """Eleven samples in batches of four, in float64: the last batch is short. Weights, result and events."""
    torch.manual_seed(0)
    inner = changes.pop("inner", nn.Tanh())
    model = nn.Sequential(nn.Linear(6, 8), inner, nn.Linear(8, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    target = changes.pop("target", torch.randn(11, 3, dtype=torch.float64))
    data = torch.utils.data.TensorDataset(torch.randn(11, 6, dtype=torch.float64), target)
    events: list[Event] = []
    words = {"loss_fn": F.mse_loss, "max_epochs": 2, "run_name": "r", "storage": folder, "progress": False, **changes}
    loader = torch.utils.data.DataLoader(data, 4, shuffle=True)
    result = colabkeep.resumable_fit(model, loader, optimizer=optimizer, callbacks=[events.append], **words)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), result, events


def near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).abs().max()) < 1e-12


def noted(events: list[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Noted))


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("micro", [1, 3, 4, "auto"])
def test_pieces_give_the_weights_and_losses_of_whole_batches(tmp_path: Path, micro: Any, accumulate: int) -> None:
    """Also of a short last batch, of an accumulation and with clipping; as many optimizer steps are counted."""
    words: dict[str, Any] = {"accumulate_grad_batches": accumulate, "gradient_clip_val": 0.1}
    whole, first, _ = fit(tmp_path / "whole", **words)
    pieces, second, events = fit(tmp_path / "pieces", micro_batch=micro, **words)
    assert near(whole, pieces)
    assert first.steps == second.steps
    assert [r["train_loss"] for r in first.history] == pytest.approx(
        [r["train_loss"] for r in second.history], abs=1e-12
    )
    said = "the result is that of batches of 4 up to rounding" in noted(events)
    assert said == (micro in (1, 3))


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(ignore_index=0),
        nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64), label_smoothing=0.1),
        partial(F.cross_entropy, ignore_index=2),
    ],
    ids=["ignored", "weighted", "partial"],
)
def test_torch_s_cross_entropy_is_cut_by_the_targets_that_count(tmp_path: Path, loss: Any) -> None:
    """The mean over targets that are not ignored, and by the weights of their classes, is no mean over samples."""
    target = torch.arange(11) % 3
    whole, first, _ = fit(tmp_path / "whole", loss_fn=loss, target=target)
    for micro in (1, 3):
        pieces, second, _ = fit(tmp_path / f"{micro}", loss_fn=loss, target=target, micro_batch=micro)
        assert near(whole, pieces)
        assert second.history[-1]["train_loss"] == pytest.approx(first.history[-1]["train_loss"], abs=1e-12)


def test_an_own_step_is_cut_too(tmp_path: Path) -> None:
    """`step_fn` gets each piece as it would get a batch."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.l1_loss(model(batch[0]), batch[1])

    whole, _, _ = fit(tmp_path / "whole", loss_fn=None, step_fn=step)
    assert near(whole, fit(tmp_path / "pieces", loss_fn=None, step_fn=step, micro_batch=3)[0])


def contrastive(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output @ output.T, torch.arange(len(output)))


@pytest.mark.parametrize("loss", [nn.MSELoss(reduction="sum"), contrastive], ids=["sum", "contrastive"])
def test_a_loss_that_is_no_mean_over_samples_is_refused(tmp_path: Path, loss: Any) -> None:
    """Before the first step: in pieces, it would be another training."""
    with pytest.raises(UsageError, match="mean of the losses of its samples") as told:
        fit(tmp_path, loss_fn=loss, micro_batch=2)
    assert "leave out micro_batch" in told.value.remedy


@pytest.mark.parametrize("micro", [0, -1, True, 2.0, "all"])
def test_what_is_no_number_of_samples_is_refused(tmp_path: Path, micro: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(UsageError, match="micro_batch="):
        fit(tmp_path, micro_batch=micro)
    assert not list(tmp_path.iterdir())


def test_batch_norm_and_dropout_are_told_what_pieces_mean_for_them(tmp_path: Path) -> None:
    """Each by itself, and nothing says that the result is that of whole batches."""
    for name, inner in (("BatchNorm (1)", nn.BatchNorm1d(8)), ("Random numbers of the model", nn.Dropout(0.2))):
        _, _, events = fit(tmp_path / name, inner=inner, micro_batch=3)
        assert name in noted(events)
        assert "up to rounding" not in noted(events)


def test_another_micro_batch_than_before_is_no_error_and_takes_exact_back(tmp_path: Path) -> None:
    """From whole batches to two samples at a time, on with as many, and back: each change is told once."""
    told = []
    for end, micro in ((2, None), (3, 2), (4, 2), (5, None)):
        _, result, events = fit(tmp_path, micro_batch=micro, max_steps=end)
        assert result.steps == end
        told.append([event.reason for event in events if isinstance(event, RestoredInexactly)])
    assert [len(each) for each in told] == [0, 1, 0, 1]
    assert "computed as a whole and are computed 2 samples at a time now" in told[1][0]
    assert "computed 2 samples at a time and are computed as a whole now" in told[3][0]


def test_resumed_in_pieces_it_has_the_same_bits(tmp_path: Path) -> None:
    """With dropout and BatchNorm, in three sessions or one."""

    def inner() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.2))

    for end in (2, 3, 99):
        parts, _, events = fit(tmp_path / "parts", inner=inner(), micro_batch=3, max_steps=end)
        assert not [event for event in events if isinstance(event, RestoredInexactly)]
    assert torch.equal(parts, fit(tmp_path / "whole", inner=inner(), micro_batch=3)[0])


def test_batches_are_cut_along_their_samples_and_nothing_else_is() -> None:
    """Tensors and lists of one entry for each sample; numbers and text belong to all; other lengths are refused."""
    x = torch.arange(6.0).reshape(3, 2)
    pieces = cut({"x": x, "names": ["a", "b", "c"], "scale": 2, "t": torch.tensor(1.0)}, 3, 2)
    assert [samples for _, samples in pieces] == [1, 2]
    assert torch.equal(torch.cat([piece["x"] for piece, _ in pieces]), x)
    assert [name for piece, _ in pieces for name in piece["names"]] == ["a", "b", "c"]
    assert all(piece["scale"] == 2 and piece["t"] == 1.0 for piece, _ in pieces)
    assert [n for _, n in cut((torch.zeros(33, 1),), 33, 16)] == [11, 11, 11]
    pair = [torch.zeros(2, 1), torch.ones(2, 1)]  # as many arrays as samples: input and target all the same
    assert [[len(each) for each in piece] for piece, _ in cut(pair, 2, 1)] == [[1, 1], [1, 1]]
    for odd in ([x, torch.zeros(2)], [x, object()]):
        with pytest.raises(UsageError, match="cuts each batch along its samples"):
            cut(odd, 3, 1)


def test_every_name_of_running_out_of_memory_is_known() -> None:
    """torch's two classes, and what cuBLAS and cuDNN say; a wrong shape is none."""
    kinds = {torch.cuda.OutOfMemoryError, getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)}
    assert all(is_out_of_memory(kind("CUDA out of memory.")) for kind in kinds)
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
