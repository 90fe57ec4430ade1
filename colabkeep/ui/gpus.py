"""The cards side by side: what each has, how fast it is, where it is free, what fits; a table, HTML, a plot, and a
record for machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib import import_module
from typing import Any, get_args

from colabkeep.core.arguments import door
from colabkeep.core.errors import MissingDependency
from colabkeep.hardware.base import Kind
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
from colabkeep.ui.text import Record, aligned, html_table

__all__ = [
    "OUTDATED",
    "Comparison",
    "Outdated",
    "Row",
    "compare",
    "compare_gpus",
]

# Against a widely copied GPU review (February 2020), Dettmers' guide (2019) and training checklists of 2020.


@dataclass(frozen=True, slots=True)
class Outdated:
    """What was said `then`, and what holds `now`."""

    then: str
    now: str


OUTDATED = (
    Outdated(
        "Reconnect to Colab until a P100 comes instead of a K80.",
        "Free Colab gives a T4 and nothing else of that kind; K80, P4 and P100 are gone. "
        "Reconnecting does not improve a T4.",
    ),
    Outdated(
        "A P100 is the best that can come.",
        "Default torch has had no kernels for it since 2.8: Colab's since February 2026, Kaggle's since March, and in "
        "September Kaggle retired it. Where torch has them, it is faster than a T4 in 32 bits and slower than a T4 in "
        "16-bit mixed precision.",
    ),
    Outdated(
        "Kaggle has a K80.",
        "It had none any more when that was written. Today: two T4s or a TPU v5e-8; the P100 was retired in 2026.",
    ),
    Outdated(
        "The V100 of AI Studio is the strongest free card.",
        "Still twice a T4, but default torch dropped it with 2.11, and 2.15 has no wheel for it at all.",
    ),
    Outdated(
        "Colab gives a free TPU v2-8.", "It was withdrawn in September 2025. The free one is a v5e-1 with 16 GiB."
    ),
    Outdated(
        "16-bit training is faster everywhere.",
        "Only with tensor cores (compute capability 7.0 on). bf16 is emulated on T4 and V100, and "
        "several times slower.",
    ),
    Outdated(
        "Training in 16 bits is worth half as much memory again.",
        "It shrinks activations, not weights, gradients and optimizer state: batches grow by a factor between 1 and 2.",
    ),
    Outdated(
        "24 GB take three times the batch of 8 GB.",
        "What a model needs in any case comes off both: the factor was between 2 and 8 in that review's own table.",
    ),
    Outdated(
        "Arithmetic counts for more than memory bandwidth.",
        "Measured over CNNs and Transformers on the cards of 2017 to 2022, bandwidth counts for the most.",
    ),
    Outdated(
        "Use Apex for 16 bits.",
        "It is part of torch: torch.amp.autocast and torch.amp.GradScaler; in colabkeep, the argument precision.",
    ),
    Outdated("The more loader workers, the better.", "Free Colab has two CPU cores: two workers."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One card. None: not known, or not comparable.

    `memory_gib`: as sold. `bandwidth_gb_s`: GB/s. `tensor_cores`: fp16 TFLOPS of its tensor cores by the data sheet, 0
    without. `sixteen_bit`: what 16-bit numbers are good for. `speed`: by workload, relative to a T4 with 16-bit mixed
    precision, give or take `UNCERTAINTY`. `free`: where it can be had without paying. `torch`: the torch wheels with
    kernels for it, in short, and in a sentence in `torch_text`. `fits`: the largest number of parameters by mode.
    """

    name: str
    kind: Kind
    architecture: str
    capability: str | None
    memory_gib: float
    bandwidth_gb_s: float | None
    tensor_cores: float | None
    sixteen_bit: str
    speed: Mapping[Workload, float] | None
    tier: str
    free: tuple[str, ...]
    torch: str | None
    torch_text: str | None
    fits: Mapping[str, int] | None
    confidence: str
    source: tuple[str, ...]
    notes: str


def compare() -> tuple[Row, ...]:
    """All cards of the catalogue, the fastest first, those without a comparable speed last."""
    rows = [_row(card) for card in cards()]
    return tuple(sorted(rows, key=lambda row: 0.0 if row.speed is None else -row.speed["transformer"]))


def _row(card: Card) -> Row:
    speed = {workload: score(card, workload) for workload in get_args(Workload)}
    known = {workload: round(value, 2) for workload, value in speed.items() if value is not None}
    return Row(
        name=card.name,
        kind=card.kind,
        architecture=card.architecture,
        capability=None if card.capability is None else "{}.{}".format(*card.capability),
        memory_gib=card.memory_gib,
        bandwidth_gb_s=card.bandwidth_gb_s,
        tensor_cores=card.tensor_tflops,
        sixteen_bit=sixteen_bit(card),
        speed=known or None,
        tier=tier(card),
        free=card.free,
        torch=None if card.capability is None else wheels_in_short(card.capability),
        torch_text=None if card.capability is None else wheels_for(card.capability),
        fits=_fits(card),
        confidence=card.confidence,
        source=card.source,
        notes=card.notes,
    )


def _fits(card: Card) -> Mapping[str, int] | None:
    """None for anything but a GPU: a board of several TPU chips has no memory in common."""
    if card.kind != "cuda":
        return None
    memory = usable_bytes(card)
    return {mode.name: largest_model(memory, mode) for mode in MODES if card.bf16 or not mode.bf16}


@door()
def compare_gpus() -> Comparison:
    """Compare the cards of the notebook services: memory, speed, where each is free, which torch runs on it, what fits.

    As the last line of a cell it is a table, printed it is text, and `.plot()` draws it.
    """
    return Comparison(compare())


