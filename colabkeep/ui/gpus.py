"""`colabkeep.compare_gpus()`: the cards side by side, what each has, how fast it is, where it is free, what fits; as a
table, HTML, and a record for machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from colabkeep.core.arguments import public
from colabkeep.core.language import said
from colabkeep.hardware.catalogue import (
    MODES,
    UNCERTAINTY,
    Card,
    Workload,
    cards,
    largest_model,
    score,
    sixteen_bit,
    tier,
    usable_bytes,
)
from colabkeep.hardware.support import wheels_for, wheels_in_short
from colabkeep.ui.drawing import details, items, join, paragraph, table
from colabkeep.ui.text import Record, Report, aligned


@public()
def compare_gpus() -> Comparison:
    """Compare the cards of the notebook services: memory, speed, where each is free, which torch runs on it, what fits.

    As the last line of a cell it is a table, printed it is text.
    """
    rows = [_row(card) for card in cards()]
    return Comparison(sorted(rows, key=lambda row: -row["speed"]["transformer"] if row["speed"] else 0.0))


def _row(card: Card) -> dict[str, Any]:
    speed = {workload: score(card, workload) for workload in get_args(Workload)}
    fits = None  # a board of several TPU chips has no memory in common
    if card.kind == "cuda":
        memory = usable_bytes(card)
        fits = {mode.name: largest_model(memory, mode) for mode in MODES if card.bf16 or not mode.bf16}
    return {
        "name": card.name,
        "kind": card.kind,
        "architecture": card.architecture,
        "capability": None if card.capability is None else "{}.{}".format(*card.capability),
        "memory_gib": card.memory_gib,
        "bandwidth_gb_s": card.bandwidth_gb_s,
        "tensor_cores": card.tensor_tflops,
        "sixteen_bit": sixteen_bit(card),
        "speed": {workload: round(value, 2) for workload, value in speed.items() if value is not None} or None,
        "tier": tier(card),
        "free": card.free,
        "torch": None if card.capability is None else wheels_in_short(card.capability),
        "torch_text": None if card.capability is None else wheels_for(card.capability),
        "fits": fits,
        "confidence": card.confidence,
        "source": card.source,
        "notes": card.notes,
    }


class Comparison(Report):
    """What `colabkeep.compare_gpus()` returns. `rows`: one plain dictionary for each card, the fastest first; None is
    what is not known, or cannot be compared.

    "memory_gib": as sold. "bandwidth_gb_s": GB/s. "tensor_cores": fp16 TFLOPS of its tensor cores by the data sheet, 0
    without. "sixteen_bit": what 16-bit numbers are good for. "speed": by workload, relative to a T4 with 16-bit mixed
    precision, give or take 30 %. "free": where it can be had without paying. "torch": the torch wheels with kernels for
    it, in short, and in a sentence in "torch_text". "fits": the largest number of parameters by mode.
    """

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows: tuple[dict[str, Any], ...] = tuple(rows)

    def lines(self) -> Iterator[str]:
        """The comparison as lines of text."""
        yield _TITLE
        yield from aligned([_HEAD, *map(_cells, self.rows)], right=range(1, 7))
        yield from ("", *_NOTES, "", _FITS)
        yield from aligned([("", *_MODES), *self._fitting()], right=range(1, len(_MODES) + 1))
        yield ""
        yield from (f"{mode.name}: {mode.bytes_per_parameter:g} bytes per parameter ({mode.parts})" for mode in MODES)

    def to_dict(self) -> Record:
        """The comparison for programs: "cards" as in `rows`, "uncertainty" of each speed as a share of it,
        and "bytes_per_parameter" by mode."""
        return {
            "cards": list(self.rows),
            "uncertainty": UNCERTAINTY,
            "bytes_per_parameter": {mode.name: mode.bytes_per_parameter for mode in MODES},
        }

    def _repr_html_(self) -> str:
        free = [[_cells(row)[column] for column in _SHORT] for row in self.rows if row["free"]]
        modes = [(mode.name, f"{mode.bytes_per_parameter:g}", mode.parts) for mode in MODES]
        fitting = table("", ("", *_MODES), self._fitting(), right=range(1, len(_MODES) + 1))
        fits = join(fitting, table("", ("way of training", "bytes per parameter", "of which"), modes))
        torch: dict[str, list[str]] = {}
        for row in self.rows:
            if row["torch_text"] is not None:
                torch.setdefault(row["torch_text"], []).append(row["name"])
        return join(
            table(_FREE, [_HEAD[column] for column in _SHORT], free, right=range(2, 6)),
            *map(paragraph, _NOTES),
            details(_TITLE, table("", _HEAD, map(_cells, self.rows), right=range(1, 7))),
            details("How to get such a torch", items(f"{', '.join(names)}: {how}" for how, names in torch.items())),
            details(_FITS, fits),
        )

    def _fitting(self) -> list[tuple[str, ...]]:
        rows = (row for row in self.rows if row["fits"] is not None)
        return [(row["name"], *(_parameters(row["fits"].get(mode)) for mode in _MODES)) for row in rows]


_TITLE = "GPUs for training, the fastest first"
_FREE = "GPUs that are free somewhere, the fastest first"
_WORKLOADS = {"cnn": "CNN", "transformer": "Transformer", "rnn": "RNN"}
_HEAD = ("", "GiB", "GB/s", "tensor", *_WORKLOADS.values(), "tier", "16 bit", "free today", "torch wheels with kernels")
_SHORT = (0, 9, 1, 4, 5, 6, 7, 8)  # columns that fit a cell, what matters most first
_MODES = tuple(mode.name for mode in MODES)
_NOTES = (
    "Speed: times a T4 with 16-bit mixed precision, give or take 30 %. tensor: fp16 TFLOPS of the tensor cores.",
    "Tier: S four T4s and more, A, B like a T4, C, D hardly worth starting on; a card that the installed torch has no",
    "kernels for is a D. Two T4s have twice the speed only when both are used, and 2 x 15 GiB are not 30.",
    "Free: as it was in autumn 2026; AI Studio takes hours of a quota for it. The services change this without notice.",
)
_FITS = "What fits: parameters of the largest model by mode, activations not counted (they grow with the batch)"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    speed = row["speed"] or {}
    tensor = row["tensor_cores"]
    return (
        row["name"],
        f"{row['memory_gib']:g}",
        _rounded(row["bandwidth_gb_s"]),
        said("none") if tensor == 0 else _rounded(tensor),
        *(_one_digit(speed.get(workload)) for workload in _WORKLOADS),
        said(row["tier"]),
        row["sixteen_bit"],
        ", ".join(map(said, row["free"])),
        said(row["torch"] or ""),
    )


def _one_digit(number: float | None) -> str:
    """No more digits than are known: "0.3", "1", "20"."""
    return "?" if number is None else f"{float(f'{number:.1g}'):g}"


def _rounded(number: float | None) -> str:
    return "?" if number is None else f"{number:.0f}"


def _parameters(number: int | None) -> str:
    """Two digits and a unit: "730 M", "1.5 B"; a dash where it makes no sense."""
    if number is None:
        return "-"
    millions = float(f"{number / 1e6:.2g}")
    return f"{millions:g} M" if millions < 1000 else f"{millions / 1000:g} B"
