"""A capture is of one moment, whatever training does behind it; what did not change is neither copied nor written."""

from __future__ import annotations

import ctypes
import gc
import itertools
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.core.errors import NotStorable
from colabkeep.core.state import HostTensor, Stale, Withheld
from colabkeep.frameworks.shared import capture as shared
from colabkeep.frameworks.shared import host_memory
from colabkeep.frameworks.torch import copies
from colabkeep.testing.frameworks import same_bits, through_files
from tests.frameworks.torch.state.trainings import WIDE, Parts, Training, finished, mlp, plain_step


def two_optimizers() -> Parts:
    parts = mlp()
    first, last = parts["model"][0], parts["model"][3]
    return {
        "model": parts["model"],
        "optimizer": torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1, momentum=0.9),
        "optimizer2": torch.optim.AdamW(last.parameters(), lr=0.01),
    }


def one_of_two_steps(parts: Parts) -> None:
    turn = parts.setdefault("turns", Turns())
    turn.count += 1
    name = "optimizer" if turn.count < 3 or turn.count % 2 else "optimizer2"
    parts["model"].zero_grad()
    parts["model"](torch.randn(4, WIDE)).square().mean().backward()
    parts[name].step()
    if turn.count == 2:
        parts["optimizer2"].step()


class Turns:
    count = 0

    def state_dict(self) -> Any:
        return {"count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.count = state["count"]


def accumulating(parts: Parts) -> None:
    parts["optimizer"].zero_grad()
    for _ in range(3):
        parts["model"](torch.randn(4, WIDE)).square().mean().backward()
    parts["optimizer"].step()


def with_helpers() -> Parts:
    parts = mlp()
    parts["scheduler"] = torch.optim.lr_scheduler.OneCycleLR(parts["optimizer"], 0.1, total_steps=100)
    parts["scaler"] = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    parts["ema"] = torch.optim.swa_utils.AveragedModel(parts["model"], use_buffers=True)
    return parts


def helped_step(parts: Parts) -> None:
    parts["optimizer"].zero_grad()
    parts["scaler"].scale(parts["model"](torch.randn(4, WIDE)).square().mean()).backward()
    parts["scaler"].step(parts["optimizer"])
    parts["scaler"].update()
    parts["scheduler"].step()
    parts["ema"].update_parameters(parts["model"])


def lbfgs() -> Parts:
    model = nn.Linear(WIDE, WIDE)
    return {"model": model, "optimizer": torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3)}


def closure_step(parts: Parts) -> None:
    x = torch.randn(4, WIDE)

    def closure() -> Any:
        parts["optimizer"].zero_grad()
        loss = parts["model"](x).square().mean()
        loss.backward()
        return loss

    parts["optimizer"].step(closure)


def tied() -> Parts:
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE))
    model[2].weight = model[0].weight
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}


