"""A capture is of one moment: copied at a stop, what is frozen only once; and it is never taken for what it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

from colabkeep.core.errors import MemoryFull
from colabkeep.core.state import HostTensor, Stale, Withheld
from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.frameworks.paddle.capture import bytes_of, holding
from colabkeep.frameworks.shared import capture as shared
from colabkeep.frameworks.shared import host_memory
from colabkeep.testing.frameworks import Keeper, captured, same_bits, through_files

Parts = dict[str, Any]

WIDE = 200  # a weight of 160 kB: more than is copied as a small one, and worth a proof


class Training:
    """A training beside a frozen layer, under a boundary, as a run has it."""

    def __init__(self) -> None:
        paddle.seed(0)
        model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.BatchNorm1D(WIDE), nn.Dropout(0.2), nn.Linear(WIDE, WIDE))
        frozen = nn.Linear(WIDE, WIDE)
        for parameter in frozen.parameters():
            parameter.stop_gradient = True
        optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
        self.parts: Parts = {"model": model, "frozen": frozen, "optimizer": optimizer}
        self.framework = PaddleFramework()
        self.boundary = self.framework.boundary(self.parts)
        self.boundary.mark()

    @property
    def weight(self) -> Any:
        return self.parts["frozen"].weight

    def step(self) -> None:
        self.parts["model"](paddle.randn([4, WIDE])).square().mean().backward()
        self.parts["optimizer"].step()
        self.parts["optimizer"].clear_grad()
        self.boundary.mark()

    def save(self) -> tuple[Any, Any]:
        """The capture under way, and what a full stop gives."""
        reference = captured(PaddleFramework(), self.parts)
        return self.framework.capture(self.parts), reference

    def saved(self) -> tuple[Any, Any]:
        """The same, made again as the engine makes it if it turned out to be stale."""
        capture, reference = self.save()
        try:
            return finished(capture), reference
        except Stale:
            capture, reference = self.save()
            return finished(capture), reference

    def shown(self, *, part: str = "model", stored: bool = False) -> dict[str, HostTensor]:
        """The tensors of a part that a capture shows, by name."""
        snapshot = self.framework.capture(self.parts).finish()
        found = dict(snapshot.parts[part]["weights"])
        if stored:
            snapshot.stored()
        snapshot.release()
        return found


def finished(capture: Any) -> Any:
    snapshot = capture.finish()
    trees = through_files(snapshot.parts)
    snapshot.release()
    return trees


def view(weight: Any) -> Any:
    """Its numbers, for NumPy to write to."""
    return np.frombuffer(bytes_of(weight), np.float32)


def _numpy(weight: Any) -> None:
    view(weight)[-1] += 1


def _set_value(weight: Any) -> None:
    weight.set_value(np.full([WIDE, WIDE], 0.25, np.float32))


def _row(weight: Any) -> None:
    weight[17] = 0.0


def _in_place(weight: Any) -> None:
    weight.scale_(0.5)


def _transposed(weight: Any) -> None:
    weight.data = weight.t()


def _other_memory(weight: Any) -> None:
    weight.data = weight * 2.0


EDITS = {edit.__name__: edit for edit in (_numpy, _set_value, _row, _in_place, _transposed, _other_memory)}


@pytest.fixture
def training() -> Training:
    return Training()


@pytest.fixture
def resting_training(training: Training) -> Training:
    """The frozen layer's bytes are stored, and were let go of."""
    training.step()
    training.shown(stored=True)
    return training


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("when", ["before", "behind"])
def test_edits_of_trained_weights_are_stored_as_they_were_at_the_save(edit: str, when: str, training: Training) -> None:
    """An edit before the save is in it, whichever counter saw it; one behind it is not."""
    training.step()
    finished(training.framework.capture(training.parts))
    weight = training.parts["model"][0].weight
    with paddle.no_grad():
        if when == "before":
            EDITS[edit](weight)
        capture, reference = training.save()
        if when == "behind":
            EDITS[edit](weight)
    assert same_bits(finished(capture), reference)


