"""What users write: arguments by name, lengths of time, amounts of bytes, names of runs; read once, refused in our
words.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from colabkeep.core.errors import UnknownArgument, UsageError, fold

_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|[a-z]+?)s?(?=[\s\d]|$)\s*")


def parse_duration(value: object) -> float | None:
    """Seconds of "10 min", "1 h 30 min", "45 s", a number of seconds or a timedelta; None if it is none of these
    or not positive.

    >>> parse_duration("1 h 30 min")
    5400.0
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 0 < value < math.inf else None
    if not isinstance(value, str):
        return None
    text, seconds = value.strip().lower(), 0.0
    while text:
        piece = _PIECE.match(text)
        if piece is None or piece[2] not in _SECONDS:
            return None
        seconds += float(piece[1]) * _SECONDS[piece[2]]
        text = text[piece.end() :]
    return seconds or None


def duration_text(seconds: float) -> str:
    """Seconds in the largest units that matter: "12 s", "7 min", "3 h 05 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def interval_text(seconds: float) -> str:
    """Seconds as people say an interval: "45 s", "1 min 40 s", "10 min"."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{round(seconds / 60)} min"


def span_text(seconds: float) -> str:
    """Seconds as people say how long something takes or lasts, roughly: "40 s", "24 min", "2.5 h", "11 h"."""
    if seconds < 3600:
        return interval_text(seconds)
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours >= 10 else f"{hours:.1f} h".replace(".0 h", " h")


Duration: TypeAlias = float | str | timedelta
"""Seconds, "11 h", "1 h 30 min", or a timedelta."""


def read_duration(name: str, value: object) -> float:
    """Seconds of what the user passed as the argument `name`.

    Raises:
        UsageError: it is not a duration.
    """
    seconds = parse_duration(value)
    if seconds is None:
        raise UsageError(
            problem=f"{name}={value!r} must be a duration.",
            remedy='Pass seconds, "11 h", "1 h 30 min" or a timedelta.',
        )
    return seconds


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MOST = 2**60  # bytes; no storage that colabkeep knows takes a thousandth of that
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def read_size(name: str, value: object) -> int:
    """Bytes of "500MB", "1.5 GiB" or a whole number, passed as the argument `name`.

    >>> read_size("size", "1.5 kB")
    1500

    Raises:
        UsageError: it is no amount of bytes.
    """
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = 0.0 if match is None else float(match[1]) * _UNITS[(match[2] or "").lower()]
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    if not 0.5 < size < _MOST:
        raise UsageError(
            problem=f"{name}={value!r:.100} is not a size that a file can have.",
            remedy='Pass "500MB", "1.5 GiB", or a number of bytes above 0.',
        )
    return round(size)


# A plain name (letters, digits, ".", "_" and "-", in parts joined by "/") is its own folder. Of any other name each
# part that is not plain is spelled: "u8--", then a blank as "_", and every character but ASCII letters, digits and "."
# as the hexadecimal number of its code point, those that follow each other between two "-" and with "." between them:
# "my run" → "u8--my_run", "résumé" → "u8--r-e9-sum-e9-", "训练" → "u8---8bad.7ec3-". No two names have one folder, and
# spelling makes no difference of upper and lower case. Every store takes it, by the rules of `stores.base`.


_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_MARK = "u8--"
_SPELLED = re.compile(rf"{_MARK}(?:[A-Za-z0-9._]|-[0-9a-f]+(?:\.[0-9a-f]+)*-)+")
_GROUPS = re.compile(r"[^A-Za-z0-9. ]+")
_CODES = re.compile(r"-([0-9a-f]+(?:\.[0-9a-f]+)*)-")
_PART = 240  # characters of one that is spelled: with what we add to it, within the 255 that file systems take
_PLAIN_PART = 255  # characters: what file systems take; earlier versions took names of so many
_WHOLE = 420  # characters: with the longest name inside a run, within the 512 that stores take
_OURS = frozenset({"blobs", "checkpoints", "journal", "lease", "aside", "run.json", "committed.json"})
_ENDINGS = (".json", ".jsonl", ".safetensors", ".status.html", ".tmp", ".lock", ".holder")


def checked_run_name(name: object) -> str:
    """The name in its normal form (NFC): the same, however a keyboard puts its accents together.

    Raises:
        UsageError: it is no text, or no name; the remedy says what to write.
    """
    name = unicodedata.normalize("NFC", _text(name))
    folder = run_folder(name)
    plain = [part for part in name.split("/") if _PLAIN.fullmatch(part)]
    spelled = [_folder(part) for part in name.split("/") if not _PLAIN.fullmatch(part)]
    too_long = len(max(plain, key=len, default="")) > _PLAIN_PART or len(max(spelled, key=len, default="")) > _PART
    if len(folder) > _WHOLE or too_long:
        raise UsageError(
            problem=f"run_name={name[:40]!r}… is too long: its folder's name would have {len(folder)} letters.",
            remedy=f"At most {_PART} between two '/', and {_WHOLE} in all. A letter or digit of ASCII counts as one, "
            "any other character as 3 to 7. Shorten it.",
        )
    return name


