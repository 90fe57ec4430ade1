"""A save or a look at the state inside `torch.inference_mode()`, as a validation does that saves."""

from __future__ import annotations

import pytest
import torch

from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, same_bits
from tests.frameworks.torch.state.trainings import Training, finished, mlp


def test_a_first_save_in_inference_mode_spoils_no_later_one() -> None:
    """Memory that is made there is written to afterwards, which torch forbids for what inference mode made."""
    training = Training(
        {**mlp(), "rng": TorchFramework().rng(), "average": torch.optim.swa_utils.AveragedModel(mlp()["model"])}
    )
    for inside in (True, False, True, False):
        training.step(2)
        reference = captured(TorchFramework(), training.parts)
        with torch.inference_mode(inside):
            capture = training.framework.capture(training.parts)
        training.step()
        assert same_bits(finished(capture), reference)


def test_a_run_that_begins_in_inference_mode_can_save_and_rewind() -> None:
    """What is made ready at the beginning can be written to as well."""
    parts = mlp()
    with torch.inference_mode():
        training = Training(parts)
        training.framework.rehearse(parts).finish().release()
    training.step(2)
    parts["model"][1].running_mean.fill_(7)
    training.boundary.rewind()
    assert not parts["model"][1].running_mean.eq(7).any()
    capture, reference = training.save()
    assert same_bits(finished(capture), reference)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_save_leaves_the_callers_mode_as_it_was(gradients: bool) -> None:
    """Gradients are on or off afterwards as before, and inference mode is still on."""
    training = Training(mlp())
    with torch.inference_mode(), torch.set_grad_enabled(gradients):
        finished(training.framework.capture(training.parts))
        assert (torch.is_inference_mode_enabled(), torch.is_grad_enabled()) == (True, gradients)
