"""The language in which people are told things: English, or Chinese by the table in `chinese`.

A text is made, stored and compared in English; only where it is shown, `said` puts it into the reader's language. A
text without a translation is shown in English. Where English is read, the table is never loaded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from string import Formatter
from typing import Literal, TypeAlias

from colabkeep.core.system import Environment, is_dir_here, variables_here

Language: TypeAlias = Literal["en", "zh"]

VARIABLE = "COLABKEEP_LANG"
"""The environment variable that chooses: "en" or "zh"."""

_OF_THE_SYSTEM = ("LC_ALL", "LC_MESSAGES", "LANG")  # in the order in which POSIX asks them
_CHINESE_SERVICE = "/home/aistudio"  # the home folder on Baidu AI Studio, whose pages and users are Chinese


def language(environment: Environment | None = None) -> Language:
    """What COLABKEEP_LANG says; else Chinese on AI Studio; else what the system's variables say. English for any
    language that is not known. `environment`: the process's own by default, as it is now."""
    variables = variables_here() if environment is None else environment.environ
    told = variables.get(VARIABLE, "").strip().lower()
    if not told:
        there = is_dir_here if environment is None else environment.is_dir
        if there(_CHINESE_SERVICE):
            return "zh"
        told = next((variables[name] for name in _OF_THE_SYSTEM if variables.get(name)), "").lower()
    return "zh" if told.startswith("zh") else "en"


def said(text: str, to: Language | str | None = None) -> str:
    """An English text in the language `to`, by default the one that `language` tells."""
    return _chinese(text) if (language() if to is None else to) == "zh" else text


# -- the table -----------------------------------------------------------------------------------------

# A template with fewer letters says too little to have any text in its places, unless it begins with these.
_FEW, _BEGINNING = 12, 4
_WORD = re.compile(r"[A-Za-z]{2,}")
# Where a text is taken apart if no template has it as a whole, and what stands between the parts in Chinese.
_JOINTS = (("\n", "\n"), (". ", "。"), ("; ", "；"), (": ", "："), (", ", "，"))  # noqa: RUF001
_LEFT = re.compile(r"[A-Za-z]{2,} [a-z]{2,}")  # English
_MARKS = re.compile(r"(\s*(?:[!→·✔▲-]|\[colabkeep\])\s+|\s+|, |; |: | \()")
_BESIDE = ("", " ")  # between places that are taken for one, until it is known what stands in them
_BREAKS = re.compile(r"(?=[ ,;:(.])")
_ENDS = "。；：，！？、"  # noqa: RUF001


class _Template:
    """An English text with places, and the Chinese one. `pattern` has one group for places beside each other, of which
    `places` knows the numbers."""

    def __init__(self, english: str, chinese: str) -> None:
        self.chinese = chinese
        parts = [(literal, name is not None) for literal, name, _, _ in Formatter().parse(english)]
        self.letters = sum(char.isalpha() for literal, _ in parts for char in literal)
        begins = sum(map(str.isalpha, parts[0][0])) >= _BEGINNING if parts else False
        place = r"(.*?)" if self.letters >= _FEW or begins else r"(\S*?(?: \S+?){0,3}?)"
        pattern, self.places = "", list[tuple[str, ...]]()  # of each group: what stands between its places
        for number, (literal, named) in enumerate(parts):
            if named and number and literal in _BESIDE and self.places:
                self.places[-1] = (*self.places[-1], literal)
                continue
            pattern += re.escape(literal)
            if named:
                pattern += place
                self.places.append(())
        self.pattern = re.compile(pattern, re.DOTALL)
        words = [
            word[0]
            for number, (literal, named) in enumerate(parts)
            for word in _WORD.finditer(literal)
            # A word beside a place may be the half of one.
            if (word.start() or not number) and (word.end() < len(literal) or not named)
        ]
        self.key = max(words, key=len, default="")

    def said(self, text: str) -> str | None:
        """The Chinese of a text, if this is its template; what stands in the places is put into Chinese, too."""
        found = self.pattern.fullmatch(text)
        if found is None:
            return None
        values = (
            value
            for group, between in zip(found.groups(), self.places, strict=True)
            for value in _apart(group, between)
        )
        return self.chinese.format(*map(_place, values))


