"""The settings of a run: as written when it began, as written now, and as training has moved them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from colabkeep.checkpoint.restore import Loaded
from colabkeep.core.errors import CheckpointDamaged, UsageError
from colabkeep.core.events import Event, Noted
from colabkeep.core.settings import Change, Item, Plain, Settings, TellsSettings, changes, from_text, same, to_text
from colabkeep.core.state import Tree
from colabkeep.frameworks.base import Framework

__all__ = ["SETTINGS", "RunSettings", "check_on_change"]

SETTINGS = "settings"
"""The part of a checkpoint that holds them. The first checkpoints had none."""

_CALL = ""  # the part of the settings that belong to the call itself
_MOST = 20  # lines that are shown


class RunSettings:
    """Compares, tells, keeps or applies what changed; and is the part of a checkpoint that holds the settings.

    `parts` are the user's objects, which nobody has touched in this session.
    """

    def __init__(self, framework: Framework, parts: Mapping[str, object], on_change: str) -> None:
        self._objects = framework.settings(parts)
        self.mark = self._objects.mark
        self._on_change = on_change
        self._callers = {n: part for n, part in parts.items() if isinstance(part, TellsSettings)}
        call = {name: item for part in self._callers.values() for name, item in part.written_settings().items()}
        self._now: Settings = {**self._objects.written(), **({_CALL: call} if call else {})}
        self._then: Settings = {}
        self._moved: Mapping[str, Tree] = {}
        self._new: list[Change] = []
        self._kept: list[Change] = []
        self._back: list[Change] = []  # what stays as it was written, for the sessions to come
        self._text = ""

    @property
    def replaced(self) -> frozenset[str]:
        """Parts that are not restored from the checkpoint."""
        return self._objects.replaced

    def compare(self, loaded: Loaded) -> list[str]:
        """A line for each change that stands in the way; none where the session may go on. Touches nothing."""
        self._read(loaded)
        reached = {**self._objects.reached(loaded.parts, self._moved), **self._called(loaded)}
        now = self._now
        if SETTINGS not in loaded.parts:  # what the call told then, and nothing else
            now = {part: {name: now[part][name] for name in items} for part, items in self._then.items()}
        found = changes(self._then, now)
        self._back = [change for change in found if _is_reached(change, reached)]
        found = [change for change in found if change not in self._back]
        if self._on_change == "apply":
            self._new = found
            return list(self._objects.plan(found, loaded.parts))
        if self._on_change == "keep":
            self._kept = [change for change in found if self._is_kept(change)]
        self._new = [change for change in found if not change.sure and change not in self._kept]
        sure = [change for change in found if change.sure and change not in self._kept]
        lines = [self._line(change) for change in sure if not _is_echo(change, sure)]
        return lines if len(lines) <= _MOST + 1 else [*lines[:_MOST], f"and {len(lines) - _MOST} more settings"]

    def problem(self, run: str, checkpoint: str) -> str:
        """What it means that `compare` found something, and nothing else differs."""
        if self._on_change == "apply":
            return f"The new settings cannot be applied to the run {run!r} (checkpoint {checkpoint}):"
        if self._on_change == "keep":
            return f"Some settings of the run {run!r} cannot be put back (checkpoint {checkpoint}):"
        return f"Some settings are not those that the run {run!r} began with (checkpoint {checkpoint}):"

    def remedy(self) -> str:
        """What to do then."""
        apply = 'on_change="apply" trains on with those written now'
        if self._on_change == "apply":
            return 'Nothing was touched. on_change="keep" trains on with the old ones; another run_name begins anew.'
        if self._on_change == "keep":
            return f"Nothing was touched. Write them as they were; or {apply}; or choose another run_name."
        return (
            f'Nothing was touched. Choose: on_change="keep" trains on with the run\'s own values; {apply}, from '
            "here on; another run_name begins a new training with them."
        )

    def restored(self, step: int) -> list[Event]:
        """The parts were restored to the checkpoint's `step`: settle what changed, and tell it."""
        self._objects.settle(self._then, self._moved, new=self._unmoved(), kept=self._kept)
        self._begin(_with_old(self._now, self._then, [*self._back, *self._kept]))
        told: list[Event] = []
        if self._kept:
            told.append(Noted(text=f'on_change="keep": the run goes on without these changes: {_listed(self._kept)}'))
        sure = [change for change in self._new if change.sure]
        if sure:
            told.append(Noted(text=f'on_change="apply": these settings hold from step {step} on: {_listed(sure)}'))
        unsure = [change for change in self._new if not change.sure]
        if unsure:
            told.append(
                Noted(
                    text="These differ from when the run began, and colabkeep cannot know what they mean for the "
                    f"training, which goes on: {_listed(unsure)}"
                )
            )
        return told

    def started(self) -> list[Event]:
        """The run begins at step 0: tell it if its objects do not."""
        self._begin(self._now)
        facts = self._objects.trained()
        if not facts:
            return []
        return [
            Noted(
                text=f"This run begins at step 0, but not with new objects: {'; '.join(facts)}. If that is not "
                "what you want, run the cells that build model, optimizer and scheduler again, then this one."
            )
        ]

    def rewind(self) -> str | None:
        """Go back to the last mark in what training moves beside tensors; or say why that cannot be, in a clause."""
        return self._objects.rewind()

    def left(self, run: str, step: int, *, failed: bool) -> None:
        """The session ends at this step of the run; `failed`: by an error of the user's code or of the machine."""
        self._objects.leave(run, step, failed=failed)

    def state_dict(self) -> Tree:
        """As written, in a text that is made once; and what training has moved."""
        return {"written": self._text, "moved": self._objects.moved()}

    def load_state_dict(self, state: Tree) -> None:
        """What a checkpoint holds is taken by `compare`."""

    def _read(self, loaded: Loaded) -> None:
        tree = loaded.parts.get(SETTINGS)
        if tree is None:  # a checkpoint of before: the call told some of its settings already
            self._then = self._called(loaded)
            return
        try:
            self._then, self._moved = from_text(tree["state"]["written"]), tree["state"]["moved"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointDamaged(
                problem=f"Checkpoint {loaded.manifest.id}: its settings are not those that colabkeep writes ({error}).",
                remedy="Choose another checkpoint with resume=…, or another run_name.",
            ) from error

    def _called(self, loaded: Loaded) -> Settings:
        """The settings of the call as an earlier session computed with them."""
        options: dict[str, Plain] = {}
        for name, part in self._callers.items():
            if name in loaded.parts:
                options |= part.reached_settings(loaded.parts[name]["state"])
        kind = next((item.kind for item in self._now.get(_CALL, {}).values()), "")
        return {_CALL: {"": Item(kind=kind, sure=True, options=options)}} if options else {}

    def _is_kept(self, change: Change) -> bool:
        """Is it put back? A text that nobody knows the meaning of may name a place of the last machine."""
        known = change.sure or not isinstance(change.before, str)
        return known and change.part != _CALL and self._objects.keepable(change)

    def _line(self, change: Change) -> str:
        return f"{change} (cannot be put back)" if self._on_change == "keep" else change.text

    def _unmoved(self) -> list[Change]:
        """What is new and stays: where training itself has moved a value of unknown meaning, it goes on from there."""
        if self._on_change == "apply":
            return self._new
        return [change for change in self._new if not _has_moved(change, self._moved)]

    def _begin(self, written: Settings) -> None:
        self._text = to_text(written)
        self._objects.begin(written)


def check_on_change(word: object) -> str:
    """The word, if it is one.

    Raises:
        UsageError: it is not.
    """
    if word in ("error", "keep", "apply"):
        return str(word)
    raise UsageError(problem=f"on_change={word!r} is unknown.", remedy='Use "error", "keep" or "apply".')


def _is_reached(change: Change, reached: Settings) -> bool:
    """Is it the value that the checkpoint has, which training came to?"""
    item = reached.get(change.part, {}).get(change.item)
    return item is not None and change.option in item.options and same(item.options[change.option], change.after)


def _is_echo(change: Change, found: Sequence[Change]) -> bool:
    """Does another one say it: that of the same layer in the model of which this is an average, that of the rate that
    an initial rate was?"""

    def says_it(other: Change) -> bool:
        if (change.before, change.after) != (other.before, other.after):
            return False
        if change.part == other.part:
            return change.item == other.item and change.option.endswith(f"_{other.option}")
        return other.item != "" and change.item.endswith(f".{other.item}") and change.option == other.option

    return any(map(says_it, found))


def _has_moved(change: Change, moved: Mapping[str, Any]) -> bool:
    return change.option in moved.get(change.part, {}).get("attributes", {}).get(change.item, {})


def _with_old(now: Settings, then: Settings, back: Sequence[Change]) -> Settings:
    """The settings as written now, but for some as they were."""
    found = {part: dict(items) for part, items in now.items()}
    for change in back:
        item, before = found[change.part][change.item], then[change.part][change.item]
        if change.option == "requires_grad":
            new = replace(item, frozen=before.frozen)
        else:
            options = {**item.options, change.option: before.options.get(change.option)}
            new = replace(item, options=options)
        found[change.part][change.item] = new
    return found


def _listed(found: Sequence[Change]) -> str:
    lines = [change.text for change in found[:_MOST]]
    return "; ".join([*lines, *([f"and {len(found) - _MOST} more"] if len(found) > _MOST else [])])
