"""Is it the same data? What is known of a run's data is kept with its checkpoints, and compared, in words, when the
run goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from colabkeep.core.errors import Incompatible
from colabkeep.core.state import Tree, derive
from colabkeep.frameworks.base import Counts, Data, DataFacts, Inexact, LoaderState, Probe, Probed, Resized, Sample
from colabkeep.frameworks.shared.samples import spread

NEXT = "next "  # before the name of an endless stream

# Lengths and the indices of subsets are known without loading anything. Beside them a few samples, spread over the data
# set, are looked at, where the loader loads them and with random numbers of their own. They are looked at again when a
# later epoch begins, because a loop may change its data on purpose (harder samples, pseudo labels, new rollouts): what
# is compared after a disconnect has to be the data of the epoch that was cut off.

_POSITIONS = 8
_SECONDS = 2.0  # at most, and one sample more, when data is seen for the first time in a session
_AGAIN = 0.2  # at most, and one sample more, when a later epoch begins
_APART = 1.0  # seconds: looking costs a fraction of a millisecond where epochs do
_NAMED = 4  # positions that a line names
_WHO = {"train": "training data", "val": "validation data"}
_INEXACT = "the weights will not be those of an uninterrupted run"
_KINDS = {"samples": "a data set of samples", "batches": "a sequence of batches", "stream": "a stream"}
_SPLIT = {
    "torch": "random_split(data, [...], generator=torch.Generator().manual_seed(0))",
    "paddle": "paddle.seed(0) right before paddle.io.random_split(data, [...])",
}
_DOUBTFUL = (
    "the {who} counts while it is read ({names}), and continues from its value after the first epoch; if your loop "
    "sets this value in each epoch, the resume is not bit-exact. To be sure, set it in a method set_epoch(epoch)"
)
_RESIZED = (
    "{who}: batches of {before} samples → {now}. If your loop does not change them from epoch to epoch itself, the "
    "weights will not be those of an uninterrupted run"
)
_SORT = 'Sort it, sorted(os.listdir(folder)), and pass on_change="apply" once'


class _Change(NamedTuple):
    """`what` is different, without a full stop; `advice`, whole sentences: why that may be, and what mends it."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}. {self.advice}"


def _changed_facts(who: str, then: Mapping[str, Any], now: Mapping[str, Any], framework: str) -> list[_Change]:
    """Compare two records as far as they are known without loading anything. `who`: "training data"."""
    if then["kind"] != now["kind"]:
        what = f"{who}: {_KINDS[then['kind']]} → {_KINDS[now['kind']]}"
        return [_Change(what, "Pass what was passed before.")]
    if then["length"] != now["length"]:
        unit = "batches" if now["kind"] == "batches" else "samples"
        what = f"{who}: {_count(then['length'])} → {_count(now['length'])} {unit}"
        return [
            _Change(what, "Files were added or lost (is the download whole?), or the data was split in another way.")
        ]
    before, after = [tuple(subset) for subset in then["subsets"]], [tuple(subset) for subset in now["subsets"]]
    if before == after:
        return []
    sizes = [subset[0] for subset in after if subset not in before]
    what = f"{who}: other indices in a Subset" + (f" of {_count(sizes[0])}" if sizes else "")
    advice = (
        "A split without a seed differs in each session: you may now validate on samples that you trained on. Seed "
        f"it: {_SPLIT.get(framework, _SPLIT['torch'])}. The split without a seed cannot be restored; begin another "
        "run."
    )
    return [_Change(what, advice)]


def _changed_contents(who: str, then: Mapping[int, Sample], now: Mapping[int, Sample]) -> list[_Change]:
    """Compare the samples at positions that both sides know."""
    both = [position for position in then if position in now]
    others = [position for position in both if tuple(then[position]) != tuple(now[position])]
    if not others:
        return []
    formed = next((position for position in others if then[position][0] != now[position][0]), None)
    if formed is not None:
        what = f"{who}: sample {formed} was {then[formed][0]} and is {now[formed][0]}"
        return [_Change(what, "A transform or the format of the data was changed.")]
    named = ", ".join(map(str, others[:_NAMED])) + (", …" if len(others) > _NAMED else "")
    what = f"{who}: {len(others)} of {len(both)} samples looked at have other contents of the same shape (at {named})"
    return [_Change(what, _cause([then[position] for position in both], [now[position] for position in both]))]


