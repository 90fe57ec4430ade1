"""The trainers' own tests of resuming, with ours in the place of theirs.

    python -m tests.long.theirs FOLDER …      checkouts of transformers, pytorch-lightning and keras

Run it in an environment that has the trainer and what its tests need (scikit-learn, absl-py). Their files stay where
they are, and the packages that a checkout has are taken before those that are installed. Each training in a test has
`Resumable`, which saves after each step. Where a test goes on from a checkpoint of the trainer's own
(`resume_from_checkpoint=…`, `ckpt_path=…`, `BackupAndRestore`), the run goes on from its checkpoint of the same step
instead, and the trainer sees none. A test in which nothing went on from a checkpoint of ours has failed.

Which tests are run stands in `TESTS`, and in `LEFT_OUT` which could not be, and why. Of those in `OTHERWISE` we keep
another promise than the test asks for: they must fail, and in this way. The exit status is 1 if anything else happens.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

_RESUME = "tests/trainer/test_trainer_checkpointing.py::TrainerResumeTrainingTest"
_INTERRUPTED = "tests/trainer/test_trainer_checkpointing.py::TrainerInterruptedTrainingTest"
_LIGHTNING = "tests/tests_pytorch"
_KERAS = "keras/src/callbacks/backup_and_restore_test.py::BackupAndRestoreCallbackTest"
TESTS = {
    "transformers": (
        f"{_RESUME}::test_can_resume_training",
        f"{_RESUME}::test_resume_training_with_randomness",  # which they skip: theirs does not pass it
        f"{_RESUME}::test_resume_training_with_different_batch_size",
        f"{_RESUME}::test_resume_training_with_gradient_accumulation",
        f"{_RESUME}::test_resume_training_with_frozen_params",
        f"{_INTERRUPTED}::test_resume_from_interrupted_training",
        f"{_INTERRUPTED}::test_resume_batch_order",
    ),
    "lightning": (
        f"{_LIGHTNING}/loops/test_loops.py::test_restart_parity",
        f"{_LIGHTNING}/loops/test_loops.py::test_restart_with_val_parity",
        f"{_LIGHTNING}/loops/test_loops.py::test_restart_from_last_parity",
        f"{_LIGHTNING}/loops/test_loops.py::test_restart_from_last_with_val_parity",
        f"{_LIGHTNING}/loops/test_training_epoch_loop.py::test_no_val_on_train_epoch_loop_restart",
        f"{_LIGHTNING}/models/test_restore.py::test_model_properties_fit_ckpt_path",
        f"{_LIGHTNING}/models/test_restore.py::test_callbacks_state_fit_ckpt_path",
        f"{_LIGHTNING}/models/test_restore.py::test_callbacks_references_fit_ckpt_path",
        f"{_LIGHTNING}/models/test_restore.py::test_correct_step_and_epoch",
        f"{_LIGHTNING}/trainer/test_trainer.py::test_fit_ckpt_path_epoch_restored[False]",
        f"{_LIGHTNING}/callbacks/test_timer.py::test_timer_resume_training",
        f"{_LIGHTNING}/callbacks/test_weight_averaging.py::test_ema_resume",
        f"{_LIGHTNING}/callbacks/test_lambda_function.py::test_lambda_call",
    ),
    "keras": (
        f"{_KERAS}::test_best_case_step",
        f"{_KERAS}::test_best_case_epoch",
        f"{_KERAS}::test_backup_corrupted",
    ),
}
OTHERWISE = {
    "test_resume_batch_order": (
        "data_order has shape (12,) in the checkpoint and (0,) now",
        "a buffer that grows while it trains is refused: it may as well be that of another model",
    ),
    "test_callbacks_state_fit_ckpt_path": (
        "AssertionError: best_model_path",
        "it looks at the callbacks in on_fit_start, before the run is at its place",
    ),
    "test_correct_step_and_epoch": (
        "assert 0 == 2",
        "on_train_start is called before the run is at its place, so that nothing of it touches the training",
    ),
    "test_fit_ckpt_path_epoch_restored[False]": (
        "assert (82 + 82) == 82",
        "it adds up what the module has counted, and ours gives the module its count back",
    ),
    "test_lambda_call": ("on_load_checkpoint", "no checkpoint of the trainer is loaded, so nobody hears of it"),
    "test_best_case_step": ("15 != 17", "Keras trains the first two batches of the epoch again, and ours does not"),
}
LEFT_OUT = {
    "transformers": {
        "test_can_resume_training_lm, test_multiple_peft_adapters": "load models and data from the Hub",
        "test_resume_training_with_shard_checkpoint, test_resume_training_with_checkpoint": "of the trainer's files",
        "test_auto_batch_size_with_resume_from_checkpoint": "auto_find_batch_size is refused",
    },
    "lightning": {
        "test_fit_can_fail_during_validation": "goes on from a checkpoint of the middle of a validation: ours has none",
        "test_fit_loop_save_and_restore_dataloaders": "of loaders that tell their own place: ours counts batches",
        "test_trainer_properties_restore_ckpt_path, test_resume_early_stopping_from_checkpoint": "look at the trainer "
        "in on_train_start, as test_correct_step_and_epoch does",
        "test_fit_ckpt_path_epoch_restored[True]": "loads a checkpoint of the trainer's from a server",
        "test_result_collection_reload": "asserts that what was logged before is lost",
        "test_restarting_mid_epoch_raises_warning": "of a warning about its own",
        "test_ema_resume_ddp and all with several devices": "refused",
    },
    "keras": {"test_model_deleted_case_epoch": "asserts that the backup is deleted at the end; a run stays"},
}


class Runs:
    """The runs of one test: one for each training that begins anew."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._begun = folder, 0
        self.ours: list[Any] = []

    def next(self, step: int | None) -> tuple[str, dict[str, Any]]:
        """The name and the words of the training that comes now: of a new run, or of the latest, at that step."""
        self._begun += step is None
        name = f"run-{self._begun}"
        words: dict[str, Any] = dict.fromkeys(("save_every", "keep_last"))
        words |= {"storage": self._folder, "on_change": "apply", "progress": False}
        if step is None:
            return name, words
        found = (self._folder / name / "checkpoints").glob(f"{step:012d}-*.json")
        return name, {**words, "resume": min(found, key=lambda each: each.stat().st_mtime).stem}


