"""A save whose copy hides behind the next step, held against one with a full stop at the same boundary."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from colabkeep.frameworks.common import moves
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.frameworks.torch.state.leaves import native
from colabkeep.testing.frameworks import captured, same_bits, tensors_of
from colabkeep.vocabulary.state import HostTensor, Torn
from tests.frameworks.torch.state.trainings import HIDDEN, WIDE, Parts, Training, finished, mlp, plain_step


@pytest.fixture(params=["at its leisure", "late"])
def thread(request: pytest.FixtureRequest) -> None:
    if request.param == "late":
        request.getfixturevalue("late_thread")


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
@pytest.mark.usefixtures("thread")
def test_a_hidden_copy_is_that_of_a_full_stop(case: str) -> None:
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
    training.framework._hiding._choice = type(training.framework._hiding._choice)()  # begins to measure anew: hidden
    capture, reference = training.save()
    training.step()
    assert capture.mode == HIDDEN
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


EDITS: dict[str, Callable[[Parts], object]] = {
    "in place": lambda p: p["model"][0].weight.detach().add_(1),
    "one number": lambda p: p["model"][0].weight.detach().view(-1)[7].add_(1),  # no sample meets it, the counter does
    "state dict": lambda p: p["model"].load_state_dict({k: v + 1 for k, v in p["model"].state_dict().items()}),
    "moments": lambda p: p["optimizer"].state[p["model"][0].weight]["exp_avg"].fill_(7),
    "clipped": lambda p: p["model"][0].weight.detach().clamp_(-0.001, 0.001),
    "past the counter": lambda p: p["model"][0].weight.data.add_(1),
    "through NumPy": lambda p: p["model"][0].weight.detach().numpy().fill(3),
    "moments past the counter": lambda p: p["optimizer"].state[p["model"][0].weight]["exp_avg"].data.add_(1),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.usefixtures("late_thread")
def test_weights_edited_under_the_copy_are_noticed(edit: str) -> None:
    """Such a snapshot is thrown away, told in a sentence with the tensor's name, and the next is taken at once."""
    training = Training(mlp())
    training.step(2)
    capture, _ = training.save()
    EDITS[edit](training.parts)
    training.step()
    with pytest.raises(Torn, match=r"model\.|optimizer\.state") as torn:
        capture.finish()
    assert "was changed" in str(torn.value)
    capture, reference = training.save()
    assert capture.mode.startswith("copied at once")
    training.step()
    assert same_bits(finished(capture), reference)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_never_reaches_a_checkpoint_unseen(edit: str) -> None:
    """However far the copy has come, the result is the state of the save, or none."""
    training = Training(mlp())
    training.step(2)
    for _ in range(4):
        capture, reference = training.save()
        time.sleep(0.002)
        EDITS[edit](training.parts)
        training.step()
        try:
            found = finished(capture)
        except Torn:
            continue
        assert same_bits(found, reference)


@pytest.mark.usefixtures("late_thread")
def test_other_memory_under_a_weight_does_no_harm() -> None:
    """`weight.data = …` leaves the old numbers where they were, for the copy to read."""
    training = Training(mlp())
    training.step(2)
    capture, reference = training.save()
    weight = training.parts["model"][0].weight
    weight.data = torch.zeros_like(weight)
    training.step()
    assert same_bits(finished(capture), reference)
    capture, reference = training.save()
    training.step()
    assert same_bits(finished(capture), reference)


@pytest.mark.usefixtures("late_thread")
def test_after_two_torn_snapshots_nothing_is_hidden_any_more() -> None:
    """A training that edits its weights by hand pays the stop, and is told why."""
    training = Training(mlp())
    training.step(2)
    for _ in range(2):
        capture, _ = training.save()
        assert capture.mode == HIDDEN
        EDITS["in place"](training.parts)
        with pytest.raises(Torn):
            capture.finish()
        finished(training.save()[0])
        training.step()
    capture, _ = training.save()
    assert capture.mode == "copied at once: weights were changed twice between a save and the next step"


