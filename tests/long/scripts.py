"""A script of somebody else under a trainer, with the one line added to it: killed at random steps it ends with the
bits of one left alone.

    python -m tests.long.scripts [--kills 5] [--every "3 steps"] [--fork] SCRIPT [ITS ARGUMENTS …]

Run it in an environment that has what the script needs, in an empty folder. The script is executed as it stands, with
`Resumable(…)` among the callbacks of whatever trainer it makes (transformers.Trainer and its kinds, Lightning's,
`model.fit` of Keras), and with the global random streams seeded first. `--trainer '{"max_epochs": 2}'` gives
Lightning's Trainer other arguments than the script does: for a machine without a GPU, or a shorter training.

Each session is an interpreter of its own. With --fork it is a fork of one that has imported the trainer: quicker by the
seconds that this takes, but strings hash alike in all of them, so that an order that hangs on that is not seen.

What is compared: every weight and buffer of the model, the optimizers' states and the number of steps. It says so where
two trainings that were left alone already differ, for then nothing can be proved.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from tests.long.running import with_modules
from tests.processes import Life

LONGEST = 1800  # seconds of one session


def digest(*states: Any) -> str:
    """Of all numbers, in order and by name."""
    found = hashlib.sha256()

    def walk(value: Any) -> None:
        if isinstance(value, Mapping):
            for key, member in value.items():
                found.update(f"{key}:".encode())
                walk(member)
        elif isinstance(value, (list, tuple)):
            for member in value:
                walk(member)
        elif hasattr(value, "detach"):
            found.update(str(value.dtype).encode())
            found.update(value.detach().cpu().contiguous().flatten().view(sys.modules["torch"].uint8).numpy())
        elif hasattr(value, "tobytes"):
            found.update(value.tobytes())
        elif value is None or isinstance(value, (str, int, float)):
            found.update(repr(value).encode())
        else:
            raise TypeError(f"{type(value).__name__} is not compared")

    walk(states)
    return found.hexdigest()


class Session:
    """One process of it: what it adds to the script, where it is killed, what it says at the end."""

    def __init__(self, folder: Path, every: str, die: int | None, changes: Mapping[str, Any]) -> None:
        self.words = {"storage": folder / "store", "save_every": every, "progress": False}
        self.die, self.changes, self.report = die, changes, folder / "said.json"
        self.trainers = self.latest = 0

    def resumable(self, kind: Callable[..., Any]) -> Any:
        """The one line; a script with several trainings has a run for each."""
        self.trainers += 1
        return kind(f"public-{self.trainers}", **self.words)

    def step(self, number: int) -> None:
        """The script's training has done a step, or a batch."""
        self.latest = number
        if number == self.die:
            os.kill(os.getpid(), signal.SIGKILL)

    def ended(self, steps: int, *states: Any) -> None:
        """What training came to."""
        said = json.loads(self.report.read_text()) if self.report.exists() else []
        self.report.write_text(json.dumps([*said, [self.latest, steps, digest(*states)]]))

    def transformers(self) -> None:
        """Trainer, and what is made of it."""
        import transformers

        from colabkeep.integrations.transformers import Resumable

        session = self

        class Watch(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
                session.step(state.global_step)

        first, train = transformers.Trainer.__init__, transformers.Trainer.train

        @wraps(first)
        def init(trainer: Any, *positional: Any, **words: Any) -> None:
            words["callbacks"] = [*(words.get("callbacks") or []), session.resumable(Resumable), Watch()]
            first(trainer, *positional, **words)

        @wraps(train)
        def trained(trainer: Any, *positional: Any, **words: Any) -> Any:
            given = train(trainer, *positional, **words)
            optimizer = trainer.optimizer.state_dict()["state"]
            session.ended(trainer.state.global_step, trainer.model.state_dict(), optimizer)
            return given

        transformers.Trainer.__init__, transformers.Trainer.train = init, trained

    def lightning(self, package: Any) -> None:
        """Trainer of `lightning` or `pytorch_lightning`."""
        from colabkeep.integrations.lightning import Resumable

        session = self

        class Watch(package.Callback):  # type: ignore[misc,name-defined]
            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
                session.step(number + 1 + trainer.current_epoch * trainer.num_training_batches)

        first, fit = package.Trainer.__init__, package.Trainer.fit

        @wraps(first)
        def init(trainer: Any, *positional: Any, **words: Any) -> None:
            words |= session.changes
            given = words.get("callbacks") or []
            given = list(given) if isinstance(given, (list, tuple)) else [given]
            words["callbacks"] = [*given, session.resumable(Resumable), Watch()]
            first(trainer, *positional, **words)

        @wraps(fit)
        def fitted(trainer: Any, *positional: Any, **words: Any) -> None:
            fit(trainer, *positional, **words)
            optimizers = [each.state_dict()["state"] for each in trainer.optimizers]
            session.ended(trainer.global_step, trainer.lightning_module.state_dict(), optimizers)

        package.Trainer.__init__, package.Trainer.fit = init, fitted

    def keras(self) -> None:
        """`Model.fit`."""
        import keras

        from colabkeep.integrations.keras import Resumable

        session, fit = self, keras.Model.fit

        class Watch(keras.callbacks.Callback):  # type: ignore[misc]
            done = 0

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                session.step(int(self.model.optimizer.iterations.numpy()))

        @wraps(fit)
        def fitted(model: Any, *positional: Any, **words: Any) -> Any:
            words["callbacks"] = [*(words.get("callbacks") or []), session.resumable(Resumable), Watch()]
            given = fit(model, *positional, **words)
            everything = [*model.variables, *model.optimizer.variables]
            state = [keras.ops.convert_to_numpy(each.value) for each in everything]
            session.ended(int(keras.ops.convert_to_numpy(model.optimizer.iterations)), state)
            return given

        keras.Model.fit = fitted


def child(session: Session, framework: str, script: list[str]) -> None:
    """A session of the script, in this process."""
    if framework == "keras":
        importlib.import_module("keras").utils.set_random_seed(0)
        session.keras()
    else:
        random.seed(0)
        importlib.import_module("numpy").random.seed(0)
        importlib.import_module("torch").manual_seed(0)
        if framework == "transformers":
            session.transformers()
        else:
            session.lightning(importlib.import_module("lightning.pytorch" if framework == "lightning" else framework))
    sys.argv = script
    sys.path.insert(0, str(Path(script[0]).resolve().parent))
    runpy.run_path(script[0], run_name="__main__")


def framework_of(script: Path) -> str:
    """By what it imports, the first one named."""
    text = script.read_text()
    names = "lightning|pytorch_lightning|keras|transformers|trl"
    named = re.search(rf"^\s*(?:import|from)\s+({names})\b", text, re.MULTILINE)
    if named is None:
        sys.exit(f"{script} imports none of {names}")
    return "transformers" if named[1] == "trl" else named[1]


def run(words: argparse.Namespace, folder: Path, die: int = 0) -> int:
    """One session, in a process of its own; how it ended."""
    if words.fork:
        with Life(lambda say: forked(words, folder, die)) as life:
            for _ in life.messages(within=LONGEST):
                pass
            return life.status if life.status is not None else sys.exit(f"It hangs; see {folder / 'output.txt'}")
    options = ["--every", words.every, "--trainer", words.trainer, "--child", str(folder), str(die)]
    with (folder / "output.txt").open("ab") as output:
        command = [sys.executable, "-m", "tests.long.scripts", *options, *words.script]
        return subprocess.run(
            command, env=with_modules(), stdout=output, stderr=output, check=False, timeout=LONGEST
        ).returncode


def forked(words: argparse.Namespace, folder: Path, die: int) -> None:
    """The same in a fork."""
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    session = Session(folder, words.every, die or None, json.loads(words.trainer))
    child(session, framework_of(Path(words.script[0])), words.script)


def examine(words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """What became of one script."""
    told: dict[str, Any] = {"script": Path(words.script[0]).name, "kills": [], "differs": ""}
    said = []
    for name in ("once", "again", "killed"):
        folder = work / name
        folder.mkdir()
        if name == "killed":
            told["steps"] = said[0][0][0]
            steps = sum(each[0] for each in said[0])
            if steps < words.kills + 2:
                sys.exit(f"It trains {steps} steps, too few for {words.kills} kills: make it longer, or write --kills.")
            told["kills"] = sorted(random.Random(words.seed).sample(range(2, steps), words.kills))
        for place in told["kills"]:
            if run(words, folder, place) != -signal.SIGKILL:
                sys.exit(f"It did not come to step {place}; see {folder / 'output.txt'}")
        if run(words, folder):
            sys.exit(f"It failed; see {folder / 'output.txt'}")
        said.append(json.loads((folder / "said.json").read_text()))
    once, again, killed = ([each[1:] for each in one] for one in said)
    if once != again:
        told["differs"] = f"two that were left alone, so nothing can be proved: {once}, {again}; see {work}"
    elif once != killed:
        told["differs"] = f"left alone {once}, killed {killed}; see {work}"
    return told


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--every", default="3 steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fork", action="store_true")
    parser.add_argument("--trainer", default="{}", metavar="JSON")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "STEP"), help=argparse.SUPPRESS)
    parser.add_argument("script", nargs=argparse.REMAINDER)
    words = parser.parse_args()
    if not words.script:
        parser.error("which script?")
    framework = framework_of(Path(words.script[0]))
    if words.child:
        folder, die = words.child
        session = Session(Path(folder), words.every, int(die) or None, json.loads(words.trainer))
        child(session, framework, words.script)
        return 0
    if words.fork:
        importlib.import_module("torch").set_num_threads(1)
        package = importlib.import_module("lightning.pytorch" if framework == "lightning" else framework)
        getattr(package, "Model" if framework == "keras" else "Trainer")  # transformers imports it here
    told = {"framework": framework, **examine(words, Path(tempfile.mkdtemp()))}
    if words.json:
        print(json.dumps(told))
    elif told["differs"]:
        print(f"NOT THE SAME: {told['differs']}")
    else:
        print(f"{told['script']} ({framework}): the same bits after SIGKILL at {told['kills']} of {told['steps']}")
    return 1 if told["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
