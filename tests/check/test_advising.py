"""The lines of advice: each when it is due, and not when it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colabkeep.hardware.base import Accelerator
from colabkeep.hardware.probe import ProbeResult
from colabkeep.platforms.base import DefaultStorage
from colabkeep.platforms.lifetime import SessionTime
from colabkeep.ui.check.advice import advise

from .conftest import P100, T4, build, gpu

GIB = 2**30
OLD = build("2.6.0+cu124", ("sm_60", "sm_75"))
A100 = gpu("NVIDIA A100-SXM4-40GB", (8, 0))
BIG = build("2.10.0+cu128", ("sm_75", "sm_80"))


def codes(facts):
    return [line.code for line in advise(facts)]


def text(facts, code):
    (line,) = [line for line in advise(facts) if line.code == code]
    return line.text


def home(persists, remedy=""):
    return DefaultStorage(storage="/x", folder="/x", persists=persists, reason="Because of this.", remedy=remedy)


def time_left(seconds):
    return SessionTime(used_seconds=0, limit_seconds=9e9, left_seconds=seconds, confidence="high", source="")


@pytest.mark.parametrize(
    ("card", "torch", "code"),
    [(T4, OLD, "precision-fp16"), (A100, BIG, "precision-bf16"), (P100, OLD, "precision-fp32")],
    ids=["T4", "A100", "P100"],
)
def test_each_card_has_its_precision(session, card, torch, code):
    """fp16 on Turing, bf16 from Ampere on, fp32 on Pascal; exactly one of them."""
    assert [told for told in codes(session("script", card, torch=torch)) if told.startswith("precision")] == [code]


def test_emulated_bf16_is_warned_of_where_it_is_emulated(session):
    """torch says that a T4 supports bf16; an A100 does."""
    assert "is_bf16_supported" in text(session("script", T4, torch=OLD), "bf16-emulated")
    assert "bf16-emulated" not in codes(session("script", A100, torch=BIG))


def test_the_first_cell_for_the_same_bits_is_told_before_cuda_wakes(session):
    """Where there is a GPU to compute on, in the words of the framework that will train; not once it is done."""
    assert "CUBLAS_WORKSPACE_CONFIG" in text(session("script", T4, torch=OLD), "same-bits")
    assert "paddle.set_flags" in text(session("script", T4, torch=replace(OLD, framework="paddle")), "same-bits")
    assert "same-bits" not in codes(session("script", T4, torch=OLD, deterministic=True))
    assert "same-bits" not in codes(session("script", torch=OLD))


def test_a_card_that_cannot_be_used_gets_no_precision(session):
    """Without kernels no precision helps."""
    assert not any(code.startswith(("precision", "bf16")) for code in codes(session("kaggle", P100)))


def test_a_second_gpu_left_idle_is_told(session):
    """Two T4s: one trains; the line to put the other to use is given."""
    told = text(session("kaggle", T4, T4), "second-gpu-idle")
    assert "cuda:1" in told
    assert told.startswith('Tesla T4 x2: resumable_fit(…, devices="auto") trains on both, without it on one.')
    told = text(session("kaggle", T4, T4, T4), "second-gpu-idle")
    assert 'devices="auto") trains on all of them' in told
    assert "second-gpu-idle" not in codes(session("kaggle", T4))
    assert "gpus-differ" not in codes(session("kaggle", T4, T4))


def test_only_a_gpu_that_can_compute_is_one_left_idle(session):
    """A P100 without kernels is no place for an experiment; of the others, the next one is named by its own number."""
    assert "second-gpu-idle" not in codes(session("kaggle", T4, P100))
    told = text(session("kaggle", T4, P100, T4), "second-gpu-idle")
    assert told.startswith("2 GPUs")
    assert "DataParallel" not in told, "it would take the P100 along"
    assert '"cuda:2"' in told


def test_a_card_that_failed_its_trial_is_neither_idle_nor_in_doubt(session):
    """What a computation on it showed is known: no experiment is sent there, and no trial is offered again."""
    facts = session("kaggle", T4, T4, torch=build("2.12.0a0+cu130", None))
    first, second = facts.devices
    assert "second-gpu-idle" in codes(facts)
    assert "kernels-unknown" in codes(facts)
    assert "second-gpu-idle" not in codes(replace(facts, devices=(first, replace(second, works=False))))
    assert "kernels-unknown" not in codes(replace(facts, devices=(replace(first, works=False),)))


def test_slices_of_one_card_are_no_second_gpu(session):
    """CUDA shows a process one slice, whatever their number: there is no cuda:1."""
    slices = [gpu("NVIDIA A100-SXM4-40GB MIG 3g.20gb", (8, 0))] * 2
    assert "second-gpu-idle" not in codes(session("script", *slices, torch=BIG))


def test_memory_used_by_others_is_told(session):
    """How much and by whom, as far as that can be seen: a loaded framework may be the one that uses it."""
    used = gpu(memory_bytes=16 * GIB, used_bytes=3 * GIB)
    assert "3.0 GiB of 16.0 GiB" in text(session("colab", used), "memory-in-use")
    assert "outside this kernel" in text(session("colab", used), "memory-in-use")
    assert "by this kernel or another" in text(session("colab", used, in_use=True), "memory-in-use")
    ours, others = (
        [line.warns for line in advise(session("colab", used, in_use=own)) if line.code == "memory-in-use"]
        for own in (True, False)
    )
    assert (ours, others) == ([False], [True]), "what this notebook allocated itself is no warning"
    for little in (None, 0, 300 * 2**20):
        assert "memory-in-use" not in codes(session("colab", gpu(memory_bytes=16 * GIB, used_bytes=little)))


def test_what_is_not_known_of_the_build_can_be_tried(session):
    """A build nobody published: a trial is offered; one that said nothing is told."""
    unknown = build("2.12.0a0+cu130", None)
    assert "probe=True" in text(session("script", T4, torch=unknown), "kernels-unknown")
    tried = ProbeResult(works=None, detail="It hung.")
    assert "It hung." in text(session("script", T4, torch=unknown, probe=tried), "kernels-unknown")
    assert "kernels-unknown" not in codes(session("script", T4))


def test_a_machine_without_a_framework_is_told_what_to_install(session):
    """Nothing can train here yet."""
    assert "pip install torch" in text(session("script", T4, torch=None), "no-framework")
    untold = ("the installed torch (no answer in time)",)
    assert "no-framework" not in codes(session("script", T4, torch=None, unanswered=untold))


def test_loader_workers_go_by_the_cpus(session):
    """As many as there are CPUs for, and none for tensors in memory."""
    assert "num_workers=2" in text(session("colab", T4, cpus=2, workers=2), "loader-workers")
    assert "For 1 CPU use" in text(session("colab", T4, cpus=1, workers=1), "loader-workers")


@pytest.mark.parametrize(
    ("persists", "code"), [(False, "storage-not-persistent"), (None, "storage-unproven"), (True, None)]
)
def test_storage_that_may_vanish_is_told(session, persists, code):
    """With the reason and the remedy of the platform, word for word."""
    facts = session("colab", T4, home=home(persists, "Do that."))
    told = [line for line in advise(facts) if line.code.startswith("storage")]
    assert [line.code for line in told] == ([] if code is None else [code])
    assert all((line.text, line.warns) == ("Because of this. Do that.", True) for line in told)


def test_a_disk_that_is_nearly_full_is_told(session):
    """Before the first save fails, not after."""
    assert "0.5 GiB" in text(session("colab", T4, free_bytes=GIB // 2), "storage-nearly-full")
    assert "storage-nearly-full" not in codes(session("colab", T4, free_bytes=50 * GIB))


@pytest.mark.parametrize(("left", "minutes"), [(600.0, "10 min"), (0.0, "0 min"), (-5.0, "0 min")])
def test_a_session_that_is_nearly_over_is_told(session, left, minutes):
    """With what is left at most."""
    assert minutes in text(session("colab", T4, session=time_left(left)), "session-nearly-over")


@pytest.mark.parametrize("left", [None, 7200.0])
def test_a_session_with_time_left_is_left_alone(session, left):
    """And so is one of which nothing is known."""
    assert "session-nearly-over" not in codes(session("colab", T4, session=time_left(left)))


def test_other_accelerators_get_no_advice_for_gpus(session):
    """A TPU has neither a second GPU nor bf16 to beware of."""
    tpu = Accelerator(kind="tpu", name="TPU v5 lite")
    assert codes(session("kaggle", tpu, tpu)) == []
