"""What all integrations do: make the run of a training, stand beside its trainer, leave the run; and what they refuse
of a file that a run begins from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from colabkeep.api import Run
from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.core.events import Noted
from colabkeep.core.settings import Item, Plain

__all__ = ["Beside", "Keeper", "Kept", "refuse_old_torch", "refuse_others"]

_SAFE_FROM = "2.10"
"""Before it, `torch.load(weights_only=True)` runs code of a crafted file (before 2.6: CVE-2025-32434), or lets one
corrupt memory (before 2.10: CVE-2026-24747)."""


class Keeper:
    """The callback that a user gives to a trainer. `words`: those of `colabkeep.Run`."""

    def __init__(
        self, run_name: str, words: Mapping[str, Any], resume_from: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__()
        self.resume_from = resume_from
        self.run: Run | None = None  # of the latest training: run.save(), run.progress, run.durability
        self._run_name = run_name
        self._words = words

    def make_run(self, **parts: Any) -> Run:
        """The run of one training, not entered yet."""
        state = {**parts.pop("state"), **(self._words.get("state") or {})}
        self.run = Run(self._run_name, **{**parts, **self._words, "state": state})
        return self.run


class Kept:
    """What a trainer has come to beside the parts of its run. It is a part of the run itself.

    `lines`: what the user should know of the restore and of what cannot be kept, each once.
    """

    trains = "fit"
    """What the user calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._said: set[str] = set()

    def settings(self) -> dict[str, Plain]:
        """What the user wrote for the trainer, and no part of the run shows. `state_dict` has it as "settings"."""
        raise NotImplementedError

    def written_settings(self) -> Mapping[str, Item]:
        """These, for a comparison."""
        return {"": Item(kind=self.trains, sure=True, options=self.settings())}

    def reached_settings(self, state: Mapping[str, Any]) -> Mapping[str, Plain]:
        """What an earlier session computed with."""
        settings: Mapping[str, Plain] = state["settings"]
        return settings

    def say(self, line: str) -> None:
        """Tell the user, once."""
        if line not in self._said:
            self._said.add(line)
            self.lines.append(line)

    def say_unkept(self, names: Iterable[str]) -> None:
        """Of objects that no checkpoint can hold."""
        for name in names:
            self.say(f"{name} holds what cannot be stored: a resumed training begins with a new one")

    def say_gone(self, names: Iterable[str]) -> None:
        """Of objects that the checkpoint knows."""
        for name in names:
            self.say(f"{name} was part of the training and is not here now; what it knew is lost")


class Beside:
    """Stands beside one trainer while it trains, in the place of some of its methods, and has the run as long as that
    is open."""

    _state: Kept

    def __init__(self) -> None:
        self._run: Run | None = None
        self._replaced: list[tuple[Any, str, Any]] = []

    def wait_for_the_others(self, callbacks: list[Any]) -> None:
        """Be opened when all these callbacks have heard that a training begins."""
        callbacks.append(_Last(callbacks, self.open))

    def open(self) -> None:
        """Take the run, with everything that is to be kept; find out where it is."""
        raise NotImplementedError

    def replace(self, owner: Any, name: str, by: Any) -> Any:
        """Stand in for a method of this one object; returns what was called so far."""
        whole = getattr(owner, name)
        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, by)
        return whole

    def stand_back(self) -> None:
        """The trainer is as it was. Twice is harmless."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            vars(owner).pop(name, None)
            if before is not None:
                setattr(owner, name, before)

    def tell(self, run: Run) -> None:
        """What the user should know by now."""
        while self._state.lines:
            run.tell(Noted(text=self._state.lines.pop(0)))

    def conclude(self, run: Run, over: str) -> None:
        """Nothing is left to train: `over` says why, where the run itself does not."""
        if over:
            run.tell(Noted(text=over))
        run.conclude()

    def finish(self, run: Run) -> None:
        """All is trained."""
        run.finished = True
        self.let_go(run, None)

    def leave(self, error: BaseException) -> bool:
        """Something was raised: save what can be. True if it was a request to stop, which the trainer is to follow."""
        run = self._run  # none where it is over already
        return run is not None and self.let_go(run, error)

    def let_go(self, run: Run, error: BaseException | None) -> bool:
        """Leave the run; True if that ends the error. Nothing is trained any more."""
        self._run = None
        return run.__exit__(None if error is None else type(error), error, error.__traceback__ if error else None)


class _Last:
    """Stands in a list of callbacks until it hears that a training begins."""

    def __init__(self, callbacks: list[Any], then: Callable[[], None]) -> None:
        self._callbacks, self._then = callbacks, then

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """All others are ready."""
        del self._callbacks[-1]
        self._then()


def refuse_others(
    path: Path, expected: Mapping[str, Any], weights: Mapping[str, Any], missing: Iterable[str] | None = None
) -> None:
    """Compare the tensors in a file with those of the model. `missing`: those that it lacks; None: all that it has not.

    Raises:
        Incompatible: they are those of another model.
    """
    lacks = sorted(expected.keys() - weights.keys() if missing is None else missing)
    more = sorted(weights.keys() - expected.keys())
    other = sorted(key for key in weights.keys() & expected.keys() if weights[key].shape != expected[key].shape)
    if lacks or more or other:
        name = (lacks + more + other)[0]
        raise Incompatible(
            problem=f"{path} is a checkpoint of another model: {len(lacks)} weights are not in it, {len(more)} are "
            f"only in it, {len(other)} have another shape. One is {name}.",
            remedy="Make the model as it was made for that checkpoint, or name another one.",
            differences=(name,),
        )


def refuse_old_torch(path: Path) -> None:
    """To be asked before `torch.load(weights_only=True)` of a file that a run begins from.

    Raises:
        UsageError: in this torch, not even that is safe.
    """
    import torch

    if torch.__version__ < _SAFE_FROM:  # as versions, not as texts
        raise UsageError(
            problem=f"{path} is not opened: in torch {torch.__version__}, a crafted file of this kind can run code or "
            "corrupt memory, even when only its numbers are read (CVE-2025-32434, CVE-2026-24747).",
            remedy="Update torch to 2.10 or newer. If you trust the file, load its weights into the model yourself, "
            "and begin the run without resume_from.",
        )