class OldFashioned(torch.optim.Optimizer):
    """Writes past the version counters, as old code does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
            state.data.mul_(0.9).add_(parameter.grad.data)
            parameter.data.add_(state, alpha=-0.1)


def old_fashioned() -> Parts:
    parts = mlp()
    return {"model": parts["model"], "optimizer": OldFashioned(parts["model"].parameters())}


CASES: dict[str, tuple[Callable[[], Parts], Callable[[Parts], None]]] = {
    "foreach": (lambda: mlp(foreach=True), plain_step),
    "fused": (lambda: mlp(fused=True), plain_step),
    "amsgrad": (lambda: mlp(amsgrad=True), plain_step),
    "accumulation": (mlp, accumulating),
    "helpers": (with_helpers, helped_step),
    "LBFGS": (lbfgs, closure_step),
    "tied": (tied, plain_step),
    "two optimizers with a shared layer": (two_optimizers, plain_step),
    "one of two optimizers steps": (two_optimizers, one_of_two_steps),
    "old-fashioned optimizer": (old_fashioned, plain_step),
}


@pytest.mark.parametrize("case", CASES)
def test_a_capture_is_that_of_its_moment(case: str) -> None:
    """Whatever training does after a save, the checkpoint is of the step it was asked for at."""
    make, step = CASES[case]
    torch.manual_seed(0)
    parts = make()
    if step is one_of_two_steps:
        parts["turns"] = Turns()
    training = Training(parts, step)
    training.step(3)
    for _ in range(4):
        capture, reference = training.save()
        training.step(2)
        assert same_bits(finished(capture), reference)


def test_state_that_an_optimizer_makes_in_its_first_steps_is_kept() -> None:
    """The first save has no moments yet, the next has them, and a group that comes later has its own."""
    parts = mlp()
    training = Training(parts)
    for _ in range(3):
        capture, reference = training.save()
        training.step()
        assert same_bits(finished(capture), reference)
    extra = nn.Linear(WIDE, WIDE)
    parts["extra"] = extra
    parts["optimizer"].add_param_group({"params": list(extra.parameters()), "lr": 0.5})
    for _ in range(3):
        extra(torch.randn(4, WIDE)).square().mean().backward()
        training.step()
        capture, reference = training.save()
        training.step()
        assert same_bits(finished(capture), reference)


def _some(weight: torch.Tensor) -> None:
    numbers = weight.data.view(-1)
    numbers[torch.randperm(numbers.numel())[:1622]] = 0.5


def _row(weight: torch.Tensor) -> None:
    weight.data[17] = 0


def _tail(weight: torch.Tensor) -> None:
    numbers = weight.data.view(-1)
    numbers[-numbers.numel() // 20 :] += 1


def _one(weight: torch.Tensor) -> None:
    weight.data.view(-1)[7] += 1


def _all(weight: torch.Tensor) -> None:
    weight.data.add_(1)


def _numpy(weight: torch.Tensor) -> None:
    weight.detach().numpy()[3, 3] = 5


def _other_memory(weight: torch.Tensor) -> None:
    weight.data = weight.data + 1


def _transposed(weight: torch.Tensor) -> None:
    weight.data = weight.data.t()


def _counted(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.mul_(0.5)


EDITS = {edit.__name__: edit for edit in (_some, _row, _tail, _one, _all, _numpy, _other_memory, _transposed, _counted)}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("when", ["before", "behind"])
def test_edits_of_trained_weights_are_stored_as_they_were_at_the_save(edit: str, when: str) -> None:
    """Past every counter, of whichever part of a tensor: an edit before the save is in it, one behind it is not."""
    parts = mlp()
    training = Training(parts)
    training.step(2)
    finished(training.framework.capture(parts))
    if when == "before":
        EDITS[edit](parts["model"][0].weight)
    capture, reference = training.save()
    if when == "behind":
        EDITS[edit](parts["model"][0].weight)
    assert same_bits(finished(capture), reference)


@pytest.mark.parametrize("pieces", [2**21, 2**12])
def test_large_tensors_are_copied_in_pieces_by_several_threads(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece arrives, of what changed in one place only, too."""
    monkeypatch.setattr(host_memory, "_PIECE", pieces)
    monkeypatch.setattr(host_memory, "_SHARED", 0)
    monkeypatch.setattr(host_memory, "_cores", lambda: 3)
    parts = {"model": nn.Linear(1500, 1400, bias=False)}
    training = Training(parts)
    for _ in range(3):
        capture, reference = training.save()
        parts["model"].weight.data.add_(1)
        assert same_bits(finished(capture), reference)
    for at in (0, 1500 * 700 + 3, 1500 * 1400 - 1):
        parts["model"].weight.data.view(-1)[at] = 9
        capture, reference = training.save()
        assert same_bits(finished(capture), reference)


