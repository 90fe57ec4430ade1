"""What the loop itself adds to a checkpoint, beside the user's objects: where it is, its variables, history, losses and
settings.

The stored names of its parts belong to the format.
"""

from __future__ import annotations

import bisect
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import Enum, auto
from operator import itemgetter
from typing import Any, NamedTuple

from colabkeep.checkpoint.restore import Loaded
from colabkeep.core.errors import CheckpointDamaged, UsageError
from colabkeep.core.events import Event, Noted
from colabkeep.core.manifest import Progress, Proof
from colabkeep.core.settings import Change, Item, Plain, Settings, TellsSettings, changes, from_text, same, to_text
from colabkeep.core.state import HostTensor, Stateful, Tree, derive
from colabkeep.frameworks import open_framework
from colabkeep.frameworks.base import Batch, Data, Framework, LoaderState, Losses, MeanLike
from colabkeep.frameworks.shared.iterables import no_batches
from colabkeep.frameworks.shared.rng import is_generator
from colabkeep.session.data_fingerprint import NEXT, SameData
from colabkeep.session.ranks import Group

_ALWAYS = ("run", "history", "rng", "rng_at_epoch", "loader")
_WHERE_NEEDED = (
    "losses", "state", "state_at_epoch", "averages", "streams", "streams_at_epoch", "data", "gradients", "settings",
    "ranks",
)  # fmt: skip
_MOST_LOADERS = 32  # of one run without a name; more of them are most likely made anew at each step
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})


def as_number(value: Any) -> float:
    """A number, or a tensor of one, as a float. Waits for the device that holds it."""
    return float(value.item() if hasattr(value, "item") else value)


