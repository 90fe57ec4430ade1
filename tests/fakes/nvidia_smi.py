"""The program that `fake_nvidia_smi` puts into a folder: a copy of this file, with its cards in a JSON file beside it.

It is run by a bare interpreter, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_TOO_NEW = ("compute_cap", "mig.mode.current")
_LONG = 3600.0  # seconds; nobody waits for it


def main() -> int:
    """Answer as the real program does, or misbehave as the JSON file says. Returns the exit code."""
    told = json.loads(Path(f"{__file__}.json").read_text(encoding="utf-8"))
    cards, does = told["cards"], told["does"]
    says_otherwise = {
        "no devices": ("No devices were found\n", 6),
        "no driver": (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.\n\n",
            9,
        ),
        "no library": (
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
            "Driver is properly installed and present in your system.\n",
            12,
        ),
        "mismatch": ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n", 18),
        "garbage": ("\udc80\udcff\x00, \udcfe, , ,\n" * 7, 0),
        "empty": ("", 0),
    }
    if does in says_otherwise:
        text, code = says_otherwise[does]
        _say(text)
        return code
    if does in ("hangs", "ignores SIGTERM", "hangs with a child"):
        _hang(does)
    answer, code = _listing(cards) if sys.argv[1:] == ["-L"] else _query(cards, does)
    if does == "endless":
        while True:
            _say(answer)
    if does == "truncated":
        answer = answer[:-3]
    if does == "lost":
        answer += "Unable to determine the device handle for GPU1: 0000:00:05.0: Unknown Error\n"
    _say(answer)
    if does == "closes and hangs":
        os.close(1)
        _hang(does)
    if does == "fails":
        return 255
    return code


def _query(cards: list[dict[str, Any]], does: str) -> tuple[str, int]:
    """The answer to `--query-gpu=… --format=csv,noheader,nounits`, and its exit code."""
    words = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    fields = words.get("--query-gpu", "").split(",")
    known = {field for card in cards for field in card["fields"]} - set(_TOO_NEW if does == "old" else ())
    for field in fields:
        if field not in known:
            return f'Field "{field}" is not a valid field to query.\n\n', 2
    styles = words.get("--format", "").split(",")
    unit = "" if "nounits" in styles else " MiB"
    local = does == "always localised" or (does == "localised" and _is_asked_to_localise())
    lines = []
    for card in cards:
        values = [card["fields"][field] + (unit if field.startswith("memory") else "") for field in fields]
        lines.append(", ".join(map(_localised, values) if local else values))
    return "".join(f"{line}\n" for line in lines), 0


def _is_asked_to_localise() -> bool:
    """Is the caller's language another than the plain one of programs? One that is not installed counts too."""
    import locale

    try:
        return not locale.setlocale(locale.LC_NUMERIC, "").startswith(("C", "POSIX"))
    except locale.Error:
        return True


def _localised(value: str) -> str:
    """A number as German writes it: 15.360 and 7,5."""
    return f"{int(value):,}".replace(",", ".") if value.isdigit() else value.replace(".", ",")


def _listing(cards: list[dict[str, Any]]) -> tuple[str, int]:
    """The answer to `-L`: cards, and the slices of each."""
    lines = []
    for number, card in enumerate(cards):
        lines.append(f"GPU {number}: {card['fields']['name']} (UUID: {card['fields']['uuid']})\n")
        for place, (profile, uuid) in enumerate(card["slices"]):
            lines.append(f"  MIG {profile:<15} Device  {place}: (UUID: {uuid})\n")
    return "".join(lines), 0


def _hang(does: str) -> None:
    """Leave the ids of what hangs beside the program, for a test to look whether they are gone."""
    processes = [os.getpid()]
    if does == "ignores SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if does == "hangs with a child":  # it holds the other end of the output, too
        sleep = [sys.executable, "-ISc", f"import time; time.sleep({_LONG})"]
        processes.append(subprocess.Popen(sleep).pid)
    Path(f"{__file__}.pids").write_text(" ".join(map(str, processes)), encoding="utf-8")
    time.sleep(_LONG)


def _say(text: str) -> None:
    data = text.encode("utf-8", errors="surrogateescape")
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main())