def _cause(then: Sequence[Sample], now: Sequence[Sample]) -> str:
    if Counter(map(tuple, then)) == Counter(map(tuple, now)):
        return f"They are the same samples in another order: a list of files that is not sorted. {_SORT}."
    labels, arrays = [sample[1] for sample in then], [sample[2] for sample in then]
    if arrays == [sample[2] for sample in now] and len(set(arrays)) > 1:
        return "Labels or other numbers have changed; larger arrays and pictures have not."
    if labels == [sample[1] for sample in now] and len(set(labels)) > 1:
        return "Their labels have not changed: a transform was changed, or the files were."
    return (
        "Often that is a list of files in another order; os.listdir and glob give another one on each machine. "
        f"{_SORT}. Else the files or a transform were changed, or rows were shuffled or drawn without a seed."
    )


def _decoded_otherwise(
    who: str, then: Mapping[str, Any], now: Mapping[int, Sample], libraries: Mapping[str, str]
) -> str | None:
    """A sentence, if nothing but arrays and pictures differ and a library that decodes them has another version."""
    known: Mapping[int, Sample] = then["samples"] or {}
    if any(tuple(known[position][:2]) != tuple(now[position][:2]) for position in known if position in now):
        return None
    versions = [
        f"{name} was {before} and is {libraries[name]}"
        for name, before in then["libraries"].items()
        if libraries.get(name, before) != before
    ]
    if not versions:
        return None
    return (
        f"{who}: shapes and labels are the same as in the run, but pictures or sounds differ, and "
        f"{', '.join(versions)}. Another version may decode the same files with other last digits; colabkeep cannot "
        "see whether the files are the same"
    )


def _count(number: int | None) -> str:
    return "an unknown number of" if number is None else f"{number:,}"