@pytest.mark.usefixtures("late_thread")
def test_an_edit_of_what_was_saved_before_is_noticed_too() -> None:
    """Nobody can tell whether what differs now from the save before did so at this save already."""
    training = Training(mlp())
    training.step(2)
    finished(training.save()[0])
    capture, _ = training.save()
    EDITS["in place"](training.parts)
    with pytest.raises(Torn, match=r"model\.0\.weight"):
        capture.finish()


def test_what_did_not_change_is_shown_by_the_same_objects() -> None:
    """The engine neither hashes nor writes again what is the very object of the save before."""
    parts = mlp()
    for parameter in parts["model"][0].parameters():
        parameter.requires_grad_(False)
    training = Training(parts)
    training.step(2)
    before = shown(training)
    training.step()
    after = shown(training)
    assert {name for name in before if before[name] is after[name]} == {"0.weight", "0.bias"}
    still = shown(training)
    parameters = {name for name, _ in parts["model"].named_parameters()}
    assert {name for name in after if still[name] is after[name]} == parameters


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("edit", ["whole", "one number"])
def test_frozen_weights_edited_past_every_counter_are_saved_as_they_are(hidden: bool, edit: str) -> None:
    """An average kept by hand with `.data` is written anew, even if one number in it changed."""
    parts = mlp()
    frozen = parts["frozen"] = nn.Linear(WIDE, WIDE).requires_grad_(False)
    training = Training(parts)
    training.step(2)
    training.framework._hiding._choice.hides = lambda: hidden  # type: ignore[method-assign]
    finished(training.framework.capture(parts))
    frozen.weight.data.view(-1)[7 if edit == "one number" else slice(None)] += 1
    capture, reference = training.save()
    if hidden and edit == "one number":  # no sample met it, and a comparison cannot tell whether it came in time
        with pytest.raises(Torn, match=r"frozen\.weight"):
            capture.finish()
        training.framework._hiding._choice.hides = lambda: False  # type: ignore[method-assign]
        capture = training.framework.capture(parts)
    assert same_bits(finished(capture), reference)


def test_a_layer_that_is_unfrozen_right_behind_a_save_costs_no_save(thread: None) -> None:
    """Its first step waits until what was frozen at the save has been compared, too."""
    parts = mlp()
    first, last = parts["model"][0].requires_grad_(False), parts["model"][3]
    parts["optimizer"] = torch.optim.SGD(last.parameters(), lr=0.1)
    training = Training(parts)
    training.framework._hiding._choice.hides = lambda: True  # type: ignore[method-assign]
    training.step(2)
    finished(training.framework.capture(parts))
    capture, reference = training.save()
    first.requires_grad_(True)
    parts["optimizer"].add_param_group({"params": first.parameters(), "lr": 0.01})
    before = first.weight.detach().clone()
    training.step()
    assert not torch.equal(first.weight, before)
    assert same_bits(finished(capture), reference)


def test_a_fused_step_that_changes_one_row_is_no_reason_to_throw_a_save_away() -> None:
    """What a fused optimizer has stepped on is copied anew, though no counter and no sample tells of the one word."""
    table = nn.Embedding(2000, 32)

    def one_word(parts: Parts) -> None:
        parts["optimizer"].zero_grad()
        table(torch.tensor([7])).sum().backward()
        parts["optimizer"].step()

    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, fused=True)
    training = Training({"model": table, "optimizer": optimizer}, one_word)
    training.framework._hiding._choice.hides = lambda: True  # type: ignore[method-assign]
    training.step(2)
    for _ in range(3):
        capture, reference = training.save()
        training.step()
        assert same_bits(finished(capture), reference)