def _saving(kind: Any, runs: Runs) -> Any:
    """A `Resumable` that saves after each step, and goes on at its `step` where that is not None."""

    class Saving(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("")
            self.step: int | None = None
            runs.ours.append(self)

        def make_run(self, **parts: Any) -> Any:
            self._run_name, self._words = runs.next(self.step)
            return super().make_run(**parts)

        def on_step_end(self, *_: Any, **__: Any) -> None:  # transformers calls this one
            self.run.save(wait=True)

        def on_train_batch_end(self, *words: Any) -> None:  # and Lightning this one
            super().on_train_batch_end(*words)
            self.on_step_end()

    return Saving()


def in_transformers(runs: Runs, replace: Callable[..., None]) -> None:
    """In the place of `train(resume_from_checkpoint="…/checkpoint-5")`."""
    from transformers import Trainer

    from colabkeep.integrations.transformers import Resumable

    first, train = Trainer.__init__, Trainer.train

    def init(trainer: Any, *positional: Any, callbacks: Any = None, **words: Any) -> None:
        trainer.ours = _saving(Resumable, runs)
        first(trainer, *positional, callbacks=[*(callbacks or ()), trainer.ours], **words)

    def trained(trainer: Any, resume_from_checkpoint: Any = None, **words: Any) -> Any:
        if resume_from_checkpoint and not Path(str(resume_from_checkpoint)).is_dir():
            return train(trainer, resume_from_checkpoint, **words)  # what it says of one that is not there
        named = re.search(r"checkpoint-(\d+)$", str(resume_from_checkpoint))
        trainer.ours.step = int(named[1]) if named else None
        return train(trainer, **words)

    replace(Trainer, "__init__", init)
    replace(Trainer, "train", trained)


def in_lightning(runs: Runs, replace: Callable[..., None]) -> None:
    """In the place of `fit(ckpt_path="….ckpt")`."""
    import torch
    from lightning.pytorch import Trainer

    from colabkeep.integrations.lightning import Resumable

    first, fit = Trainer.__init__, Trainer.fit

    def init(trainer: Any, *positional: Any, callbacks: Any = None, **words: Any) -> None:
        trainer.ours = _saving(Resumable, runs)
        given = callbacks if isinstance(callbacks, (list, tuple)) else filter(None, [callbacks])
        first(trainer, *positional, callbacks=[trainer.ours, *given], **words)

    def fitted(trainer: Any, *positional: Any, ckpt_path: Any = None, **words: Any) -> None:
        trainer.ours.step = torch.load(ckpt_path, weights_only=True)["global_step"] if ckpt_path else None
        fit(trainer, *positional, **words)

    replace(Trainer, "__init__", init)
    replace(Trainer, "fit", fitted)


def in_keras(runs: Runs, replace: Callable[..., None]) -> None:
    """In the place of `BackupAndRestore`, with the names under which its tests look into it."""
    from keras.src import callbacks

    from colabkeep.integrations.keras import Resumable

    class Ours(Resumable):  # type: ignore[misc]
        def __init__(self, backup_dir: str, save_freq: Any = "epoch", double_checkpoint: bool = False) -> None:
            super().__init__("run", storage=backup_dir, save_every=None, progress=False)
            self._folder, self._current_epoch = Path(backup_dir) / "run", 0
            runs.ours.append(self)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            self._last_batch_seen = batch
            self.run.save(wait=True)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._current_epoch = epoch + 1

        def _path(self, name: str, place: int) -> str:
            """The newest manifest, or the largest file that it alone needs; or those of the one before."""
            manifests = sorted((self._folder / "checkpoints").iterdir())
            if name == "manifest":
                return str(manifests[place])
            mine = set(re.findall(r"[0-9a-f]{64}", manifests[place].read_text()))
            blobs = [each for each in (self._folder / "blobs").iterdir() if each.stem in mine]
            return str(max(blobs, key=lambda each: each.stat().st_size))

        _weights_path = property(lambda self: self._path("blob", -1))
        _prev_weights_path = property(lambda self: self._path("blob", -2))
        _training_metadata_path = property(lambda self: self._path("manifest", -1))
        _prev_training_metadata_path = property(lambda self: self._path("manifest", -2))

    replace(callbacks, "BackupAndRestore", Ours)


# As a plugin of pytest, in the process that runs their tests.


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which trainer's tests they are."""
    parser.addoption("--theirs", choices=TESTS)


def pytest_configure(config: pytest.Config) -> None:
    """A test that they skip, because theirs does not pass it, is run with ours."""
    if config.getoption("--theirs"):
        unittest.skip = lambda reason: lambda test: test  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ours is in the place of theirs, and something was resumed in the end."""
    runs = Runs(tmp_path_factory.mktemp("runs"))
    with pytest.MonkeyPatch.context() as patch:
        places = {"transformers": in_transformers, "lightning": in_lightning, "keras": in_keras}
        places[request.config.getoption("--theirs")](runs, patch.setattr)
        yield
    assert any(each.run and each.run.resumed_from for each in runs.ours), "nothing went on from a checkpoint of ours"


# The command.


def run(trainer: str, folder: Path) -> dict[str, str]:
    """Each of its tests → how it failed, "" if it did not."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as work:
        report = Path(work) / "report.xml"
        paths = [str(folder / "src"), str(folder / "tests"), str(here), str(here.parents[1])]
        command = [sys.executable, "-m", "pytest", "-p", Path(__file__).stem, "--theirs", trainer]
        options = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder), f"--junitxml={report}"]
        environ = {"KERAS_BACKEND": "torch", **os.environ, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [*command, *options, *TESTS[trainer]],
            cwd=folder,
            env={**environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode > 1:  # some are not there any more, or nothing could be run
            sys.exit(done.stdout + done.stderr)
        found: dict[str, str] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            wrong = "\n".join(f"{each.get('message')}\n{each.text}" for each in case)
            found[case.get("name", "")] = found.get(case.get("name", ""), "") + wrong
        return found


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    status = 0
    for folder in parser.parse_args().folders:
        (trainer,) = (name for name, tests in TESTS.items() if (folder / tests[0].partition("::")[0]).is_file())
        for name, wrong in run(trainer, folder.resolve()).items():
            text, why = OTHERWISE.get(name, ("", ""))
            expected = (text in wrong) if text else not wrong
            status |= not expected
            print(f"{trainer} {name}: {why if expected and text else 'passed' if expected else 'FAILED'}")
            if not expected:
                print(wrong or f"it passed, and was expected to fail: {why}")
        for name, why in LEFT_OUT[trainer].items():
            print(f"{trainer} {name}: not run ({why})")
    return status


if __name__ == "__main__":
    sys.exit(main())
