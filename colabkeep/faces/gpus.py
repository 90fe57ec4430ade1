"""The comparison of cards as people see it: a table, HTML, a plot, and a record for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib import import_module
from typing import Any

from colabkeep.faces.tables import Record, aligned, html_table
from colabkeep.hardware.comparison import Row, compare
from colabkeep.hardware.memory import MODES
from colabkeep.hardware.outdated import OUTDATED
from colabkeep.hardware.scores import UNCERTAINTY
from colabkeep.vocabulary.door import door
from colabkeep.vocabulary.errors import MissingDependency

__all__ = ["Comparison", "compare_gpus"]


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
        yield from aligned([("", *_MODES), *map(_fits, self._gpus())], right=range(1, len(_MODES) + 1))
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
            f"{html_table([('', *_MODES), *map(_fits, self._gpus())])}"
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


def _fits(row: Mapping[str, Any]) -> tuple[str, ...]:
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