def test_fused_steps_count_as_changes() -> None:
    """Torch's fused kernels leave the version counters as they are; the weights are written all the same."""
    training = Training(mlp(fused=True))
    training.step(2)
    before = shown(training)
    training.step()
    after = shown(training)
    assert not [name for name in before if before[name] is after[name]]


class Unwrapped(torch.optim.SGD):
    """Its `step` is put in place after the first of its kind was made: torch has wrapped another one."""


def replaced_on_the_object() -> Parts:
    parts = mlp()
    parts["optimizer"].step = functools.partial(parts["optimizer"].step)
    return parts


def replaced_on_the_class() -> Parts:
    model = nn.Linear(WIDE, WIDE)
    optimizer = Unwrapped(model.parameters(), lr=0.1)
    Unwrapped.step = silent  # type: ignore[method-assign]
    return {"model": model, "optimizer": optimizer}


def silent(optimizer: Any, closure: Any = None) -> None:
    with torch.no_grad():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.data.sub_(parameter.grad, alpha=0.1)


def compiled() -> Parts:
    parts = mlp()
    parts["optimizer"].step = torch.compile(parts["optimizer"].step, backend="eager")
    return parts


def capturable() -> Parts:
    return mlp(capturable=True)


def compiled_outside(parts: Parts) -> None:
    parts["optimizer"].zero_grad()
    parts["model"](torch.randn(4, WIDE)).square().mean().backward()

    @torch.compile(backend="eager")
    def update() -> None:
        parts["optimizer"].step()

    update()