def test_a_machine_without_another_thread_copies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may start no thread still saves."""

    def refused(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(host_memory._thread, "start_new_thread", refused)
    monkeypatch.setattr(host_memory, "_SHARED", 0)
    capture, reference = Training(mlp()).save()
    assert same_bits(finished(capture), reference)


def test_an_interrupted_copy_is_made_whole_by_the_next_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broken-off save had copied already is not taken for what the one before it has stored."""
    training = Training({"model": nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(3)))})
    before = shown(training)
    for weight in training.parts["model"].parameters():
        weight.data.add_(1)
    move, moves = ctypes.memmove, itertools.count()

    def interrupted(*block: Any) -> None:
        if next(moves) == 1:
            raise KeyboardInterrupt
        move(*block)

    with monkeypatch.context() as patch:
        patch.setattr(host_memory.ctypes, "memmove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            training.framework.capture(training.parts)
    after = shown(training)
    assert not [name for name in before if before[name] is after[name]]
    capture, reference = training.save()
    assert same_bits(finished(capture), reference)


def shown(training: Training, *, stored: bool = False) -> dict[str, HostTensor]:
    """The tensors of the model that a capture shows, by name."""
    snapshot = training.framework.capture(training.parts).finish()
    found = dict(snapshot.parts["model"]["weights"])
    if stored:
        snapshot.stored()
    snapshot.release()
    return found


def test_what_did_not_change_is_shown_by_the_same_objects() -> None:
    """The engine neither hashes nor writes again what is the very object of the save before."""
    parts = mlp()
    for parameter in parts["model"][0].parameters():
        parameter.requires_grad_(False)
    training = Training(parts)
    training.step(2)
    before = shown(training, stored=True)
    training.step()
    after = shown(training, stored=True)
    assert {name for name in before if before[name] is after[name]} == {"0.weight", "0.bias"}
    still = shown(training)
    large = {name for name, each in parts["model"].named_parameters() if each.nbytes >= copies._LARGE}
    assert {name for name in after if still[name] is after[name]} == {*large, "0.bias"}


@pytest.mark.parametrize("case", ["fused", "old-fashioned optimizer"])
def test_steps_that_no_counter_tells_of_count_as_changes(case: str) -> None:
    """Torch's fused kernels leave the version counters as they are; the weights are written all the same."""
    training = Training(CASES[case][0]())
    training.step(2)
    before = shown(training)
    training.step()
    after = shown(training)
    assert not [name for name in before if before[name] is after[name]]


def frozen() -> tuple[Training, nn.Parameter]:
    """A training beside a frozen layer whose bytes are stored, and were let go of."""
    parts = mlp()
    layer = parts["frozen"] = nn.Linear(WIDE, WIDE).requires_grad_(False)
    training = Training(parts)
    training.step(2)
    snapshot = training.framework.capture(parts).finish()
    snapshot.stored()
    snapshot.release()
    return training, layer.weight


def weight_of(snapshot: Any) -> Any:
    return snapshot.parts["frozen"]["weights"]["weight"].data


def test_frozen_weights_take_no_memory_once_they_are_stored() -> None:
    """A backbone of gigabytes is copied for its first save, and lies in host memory once from then on."""
    training, weight = frozen()
    training.step()
    snapshot = training.framework.capture(training.parts).finish()
    assert isinstance(weight_of(snapshot), Withheld)
    assert weight_of(snapshot).nbytes == weight.nbytes
    snapshot.stored()
    snapshot.release()
    recorders = training.framework._recorders._all.values()
    modules = [each for each in recorders if isinstance(each, shared.ModuleRecorder)]
    slots = [entry.slot for each in modules for entry in each._tensors._entries]
    assert sum(slot.memory.nbytes for slot in slots) == sum(slot.size for slot in slots) - weight.nbytes


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("when", ["before", "behind"])
def test_frozen_weights_that_are_edited_are_saved_as_they_are(edit: str, when: str) -> None:
    """An average kept by hand is written anew, even if one number in it changed: at the latest by a save made again."""
    training, weight = frozen()
    kept = weight.detach().clone()
    if when == "before":
        EDITS[edit](weight)
    capture, reference = training.save()
    if when == "behind":
        EDITS[edit](weight)
    try:
        snapshot = capture.finish()
    except Stale:
        capture, reference = training.save()
        snapshot = capture.finish()
    if isinstance(weight_of(snapshot), Withheld):  # what is stored stands for it
        stored = reference["frozen"]["weights"]["weight"].data
        assert when == "behind"
        assert bytes(stored) == kept.numpy().tobytes()
    else:
        assert same_bits(through_files(snapshot.parts), reference)


def test_frozen_weights_that_were_edited_once_are_copied_from_then_on() -> None:
    """A teacher that follows each step by `.data` costs one save made again in a session, no more."""
    training, weight = frozen()
    weight.data.mul_(0.9)
    capture, _ = training.save()
    with pytest.raises(Stale):
        finished(capture)
    for _ in range(3):
        weight.data.mul_(0.9)
        capture, reference = training.save()
        weight.data.mul_(0.9)
        assert same_bits(finished(capture), reference)


def test_bytes_that_are_needed_once_more_are_copied_again() -> None:
    """A file that vanished from the storage is written anew, though its bytes had been let go of."""
    training, _ = frozen()
    snapshot = training.framework.capture(training.parts).finish()
    with pytest.raises(Stale):
        weight_of(snapshot).recall()
    snapshot.release()
    capture, reference = training.save()
    assert same_bits(finished(capture), reference)


def test_weights_that_are_unfrozen_are_copied() -> None:
    """Fine-tuning that unfreezes a backbone has its numbers in the next checkpoint, and freezing it again too."""
    training, weight = frozen()
    for trains in (True, False, True):
        weight.requires_grad_(trains)
        weight.data.add_(1)
        capture, reference = training.save()
        try:
            stored = finished(capture)
        except Stale:
            capture, reference = training.save()
            stored = finished(capture)
        assert same_bits(stored, reference)


@pytest.mark.parametrize("away", ["freed", "given back", "replaced"])
def test_memory_that_goes_away_under_the_proof_ends_no_training(away: str) -> None:
    """Offloading and moving between a save and its proof is found out by a call that answers, not by a crash."""
    training, weight = frozen()
    capture, _ = training.save()
    if away == "given back":
        weight.untyped_storage().resize_(0)
    elif away == "replaced":
        weight.data = torch.zeros(WIDE, WIDE)
        gc.collect()
    else:
        del training.parts["frozen"].weight
        gc.collect()
    if away == "given back":
        with suppress(Stale):  # the allocator may leave the numbers where they were
            capture.finish().release()
        with pytest.raises(NotStorable, match=r"frozen\.weight has no memory"):
            training.framework.capture(training.parts)
    else:
        capture.finish().release()


def test_a_checksum_is_of_all_bytes_and_of_memory_that_is_there() -> None:
    """Any one bit changes it; where the memory was unmapped there is none."""
    reader, data = host_memory.Reader(), torch.arange(2**19, dtype=torch.int32)
    address, size = data.data_ptr(), data.nbytes
    before = reader.checksum(address, size)
    for at in (0, 2**18, 2**19 - 1):
        data[at] ^= 1
        assert reader.checksum(address, size) != before
        data[at] ^= 1
    assert reader.checksum(address, size) == before
    assert reader.checksum(4096, 4096) is None


def test_where_memory_cannot_be_read_so_frozen_weights_are_compared_at_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another system, or a container that forbids it, keeps the copy and looks at every byte."""
    monkeypatch.setattr(host_memory, "READS", False)
    training, weight = frozen()
    capture, reference = training.save()
    same = capture.finish()
    host = same.parts["frozen"]["weights"]["weight"]
    same.release()
    assert same_bits(finished(training.framework.capture(training.parts)), reference)
    assert shown_frozen(training) is host
    _one(weight)
    capture, reference = training.save()
    assert same_bits(finished(capture), reference)
    assert shown_frozen(training) is not host


def shown_frozen(training: Training) -> HostTensor:
    snapshot = training.framework.capture(training.parts).finish()
    host: HostTensor = snapshot.parts["frozen"]["weights"]["weight"]
    snapshot.release()
    return host


def test_the_first_save_does_not_wait_for_fresh_memory() -> None:
    """Neither the model's nor the optimizer's: the pages of 48 MB are there before."""
    model = nn.Linear(2048, 2048)
    training = Training({"model": model, "optimizer": torch.optim.AdamW(model.parameters())}, wide_step)
    training.step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    capture = training.framework.capture(training.parts)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 48 * 2**20 / 4096 / 8
    capture.finish().release()


def wide_step(parts: Parts) -> None:
    parts["model"](torch.ones(1, 2048)).sum().backward()
    parts["optimizer"].step()


def test_what_a_save_has_copied_is_not_touched_again() -> None:
    """A save that comes before the first step is not zeroed by that step's end."""
    training = Training(mlp())
    capture, reference = training.save()
    training.step()
    assert same_bits(finished(capture), reference)
