"""Make `colabkeep/hardware/cards.json` of `scripts/gpus.csv`: `python scripts/make_cards.py`.

People write the table: ranges, "about", "(ECC on)", with sources. The library reads numbers. Of a range the lower end
is taken, so that nothing is promised that a card may not have.
"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("gpus.csv")
CARDS = Path(__file__).resolve().parents[1] / "colabkeep" / "hardware" / "cards.json"

KINDS = {"TPU": "tpu", "Kunlun": "xpu", "Ascend": "npu"}
"""The first word of a row's name, where the accelerator is not of the CUDA kind."""

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")  # the 32 of "fp32" is none


def cards_text(table: str) -> str:
    """The JSON text for the CSV text `table`: one card on each line, in the table's order."""
    lines = (json.dumps(card(row), ensure_ascii=False) for row in csv.DictReader(io.StringIO(table)))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def card(row: dict[str, str]) -> dict[str, Any]:
    """One row with its numbers read. Its words are those of `colabkeep.hardware.catalogue.Card`."""
    capability = row["compute_capability"]
    return {
        "name": row["name"],
        "kind": KINDS.get(row["name"].split()[0], "cuda"),
        "names": [row["device_string"], *parts(row["also_named"])],
        "architecture": row["architecture"],
        "capability": None if capability == "n/a" else [int(digit) for digit in capability.split(".")],
        "memory_gib": number(row["memory_GiB_nominal"]),
        "usable_gib": None if "per core" in row["usable_GiB_torch"] else number(row["usable_GiB_torch"]),
        "total_mib": total_mib(row),
        "bandwidth_gb_s": number(row["memory_bandwidth_GBps"]),
        "fp32_tflops": number(row["fp32_TFLOPS"]),
        "tensor_tflops": number(row["tensor_core_fp16_TFLOPS_dense"]),
        "measured_tflops": number(row["measured_matmul_fp16_TFLOPS"]),
        "bf16": flag(row["bf16_hw"]),
        "free": parts(row["free_today"]),
        "source": parts(row["source"]),
        "confidence": row["confidence"],
        "notes": row["notes"],
    }


def number(text: str) -> float | None:
    """The first number of a cell, which is the lower end of a range; None for a cell without one."""
    found = NUMBER.search(text)
    return None if found is None else float(found[0])


def flag(text: str) -> bool | None:
    """ "yes …" and "no …"; anything else is not known."""
    return {"yes": True, "no": False}.get(text.split(" ", maxsplit=1)[0])


def parts(text: str) -> list[str]:
    """The parts of a cell that holds several."""
    return [part.strip() for part in text.split(";") if part.strip()]


def total_mib(row: dict[str, str]) -> list[int]:
    """Lowest and highest total memory in MiB: as nvidia-smi tells it where that is known, else as sold."""
    told = [int(float(found)) for found in NUMBER.findall(row["nvidia_smi_total_MiB"])]
    sold = [int(float(found) * 1024) for found in NUMBER.findall(row["memory_GiB_nominal"])]
    numbers = told or sold
    return [min(numbers), max(numbers)]


if __name__ == "__main__":
    CARDS.write_text(cards_text(TABLE.read_text(encoding="utf-8")), encoding="utf-8")
