"""Names of runs: any script as people write them, letters of ASCII as folders are called.

A plain name (letters, digits, ".", "_" and "-", in parts joined by "/") is its own folder. Of any other name each part
that is not plain is spelled: "u8--", then a blank as "_", and every character but ASCII letters, digits and "." as the
hexadecimal number of its code point, those that follow each other between two "-" and with "." between them:
"my run" → "u8--my_run", "résumé" → "u8--r-e9-sum-e9-", "训练" → "u8---8bad.7ec3-". No two names have one folder,
and spelling makes no difference of upper and lower case. Every store takes it, by the rules of `stores.base`.
"""

from __future__ import annotations

import re
import unicodedata

from colabkeep.vocabulary.errors import UsageError

__all__ = ["checked_run_name", "is_folder", "is_reserved", "meant_run", "run_folder", "run_name_of"]

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
    if not isinstance(name, str):
        raise UsageError(
            problem=f"run_name must be a text, and this is of the type {type(name).__name__}: {name!r:.100}.",
            remedy='Write the name in quotes: run_name="my-run".',
        )
    name = unicodedata.normalize("NFC", name)
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


def meant_run(text: str) -> str:
    """Which run somebody means who looks for one: by its name, or by what its folder is called."""
    return run_name_of(unicodedata.normalize("NFC", text))


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
