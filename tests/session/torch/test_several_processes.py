"""Several real processes of torch.distributed (gloo) train one run: killed and stopped anywhere, the same bits; with
another number of them, the same batches, steps and learning rates, and the same weights up to rounding."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import colabkeep
from tests.trainings.ranks import newest_step, session

IN_BOTH = pytest.mark.parametrize("fit", [True, False], ids=["resumable_fit", "Run"])


@pytest.mark.parametrize(
    ("fit", "killed"),
    [(True, 0), (False, 1), *(pytest.param(*each, marks=pytest.mark.long) for each in ((True, 1), (False, 0)))],
)
def test_a_rank_that_is_killed_ends_the_others_and_the_run_goes_on_with_the_same_bits(
    tmp_path: Path, fit: bool, killed: int
) -> None:
    """With dropout, BatchNorm and a data set that draws, each rank with random streams of its own."""
    words = {"fit": fit, "draws": True, "accumulate": 2 if fit else 1}
    whole = session(tmp_path / "whole", 2, **words)
    assert whole.status == [0, 0], whole.errors
    broken = session(tmp_path / "broken", 2, **words, at=[killed, 8], how="SIGKILL")
    assert broken.status[killed] == -signal.SIGKILL
    assert broken.status[1 - killed] > 0, "the other one heard of it"
    resumed = session(tmp_path / "broken", 2, **words)
    assert resumed.status == [0, 0], resumed.errors
    assert resumed.resumed
    assert not resumed.reasons()
    assert resumed.end == whole.end


def test_buffers_that_validation_moves_are_those_of_rank_0_where_an_epoch_ends(tmp_path: Path) -> None:
    """Each process validates on its part: what it notes of that would count in the next step, not after a resume."""
    words: dict[str, Any] = {"fit": True, "ranges": True, "more": {"save_every": "1 epoch"}}
    whole = session(tmp_path / "whole", 2, **words)
    assert session(tmp_path / "run", 2, **words, at=[1, 9], how="SIGKILL").status[1] == -signal.SIGKILL
    assert newest_step(tmp_path / "run") == 7
    resumed = session(tmp_path / "run", 2, **words)
    assert resumed.resumed
    assert resumed.end == whole.end


def test_buffers_of_all_kinds_are_those_of_rank_0(tmp_path: Path) -> None:
    """Types that gloo does not know, and what `expand` shows several times; a sparse one is nobody's to change."""
    done = session(tmp_path / "run", 2, fit=True, kinds=True, more={"max_time": 0.001})
    assert done.status == [0, 0], done.errors
    first, second = ([value for kind, value in told if kind == "Buffers"] for told in done.told)
    assert len(first) == 1
    assert second == first


def test_another_number_of_processes_is_promised_no_batches_that_the_loop_reads_by_itself(tmp_path: Path) -> None:
    """As with a DistributedSampler, or batches drawn at random places: their number may be that of the processes."""
    words: dict[str, Any] = {"beside": True, "sampler": True, "more": {"save_every": 1}}
    assert session(tmp_path / "run", 2, **words, at=[0, 5], how="SIGKILL").status[0] == -signal.SIGKILL
    other = session(tmp_path / "run", 3, **words)
    assert other.status == [0, 0, 0], other.errors
    (reason,) = other.reasons()
    assert "2 process(es) trained this run, and now 3. This loop reads its data without colabkeep" in reason