@pytest.mark.parametrize(
    ("make", "step", "why"),
    [
        (replaced_on_the_object, plain_step, "was replaced"),
        (replaced_on_the_class, plain_step, "was replaced"),
        (compiled, plain_step, "is compiled|was replaced"),
        (mlp, compiled_outside, "is compiled"),
        (capturable, lambda parts: None, "CUDA graph"),
        (mlp, lambda parts: None, "no step of AdamW has been heard"),
        (lambda: {"model": nn.Linear(WIDE, WIDE)}, lambda parts: None, "no optimizer"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_an_optimizer_that_cannot_be_heard_is_copied_at_once(
    make: Callable[[], Parts], step: Callable[[Parts], None], why: str
) -> None:
    """Nothing is left to a hook that may not be called, and the reason can be read."""
    training = Training(make(), step)
    training.step(3)
    for _ in range(3):
        capture, reference = training.save()
        training.step()
        assert capture.mode.startswith("copied at once: ")
        assert re.search(why, capture.mode)
        assert same_bits(finished(capture), reference)


def test_an_unheard_optimizer_is_never_thought_to_have_done_nothing() -> None:
    """Weights that a replaced step writes past their counters are saved each time."""
    training = Training(replaced_on_the_class())
    for _ in range(4):
        training.step()
        capture, reference = training.save()
        assert same_bits(finished(capture), reference)


def test_a_scheduler_does_not_make_an_optimizer_suspect() -> None:
    """Torch's schedulers put a counting wrapper around `step`; the hooks behind it are called."""
    training = Training(with_helpers(), helped_step)
    training.step(2)
    assert training.framework.capture(training.parts).mode == HIDDEN


def silently_clip(parts: Parts) -> None:
    parts["model"][0].weight.data.clamp_(-0.01, 0.01)


@pytest.mark.usefixtures("late_thread")
def test_a_users_hook_that_changes_weights_comes_after_the_copy() -> None:
    """Hooks that clip weights at the beginning of a step were registered earlier, and still wait."""
    parts = mlp()
    parts["optimizer"].register_step_pre_hook(lambda *step: silently_clip(parts))
    training = Training(parts)
    training.step(2)
    capture, reference = training.save()
    training.step()
    assert capture.mode == HIDDEN
    assert same_bits(finished(capture), reference)


@pytest.mark.usefixtures("late_thread")
def test_restoring_waits_for_the_copy() -> None:
    """Weights loaded right after a save, as for an evaluation of the best, are not what is saved."""
    training = Training(mlp())
    earlier = captured(TorchFramework(), training.parts)
    training.step(2)
    capture, reference = training.save()
    training.framework.restore({"model": training.parts["model"]}, {"model": earlier["model"]})
    assert same_bits(finished(capture), reference)


@pytest.mark.usefixtures("late_thread")
def test_the_end_of_a_run_waits_for_the_copy() -> None:
    """After the hooks are gone, the user's code may step as it likes."""
    training = Training(mlp())
    training.step(2)
    capture, reference = training.save()
    training.boundary.close()
    plain_step(training.parts)
    assert same_bits(finished(capture), reference)


@pytest.mark.usefixtures("late_thread")
def test_a_step_that_waited_says_how_long() -> None:
    """What the copy costs after the save is not hidden from the user."""
    training = Training(mlp())
    training.step(2)
    capture, _ = training.save()
    assert capture.waited == 0.0
    training.step()
    assert capture.waited > 0.0
    finished(capture)


def test_an_interrupt_while_a_step_waits_leaves_no_hole_in_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The piece of memory that was in hand is missed, and the snapshot thrown away."""
    training = Training(mlp())
    training.step(2)
    monkeypatch.setattr(moves._thread, "start_new_thread", lambda work, arguments: holds.append((work, arguments)))
    holds: list[Any] = []
    capture, _ = training.save()

    def interrupted(*memory: int) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(moves.ctypes, "memmove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.step()
    for work, arguments in holds:
        threading.Thread(target=work, args=arguments).start()
    with pytest.raises(Torn, match="interrupted"):
        capture.finish()
    training.step()
    again, reference = training.save()
    training.step()
    assert same_bits(finished(again), reference)


@pytest.mark.usefixtures("late_thread")
def test_workers_forked_while_the_copy_runs_live(tmp_path: Any) -> None:
    """A new epoch starts its loader's workers in the middle of a copy; they hold none of its locks."""
    training = Training(mlp())
    training.step(2)
    capture, reference = training.save()
    loader = torch.utils.data.DataLoader(
        list(torch.arange(8.0)), num_workers=2, multiprocessing_context="fork", timeout=60
    )
    assert [float(x) for x in loader] == list(range(8))
    training.step()
    assert same_bits(finished(capture), reference)


SCRIPT = """
import os, sys, threading, time, torch
from torch import nn
from colabkeep.frameworks.common import moves
from colabkeep.frameworks.torch.adapter import TorchFramework
model = nn.Linear(2000, 2000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
parts = {"model": model, "optimizer": optimizer}
framework = TorchFramework()
boundary = framework.boundary(parts)
def step():
    model(torch.randn(2, 2000)).sum().backward()
    optimizer.step()
    boundary.mark()
step()
really, trainer, slept = moves.ctypes.memmove, threading.get_ident(), []
def slow(*memory):  # the thread has its first piece in its hands for long
    if threading.get_ident() != trainer and not slept:
        slept.append(time.sleep(1))
    return really(*memory)
moves.ctypes.memmove = slow
capture = framework.capture(parts)
time.sleep(0.3)
assert capture.mode == "copied while the next step ran", capture.mode
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # as in a loader's worker: OpenMP's threads do not survive a fork
        optimizer.step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("way", ["exit", "fork"])
def test_a_process_that_ends_under_a_copy_ends_well(way: str) -> None:
    """Leaving the interpreter in the middle of a copy, or stepping in a forked child, neither hangs nor crashes."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, way]
    done = subprocess.run(command, timeout=120, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_staging_memory_is_touched_before_the_first_save() -> None:
    """The first save of a session does not wait for fresh memory."""
    training = Training(mlp())
    training.step()
    training.framework._warming._thread.join(60)  # type: ignore[union-attr]
    slots = list(training.framework._recorders.prepare(training.parts))
    assert len(slots) > 6  # the optimizer's too
    assert all(slot.touched for slot in slots)


def test_warming_leaves_alone_what_a_save_has_copied() -> None:
    """A save that comes before memory was touched, and before the first step, is not zeroed by that step's end."""
    training = Training(mlp())
    training.framework._warming.stop()
    for slot in training.framework._recorders.prepare(training.parts):
        slot.touched = False
    capture, reference = training.save()
    training.step()
    training.framework._warming._thread.join(60)  # type: ignore[union-attr]
    assert same_bits(finished(capture), reference)


@pytest.mark.usefixtures("late_thread")
@pytest.mark.parametrize("place", ["started", "told"])
def test_an_interrupted_save_leaves_nobody_writing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping the cell just after the copy began ends it: the next save has the memory to itself."""
    training = Training(mlp())
    training.framework._hiding._choice.hides = lambda: True  # type: ignore[method-assign]
    training.step(2)
    begun: list[Any] = []
    really = moves.Moves.start

    def interrupted(self: moves.Moves, *arguments: Any) -> None:
        really(self, *arguments)
        begun.append(self)
        if place == "started":
            raise KeyboardInterrupt

    def told(mode: str) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moves.Moves, "start", interrupted)
        patch.setattr(training.framework._memory, "told", told)
        with pytest.raises(KeyboardInterrupt):
            training.framework.capture(training.parts)
    assert begun[0]._over.is_set()
    training.step()
    capture, reference = training.save()
    training.step()
    assert same_bits(finished(capture), reference)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("hidden", [True, False])
def test_a_square_weight_that_was_transposed_is_saved_transposed(trained: bool, hidden: bool) -> None:
    """`weight.data = weight.data.t()` changes neither address nor shape nor counter, only the strides."""
    parts = mlp()
    layer = parts["model"][0] if trained else nn.Linear(WIDE, WIDE).requires_grad_(False)
    parts["layer"] = layer
    training = Training(parts)
    training.framework._hiding._choice.hides = lambda: hidden  # type: ignore[method-assign]
    training.step(2)
    finished(training.save()[0])
    for _ in range(2):
        before = layer.weight.detach().clone()
        layer.weight.data = layer.weight.data.t()
        capture, reference = training.save()
        training.step()
        trees = finished(capture)
        assert same_bits(trees, reference)
        assert torch.equal(native(trees["layer"])["weights"]["weight"], before.t())


ACTIONS = ("step", "save", "finish", "freeze", "group", *EDITS)


@given(actions=st.lists(st.sampled_from(ACTIONS), min_size=4, max_size=14), case=st.sampled_from(["foreach", "fused"]))
@settings(max_examples=40, deadline=None)
def test_no_order_of_events_gives_a_checkpoint_of_another_moment(actions: list[str], case: str) -> None:
    """Steps, saves, edits by hand and freezing in any order: a save has the state of its moment, or is torn."""
    training = Training(CASES[case][0]())
    training.step(2)
    under_way: tuple[Any, Any] | None = None
    for action in (*actions, "finish"):
        if action == "step":
            training.step()
        elif action == "save" and under_way is None:
            under_way = training.save()
        elif action == "finish" and under_way is not None:
            with suppress(Torn):
                assert same_bits(finished(under_way[0]), under_way[1])
            under_way = None
        elif action == "freeze":
            weight = training.parts["model"][3].weight
            weight.requires_grad_(not weight.requires_grad)
        elif action == "group":
            extra = [nn.Parameter(torch.ones(WIDE, WIDE))]
            training.parts["optimizer"].add_param_group({"params": extra})
        elif action in EDITS:
            EDITS[action](training.parts)


def shown(training: Training) -> dict[str, HostTensor]:
    snapshot = training.framework.capture(training.parts).finish()
    weights = {name: tensors_of(leaf)[0] for name, leaf in snapshot.parts["model"]["weights"].items()}
    snapshot.release()
    return weights
