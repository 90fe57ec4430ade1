"""How data differs from what a run remembers of it, in words: what is different, why that may be, what mends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colabkeep.frameworks.base import Sample

__all__ = ["Change", "changed_contents", "changed_facts", "decoded_otherwise"]

_NAMED = 4  # positions that a line names
_KINDS = {"samples": "a data set of samples", "batches": "a sequence of batches", "stream": "a stream"}
_SPLIT = {
    "torch": "random_split(data, [...], generator=torch.Generator().manual_seed(0))",
    "paddle": "paddle.seed(0) right before paddle.io.random_split(data, [...])",
}
_SORT = 'Sort it, sorted(os.listdir(folder)), and go on with on_change="apply" once'


class Change(NamedTuple):
    """`what` is different, without a full stop; `advice`, whole sentences: why that may be, and what mends it."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}. {self.advice}"


def changed_facts(who: str, then: Mapping[str, Any], now: Mapping[str, Any], framework: str) -> list[Change]:
    """Compare two records as far as they are known without loading anything. `who`: "training data"."""
    if then["kind"] != now["kind"]:
        what = f"{who}: {_KINDS[then['kind']]} → {_KINDS[now['kind']]}"
        return [Change(what, "Hand in what was handed in before.")]
    if then["length"] != now["length"]:
        unit = "batches" if now["kind"] == "batches" else "samples"
        what = f"{who}: {_count(then['length'])} → {_count(now['length'])} {unit}"
        return [
            Change(what, "Files were added or lost (is the download whole?), or the data was split in another way.")
        ]
    before, after = [tuple(subset) for subset in then["subsets"]], [tuple(subset) for subset in now["subsets"]]
    if before == after:
        return []
    sizes = [subset[0] for subset in after if subset not in before]
    what = f"{who}: other indices in a Subset" + (f" of {_count(sizes[0])}" if sizes else "")
    advice = (
        "A split without a seed is another one in each session: samples that were trained on may be validated on now. "
        f"Seed it: {_SPLIT.get(framework, _SPLIT['torch'])}. The split that had no seed is lost; begin another run."
    )
    return [Change(what, advice)]


def changed_contents(who: str, then: Mapping[int, Sample], now: Mapping[int, Sample]) -> list[Change]:
    """Compare the samples at positions that both sides know."""
    both = [position for position in then if position in now]
    others = [position for position in both if tuple(then[position]) != tuple(now[position])]
    if not others:
        return []
    formed = next((position for position in others if then[position][0] != now[position][0]), None)
    if formed is not None:
        what = f"{who}: sample {formed} was {then[formed][0]} and is {now[formed][0]}"
        return [Change(what, "A transform or the format of the data was changed.")]
    named = ", ".join(map(str, others[:_NAMED])) + (", …" if len(others) > _NAMED else "")
    what = f"{who}: {len(others)} of {len(both)} samples looked at have other contents of the same shape (at {named})"
    return [Change(what, _cause([then[position] for position in both], [now[position] for position in both]))]


def _cause(then: Sequence[Sample], now: Sequence[Sample]) -> str:
    if Counter(map(tuple, then)) == Counter(map(tuple, now)):
        return f"They are the same samples in another order: a list of files that is not sorted. {_SORT}."
    labels, arrays = [sample[1] for sample in then], [sample[2] for sample in then]
    if arrays == [sample[2] for sample in now] and len(set(arrays)) > 1:
        return "Labels, or other numbers, are not what they were; larger arrays and pictures are."
    if labels == [sample[1] for sample in now] and len(set(labels)) > 1:
        return "Their labels are what they were: a transform was changed, or the files were."
    return (
        "Often that is a list of files in another order; os.listdir and glob give another one on each machine. "
        f"{_SORT}. Else the files or a transform were changed, or rows were shuffled without a seed."
    )


def decoded_otherwise(
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
        f"{who}: shapes and labels are those of the run, pictures or sounds are not, and {', '.join(versions)}. "
        "Another version may decode the same files to other last digits; whether the files are the same cannot be seen"
    )


def _count(number: int | None) -> str:
    return "an unknown number of" if number is None else f"{number:,}"