@IN_BOTH
def test_another_number_of_processes_goes_on_with_the_same_batches_and_weights_up_to_rounding(
    tmp_path: Path, fit: bool
) -> None:
    """1 → 2 → 3 → 1, killed three times, against one process alone; in float64 nothing but rounding is left. The last
    batch of an epoch has one sample, so that a rank of several has none of its own."""
    words = {"fit": fit, "dtype": "float64"}
    alone = session(tmp_path / "alone", 1, **words)
    assert alone.status == [0], alone.errors
    chain = [session(tmp_path / "chain", size, **words, at=[0, 8], how="SIGKILL") for size in (1, 2, 3)]
    assert [each.resumed for each in chain] == [False, True, True]
    last = session(tmp_path / "chain", 1, **words)
    assert last.status == [0], last.errors
    assert "3 process(es) trained this run, and now 1" in last.reasons()[0]
    assert last.end["step"] == alone.end["step"] == 21
    assert last.end["rates"] == alone.end["rates"]
    assert last.end["weights"] == pytest.approx(alone.end["weights"], rel=0, abs=1e-10)
    if fit:
        for ours, theirs in zip(last.end["history"], alone.end["history"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(
    "split", [pytest.param(True, marks=pytest.mark.long), False], ids=["split_batches", "own batches"]
)
def test_a_loader_that_accelerate_shares_out_goes_on_with_the_same_bits(tmp_path: Path, split: bool) -> None:
    """Its batches of all processes are one batch. With split_batches=True that is as large in one process."""
    words: dict[str, Any] = {"accelerate": "split" if split else "own", "samples": 64, "dtype": "float64"}
    whole = session(tmp_path / "whole", 2, **words)
    assert whole.status == [0, 0], whole.errors
    by_step = _seen(tmp_path / "whole")
    steps = 8 if split else 4
    assert list(by_step) == list(range(3 * steps))
    assert {len(indices) for indices in by_step.values()} == {64 // steps}
    for epoch in range(3):
        seen = [index for step in range(steps * epoch, steps * epoch + steps) for index in by_step[step]]
        assert sorted(seen) == list(range(64))
    assert session(tmp_path / "run", 2, **words, at=[1, 5], how="SIGKILL").status[1] == -signal.SIGKILL
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    resumed = session(tmp_path / "run", 2, **words)
    assert resumed.resumed
    assert not resumed.reasons()
    assert resumed.end == whole.end
    alone = session(tmp_path / "other", 1, **words)
    if split:
        assert alone.resumed
        assert alone.end["weights"] == pytest.approx(whole.end["weights"], rel=0, abs=1e-10)
    else:
        assert "batch size 16 → 8 in the middle of an epoch" in alone.errors[0]


def test_each_sample_is_seen_once_in_an_epoch_by_all_ranks_together(tmp_path: Path) -> None:
    """But for the one that a rank without a sample of its own computes beside the others, with the weight 0."""
    done = session(tmp_path / "run", 2, samples=48)
    assert done.status == [0, 0], done.errors
    by_step = _seen(tmp_path / "run")
    assert len(by_step) == 18
    assert all(len(indices) == 8 for indices in by_step.values())
    for epoch in range(3):
        seen = Counter(index for step in range(6 * epoch, 6 * epoch + 6) for index in by_step[step])
        assert seen == Counter(range(48))


def test_tokens_are_those_of_all_ranks_together(tmp_path: Path) -> None:
    """A sample that a rank computes beside the others, with the weight 0, is counted once."""
    done = session(tmp_path / "run", 2, fit=True, tokens=True)  # the last of 49 samples is a batch
    assert done.status == [0, 0], done.errors
    assert done.end["tokens"] == [6 * (49 * epoch + min(8 * step, 49)) for epoch in range(3) for step in range(1, 8)]


@pytest.mark.parametrize(
    ("fit", "how"),
    [
        (True, "SIGINT"),
        (False, "SIGTERM"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((True, "SIGTERM"), (False, "SIGINT"))),
    ],
)
def test_a_stop_that_one_rank_hears_of_stops_all_with_the_last_step_saved(tmp_path: Path, fit: bool, how: str) -> None:
    """Nobody waits for somebody who has left."""
    words = {"fit": fit, "draws": True}
    whole = session(tmp_path / "whole", 2, **words)
    stopped = session(tmp_path / "stopped", 2, **words, at=[1, 11], how=how)
    assert stopped.status == ([143, 143] if how == "SIGTERM" else [-2, -2]), stopped.errors
    # In resumable_fit they talk where a save may be due, as it is here every third step, or half a second later.
    assert newest_step(tmp_path / "stopped") in ((11, 12) if fit else (11,))
    resumed = session(tmp_path / "stopped", 2, **words)
    assert resumed.end == whole.end
    assert not resumed.reasons()


def test_max_time_ends_all_with_the_last_step_saved(tmp_path: Path) -> None:
    """Each has a clock of its own, and all leave at the same step."""
    done = session(tmp_path / "run", 2, more={"max_time": 0.001})
    assert done.status == [0, 0], done.errors
    ends = [value for told in done.told for kind, value in told if kind == "End"]
    assert [end["step"] for end in ends] == [1, 1]
    assert ends[0]["stopped"] == "max_time"
    assert session(tmp_path / "run", 2).end["step"] == 21


def test_an_error_of_one_rank_is_its_own_and_the_last_checkpoint_stands(tmp_path: Path) -> None:
    """The other one ends, too; nothing that only one of them knows is saved."""
    whole = session(tmp_path / "whole", 2)
    broken = session(tmp_path / "run", 2, at=[1, 8], how="error")
    assert broken.status == [1, 1]
    assert "ValueError: on purpose" in broken.errors[1]
    assert 3 <= newest_step(tmp_path / "run") < 8
    assert session(tmp_path / "run", 2).end == whole.end


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_begin_is_named_in_the_others(tmp_path: Path, rank: int) -> None:
    """One has a buffer more than the run: nothing is trained."""
    words: dict[str, Any] = {"fit": True}
    assert session(tmp_path / "run", 2, **words, at=[0, 8], how="SIGKILL").status[0] == -signal.SIGKILL
    done = session(tmp_path / "run", 2, **words, wrong=rank)
    assert done.status == [1, 1]
    assert "does not fit what was passed" in done.errors[rank]
    named = "Rank 0 could not begin this run: The run 'r' does not fit" if rank == 0 else "rank 1 could not begin"
    assert named in done.errors[1 - rank]


def test_a_run_of_several_processes_is_one_for_every_tool(tmp_path: Path) -> None:
    """Weights are whole, and the checkpoint says how many processes made it."""
    assert session(tmp_path / "run", 2, fit=True).status == [0, 0]
    weights = colabkeep.load_weights("r", storage=tmp_path / "run")
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()}["0.weight"] == (12, 6)
    manifest = max((tmp_path / "run" / "r" / "checkpoints").glob("*.json")).read_text()
    assert json.loads(manifest)["fingerprint"]["processes"] == "2"


def test_what_would_train_another_run_is_refused(tmp_path: Path) -> None:
    """A DistributedSampler shares the samples out already."""
    done = session(tmp_path / "run", 2, sampler=True)
    assert done.status == [1, 1]
    assert all("has a DistributedSampler" in errors for errors in done.errors)
    assert all("DataLoader(dataset, batch_size=16, shuffle=True)" in errors for errors in done.errors)


def test_a_single_sample_for_batchnorm_is_told_with_what_to_do(tmp_path: Path) -> None:
    """As the last batch of an epoch may leave it to a process."""
    done = session(tmp_path / "run", 2, fit=True, norm=True, samples=10)
    assert done.status == [1, 1]
    assert all("has a single sample of this one. BatchNorm needs two" in errors for errors in done.errors)
    assert all("DataLoader(…, drop_last=True)" in errors for errors in done.errors)


def test_a_batch_that_cannot_be_shared_is_refused_in_words_of_several_processes(tmp_path: Path) -> None:
    """A graph's edges are not along the samples. Nobody wrote micro_batch."""
    done = session(tmp_path / "run", 2, fit=True, graph=True)
    assert done.status == [1, 1]
    assert all("share each batch along its samples" in errors for errors in done.errors)
    assert all("an array of shape (2, 24) in a batch of 8 samples" in errors for errors in done.errors)
    assert not any("micro_batch" in errors.rpartition("Error:")[2] for errors in done.errors)


@pytest.mark.parametrize("fit", [True, pytest.param(False, marks=pytest.mark.long)], ids=["resumable_fit", "Run"])
def test_several_machines_are_refused(tmp_path: Path, fit: bool) -> None:
    """In all processes, before anything is written."""
    done = session(tmp_path / "run", 3, fit=fit, elsewhere=2)
    assert done.status == [1, 1, 1]
    assert all("3 processes of this training are on several machines" in errors for errors in done.errors)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fit", [True, False], ids=["resumable_fit", "Run"])
def test_stages_of_a_pipeline_are_refused_at_the_start(tmp_path: Path, fit: bool) -> None:
    """In all processes: a checkpoint would have the first stage alone."""
    done = session(tmp_path / "run", 2, fit=fit, apart=True, stage=1)
    assert done.status == [1, 1]
    assert all("2 processes of this training have different models" in errors for errors in done.errors)
    assert not (tmp_path / "run").exists()


def test_processes_that_train_together_begin_no_others(tmp_path: Path) -> None:
    """However they were begun: the group tells it."""
    done = session(tmp_path / "run", 2, fit=True, more={"devices": 2})
    assert done.status == [1, 1]
    assert all("this program is one of 2 processes already" in errors for errors in done.errors)
    assert not (tmp_path / "run").exists()


def test_processes_with_weights_of_their_own_are_refused(tmp_path: Path) -> None:
    """At the first save, in all processes: those of the others would be in no checkpoint."""
    done = session(tmp_path / "run", 2, apart=True)
    assert done.status == [1, 1]
    assert all("2 processes of this training hold different weights" in errors for errors in done.errors)
    assert not list((tmp_path / "run").glob("r/checkpoints/*"))


def test_weights_that_become_others_after_a_resume_are_refused(tmp_path: Path) -> None:
    """The wrapper was lost on the way: what had been saved before stays as it is. Only a checkpoint that the killed
    session was about to delete may be gone: it was killed between a commit and the pruning behind it."""
    assert session(tmp_path / "run", 2, at=[0, 12], how="SIGKILL").status[0] == -signal.SIGKILL
    kept = sorted((tmp_path / "run").glob("r/checkpoints/[!.]*"))
    done = session(tmp_path / "run", 2, apart=True)
    assert done.resumed
    assert done.status == [1, 1]
    assert all("2 processes of this training hold different weights" in errors for errors in done.errors)
    after = sorted((tmp_path / "run").glob("r/checkpoints/[!.]*"))
    assert after in (kept, kept[-2:])  # as many are kept by default
    assert after != []


@pytest.mark.parametrize(("fit", "changes"), [(True, "rate"), (False, "weights")])
def test_a_callback_that_changes_the_training_in_rank_0_is_refused(tmp_path: Path, fit: bool, changes: str) -> None:
    """At the end of the epoch in which it did, before a step is done with that; what was saved before stands. That is
    step 3 where the machine was so slow that its save was not over at step 6."""
    done = session(tmp_path / "run", 2, fit=fit, changes=changes)
    assert done.status == [1, 1]
    assert all("no longer train alike" in errors for errors in done.errors)
    assert all("callbacks=[…] are called in rank 0 only" in errors for errors in done.errors)
    assert newest_step(tmp_path / "run") in (3, 6)


@pytest.mark.parametrize(
    "loss", [*(pytest.param(each, marks=pytest.mark.long) for each in ("mean", "contrastive")), "sum", "drawn"]
)
def test_a_loss_that_depends_on_the_parts_of_a_batch_is_told_where_a_run_begins(tmp_path: Path, loss: str) -> None:
    """And to have tried that changes no bit, also where the loss itself draws."""
    whole = session(tmp_path / "whole", 2, fit=True, loss=loss)
    told = [text for kind, text in whole.told[0] if kind == "Noted" and "not the mean of the losses of its" in text]
    assert len(told) == (loss != "mean")
    assert session(tmp_path / "run", 2, fit=True, loss=loss, at=[0, 12], how="SIGKILL").status[0] == -signal.SIGKILL
    resumed = session(tmp_path / "run", 2, fit=True, loss=loss)
    assert resumed.resumed
    assert resumed.end == whole.end
    assert not any("not the mean of the losses" in str(each) for each in resumed.told[0])


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.long), 2])
def test_micro_batches_are_pieces_of_what_each_process_has(tmp_path: Path, accumulate: int) -> None:
    """Two at a time of the four, or fewer, that a process has of a batch: the weights of whole ones, up to rounding."""
    words: dict[str, Any] = {"fit": True, "dtype": "float64", "accumulate": accumulate}
    whole, alone = session(tmp_path / "whole", 2, **words), session(tmp_path / "alone", 1, **words)
    pieces = session(tmp_path / "pieces", 2, **words, more={"micro_batch": 2})
    assert pieces.status == [0, 0], pieces.errors
    assert whole.end["weights"] == pytest.approx(alone.end["weights"], rel=0, abs=1e-10)
    assert pieces.end["weights"] == pytest.approx(whole.end["weights"], rel=0, abs=1e-10)
    for ours, theirs in zip(pieces.end["history"], whole.end["history"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)
    said = [value for kind, value in pieces.told[0] if kind == "Noted" and "2 processes share each batch" in value]
    assert said == [
        "2 processes share each batch: 4 samples for each. micro_batch=2: 2 of the 4 samples of a batch are computed "
        "at a time; the result is that of batches of 4 up to rounding."
    ]
    assert session(tmp_path / "run", 2, **words, more={"micro_batch": 2}, at=[1, 5], how="SIGKILL").status[1] < 0
    assert session(tmp_path / "run", 2, **words, more={"micro_batch": 2}).end == pieces.end


@pytest.mark.parametrize("small", [pytest.param(0, marks=pytest.mark.long), 1])
def test_memory_that_runs_out_in_one_process_makes_the_pieces_of_all_smaller(tmp_path: Path, small: int) -> None:
    """From the next step on; so a session that goes on, and begins with what rank 0 saved, rounds as this one did."""
    words: dict[str, Any] = {"fit": True, "draws": True, "samples": 48, "more": {"micro_batch": "auto"}}
    whole = session(tmp_path / "whole", 2, **words, memory=[small, 2, 6])
    assert whole.status == [0, 0], whole.errors
    text = "\n".join(value for kind, value in whole.told[0] if kind == "Noted")
    mine, theirs = "Step 7: 4 samples at a time did not fit", "Step 8: another process has no memory for more than 2"
    assert ((mine in text), (theirs in text)) == ((True, False) if small == 0 else (False, True))
    broken = session(tmp_path / "run", 2, **words, memory=[small, 2, 6], at=[0, 12], how="SIGKILL")
    assert broken.status[0] == -signal.SIGKILL
    resumed = session(tmp_path / "run", 2, **words, memory=[small, 2, 0])
    assert resumed.resumed
    assert resumed.end["digest"] == whole.end["digest"]


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_batches_that_come_whole_are_cut_in_each_process(tmp_path: Path, kind: str) -> None:
    """A list of batches, and a stream whose length nobody knows: killed, the same bits; alone, up to rounding."""
    words = {"kind": kind, "dtype": "float64"}
    whole = session(tmp_path / "whole", 2, **words)
    assert whole.status == [0, 0], whole.errors
    assert session(tmp_path / "run", 2, **words, at=[1, 12], how="SIGKILL").status[1] == -signal.SIGKILL
    resumed = session(tmp_path / "run", 2, **words)
    assert resumed.resumed
    assert resumed.end == whole.end
    alone = session(tmp_path / "alone", 1, **words)
    assert alone.end["step"] == whole.end["step"]
    assert whole.end["weights"] == pytest.approx(alone.end["weights"], rel=0, abs=1e-10)


def test_a_loop_of_steps_draws_its_part_of_each_batch(tmp_path: Path) -> None:
    """`run.steps` with `run.next`: killed, the same bits; alone, up to rounding."""
    words = {"steps": 20, "dtype": "float64"}
    whole, alone = session(tmp_path / "whole", 2, **words), session(tmp_path / "alone", 1, **words)
    assert session(tmp_path / "run", 2, **words, at=[0, 12], how="SIGKILL").status[0] == -signal.SIGKILL
    resumed = session(tmp_path / "run", 2, **words)
    assert resumed.resumed
    assert resumed.end == whole.end
    assert whole.end["weights"] == pytest.approx(alone.end["weights"], rel=0, abs=1e-10)


def test_generators_go_on_in_each_process_where_they_were(tmp_path: Path) -> None:
    """Those that are handed in, of four kinds, each seeded by its rank."""
    whole = session(tmp_path / "whole", 2, generators=True)
    assert whole.status == [0, 0], whole.errors
    assert session(tmp_path / "run", 2, generators=True, at=[0, 12], how="SIGKILL").status[0] == -signal.SIGKILL
    resumed = session(tmp_path / "run", 2, generators=True)
    assert resumed.resumed
    assert not resumed.reasons()
    assert resumed.end == whole.end
    assert session(tmp_path / "run", 1, generators=True).status == [0]


@IN_BOTH
def test_each_process_has_what_it_computed_of_its_part_of_the_batches(tmp_path: Path, fit: bool) -> None:
    """In an attribute of the model, in buffers of a module beside it, in an object. One process alone goes on with
    those of rank 0."""
    words: dict[str, Any] = {"fit": fit, "local": True}
    whole = session(tmp_path / "whole", 2, **words)
    assert whole.status == [0, 0], whole.errors
    assert session(tmp_path / "run", 2, **words, at=[0, 12], how="SIGKILL").status[0] == -signal.SIGKILL
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    resumed = session(tmp_path / "run", 2, **words)
    assert resumed.resumed
    assert not resumed.reasons()
    assert resumed.end == whole.end
    alone = session(tmp_path / "other", 1, **words)
    assert alone.status == [0], alone.errors
    assert alone.resumed


def test_buffers_that_nobody_makes_the_same_are_kept_for_each_process(tmp_path: Path) -> None:
    """DistributedDataParallel(broadcast_buffers=False): each process has those of its part of the batches."""
    words: dict[str, Any] = {"local": "buffer"}
    whole = session(tmp_path / "whole", 2, **words)
    assert whole.status == [0, 0], whole.errors
    assert session(tmp_path / "run", 2, **words, at=[0, 12], how="SIGKILL").status[0] == -signal.SIGKILL
    resumed = session(tmp_path / "run", 2, **words)
    assert resumed.resumed
    assert resumed.end == whole.end


def test_gradients_that_are_not_summed_yet_are_kept_for_each_process(tmp_path: Path) -> None:
    """Under `no_sync`, where an epoch ends in the middle of an accumulation."""
    words: dict[str, Any] = {"accumulate": 5, "more": {"save_every": 1}}
    whole = session(tmp_path / "whole", 2, **words)
    assert whole.status == [0, 0], whole.errors
    assert session(tmp_path / "run", 2, **words, at=[0, 3], how="SIGKILL").status[0] == -signal.SIGKILL
    resumed = session(tmp_path / "run", 2, **words)
    assert resumed.resumed
    assert resumed.end == whole.end


def test_a_rank_0_that_finds_no_place_to_save_is_named_in_the_others(tmp_path: Path) -> None:
    """Before the run is opened: nobody waits for what never comes."""
    (tmp_path / "run").write_text("a file where the folder should be")
    done = session(tmp_path / "run", 2, within=60)
    assert done.status == [1, 1]
    assert done.ended == 0
    assert "Rank 0 could not begin this run" in done.errors[1]


@pytest.mark.parametrize(("size", "said"), [(2, False), (3, True)])
def test_what_another_number_of_processes_changes_is_said(tmp_path: Path, size: int, said: bool) -> None:
    """Of two numbers the sum is the same in either order."""
    done = session(tmp_path / "run", size, plain=True, draws=True)
    told = "".join(str(told) for told in done.told[0])
    assert ("find_unused_parameters=True" in told) is said
    assert "BatchNorm (3) uses mean and variance of one process's part of a batch" in told


@pytest.mark.parametrize(("wrapped", "plain"), [("static", False), ("inside", True), ("bare", True)])
def test_a_wrapper_that_sums_in_another_order_at_first_is_named_wherever_it_is(
    tmp_path: Path, wrapped: str, plain: bool
) -> None:
    """With a static graph, within another module, and around the model that the run was given."""
    done = session(tmp_path / "run", 3, wrapped=wrapped, plain=plain)
    assert done.status == [0, 0, 0], done.errors
    assert "find_unused_parameters=True" in "".join(str(told) for told in done.told[0])


@pytest.mark.parametrize("split", [False, True])
def test_a_stream_that_takes_its_share_by_rank_is_told(tmp_path: Path, split: bool) -> None:
    """Each batch is shared out once more, and most samples would never be seen."""
    done = session(tmp_path / "run", 2, kind="stream", split=split, samples=96)
    assert done.status == [0, 0], done.errors
    assert ("split twice" in str(done.told[0])) is split


@pytest.mark.parametrize("unseeded", [0, 1])
def test_data_that_each_process_made_for_itself_is_told(tmp_path: Path, unseeded: int) -> None:
    """As a data set of random numbers without a seed: every batch would be of two of them."""
    done = session(tmp_path / "run", 2, unseeded=unseeded)
    told = [value for kind, value in done.told[0] if kind == "Noted" and "reads other samples than rank 0" in value]
    assert len(told) == unseeded


def _seen(folder: Path) -> dict[int, list[int]]:
    """Which samples all processes together computed, by step."""
    by_step: dict[int, list[int]] = {}
    for line in Path(f"{folder}.seen").read_text().splitlines():
        step, _, indices = line.partition(" ")
        by_step.setdefault(int(step), []).extend(json.loads(indices))
    return dict(sorted(by_step.items()))