class History(list[dict[str, Any]]):
    """Records {"epoch", "step", metric: number, …}, in order of steps; part of every checkpoint.

    It is kept as JSON lines, each written once, so that a save copies bytes instead of walking
    through a growing list.
    """

    def __init__(self, tree: Mapping[str, HostTensor] | None = None) -> None:
        self._lines = bytearray(tree["lines"].data) if tree is not None else bytearray()
        lines = self._lines.splitlines(keepends=True)
        super().__init__(map(json.loads, lines))
        self._last = len(self._lines) - sum(map(len, lines[-1:]))  # where the last record's line begins

    def add(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Log numbers at a step; those of one step and epoch go into one record."""
        record: dict[str, Any] = {"epoch": progress.epoch, "step": progress.step}
        last = self[-1] if self else {}
        if last.get("step") == progress.step and last.get("epoch") == progress.epoch:
            record = self.pop()
            del self._lines[self._last :]
        record.update(metrics)
        self._last = len(self._lines)
        self._lines += json.dumps(record).encode() + b"\n"  # Python's JSON knows NaN and infinity
        self.append(record)

    def values(self, metric: str) -> list[float]:
        """All values of one metric, oldest first."""
        return [record[metric] for record in self if metric in record]

    def tree(self) -> dict[str, HostTensor]:
        """As a checkpoint holds it: the lines, as bytes that later records do not change."""
        lines = bytes(self._lines)
        return {"lines": HostTensor(dtype="U8", shape=(len(lines),), data=memoryview(lines))}


MOST = 512
"""Points kept."""

LOSSES = "Losses"
"""What the journal calls the points that were added since it was written last."""

_LASTS = 3  # losses in a row that are not finite: told again, where single ones were told before


class LossCurve:
    """The loss at every 2^k-th step; k grows with the run, so that there are never more than 512 points.

    Which steps are kept depends on their numbers only, so a run that was interrupted has the points of one that was
    not. `next` is the first step that `add` wants to hear of, where they come in order.
    """

    def __init__(self, tree: Mapping[str, Any] | None = None) -> None:
        self.next = 0 if tree is not None else 1  # after a resume, the first step that comes says which is the next
        self._stride = tree["stride"] if tree is not None else 1
        if type(self._stride) is not int or self._stride < 1:
            raise ValueError(f"the points of its losses are {self._stride!r:.80} steps apart")
        self._points: list[tuple[int, float]] = []
        if tree is not None:
            self._points += zip(tree["steps"].data.cast("q"), tree["values"].data.cast("d"), strict=True)
        self._fresh: list[tuple[int, float]] = []  # not told by `news`

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """(step, loss), in order of steps."""
        return tuple(self._points)

    def add(self, step: int, loss: float) -> None:
        """Keep the loss of this step, if it is one of those to be kept."""
        if step % self._stride == 0 and step > MOST * self._stride:
            self._thin(step)
        self.next = max(self.next, step - step % self._stride + self._stride)
        if step % self._stride == 0:
            if self._points and step < self._points[-1][0]:  # two devices, or a device and the host
                bisect.insort(self._points, (step, loss), key=itemgetter(0))
            else:
                self._points.append((step, loss))
            self._fresh.append((step, loss))

    def news(self) -> list[tuple[int, float]]:
        """The points since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def tree(self) -> dict[str, Any]:
        """As a checkpoint holds it: the points, and how far apart they are."""
        steps, values = zip(*self._points, strict=True) if self._points else ((), ())
        return {
            "stride": self._stride,
            "steps": _tensor("I64", array("q", steps)),
            "values": _tensor("F64", array("d", values)),
        }

    def _thin(self, step: int) -> None:
        while step > MOST * self._stride:
            self._stride *= 2
        self._points = [point for point in self._points if point[0] % self._stride == 0]
        self._fresh = [point for point in self._fresh if point[0] % self._stride == 0]


class LossRecord:
    """Hears of the loss of each step: keeps the curve, and what the losses prove of the checkpoints.

    A loss on a device is read when it has come to the host by itself: no step and no save waits for it. Where one that
    is not a finite number is to be told, or that they are again, `hear` says so; `told` is what was told last: the
    first step of those that are not finite, None if they are. `newest` is the loss that came last in this session.
    """

    def __init__(self, reader: Losses, tree: Mapping[str, Any] | None = None) -> None:
        self.curve = LossCurve(tree)
        self.proof = _proof(tree, self.curve.points)
        self.told: int | None = None
        self.newest: float | None = None
        self._reader = reader
        self._take = reader.take  # looked up once: this is called in every step
        self._in_a_row = 0
        self._ever = False  # was it told in this session that one was not finite?
        if tree is not None and "waiting" in tree:
            self._hear_all(reader.read(tree["waiting"]))
            self.curve.news()
        self.told, self._ever = self.proof.broken, False  # whoever opens the session tells it

    def __repr__(self) -> str:
        points = self.curve.points
        newest = f", the newest {points[-1][1]:.4g} at step {points[-1][0]}" if points else ""
        return f"<LossRecord: {len(points)} losses{newest}>"

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """The curve. Waits for the device."""
        self.settle()
        return self.curve.points

    def hear(self, step: int, loss: Any) -> bool:
        """The loss of a step, anything: what is not one number is left out. Is there something to be told?"""
        number = loss if loss.__class__ is float else self._take(step, loss)
        if number is None:
            return loss is not None and self._hear_all(self._reader.arrived())
        proof = self.proof
        if proof.broken is None and number - number == 0.0:  # as nearly always
            proof.finite, self.newest = step, number
            if step >= self.curve.next:
                self.curve.add(step, number)
            return False
        return self._hear_all(((step, number),))

    def settle(self) -> bool:
        """Wait for what is still on a device. Is there something to be told?"""
        return self._hear_all(self._reader.settle())

    def tree(self) -> dict[str, Any]:
        """As a checkpoint holds it: the curve, what was proven, and the losses that have not arrived, as they lie on
        the device."""
        waiting = self._reader.state_dict()
        proof = {"finite": self.proof.finite, "broken": self.proof.broken, "value": self.proof.value}
        return {**self.curve.tree(), **proof, **({"waiting": waiting} if waiting else {})}

    def _hear_all(self, losses: Iterable[tuple[int, float]]) -> bool:
        before = self.told
        for step, number in losses:
            self.newest = number
            if number - number == 0.0:
                self._hear_finite(step)
            else:
                self._hear_odd(step, number)
            if step >= self.curve.next:
                self.curve.add(step, number)
        return self.told != before

    def _hear_finite(self, step: int) -> None:
        proof = self.proof
        proof.finite = max(step, proof.finite or 0)
        if proof.broken is not None and step > proof.broken:
            proof.broken, proof.value, self.told, self._in_a_row = None, "", None, 0

    def _hear_odd(self, step: int, number: float) -> None:
        proof = self.proof
        if proof.broken is None:
            if step <= (proof.finite or 0):
                return  # of another device, and late: a later one is known to be finite
            proof.broken, proof.value = step, repr(number)
        self._in_a_row += 1
        if self.told is None and (not self._ever or self._in_a_row >= _LASTS):
            self.told, self._ever = proof.broken, True


def _proof(tree: Mapping[str, Any] | None, points: Sequence[tuple[int, float]]) -> Proof:
    """What a checkpoint says of its losses; for one from before there was a proof, what its points tell."""
    if tree is None:
        return Proof()
    if "finite" in tree:
        finite, broken, value = tree["finite"], tree["broken"], tree["value"]
        if not all(step is None or type(step) is int for step in (finite, broken)):
            raise TypeError(f"its losses were last finite at {finite!r:.80}, and no more from {broken!r:.80} on")
        return Proof(finite=finite, broken=broken, value=value)
    last = next((step for step, value in reversed(points) if math.isfinite(value)), None)
    later = [(step, repr(value)) for step, value in points if last is None or step > last]
    broken, value = later[0] if later else (None, "")
    return Proof(finite=last, broken=broken, value=value)


def thinned(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Those that a curve has which was kept all along."""
    stride = 1
    while points and points[-1][0] > MOST * stride:
        stride *= 2
    return tuple(point for point in points if point[0] % stride == 0)


def plain_points(points: Iterable[tuple[int, float]]) -> list[list[Any]]:
    """The points as JSON has them: NaN and infinity as text."""
    return [[step, value if math.isfinite(value) else repr(value)] for step, value in points]


def read_points(found: object) -> list[tuple[int, float]]:
    """What `plain_points` made, from a file that anybody may have written: what is of another form is left out."""
    pairs = [pair for pair in found if isinstance(pair, list) and len(pair) == 2] if isinstance(found, list) else []
    return [(step, float(loss)) for step, loss in pairs if type(step) is int and 0 <= step < 2**63 and _is_loss(loss)]


def _is_loss(value: object) -> bool:
    if isinstance(value, str):
        return value in ("nan", "inf", "-inf")
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _tensor(dtype: str, numbers: array[Any]) -> HostTensor:
    return HostTensor(dtype=dtype, shape=(len(numbers),), data=memoryview(numbers.tobytes()))


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

    def compare(self, tree: Tree, parts: Mapping[str, Tree]) -> list[str]:
        """A line for each change that stands in the way; none where the session may go on. Touches nothing. `tree`:
        what `tree` told when the checkpoint was made, None in the first ones; `parts`: those of the user there."""
        called = self._called(parts)
        if tree is None:  # the call told some of its settings already
            self._then = called
        else:
            self._then, self._moved = from_text(tree["written"]), tree["moved"]
        reached = {**self._objects.reached(parts, self._moved), **called}
        now = self._now
        if tree is None:  # what the call told then, and nothing else
            now = {part: {name: now[part][name] for name in items} for part, items in self._then.items()}
        found = changes(self._then, now)
        self._back = [change for change in found if _is_reached(change, reached)]
        found = [change for change in found if change not in self._back]
        if self._on_change == "apply":
            self._new = found
            return list(self._objects.plan(found, parts))
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
            return f"Some settings of the run {run!r} cannot be restored (checkpoint {checkpoint}):"
        return f"Some settings are not those that the run {run!r} began with (checkpoint {checkpoint}):"

    def remedy(self) -> str:
        """What to do then."""
        apply = 'on_change="apply" continues with the values written now'
        if self._on_change == "apply":
            return (
                'Nothing was touched. on_change="keep" continues with the old values; '
                "another run_name starts a new training."
            )
        if self._on_change == "keep":
            return f"Nothing was touched. Change them back; or {apply}; or choose another run_name."
        return (
            f'Nothing was touched. Choose: on_change="keep" continues with the run\'s own values; {apply}, from '
            "here on; another run_name begins a new training with them."
        )

    def take_own(self, told: Tree) -> None:
        """This process has moved the settings so; None: as rank 0 has."""
        if told is not None:
            self._moved = told["moved"]

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
                    f"training, which continues: {_listed(unsure)}"
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

    def tree(self) -> Tree:
        """As a checkpoint holds it: as written, in a text that is made once; and what training has moved."""
        return {"written": self._text, "moved": self._objects.moved()}

    def _called(self, parts: Mapping[str, Tree]) -> Settings:
        """The settings of the call as an earlier session computed with them."""
        options: dict[str, Plain] = {}
        for name, part in self._callers.items():
            if name in parts:
                options |= part.reached_settings(parts[name]["state"])
        kind = next((item.kind for item in self._now.get(_CALL, {}).values()), "")
        return {_CALL: {"": Item(kind=kind, sure=True, options=options)}} if options else {}

    def _is_kept(self, change: Change) -> bool:
        """Is it put back? A text that nobody knows the meaning of may name a place of the last machine."""
        known = change.sure or not isinstance(change.before, str)
        return known and change.part != _CALL and self._objects.keepable(change)

    def _line(self, change: Change) -> str:
        return f"{change} (cannot be restored)" if self._on_change == "keep" else change.text

    def _unmoved(self) -> list[Change]:
        """What is new and stays: where training itself has moved a value of unknown meaning, it goes on from there."""
        if self._on_change == "apply":
            return self._new
        moved = self._moved
        return [
            each for each in self._new
            if each.option not in moved.get(each.part, {}).get("attributes", {}).get(each.item, {})
        ]  # fmt: skip

    def _begin(self, written: Settings) -> None:
        self._text = to_text(written)
        self._objects.begin(written)


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


def is_own(part: str) -> bool:
    """Is a part of a checkpoint the loop's own, and no object of the user's?"""
    return part in _ALWAYS or part in _WHERE_NEEDED


def read_own(loaded: Loaded | None) -> dict[str, Tree]:
    """The loop's own parts of a checkpoint; empty where there is none."""
    if loaded is None:
        return {}
    own: dict[str, Tree] = {}
    for name in (*_ALWAYS, *(name for name in _WHERE_NEEDED if name in loaded.parts)):
        tree = loaded.parts.get(name)
        if not isinstance(tree, dict) or "state" not in tree:
            raise CheckpointDamaged(
                problem=f"Checkpoint {loaded.manifest.id} lacks {name!r}, which every session writes.",
                remedy="It was not written by a training. Choose another with resume=…, or another run_name.",
            )
        own[name] = tree["state"]
    return own


@dataclass(slots=True)
class Value:
    """A plain value as a part of the state."""

    value: Any = None

    def state_dict(self) -> Any:
        """The value."""
        return self.value

    def load_state_dict(self, state: Any) -> None:
        """Another value."""
        self.value = state


class LoopState:
    """All of it, while the training runs.

    `stored` is what `read_own` gave. Variables, means, streams and random numbers are put back where the training gets
    to their place: what a loop does before its first batch it does again in a resumed epoch, so until then it has those
    that it had when the epoch began.
    """

    def __init__(
        self, framework: Framework, seed: int, data: SameData, settings: RunSettings, stored: Mapping[str, Tree]
    ) -> None:
        self.seed = seed
        self.data = data
        self.settings = settings
        self.loaders = framework.data()
        self.history = History(stored.get("history"))
        self.losses = LossRecord(framework.losses(), stored.get("losses"))
        self.unseen: list[str] = [*stored.get("run", {}).get("unseen", [])]  # sentences on what no checkpoint holds
        self.loader: Tree = stored.get("loader")  # where the epoch's loader was
        self.gradients: Tree = stored.get("gradients", {})  # that the next update is made of
        self.variables = RunState(framework.name)
        self.averages = Averages(framework)
        self.streams = Streams(self.loaders, data, seed)
        self.others: tuple[Progress, Tree] | None = None  # what other processes came to by themselves, and when
        self._aside: Framework | None = None
        self._framework = framework
        self._rng = framework.rng()
        self._stored = stored
        self.arrived = not stored  # is the training where the checkpoint was taken?
        self._at_epoch: dict[str, Any] = dict.fromkeys(("rng", "state", "streams"))
        self.variables.take(self._native("state"))  # for what is read before the loop

    def parts(self, loader: Tree, gradients: Stateful | None, left: str) -> dict[str, object]:
        """The parts of a checkpoint, by their stored names; what the run does not use is left out. `loader`: what the
        epoch's loader tells; `left`: where the loop was left, if what it does there is left out."""
        values: dict[str, Any] = {
            "run": {
                "seed": self.seed,
                **({"left": left} if left else {}),
                **({"unseen": self.unseen} if self.unseen else {}),
            },
            "settings": self.settings.tree(),
            "history": self.history.tree(),
            "losses": self.losses.tree(),
            "loader": loader,
            "data": self.data.tree() if self.data.counts else self.data.records,
            "rng_at_epoch": self._at_epoch["rng"],
        }
        if self.others is not None:
            values["ranks"] = self.others[1]
        if gradients is not None and (standing := gradients.state_dict()):
            values["gradients"] = standing
        if self.variables:
            values |= {"state": self.variables.tree(), "state_at_epoch": self._at_epoch["state"]}
        if self.averages:
            values["averages"] = self.averages.tree()
        if streams := self.streams.tree():
            values |= {"streams": streams, "streams_at_epoch": self._at_epoch["streams"]}
        return {"rng": self._rng, **{name: Value(value) for name, value in values.items()}}

    def gather(
        self,
        group: Group,
        progress: Progress,
        parts: Mapping[str, object],
        gradients: Stateful | None,
        loader: Tree,
    ) -> str:
        """The next checkpoint is of this boundary, and all processes are at it. Of `parts` each may have come to others
        by itself: generators, what it computed of its part of each batch; and to other `gradients`, which are summed
        later. `loader`: what the epoch's loader tells. Returns a sentence where one of them reads other data
        than this one."""
        if self.others is not None and self.others[0] == progress:
            return ""
        if self._aside is None:  # of its own: that of the run has the memory that the checkpoint is copied to
            self._aside = open_framework(self._framework.name)
        held: dict[str, Any] = {
            n: part for n, part in parts.items() if is_generator(part) or not self._framework.owns(part)
        }
        held |= {name: Value(buffers) for name, buffers in group.buffers(parts).items()}
        if gradients is not None:
            held["gradients"] = Value(gradients.state_dict())
        read = loader.get("crc") if isinstance(loader, dict) else None  # of what came whole, and is cut here
        values = {"rng_at_epoch": self._at_epoch["rng"], "data": self.data.records, "read": read}
        values |= {"settings": {"moved": self.settings.tree()["moved"]}, "averages": self.averages.tree()}
        values |= {"state": self.variables.tree(), "state_at_epoch": self._at_epoch["state"]}
        own = {"rng": self._rng, **{name: Value(value) for name, value in values.items()}}
        own |= {name: held[name] for name in group.others(self._aside, held)}
        told = group.streams(self._aside, own)
        theirs = [(each.pop("data"), each.pop("read")) for each in told["streams"]]
        self.others = progress, told
        for rank, (records, whole) in enumerate(theirs, 1):
            if _others_data(self.data.records, records):
                return _OTHERS_DATA.format(rank=rank)
            if whole != read:
                return _OTHERS_STREAM.format(rank=rank)
        return ""

    def arrive(self) -> None:
        """The training is where the checkpoint was taken: all is in force from here on, the random streams last."""
        if self.arrived:
            return
        self.arrived = True
        self.variables.take(self._native("state"))
        if "averages" in self._stored:
            self.averages.take(self._native("averages"))
        self.streams.put(self._stored.get("streams") or {})
        if "rng" in self._stored:
            self._rng.load_state_dict(self._framework.native(self._stored["rng"]))
        self._stored = {}

    def begin_epoch(self) -> None:
        """An epoch begins."""
        self.arrive()
        self.averages.reset()
        self._at_epoch = {
            "rng": self._rng.state_dict(), "state": deepcopy(self.variables.tree()), "streams": self.streams.tree()
        }  # fmt: skip

    def begin_epoch_again(self) -> None:
        """One that was left in its middle: what it does before its first batch, it does as it did the first time."""
        if not self.arrived:
            if "rng_at_epoch" in self._stored:
                self._at_epoch["rng"] = self._framework.native(self._stored["rng_at_epoch"])
            self._at_epoch["state"] = self._native("state_at_epoch")
            self.variables.take(self._native("state_at_epoch"))
            self._at_epoch["streams"] = self._stored.get("streams_at_epoch")
            self.streams.put(self._at_epoch["streams"] or {})
        self._rng.load_state_dict(self._at_epoch["rng"])

    def mark(self) -> None:
        """The training is between two steps."""
        variables, averages, streams = self.variables, self.averages, self.streams
        if variables._values or variables._marked:  # most loops use none of them, and this is done in every step
            variables.mark()
        if averages._pending or averages._read:
            averages.mark()
        if streams._streams:
            streams.mark()
        self.settings.mark()

    def rewind(self) -> str | None:
        """Go back to the last mark, in what `parts` tells; or say why that cannot be, in a clause. Random streams are
        the boundary's, as are buffers."""
        return self.variables.rewind() or self.averages.rewind() or self.streams.rewind() or self.settings.rewind()

    def _native(self, name: str) -> Any:
        """What is stored under that name, in the framework's own objects and where they were; else an empty dict."""
        value = Value({})
        if name in self._stored:
            self._framework.restore({name: value}, {name: {"kind": "object", "state": self._stored[name]}})
        return value.value or {}


class RunState(MutableMapping[str, Any]):
    """Variables of the loop that belong to the training: saved with each checkpoint, back before the loop goes on.

    ::

        run.state.best = 0.0                # before the loop: what was saved replaces it in a resumed run
        for epoch in run.epochs(30):
            ...
            run.state.best = max(run.state.best, accuracy)

    By attribute or by key. Plain values, arrays, tensors, and lists, tuples and dicts of them.
    """

    def __init__(self, framework: str) -> None:
        vars(self).update(_framework=framework, _values={}, _marked={}, _versions={})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._values:
            _check(self._framework, name, value)
        if type(value) not in _ATOMS:
            _refuse_graph(name, value)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return vars(self)["_values"][name]
        except KeyError:
            raise AttributeError(
                f"run.state has no {name!r} yet. Give it its first value before the loop: run.state.{name} = …"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"run.state has no {name!r}.") from None

    def __repr__(self) -> str:
        return f"run.state({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def tree(self) -> dict[str, Any]:
        """The variables, live."""
        return dict(self._values)

    def take(self, state: Mapping[str, Any]) -> None:
        """Take what was saved; a variable that is new in the code keeps the value it was given."""
        self._values.update(state)

    def mark(self) -> None:
        """The training is between two steps."""
        # Torch's tensors have version counters, which tell later whether they were changed in place.
        versions = {name: getattr(value, "_version", None) for name, value in self._values.items()}
        vars(self).update(_marked=dict(self._values), _versions=versions)

    def rewind(self) -> str | None:
        """Go back to the last mark; or say which variable may have been changed since, in a clause."""
        for name in sorted(self._values.keys() | self._marked.keys()):
            value = self._marked.get(name)
            kind = type(value)
            if kind in _ATOMS or (kind is tuple and all(type(member) in _ATOMS for member in value)):
                continue
            if self._versions.get(name) is None or getattr(value, "_version", None) != self._versions[name]:
                return f"run.state.{name} is a {kind.__name__}, which may have been changed in the middle of the step"
        vars(self).update(_values=dict(self._marked))
        return None


def _check(framework: str, name: object, value: Any) -> None:
    """Refuse at once what no checkpoint could hold, and not when the first one is made."""
    if not isinstance(name, str) or name.startswith("_"):
        raise UsageError(
            problem=f"run.state[{name!r}]: a variable's name is text that does not begin with an underscore.",
            remedy='Write, for example, run.state.best = 0.0 or run.state["best"] = 0.0.',
        )
    if type(value) not in _ATOMS:
        open_framework(framework).rehearse({"run": Value({"state": {name: value}})}).finish().release()


def _refuse_graph(name: str, value: Any) -> None:
    """Refuse a tensor that remembers how it was computed: it would come back as a number that nothing leads to."""
    members = value if type(value) in (tuple, list) else (value,)
    # Paddle's tensors have a grad_fn each, and say by another name whether it leads anywhere.
    if any(getattr(member, "grad_fn", None) and not getattr(member, "stop_gradient", False) for member in members):
        raise UsageError(
            problem=f"run.state.{name} still has the graph that it was computed with, which no checkpoint can hold.",
            remedy=f"Detach it where the step ends, as training by pieces does: run.state.{name} = {name}.detach().",
        )


_OTHERS_DATA = (
    "Rank {rank} reads other samples than rank 0: each process makes the data set itself, with random numbers, a "
    "random_split or an order of files that has no seed. So each batch mixes both data sets. Use the same seed in all "
    "processes: call torch.manual_seed(0) before you make the data set."
)
_OTHERS_STREAM = (
    "Rank {rank} reads other batches than rank 0, and each process takes its part of them: a data set that streams "
    "must give the same batches in all processes. If it splits the data by rank, remove that; otherwise the data is "
    "split twice, and the training never sees most samples. If it draws random numbers, use the same seed in all "
    "processes."
)


def _others_data(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Are samples at the same places others, of data that does not change by itself?"""
    for name in ours.keys() & theirs.keys():
        one, other = ours[name], theirs[name]
        if not one["varies"] and not other["varies"]:
            mine, same = one["samples"] or {}, other["samples"] or {}
            if any(tuple(mine[at]) != tuple(same[at]) for at in mine.keys() & same.keys()):
                return True
    return False


class Averages(Mapping[str, float]):
    """Means over the steps of an epoch, which go on where they were when the run is resumed.

    ::

        for x, y in run.batches(loader):
            ...
            run.average(loss=loss, accuracy=accuracy)
            run.step(loss=loss)
        run.log(**run.average)              # or run.average.loss

    Each call weighs by the samples of the batch; `weight=` says otherwise. `run.epochs` begins anew with each epoch;
    in a loop over `run.steps`, `run.average.reset()` does. Nothing waits for the device until a mean is read.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._means: dict[str, MeanLike] = {}
        self._pending: list[tuple[str, Any, float]] = []  # since the last mark
        self._read = False  # were they added, for somebody read a mean before the mark?
        self.samples: int | None = None  # of the batch at hand

    def __call__(self, *, weight: float | None = None, **values: Any) -> None:
        """Count numbers, or tensors of one number, in the means of their names. `weight`: of this call, by default the
        samples of the batch that `run.batches` gave last, or 1 where their number is not known."""
        share = float(self.samples or 1) if weight is None else float(weight)
        for name, value in values.items():
            self._pending.append((name, value.detach() if hasattr(value, "detach") else value, share))

    def __getitem__(self, name: str) -> float:
        self._add()
        found = self._means[name].value()
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        self._add()
        return iter(self._means)

    def __len__(self) -> int:
        self._add()
        return len(self._means)

    def __repr__(self) -> str:
        self._add()
        means = ((name, mean.value()) for name, mean in self._means.items())
        return f"run.average({', '.join(f'{name}={value:.6g}' for name, value in means if value is not None)})"

    def __getattr__(self, name: str) -> float:
        if not name.startswith("_") and name in self:
            return self[name]
        raise AttributeError(f"Nothing has been averaged as {name!r} in this epoch: call run.average({name}=…) first.")

    def reset(self) -> None:
        """Begin anew, with nothing."""
        self._means, self._pending = {}, []

    def mark(self) -> None:
        """The training is between two steps: what was counted stays counted."""
        if self._pending:
            self._add()
        self._read = False

    def rewind(self) -> str | None:
        """Forget what was counted since the last mark; or say why that cannot be, in a clause."""
        self._pending = []
        return "a mean of run.average was read in the middle of the step" if self._read else None

    def tree(self) -> dict[str, Any]:
        """Each mean's state."""
        return {name: mean.state_dict() for name, mean in self._means.items()}

    def take(self, state: Mapping[str, Any]) -> None:
        """Go on from what `tree` returned."""
        self.reset()
        self._read = False
        for name, each in state.items():
            mean = self._means[name] = self._framework.mean(each["sum"])
            mean.load_state_dict(each)

    def _add(self) -> None:
        pending, self._pending = self._pending, []
        self._read = self._read or bool(pending)
        for name, value, weight in pending:
            mean = self._means.get(name)
            if mean is None:
                mean = self._means[name] = self._framework.mean(value)
            mean.add(value, weight)


class _Place(NamedTuple):
    """How far a stream is: complete passes over its loader, and what it gave of the one under way."""

    epoch: int = 0
    batches: int = 0
    samples: int = 0


class _Stream:
    """One loader, read for ever. Its order and randomness are a function of (seed, name, pass, batch)."""

    def __init__(self, name: str, data: Data, same: SameData, seed: int) -> None:
        self.place = self.marked = _Place()
        self._name = NEXT + name
        self._data = data
        self._same = same
        self._seed = derive(seed, "stream", name)
        self._loader: object = None
        self._stored: Tree = None  # what the loader told at the place, in the session before
        self._opened: LoaderState | None = None
        self._batches: Iterator[Batch] = iter(())

    def next(self, loader: object) -> Batch:
        """The next batch; behind the last one of a pass comes the first one of the next."""
        if loader is not self._loader:
            self.close()
            self._loader = loader
        batch = next(self._batches, None)
        if batch is None:
            batch = self._next_pass()
        epoch, batches, samples = self.place
        self.place = _Place(epoch, batches + 1, samples + (batch.samples or 0))
        return batch

    def tree(self) -> dict[str, Any]:
        """The place, and what the loader tells there."""
        told = self._stored if self._opened is None else self._opened.state(self.place.batches)
        return {**self.place._asdict(), "loader": told}

    def put(self, state: Mapping[str, Any] | None) -> None:
        """Go on from what `tree` returned; from the beginning without it."""
        self.close()
        self.place = self.marked = _Place(state["epoch"], state["batches"], state["samples"]) if state else _Place()
        self._stored = state["loader"] if state else None

    @property
    def can_rewind(self) -> bool:
        """Can it tell how it was at the last mark?"""
        opened, place, marked = self._opened, self.place, self.marked
        return place == marked or opened is None or (place.epoch == marked.epoch and not opened.positional)

    def close(self) -> None:
        """Let go of the loader's iteration."""
        if self._opened is not None:
            self._opened.close()
        self._opened, self._batches = None, iter(())

    def _next_pass(self) -> Batch:
        if self._opened is not None:  # one pass is over
            self.close()
            self.place = _Place(self.place.epoch + 1)
        for _ in range(2):  # the stored place may be the end of a pass
            place, stored, self._stored = self.place, self._stored, None
            state = stored if place.batches else None
            where = place._asdict()
            opened = self._same.open(self._data, self._name, self._loader, state, seed=self._seed, **where)
            self._opened, self._batches = opened, iter(opened)
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self.close()
            self.place = _Place(place.epoch + 1)
        raise UsageError(
            problem="The loader given to run.next() has no batches.",
            remedy="See that its data set is not empty, and that drop_last does not drop all there is.",
        )


class Streams:
    """The loaders of `run.next`, by name."""

    def __init__(self, data: Data, same: SameData, seed: int) -> None:
        self._about = data, same, seed
        self._streams: dict[str, _Stream] = {}
        self._names: dict[int, tuple[object, str]] = {}  # holds the loaders, so that no id is given twice

    def next(self, loader: object, name: str | None) -> Batch:
        """The next batch of a stream. Without a name it is known by the order in which loaders were first used."""
        if name is None:
            name = self._known(loader)
        stream = self._streams.get(name)
        return (stream or self._stream(name)).next(loader)

    def tree(self) -> dict[str, Any]:
        """How far each stream is."""
        return {name: stream.tree() for name, stream in self._streams.items()}

    def put(self, state: Mapping[str, Any]) -> None:
        """Go on from there. A stream that is not in it begins anew."""
        for name in self._streams.keys() | state.keys():
            self._stream(name).put(state.get(name))

    def mark(self) -> None:
        """The training is between two steps."""
        for stream in self._streams.values():
            stream.marked = stream.place

    @property
    def can_rewind(self) -> bool:
        """Can all of them go back to the last mark?"""
        return all(stream.can_rewind for stream in self._streams.values())

    def rewind(self) -> str | None:
        """Go back to the last mark, in what `tree` tells; or say why that cannot be, in a clause."""
        whole = self.can_rewind
        for stream in self._streams.values():
            if stream.can_rewind and stream._opened is not None:
                stream.place = stream.marked
        return None if whole else "a loader of run.next() had moved on, and cannot be asked where it was"

    def close(self) -> None:
        """Let go of all iterations."""
        for stream in self._streams.values():
            stream.close()

    def _stream(self, name: str) -> _Stream:
        if name not in self._streams:
            self._streams[name] = _Stream(name, *self._about)
        return self._streams[name]

    def _known(self, loader: object) -> str:
        if id(loader) not in self._names:
            if len(self._names) == _MOST_LOADERS:
                raise UsageError(
                    problem=f"run.next() was given more than {_MOST_LOADERS} loaders: each new one begins at its first "
                    "batch.",
                    remedy="Build each loader once, before the loop; or name the stream: run.next(loader, name=…).",
                )
            self._names[id(loader)] = loader, f"loader {len(self._names)}"
        return self._names[id(loader)][1]


class Place(Enum):
    """What part of a loop is under way."""

    FREE = auto()
    """None of colabkeep's: a loop that the user counts, or what stands between two epochs."""

    EPOCH = auto()
    """An epoch's body, before the first batch; all of it, where the loop reads its data elsewhere."""

    BATCH = auto()
    """The body of a loop over `run.batches`."""

    BEHIND = auto()
    """An epoch's body, after the loop over `run.batches`."""

    STEP = auto()
    """The body of a loop over `run.steps`."""


class Position:
    """Moves from boundary to boundary.

    `progress` is the last finished step, or end of an epoch. What the loop was given runs ahead of it.
    """

    def __init__(self, state: LoopState, progress: Progress) -> None:
        self.progress = progress
        self.go(Place.FREE)
        self.resting = True  # nothing was given or done since the last boundary
        self.stepped = True  # a step was counted since the loop was given something
        self.blind = False  # a step of this epoch was done outside of its loop over batches
        self.loader: LoaderState | None = None
        self.batch_samples: int | None = None  # of the batch handed out last
        self.batch_share = 1.0  # what part of them this process has
        self.batch = progress.batches - 1  # the number in its epoch, from 0, of the batch handed out last
        self._state = state
        self._samples = progress.epoch_samples  # of the epoch, handed out so far
        self._stored = state.loader  # where the loader was
        self._facts = None if progress.batches else state.loader  # what the last whole epoch was read from
        self._exhausted = False  # did the loop over the epoch's batches come to its end?
        self._held: Tree = None  # what the loader told at the boundary, where it has moved on since

    @property
    def all_read(self) -> bool:
        """Was the last batch of the epoch handed out, as far as its length is known?"""
        return self.loader is not None and self.batch + 1 == self.loader.length

    @property
    def behind(self) -> bool:
        """Was every batch of the epoch part of a finished step? What is left of it is what stands behind its loop."""
        return self.in_epoch and self.stepped and (self._exhausted or self.all_read)

    @property
    def ends(self) -> bool:
        """Is the next place to resume from the end of the epoch?"""
        return self.blind or self._exhausted or self.all_read or self.place is Place.BEHIND

    def go(self, place: Place) -> None:
        """Another part of a loop is under way."""
        self.place = place
        self.in_epoch = place in (Place.EPOCH, Place.BATCH, Place.BEHIND)
        self.comes_back = place in (Place.BATCH, Place.STEP)  # it will ask for more, and that is where it is saved

    def told(self) -> Tree:
        """What the loader tells at the boundary."""
        return self._facts if self.loader is None else self._held or self.loader.state(self.progress.batches)

    def begin_epoch(self) -> None:
        """The body of an epoch begins, or begins again after a resume in its middle."""
        self.close_loader()  # a loop may have been left in the middle of the epoch, and begun again
        self.go(Place.EPOCH)
        self.blind = self._exhausted = False
        self.batch, self._samples = self.progress.batches - 1, self.progress.epoch_samples
        if self.progress.batches:
            self._state.begin_epoch_again()
        else:
            self._state.begin_epoch()

    def open(self, loader: object) -> LoaderState:
        """Position `loader` at the batch after the last boundary."""
        if self.place is not Place.EPOCH:
            raise UsageError(
                problem="run.batches() was called "
                + ("a second time in one epoch." if self.in_epoch else "outside of run.epochs()."),
                remedy="for epoch in run.epochs(10): for batch in run.batches(loader): …  Iterate other loaders "
                "(validation) directly, and draw from a second training loader with run.next(loader).",
            )
        progress, state = self.progress, self._state
        stored, self._stored = self._stored, None
        self.loader = state.data.open(
            state.loaders,
            "train",
            loader,
            stored if progress.batches else None,
            seed=state.seed,
            epoch=progress.epoch,
            batches=progress.batches,
            samples=progress.epoch_samples,
        )
        if self.loader.length == 0:
            raise no_batches(loader)
        self.go(Place.BATCH)
        return self.loader

    def hand_out(self, batch: Batch) -> Any:
        """The loop is given a batch."""
        if not self._state.arrived:
            self._state.arrive()  # not before: making an iterator must not shift the streams
        value, count, own = batch
        self.batch += 1
        self.batch_share = 1.0 if own is None else own / (count or 1)
        self._samples += count or 0
        self.batch_samples = self._state.averages.samples = count
        self.resting = self.stepped = False
        self._held = None
        return value

    def hand_out_step(self) -> int:
        """The loop is given a step; its number."""
        self._state.arrive()
        self.resting = self.stepped = False
        return self.progress.step

    def next(self, loader: object, name: str | None) -> Any:
        """The next batch of a loader that is read without an end."""
        self.resting = False
        value, count, own = self._state.streams.next(loader, name)
        self.batch_share = 1.0 if own is None else own / (count or 1)
        self.batch_samples = self._state.averages.samples = count
        return value

    def batches_over(self, loader: LoaderState, *, exhausted: bool) -> None:
        """The loop over the batches of `loader` has come to its end, or was left."""
        if self.loader is loader and self.place is Place.BATCH:
            self.go(Place.BEHIND)
            self._exhausted = exhausted

    def hold(self) -> None:
        """The loader is about to move on past the batch that was handed out last: what it tells now belongs to the next
        boundary. Twice is harmless."""
        if self.loader is not None and self._held is None:
            self._held = self.loader.state()

    def rest(self) -> None:
        """A boundary is here."""
        self.resting = True
        self._state.mark()

    @property
    def can_rewind(self) -> bool:
        """Would `rewind` find the way back?"""
        return not self._moved_on and self._state.streams.can_rewind

    @property
    def _moved_on(self) -> bool:
        """Was a loader read that cannot be asked where it was before?"""
        return self.loader is not None and self.loader.positional and not self.stepped

    def rewind(self) -> str | None:
        """Go back to the last boundary; or say why that cannot be, in a clause."""
        if self._moved_on:
            return "the data loader had moved on since the last step, and cannot be asked where it was"
        return self._state.rewind()

    def advance(self, seconds: float) -> Progress:
        """A step is done; all batches read so far were part of it or of steps before."""
        before, samples = self.progress, self._samples
        self.progress = Progress(
            epoch=before.epoch,
            step=before.step + 1,
            batches=self.batch + 1,
            epoch_samples=samples,
            samples=before.samples + samples - before.epoch_samples,
            seconds=seconds,
        )
        self.resting, self.stepped = False, True
        self.blind = self.blind or (self.in_epoch and not self.comes_back)
        return self.progress

    def end_epoch(self, seconds: float) -> Progress:
        """The epoch's body is done."""
        before = self.progress
        if self.batch >= 0 and not before.batches:
            raise UsageError(
                problem="An epoch went by without run.step(); nothing was counted and nothing can be saved.",
                remedy="Call run.step() after each optimizer.step().",
            )
        if self.loader is not None and not self.loader.positional:
            self._facts = self.loader.state()
        self.close_loader()
        if self._state.data.counts:
            self._state.data.close("train")
        self.go(Place.FREE)
        self.stepped, self.blind = True, False
        self.batch, self._samples = -1, 0
        self.progress = Progress(epoch=before.epoch + 1, step=before.step, samples=before.samples, seconds=seconds)
        return self.progress

    def close_loader(self) -> None:
        """Let go of this epoch's loader."""
        if self.loader is not None:
            self.loader.close()
        self.loader = self._held = None

    def close(self) -> None:
        """Let go of all loaders and their workers."""
        self.close_loader()
        self._state.streams.close()
        self._state.loaders.close()
