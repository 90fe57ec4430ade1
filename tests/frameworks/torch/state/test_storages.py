"""Memory that is taken from under a weight while a save copies it."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from colabkeep.frameworks.torch.state.storages import Reading
from colabkeep.testing.frameworks import same_bits
from colabkeep.vocabulary.errors import NotStorable
from colabkeep.vocabulary.state import Torn
from tests.frameworks.torch.state.trainings import HIDDEN, Training, finished, mlp

METHODS = ("resize_", "_share_fd_cpu_", "_share_filename_cpu_")


def grown(weight: torch.Tensor) -> None:
    weight.untyped_storage().resize_(2 * weight.nbytes)


def given_back(weight: torch.Tensor) -> None:
    kept = weight.detach().clone()
    weight.untyped_storage().resize_(0)
    weight.untyped_storage().resize_(kept.nbytes)
    weight.data.copy_(kept)


def sent(weight: torch.Tensor) -> None:
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    queue.put(weight.detach())
    queue.get()


TAKINGS: dict[str, Callable[[torch.Tensor], object]] = {
    "grown": grown,
    "given back, as FSDP does": given_back,
    "shared": torch.Tensor.share_memory_,
    "sent to another process": sent,
}


@pytest.mark.usefixtures("late_thread")
@pytest.mark.parametrize("way", TAKINGS)
@pytest.mark.parametrize("place", ["weight", "moment", "frozen"])
def test_memory_stays_until_the_copy_has_read_it(way: str, place: str) -> None:
    """Whoever gives a weight other memory waits for the copy; the checkpoint is that of the save."""
    parts = mlp()
    weight = parts["model"][0].weight
    if place == "frozen":
        weight.requires_grad_(False)
    training = Training(parts)
    training.framework._hiding._choice.hides = lambda: True  # type: ignore[method-assign]
    training.step(2)
    finished(training.save()[0])
    training.step()
    capture, reference = training.save()
    assert capture.mode == HIDDEN
    TAKINGS[way](parts["optimizer"].state[weight]["exp_avg"] if place == "moment" else weight)
    training.step()
    assert same_bits(finished(capture), reference)
    capture, reference = training.save()
    training.step()
    assert same_bits(finished(capture), reference)


@pytest.mark.usefixtures("late_thread")
def test_memory_that_went_past_every_watch_is_noticed() -> None:
    """Torch's own C++ may give a storage other memory unheard; then the save is thrown away."""
    parts = mlp()
    weight = parts["model"][0].weight
    kept = weight.detach().numpy().copy()  # its memory stays, so that what the copy reads is there
    weight.data = torch.from_numpy(kept)
    training = Training(parts)
    training.step(2)
    capture, _ = training.save()
    torch._C.StorageBase._share_fd_cpu_(weight.untyped_storage())
    with pytest.raises(Torn, match=r"model\.0\.weight"):
        capture.finish()


def test_torch_is_left_as_it_was() -> None:
    """Its storages wait only while something is read, for every reader, and are themselves again afterwards."""
    before = [vars(torch.UntypedStorage).get(name) for name in METHODS]
    calls: list[str] = []
    one, two = Reading(lambda: calls.append("one")), Reading(lambda: calls.append("two"))
    one.begin()
    two.begin()
    torch.zeros(1).untyped_storage().resize_(8)
    one.end()
    torch.zeros(1).share_memory_()
    assert calls == ["one", "two", "two"]
    two.end()
    two.end()
    torch.zeros(1).untyped_storage().resize_(8)
    assert calls == ["one", "two", "two"]
    assert [vars(torch.UntypedStorage).get(name) for name in METHODS] == before


def test_a_finished_save_leaves_torch_as_it_was() -> None:
    """Also one that was thrown away."""
    before = [vars(torch.UntypedStorage).get(name) for name in METHODS]
    training = Training(mlp())
    training.step(2)
    capture, _ = training.save()
    training.parts["model"][0].weight.detach().add_(1)
    with suppress(Torn):
        finished(capture)
    assert [vars(torch.UntypedStorage).get(name) for name in METHODS] == before


@pytest.mark.usefixtures("late_thread")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows forks nothing")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python's own, on forks beside threads
def test_a_forked_process_shares_memory_without_waiting() -> None:
    """The workers of a data loader have no copying thread to wait for."""
    training = Training(mlp())
    training.step(2)
    capture, reference = training.save()
    child = os.fork()
    if not child:
        torch.zeros(3).share_memory_()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert same_bits(finished(capture), reference)


@pytest.mark.usefixtures("late_thread")
def test_another_thread_may_send_weights_away() -> None:
    """An actor's thread waits for the copy as the training does, and hurts nobody."""
    training = Training(mlp())
    training.step(2)
    capture, reference = training.save()
    other: Any = threading.Thread(target=training.parts["model"].share_memory)
    other.start()
    other.join()  # a step meanwhile would compute on memory that goes away: no fault of the copy's
    training.step()
    assert same_bits(finished(capture), reference)


def test_weights_without_memory_are_refused() -> None:
    """What offloading took away cannot be saved, and is not read: the process would end."""
    training = Training(mlp())
    training.step(2)
    finished(training.save()[0])
    weight = training.parts["model"][0].weight
    weight.untyped_storage().resize_(0)
    with pytest.raises(NotStorable, match=r"model\.0\.weight has no memory") as refusal:
        training.framework.capture(training.parts)
    assert "without offloading" in refusal.value.remedy


def resident(parts: dict[str, Any]) -> list[weakref.ref[torch.UntypedStorage]]:
    return [weakref.ref(tensor.untyped_storage()) for tensor in parts["model"].parameters()]


@pytest.mark.parametrize("held", [True, False])
def test_memory_that_the_user_lets_go_of_after_a_save_is_free_at_once(held: bool) -> None:
    """`model.bfloat16()` gives back the memory of the weights, though colabkeep saved from it; also after a save that
    was thrown away."""
    training = Training(mlp())
    training.framework._hiding._choice.hides = lambda: True  # type: ignore[method-assign]
    for _ in range(2):
        training.step(2)
        capture, _ = training.save()
        if not held:
            training.parts["model"][0].weight.data.add_(1)
        training.step()
        with suppress(Torn):
            finished(capture)
    before = resident(training.parts)
    training.parts["model"].bfloat16()
    gc.collect()
    assert not [storage for storage in before if storage() is not None]
