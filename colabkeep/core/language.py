"""The language in which people are told things: English, or Chinese by the table in `chinese`.

A text is made, stored and compared in English; only where it is shown, `said` puts it into the reader's language. A
text without a translation is shown in English. Where English is read, the table is never loaded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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


def said_by(templates: Iterable[str], text: str) -> str:
    """What another program says, in the reader's language: a text that one of these templates of the table has. What it
    puts into their places stays as it is, and so does any other text."""
    if language() != "zh":
        return text
    from colabkeep.core.chinese import CHINESE

    for english in templates:
        values = _Template(english, CHINESE[english]).values(text)
        if values is not None:
            return CHINESE[english].format(*values)
    return text


# -- the table -----------------------------------------------------------------------------------------

# A template with fewer letters says too little to have any text in its places, unless it begins with these.
_FEW, _BEGINNING = 12, 4
_WORDS = 4  # that then stand in a place
# Texts are also those of a run's files, which others may have written. Our longest one has 600 letters and needs 71
# looks into the table; what goes beyond these is shown in English.
_LONGEST, _LOOKS = 4000, 1000
_DEEPEST, _TOGETHER = 12, 12  # texts in the places of others, parts of a text that are one to the table
_WORD = re.compile(r"[A-Za-z]{2,}")
# Where a text is taken apart if no template has it as a whole, and what stands between the parts in Chinese.
_JOINTS = (("\n", "\n"), (". ", "。"), ("; ", "；"), (": ", "："), (", ", "，"))  # noqa: RUF001  # full-width
_NARROW = {chinese: english for english, chinese in _JOINTS}
_LEFT = re.compile(r"[A-Za-z]{2,} [a-z]{2,}")  # English
_MARKS = re.compile(r"(\s*(?:[!→·✔▲-]|\[colabkeep\])\s+|\s+|, |; |: | \()")
_BESIDE = ("", " ")  # between places that are taken for one, until it is known what stands in them
_BREAKS = re.compile(r"(?=[ ,;:(.])")
_ENDS = "。；：，！？、"  # noqa: RUF001  # full-width, as Chinese has them


class _Template:
    """An English text with places, and the Chinese one. Places beside each other are one to the text around them."""

    def __init__(self, english: str, chinese: str) -> None:
        self.chinese = chinese
        parts = [(literal, name is not None) for literal, name, _, _ in Formatter().parse(english)]
        self.letters = sum(char.isalpha() for literal, _ in parts for char in literal)
        begins = sum(map(str.isalpha, parts[0][0])) >= _BEGINNING if parts else False
        self.anything = self.letters >= _FEW or begins  # may stand in a place
        self.literals = [""]
        self.places = list[tuple[str, ...]]()  # after each literal but the last: what stands between those that are one
        for number, (literal, named) in enumerate(parts):
            if named and number and literal in _BESIDE and self.places:
                self.places[-1] = (*self.places[-1], literal)
                continue
            self.literals[-1] += literal
            if named:
                self.places.append(())
                self.literals.append("")
        words = [
            word[0]
            for number, (literal, named) in enumerate(parts)
            for word in _WORD.finditer(literal)
            # A word beside a place may be the half of one.
            if (word.start() or not number) and (word.end() < len(literal) or not named)
        ]
        self.key = max(words, key=len, default="")

    def values(self, text: str) -> list[str] | None:
        """What stands in the places of a text that is of this template: as little as possible in each but the last.
        The time is that of looking for each literal once."""
        first, *between = self.literals
        if not between:
            return [] if text == first else None
        last = between.pop()
        if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
            return None
        found, at, end = [], len(first), len(text) - len(last)
        for literal in between:
            there = text.find(literal, at, end)
            if there < 0:
                return None
            found.append(text[at:there])
            at = there + len(literal)
        found.append(text[at:end])
        return found if self.anything or all(map(_few_words, found)) else None


def _few_words(value: str) -> bool:
    words = value.split(" ")
    return len(words) <= _WORDS and not any(char.isspace() for word in words for char in word)


@cache
def _table() -> Mapping[str, tuple[_Template, ...]]:
    """The templates by one of their words, those with the most text of their own first."""
    from colabkeep.core.chinese import CHINESE

    found: defaultdict[str, list[_Template]] = defaultdict(list)
    for english, chinese in CHINESE.items():
        template = _Template(english, chinese)
        found[template.key].append(template)
    return {key: tuple(sorted(each, key=lambda template: -template.letters)) for key, each in found.items()}


# -- a text --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _chinese(text: str) -> str:
    if len(text) > _LONGEST and "\n" in text:
        return "\n".join(map(_chinese, text.split("\n")))
    return _Translation().of(text)


class _Translation:
    """Of one text, with all that stands in it. It looks into the table so many times at most."""

    def __init__(self) -> None:
        self._looks = self._depth = 0
        self._known = dict[str, str | None]()

    def of(self, text: str) -> str:
        """The Chinese of a text, or of what in it has one."""
        if self._depth > _DEEPEST or not _WORD.search(text):
            return text
        self._depth += 1
        try:
            return self._of(text)
        finally:
            self._depth -= 1

    def _of(self, text: str) -> str:
        whole = self._whole(text)
        if whole is not None and not _LEFT.search(whole):
            return whole
        apart = self._taken_apart(text)
        # A place may have taken in what is a sentence of its own.
        return apart if whole is None or len(_LEFT.findall(apart)) < len(_LEFT.findall(whole)) else whole

    def _whole(self, text: str) -> str | None:
        """The Chinese of a text that one template has as a whole, with what stands in its places."""
        if text not in self._known:
            if len(text) > _LONGEST or self._looks >= _LOOKS:
                return None
            self._looks += 1
            self._known[text] = None  # until it is known
            table, keys = _table(), {*_WORD.findall(text), ""}
            candidates = sorted((each for key in keys for each in table.get(key, ())), key=lambda each: -each.letters)
            found = next((told for each in candidates if (told := self._by(each, text)) is not None), None)
            if found is None and text[:1].isupper():
                found = self._whole(text[0].lower() + text[1:])  # what stands within a sentence elsewhere
            self._known[text] = found
        return self._known[text]

    def _by(self, template: _Template, text: str) -> str | None:
        """By a template that has the full stop, or is without it."""
        values = template.values(text)
        if values is not None:
            return self._filled(template, values)
        values = template.values(text[:-1]) if text.endswith(".") else None
        if values is None:
            return None
        told = self._filled(template, values)
        return told if told.endswith(tuple(_ENDS)) else f"{told}。"

    def _filled(self, template: _Template, values: list[str]) -> str:
        each = [
            one for value, between in zip(values, template.places, strict=True) for one in self._apart(value, between)
        ]
        # A word alone is a name.
        return template.chinese.format(*(self.of(value) if " " in value else value for value in each))

    def _apart(self, value: str, between: tuple[str, ...]) -> list[str]:
        """What stands in places beside each other: the later ones begin where a text of the table does."""
        if not between:
            return [value]
        for at in (found.start() for found in _BREAKS.finditer(value)):
            if value[at:].startswith(between[0]) and self._whole(value[at + len(between[0]) :]) is not None:
                return [value[:at], *self._apart(value[at + len(between[0]) :], between[1:])]
        if between[0] and between[0] in value:
            first, _, rest = value.partition(between[0])
            return [first, *self._apart(rest, between[1:])]
        return [value, *("" for _ in between)]

    def _taken_apart(self, text: str) -> str:
        if text.startswith("  ") and "  " in text.strip():
            return text  # a row of a table, whose cells are in Chinese as far as they are to be
        mark = _MARKS.match(text)
        if mark and mark.end() < len(text):
            rest = self.of(text[mark.end() :])
            return text if rest == text[mark.end() :] else mark[0] + rest
        for joint, chinese in _JOINTS:
            if joint in text.rstrip():
                return _joined(self._parts(text.split(joint), joint), chinese)
        return text

    def _parts(self, pieces: list[str], joint: str) -> Iterator[tuple[str, str]]:
        """English and Chinese of the longest beginnings that are in the table, one after the other."""
        begin = 0
        while begin < len(pieces):
            for end in range(min(len(pieces), begin + _TOGETHER), begin, -1):
                english = joint.join(pieces[begin:end]) + ("." if joint == ". " and end < len(pieces) else "")
                if (begin, end) == (0, len(pieces)):
                    continue  # the whole was looked for already
                whole = self._whole(english)
                if whole is not None or end == begin + 1:
                    yield english, whole if whole is not None else self.of(english)
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
            text += joint if changed or before or joint == "\n" else _NARROW[joint]
        text, before = text + chinese, changed
    return text