class Comparison:
    """What `colabkeep.compare_gpus()` returns. `rows`: one plain dictionary for each card, the fastest first."""

    def __init__(self, cards: Sequence[Row]) -> None:
        self.rows: tuple[Mapping[str, Any], ...] = tuple(asdict(card) for card in cards)

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The comparison as lines of text."""
        yield "GPUs for training, the fastest first"
        yield from aligned([_HEAD, *map(_cells, self.rows)], right=range(1, 8))
        yield from ("", *_NOTES, "", _FITS)
        yield from aligned([("", *_MODES), *map(_fit_cells, self._gpus())], right=range(1, len(_MODES) + 1))
        yield from ("", *(f"{mode.name}: {mode.bytes_per_parameter:g} bytes ({mode.parts})" for mode in MODES))
        yield from ("", _THEN)
        for advice in OUTDATED:
            yield from (f"  Then: {advice.then}", f"  Now:  {advice.now}")

    def to_dict(self) -> Record:
        """The comparison for programs: "cards" as in `rows`, "uncertainty" of each speed as a share of it,
        "bytes_per_parameter" by mode, and "outdated" advice with what holds now."""
        return {
            "cards": list(self.rows),
            "uncertainty": UNCERTAINTY,
            "bytes_per_parameter": {mode.name: mode.bytes_per_parameter for mode in MODES},
            "outdated": [asdict(advice) for advice in OUTDATED],
        }

    def to_json(self) -> str:
        """`to_dict` as one line of strict JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def plot(self) -> Any:
        """Draw speed and memory of the cards whose speed is known: a matplotlib Figure.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        try:
            figures = import_module("matplotlib.figure")
        except ImportError as error:
            raise MissingDependency(
                problem="The plot needs matplotlib, which is not installed. The table needs nothing.",
                remedy="pip install matplotlib",
            ) from error
        rows = [row for row in reversed(self.rows) if row["speed"] is not None]  # bars are drawn from below
        figure = figures.Figure(figsize=(11, 0.32 * len(rows) + 1.5), layout="constrained")
        speed, memory = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        names = [f"{row['name']} *" if row["free"] else row["name"] for row in rows]
        for place, workload in enumerate(_WORKLOADS):
            values = [row["speed"][workload] for row in rows]
            spots = [index + (1 - place) * 0.27 for index in range(len(rows))]
            doubt = [value * UNCERTAINTY for value in values]
            speed.barh(spots, values, height=0.27, xerr=doubt, label=_WORKLOADS[workload], error_kw={"alpha": 0.4})
        speed.set(xscale="log", xlabel="speed, T4 = 1 (lines: give or take 30 %)", title="* free somewhere")
        speed.set_xticks(_MARKS, map(str, _MARKS))
        speed.set_yticks(range(len(rows)), names)
        speed.set_ylim(-0.7, len(rows) - 0.3)
        speed.axvline(1.0, color="black", linewidth=0.8)
        speed.legend(loc="lower right")
        memory.barh(range(len(rows)), [row["memory_gib"] for row in rows], color="grey")
        memory.set(xlabel="memory, GiB")
        return figure

    def _repr_html_(self) -> str:
        # Inline styles and <details> only: a notebook opened on another machine keeps these and strips the rest.
        notes = "<br>".join(map(escape, _NOTES))
        cards = [(*_cells(row), row["torch_text"] or "") for row in self.rows]
        modes = [(mode.name, f"{mode.bytes_per_parameter:g}", mode.parts) for mode in MODES]
        return (
            f"<b>GPUs for training, the fastest first</b>{html_table([(*_HEAD, 'how to get such a torch'), *cards])}"
            f"<p>{notes}</p><details><summary>{escape(_FITS)}</summary>"
            f"{html_table([('', *_MODES), *map(_fit_cells, self._gpus())])}"
            f"{html_table([('mode', 'bytes per parameter', 'of which'), *modes])}</details>"
            f"<details><summary>{escape(_THEN)}</summary>"
            f"{html_table([('then', 'now'), *((advice.then, advice.now) for advice in OUTDATED)])}</details>"
        )

    def _gpus(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["fits"] is not None]


_MARKS = (0.1, 0.3, 1, 3, 10, 30)
_WORKLOADS = {"cnn": "CNN", "transformer": "Transformer", "rnn": "RNN"}
_HEAD = (
    "",
    "GiB",
    "GB/s",
    "tensor",
    *_WORKLOADS.values(),
    "tier",
    "16 bit",
    "free today",
    "torch wheels with kernels",
)
_MODES = tuple(mode.name for mode in MODES)
_NOTES = (
    "Speed: times a T4 with 16-bit mixed precision, give or take 30 %. tensor: fp16 TFLOPS of the tensor cores.",
    "Tier: S four T4s and more, A, B like a T4, C, D hardly worth starting on; a card that the installed torch has no",
    "kernels for is a D. Two T4s have twice the speed only when both are used, and 2 x 15 GiB are not 30.",
    "Free: as it was in autumn 2026; AI Studio takes hours of a quota for it. The services change this without notice.",
)
_FITS = "What fits: parameters of the largest model by mode, activations not counted (they grow with the batch)"
_THEN = "Advice of 2019-20 that no longer holds"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    speed = row["speed"] or {}
    tensor = row["tensor_cores"]
    return (
        row["name"],
        f"{row['memory_gib']:g}",
        _rounded(row["bandwidth_gb_s"]),
        "none" if tensor == 0 else _rounded(tensor),
        *(_one_digit(speed.get(workload)) for workload in _WORKLOADS),
        row["tier"],
        row["sixteen_bit"],
        ", ".join(row["free"]),
        row["torch"] or "",
    )


def _fit_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["name"], *(_parameters(row["fits"].get(mode)) for mode in _MODES)


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