class SameData:
    """What is known of the data of a run: of each loader, by a name: "train", "val", or `NEXT` and that of a stream.

    `framework`: its name, for advice. `records` is what a checkpoint keeps, `stored` those of the checkpoint that this
    session goes on from, None where it has none. `timer`: a clock in seconds. `tell` takes sentences for the user, as
    `Inexact` what costs the exactness. `apply`: other data is told of and gone on with.
    """

    def __init__(
        self,
        framework: str,
        seed: int,
        stored: Tree | None,
        timer: Callable[[], float],
        tell: Callable[[str], None],
        *,
        apply: bool = False,
    ) -> None:
        self.records: dict[str, dict[str, Any]] = {name: dict(record) for name, record in (stored or {}).items()}
        # Of loaders that count by themselves: of this session, or what an earlier one told.
        self.counts: dict[str, Counts | dict[str, Any]] = {
            name: record.pop("counts") for name, record in self.records.items() if "counts" in record
        }
        self._framework = framework
        self._seed = derive(seed, "data")
        self._timer = timer
        self._tell = tell
        self._apply = apply
        self._compared: set[str] = set()  # with the checkpoint; from then on, with the epoch before
        self._applied: set[str] = set()  # not that of the checkpoint, and gone on with
        self._told: set[str] = set()  # to change between epochs
        self._looks: dict[str, tuple[int, float]] = {}  # how often this session looked at samples, and when last

    def differences(self, data: Data, name: str, loader: object, *, inside: int | None) -> Sequence[str]:
        """Compare a loader before anything is touched: what makes a resume wrong. `inside`: the epoch in which the run
        stopped, None between two. Samples are loaded only if there are some to compare with."""
        facts = data.facts(loader)
        stops = self._judge_facts(name, facts, inside)
        self.records[name]["batch"] = facts.batch  # which is compared as a setting
        probe = self._probe(name)
        if not stops and probe is not None and probe.known:
            stops = self._judge_samples(name, data.look(loader, probe), inside)
        return stops

    def stopping(self, lines: Sequence[str]) -> Sequence[str]:
        """Those of the lines, about the order of data, that make a resume wrong: none where other data is applied."""
        for line in lines if self._apply else ():
            self._tell(Inexact(_applied(line)))
        return [] if self._apply else lines

    def open(self, data: Data, name: str, loader: object, state: Tree | None, **where: int) -> LoaderState:
        """`data.open`, with the data compared: first with that of the checkpoint, then with the epoch before."""
        epoch, batches = where["epoch"], where["batches"]
        facts = data.facts(loader)
        _refuse(self._judge_facts(name, facts, epoch if batches else None))
        if not batches:
            self._judge_batch(name, facts.batch)
        probe = None if self._looked_lately(name) else self._probe(name)
        inspector = None
        if probe is None:
            self._compared.add(name)  # as far as it can be
        else:
            judge = partial(self._judge, name, epoch, epoch if batches else None)
            inspector = _Inspector(probe=probe, found=judge)
        counts = self._count_on(data, name, loader, epoch)
        try:
            opened = data.open(loader, **where, state=state, inspector=inspector)
        except Incompatible as error:
            if not self._apply or state is None:
                raise
            if name not in self._applied:
                self.stopping(error.differences)
            self._applied.add(name)
            opened = data.open(loader, **where, state=None, inspector=inspector)
        if name in self._applied and batches and opened.length is not None and opened.length <= batches:
            _refuse([f"{_who(name)}: {batches} batches of this epoch are trained, and now it has no more than that"])
        resized = [f"{_who(name)}: {note}" for note in opened.notes if isinstance(note, Resized)]
        if resized and not self._apply:
            opened.close()
            raise Incompatible(
                problem="The loader makes other batches than when the run was cut off. No batch was trained; the "
                "checkpoints are untouched:",
                remedy="Make it as it was, or train under another run_name. Where find_executable_batch_size tries "
                "sizes, let it begin with the run's own: starting_batch_size=…. To continue with these batches, pass "
                'on_change="apply".',
                differences=resized,
            )
        if counts is not None:
            counts.begin()
        return opened

    def close(self, name: str) -> None:
        """An epoch of that loader is over."""
        counts = self.counts.get(name)
        if counts is not None and not isinstance(counts, dict):
            counts.end()

    def tree(self) -> dict[str, dict[str, Any]]:
        """What a checkpoint keeps: `records`, and `counts`."""
        told = {name: each if isinstance(each, dict) else each.tree() for name, each in self.counts.items()}
        return {n: {**record, "counts": told[n]} if told.get(n) else record for n, record in self.records.items()}

    def _count_on(self, data: Data, name: str, loader: object, epoch: int) -> Counts | None:
        earlier, counts = self.counts.pop(name, {}), data.counts(loader, epoch)
        if counts is None:
            return None
        self.counts[name] = counts
        before = earlier if isinstance(earlier, dict) else earlier.tree()
        doubtful = counts.go_on(before, resumed=before is earlier) if before else []
        if doubtful:
            self._tell(Inexact(_DOUBTFUL.format(who=_who(name), names=", ".join(doubtful))))
        return counts

    def _judge(self, name: str, epoch: int, inside: int | None, probed: Probed) -> None:
        """Samples were looked at, of this epoch."""
        _refuse(self._judge_samples(name, probed, inside))
        if self.records[name]["varies"]:
            self.records[name] |= {"epoch": epoch}

    def _judge_facts(self, name: str, facts: DataFacts, inside: int | None) -> list[str]:
        record, now = self.records.get(name), {**asdict(facts), "samples": None, "libraries": {}, "varies": False}
        changes = [] if record is None else _changed_facts(_who(name), record, now, self._framework)
        stops = self._verdict(name, changes, inside)
        if record is None or (changes and not stops):
            self.records[name] = now | {"varies": record is not None and self._varies(name)}
        return stops

    def _judge_batch(self, name: str, now: int | None) -> None:
        """Between two epochs, where a loop may let its batches grow. Within one, what was read of it tells more."""
        record = self.records[name]
        before = record.setdefault("batch", now)  # earlier versions did not note it
        if before is None or before == now:
            return
        if name in self._compared:
            now = None  # the loop does, and it is compared no more
        elif now is not None:
            self._tell(Inexact(_RESIZED.format(who=_who(name), before=before, now=now)))
        record["batch"] = now

    def _judge_samples(self, name: str, probed: Probed, inside: int | None) -> list[str]:
        record = self.records[name]
        known: Mapping[int, Any] = record["samples"] or {}
        seen = {position: sample for position, sample in probed.samples.items() if sample is not None}
        changes = _changed_contents(_who(name), known, seen)
        reason = _decoded_otherwise(_who(name), record, seen, probed.libraries) if changes else None
        if reason is not None and name not in self._compared:
            self._tell(Inexact(f"{reason}; {_INEXACT}"))
            stops = []
        else:
            stops = self._verdict(name, changes, inside)
        if not stops:
            varies = record["varies"] or (bool(changes) and self._varies(name))
            rest = {} if changes else {at: known[at] for at in known if at not in probed.samples}
            libraries = dict(probed.libraries)
            self.records[name] = record | {"samples": rest | seen, "libraries": libraries, "varies": varies}
            self._compared.add(name)
            self._looks[name] = self._looks.get(name, (0, 0.0))[0] + 1, self._timer()
        return stops

    def _varies(self, name: str) -> bool:
        """Has this data been seen to change between epochs of one session? Then it is meant to."""
        return name in self._compared or bool(self.records[name]["varies"])

    def _verdict(self, name: str, changes: Sequence[_Change], inside: int | None) -> list[str]:
        """The lines of changes that stop the training; others are told, if anybody has to know."""
        if not changes:
            return []
        what = "; ".join(change.what for change in changes)
        if name in self._compared:
            if name not in self._told:
                self._tell(f"{what}. That was between two epochs of this session, and is taken as meant.")
            self._told.add(name)
        elif self.records[name]["varies"]:
            if inside is not None and inside == self.records[name].get("epoch"):
                self._tell(Inexact(f"{what}. The loop changes its data between epochs; of this one, {_INEXACT}"))
        elif self._apply:
            self._applied.add(name)
            self._tell(Inexact(_applied(what)))
        else:
            return [str(change) for change in changes]
        return []

    def _looked_lately(self, name: str) -> bool:
        """Epochs may be short: whether data changes between them is asked once, and then not more often than this."""
        looks, last = self._looks.get(name, (0, 0.0))
        known = self.records[name]["samples"] is not None
        return known and looks > 1 and self._timer() - last < _APART

    def _probe(self, name: str) -> Probe | None:
        """What to look at now; None where samples cannot be asked for, or none of them is the same each time."""
        record = self.records[name]
        known = record["samples"]
        if record["kind"] == "stream" or not record["length"] or known == {}:
            return None
        positions = spread(record["length"], _POSITIONS) if known is None else list(known)
        seconds = _AGAIN if name in self._compared else _SECONDS
        known = {position: tuple(sample) for position, sample in (known or {}).items()}
        return Probe(positions=positions, known=known, seed=self._seed, seconds=seconds)


@dataclass(slots=True, kw_only=True)
class _Inspector:
    """Passes on what a loader shows before its first batch."""

    probe: Probe
    found: Callable[[Probed], None]


def _who(name: str) -> str:
    return _WHO.get(name) or f'data of run.next, "{name.removeprefix(NEXT)}"'


def _applied(what: str) -> str:
    return f'{what}. Gone on with, as on_change="apply" says: {_INEXACT}'


def _refuse(differences: Sequence[str]) -> None:
    if differences:
        raise Incompatible(
            problem="This is not the data of the run. If the training continued, it would see some samples twice and "
            "others not at all, and you might validate on samples that it was trained on. No batch was trained; the "
            "checkpoints are untouched:",
            remedy="Restore the data, or train under another run_name. To continue with this data, also if your loop "
            'intentionally makes other data for each epoch, pass on_change="apply": the report then says so.',
            differences=differences,
        )