@pytest.mark.parametrize("pieces", [2**21, 2**12])
def test_large_tensors_are_copied_in_pieces_by_several_threads(
    pieces: int, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every piece arrives, of what changed in one place only, too."""
    monkeypatch.setattr(host_memory, "_PIECE", pieces)
    monkeypatch.setattr(host_memory, "_SHARED", 0)
    monkeypatch.setattr(host_memory, "_cores", lambda: 3)
    for at in (0, 7, WIDE * WIDE // 2 + 3, WIDE * WIDE - 1):
        capture, reference = training.save()
        view(training.parts["model"][0].weight)[at] = 9
        assert same_bits(finished(capture), reference)


def test_what_did_not_change_is_shown_by_the_same_objects(training: Training) -> None:
    """The engine neither hashes nor writes again what is the very object of the save before."""
    training.step()
    before = training.shown()
    training.step()
    after = training.shown()
    assert not [name for name in before if before[name] is after[name]]
    still = training.shown()
    assert {name for name in after if still[name] is after[name]} == {"0.weight", "3.weight"}  # small ones are new


def test_frozen_weights_take_no_memory_once_they_are_stored(resting_training: Training) -> None:
    """A backbone of gigabytes is copied for its first save, and lies in host memory once from then on."""
    resting_training.step()
    frozen = resting_training.shown(part="frozen", stored=True)["weight"]
    assert isinstance(frozen.data, Withheld)
    assert frozen.data.nbytes == WIDE * WIDE * 4
    recorders = resting_training.framework._recorders._all.values()
    modules = [each for each in recorders if isinstance(each, shared.ModuleRecorder)]
    slots = [entry.slot for each in modules for entry in each._tensors._entries]
    assert sum(slot.memory.nbytes for slot in slots) == sum(slot.size for slot in slots) - WIDE * WIDE * 4


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("when", ["before", "behind"])
def test_frozen_weights_that_are_edited_are_saved_as_they_are(edit: str, when: str, resting_training: Training) -> None:
    """A teacher kept by hand is written anew, even if one number in it changed: at the latest by a save made again."""
    training, weight = resting_training, resting_training.weight
    kept = weight.numpy().tobytes()
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
    if isinstance(snapshot.parts["frozen"]["weights"]["weight"].data, Withheld):  # what is stored stands for it
        assert when == "behind"
        assert bytes(reference["frozen"]["weights"]["weight"].data) == kept
    else:
        assert same_bits(through_files(snapshot.parts), reference)


def test_an_edit_that_no_counter_tells_of_makes_the_save_stale(resting_training: Training) -> None:
    """One number of the last bytes, through NumPy; from then on the weights are copied each time."""
    _numpy(resting_training.weight)
    capture, _ = resting_training.save()
    with pytest.raises(Stale):
        capture.finish()
    for _ in range(3):
        _numpy(resting_training.weight)
        capture, reference = resting_training.save()
        _numpy(resting_training.weight)
        assert same_bits(finished(capture), reference)


def test_an_edit_between_the_copy_and_its_proof_is_in_the_next_save(training: Training) -> None:
    """What is stored is the copy, so the proof is of the copy, not of what the weights have become since."""
    capture = training.framework.capture(training.parts)
    _numpy(training.weight)
    snapshot = capture.finish()
    snapshot.stored()
    snapshot.release()
    stored, reference = training.saved()
    assert same_bits(stored, reference)


def test_bytes_that_are_needed_once_more_are_copied_again(resting_training: Training) -> None:
    """A file that vanished from the storage is written anew, though its bytes had been let go of."""
    frozen = resting_training.shown(part="frozen")["weight"]
    with pytest.raises(Stale):
        frozen.data.recall()  # type: ignore[attr-defined]
    capture, reference = resting_training.save()
    assert same_bits(finished(capture), reference)


def test_weights_that_are_unfrozen_are_copied(resting_training: Training) -> None:
    """Fine-tuning that unfreezes a backbone has its numbers in the next checkpoint, and freezing it again too."""
    for trains in (True, False, True):
        resting_training.weight.stop_gradient = not trains
        _numpy(resting_training.weight)
        stored, reference = resting_training.saved()
        assert same_bits(stored, reference)


@pytest.mark.parametrize("away", ["replaced", "deleted", "cleared"])
def test_memory_that_goes_away_under_the_proof_ends_no_training(away: str, resting_training: Training) -> None:
    """Weights replaced or given back between a save and its proof: their memory is held until then."""
    capture, _ = resting_training.save()
    if away == "replaced":
        resting_training.weight.data = paddle.zeros([WIDE, WIDE])
    elif away == "deleted":
        del resting_training.parts["frozen"].weight
    else:
        resting_training.weight._clear_data()
    others = [paddle.full([WIDE, WIDE], 7.0) for _ in range(8)]  # whoever is given its memory writes to it
    assert len(others) == 8
    capture.finish().release()


def test_where_memory_cannot_be_read_so_frozen_weights_are_compared_at_the_stop(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another system, or a container that forbids it, keeps the copy and looks at every byte."""
    monkeypatch.setattr(host_memory, "READS", False)
    host = training.shown(part="frozen", stored=True)["weight"]
    assert not isinstance(host.data, Withheld)
    assert training.shown(part="frozen")["weight"] is host
    _numpy(training.weight)
    capture, reference = training.save()
    assert same_bits(finished(capture), reference)
    assert training.shown(part="frozen")["weight"] is not host


def test_a_save_behind_the_first_step_is_whole(training: Training) -> None:
    """The memory for the moments that the step has made is made ready at the mark, which leaves the save's alone."""
    training.parts["model"](paddle.randn([4, WIDE])).square().mean().backward()
    training.parts["optimizer"].step()
    capture, reference = training.save()
    training.boundary.mark()
    assert same_bits(finished(capture), reference)


def test_small_tensors_that_moved_are_copied_from_where_they_are(training: Training) -> None:
    """They are copied by address; one that was given other memory has another."""
    finished(training.framework.capture(training.parts))
    bias = training.parts["model"][0].bias
    assert bias.shape[0] * 4 <= shared._TINY
    before = holding(bias)
    bias.data = paddle.arange(WIDE, dtype="float32")
    assert bias.data_ptr() != before.data_ptr()
    capture, reference = training.save()
    assert same_bits(finished(capture), reference)


def test_memory_that_runs_out_at_a_save_is_told_and_ends_no_training(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine makes that save later; the capture after it is whole."""

    def refused(*_: object) -> Any:
        raise MemoryError("Out of memory error on GPU 0.")

    keeper = Keeper(paddle.ones([3]))
    parts = {**training.parts, "keeper": keeper}
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "state_dict", refused)
        with pytest.raises(MemoryFull, match="Out of memory error on GPU 0"):
            training.framework.capture(parts)
    reference = captured(PaddleFramework(), parts)
    assert same_bits(finished(training.framework.capture(parts)), reference)


def test_a_small_tensor_that_was_transposed_where_it_lies_is_copied_as_it_is(framework: PaddleFramework) -> None:
    """Its address, shape and size are what they were, and its bytes are in another order."""
    layer = nn.Linear(8, 8)
    parts = {"model": layer}
    finished(framework.capture(parts))
    before = layer.weight.data_ptr()
    layer.weight.data = layer.weight.t()
    assert layer.weight.data_ptr() == before
    reference = captured(PaddleFramework(), parts)
    assert not layer.weight.is_contiguous()  # a capture leaves it as it lies
    assert same_bits(finished(framework.capture(parts)), reference)