def _apart(value: str, between: tuple[str, ...]) -> list[str]:
    """What stands in places beside each other: the later ones begin where a text of the table does."""
    if not between:
        return [value]
    for at in (found.start() for found in _BREAKS.finditer(value)):
        if value[at:].startswith(between[0]) and _whole(value[at + len(between[0]) :]) is not None:
            return [value[:at], *_apart(value[at + len(between[0]) :], between[1:])]
    if between[0] and between[0] in value:
        first, _, rest = value.partition(between[0])
        return [first, *_apart(rest, between[1:])]
    return [value, *("" for _ in between)]


@cache
def _table() -> Mapping[str, tuple[_Template, ...]]:
    """The templates by one of their words, those with the most text of their own first."""
    from colabkeep.core.chinese import CHINESE

    found: defaultdict[str, list[_Template]] = defaultdict(list)
    for english, chinese in CHINESE.items():
        template = _Template(english, chinese)
        found[template.key].append(template)
    return {key: tuple(sorted(each, key=lambda template: -template.letters)) for key, each in found.items()}


@lru_cache(maxsize=1024)
def _chinese(text: str) -> str:
    if not _WORD.search(text):
        return text
    whole = _whole(text)
    if whole is not None and not _LEFT.search(whole):
        return whole
    apart = _taken_apart(text)
    # A place may have taken in what is a sentence of its own.
    return apart if whole is None or len(_LEFT.findall(apart)) < len(_LEFT.findall(whole)) else whole


def _taken_apart(text: str) -> str:
    if text.startswith("  ") and "  " in text.strip():
        return text  # a row of a table, whose cells are in Chinese as far as they are to be
    mark = _MARKS.match(text)
    if mark and mark.end() < len(text):
        rest = _chinese(text[mark.end() :])
        return text if rest == text[mark.end() :] else mark[0] + rest
    for joint, chinese in _JOINTS:
        if joint in text.rstrip():
            return _joined(_parts(text.split(joint), joint), chinese)
    return text


def _parts(pieces: list[str], joint: str) -> Iterator[tuple[str, str]]:
    """English and Chinese of the longest beginnings that are in the table, one after the other."""
    begin = 0
    while begin < len(pieces):
        for end in range(len(pieces), begin, -1):
            english = joint.join(pieces[begin:end]) + ("." if joint == ". " and end < len(pieces) else "")
            if (begin, end) == (0, len(pieces)):
                continue  # the whole was looked for already
            whole = _whole(english)
            if whole is not None or end == begin + 1:
                yield english, whole if whole is not None else _chinese(english)
                begin = end
                break


def _joined(parts: Iterator[tuple[str, str]], joint: str) -> str:
    text, before = "", False
    for number, (english, chinese) in enumerate(parts):
        changed = chinese != english
        if number and joint == "。":
            text = f"{text[:-1]}。" if before and text.endswith(".") else text
            text += "" if text.endswith(tuple(_ENDS)) else " "
        elif number:
            text += joint if changed or before or joint == "\n" else {"；": "; ", "：": ": ", "，": ", "}[joint]  # noqa: RUF001
        text, before = text + chinese, changed
    return text


def _whole(text: str) -> str | None:
    """The Chinese of a text that one template has as a whole; what stands in its places is put into Chinese, too."""
    table = _table()
    keys = {*_WORD.findall(text), ""}
    candidates = sorted((each for key in keys for each in table.get(key, ())), key=lambda each: -each.letters)
    found = next((chinese for template in candidates if (chinese := _ended(template, text)) is not None), None)
    if found is None and text[:1].isupper():
        return _whole(text[0].lower() + text[1:])  # what stands within a sentence elsewhere
    return found


def _ended(template: _Template, text: str) -> str | None:
    """By a template that has the full stop, or is without it."""
    told = template.said(text)
    if told is None and text.endswith(".") and (told := template.said(text[:-1])) is not None:
        return told if told.endswith(tuple(_ENDS)) else f"{told}。"
    return told


def _place(value: str) -> str:
    """What stands in a place. A word alone is a name."""
    return _chinese(value) if " " in value else value