def run_folder(name: str) -> str:
    """The folder of the run of that name, in its normal form.

    Raises:
        UsageError: it is no name, or what a folder is called.
    """
    why = next(filter(None, map(_obstacle, name.split("/"))), "")
    if why:
        raise UsageError(
            problem=f"run_name={name[:100]!r} cannot be the name of a run: {why}.",
            remedy='Write words of any script, such as run_name="my-run" or run_name="训练一"; "/" makes folders.',
        )
    return "/".join(map(_folder, name.split("/")))


def run_name_of(folder: str) -> str:
    """The name of the run whose folder this is; the folder itself where it is spelled in no way of ours."""
    return "/".join(map(_name, folder.split("/")))


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(
            problem=f"run_name must be a text, and this is of the type {type(name).__name__}: {name!r:.100}.",
            remedy='Write the name in quotes: run_name="my-run".',
        )
    return name


def meant_run(text: str) -> str:
    """Which run somebody means who looks for one: by its name, or by what its folder is called.

    Raises:
        UsageError: it is no text; the remedy says what to write.
    """
    return run_name_of(unicodedata.normalize("NFC", _text(text)))


def is_folder(text: str) -> bool:
    """May the folder of a run be called so? What else a store lists, against its promise, is no run's."""
    return all(_PLAIN.fullmatch(part) for part in text.split("/"))


def is_reserved(name: str) -> str:
    """The part of the name that colabkeep's own files are called like; "" if none is."""
    return next((part for part in name.split("/") if part in _OURS or part.endswith(_ENDINGS)), "")


def _obstacle(part: str) -> str:
    """Why this cannot be a part of a name, a clause; empty if it can."""
    called = _name(part)
    return f"it is how the folder of the run {called!r} is called" if called != part else _fault(part)


def _fault(part: str) -> str:
    if not part:
        return "it is empty, or has an empty part before, behind or between two '/'"
    if part.startswith("."):
        return "a part of it begins with a dot"
    if part != part.strip():
        return "a part of it begins or ends with a blank"
    if "\\" in part:
        return "it has a backslash"
    if any(unicodedata.category(char) in ("Cc", "Cs", "Co", "Zl", "Zp") for char in part):
        return "it has a character that cannot be written"
    return ""


def _folder(part: str) -> str:
    if _PLAIN.fullmatch(part):
        return part
    spelled = _GROUPS.sub(lambda found: f"-{'.'.join(f'{ord(char):x}' for char in found[0])}-", part)
    return f"{_MARK}{spelled.replace(' ', '_')}"


def _name(folder: str) -> str:
    if not _SPELLED.fullmatch(folder):
        return folder
    spaced = folder[len(_MARK) :].replace("_", " ")
    codes = [int(code, 16) for group in _CODES.findall(spaced) for code in group.split(".")]
    if max(codes, default=0) > 0x10FFFF:
        return folder
    name = _CODES.sub(lambda found: "".join(chr(int(code, 16)) for code in found[1].split(".")), spaced)
    canonical = unicodedata.normalize("NFC", name) == name and _folder(name) == folder
    return name if canonical and "/" not in name and not _fault(name) else folder


_P = ParamSpec("_P")
_R = TypeVar("_R")
_NONE: Mapping[str, str] = MappingProxyType({})


def public(foreign: Mapping[str, str] = _NONE) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a public function, or the `__init__` of a class: a call with arguments that it does not take, or without
    one that it needs, raises an error that says what to write. `foreign`: words of other trainers → ours, or
    a sentence."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        name = function.__qualname__.removesuffix(".__init__")
        own = int(name != function.__qualname__)  # self
        parameters = list(signature(function).parameters.values())[own:]

        @wraps(function)
        def checked(*positional: _P.args, **words: _P.kwargs) -> _R:
            _check(name, parameters, positional[own:], words, foreign)
            try:
                return function(*positional, **words)
            except Exception as error:
                fold(error)
                raise

        return checked

    return decorate


def _check(
    name: str,
    parameters: Sequence[Parameter],
    positional: Sequence[Any],
    words: Mapping[str, Any],
    foreign: Mapping[str, str],
) -> None:
    """Raises:
    UnknownArgument: there are words that it does not know.
    UsageError: an argument is missing, given twice, or without its name.
    """
    known = {each.name for each in parameters}
    unknown = [word for word in words if word not in known]
    if unknown:
        raise UnknownArgument(
            problem=f"{name}() does not know the argument{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}.",
            remedy=" ".join(_meant(name, unknown, known, foreign)),
        )
    try:
        Signature(parameters).bind(*positional, **words)
    except TypeError as error:
        first = [each.name for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
        needed = [f"{each.name}=…" for each in parameters if _needed(each) and each.name not in first]
        remedy = f"Write {name}({', '.join([*first, *needed])}, …)."
        raise UsageError(problem=f"{name}() was not called: {error}.", remedy=remedy) from error


def _needed(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty and parameter.kind is not Parameter.VAR_KEYWORD


def _meant(name: str, unknown: Sequence[str], known: set[str], foreign: Mapping[str, str]) -> Iterator[str]:
    for word in unknown:
        close = get_close_matches(word, sorted(known), 1)
        here = "Here it is called" if len(unknown) == 1 else f"Here {word!r} is called"
        if word in foreign:
            yield foreign[word] if foreign[word].endswith(".") else f"{here} {foreign[word]}."
        elif close:
            yield f"Did you mean {close[0]}{'' if len(unknown) == 1 else f' by {word!r}'}?"
        else:
            yield f"help(colabkeep.{name}) lists the arguments."
