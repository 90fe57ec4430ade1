"""What is said to somebody who asks to stop while a session ends already."""

from __future__ import annotations

import math
import signal

from colabkeep.vocabulary.durations import duration_text

__all__ = ["ALL_SAVED", "still_copying", "still_saving"]

ALL_SAVED = "Everything is saved; the program stops in a moment."


def still_saving(number: signal.Signals, seconds: float | None, steps: int) -> str:
    """The last save is written. `seconds`: it takes so much longer, None: there was none to go by. `steps`: those that
    no other checkpoint has."""
    takes = "how long it takes is not known: it is the first one of this session"
    if seconds is not None:
        takes = f"about {duration_text(max(1.0, seconds))} more"
    price = f"; then the last {steps} step(s) are trained again next time" if steps else ", without that save"
    return (
        f"{_asked(number)}: the last save is still being written ({takes}), and the program stops after it."
        f"{_again(number, price)}"
    )


def still_copying(number: signal.Signals, url: str, seconds: float) -> str:
    """All is saved here, and slower storage is waited for, so long at most; infinite: that has not begun."""
    left = "" if math.isinf(seconds) else f", for {duration_text(seconds)} more at most"
    price = "; then the rest is copied when you run this cell again while the machine lives"
    return (
        f"{_asked(number)}: everything is saved on this machine. The program waits for {url}{left}, and stops after it."
        f"{_again(number, price)}"
    )


def _asked(number: signal.Signals) -> str:
    return "Stop requested" if number == signal.SIGINT else number.name


def _again(number: signal.Signals, price: str) -> str:
    return f" A second request stops at once{price}." if number == signal.SIGINT else ""
