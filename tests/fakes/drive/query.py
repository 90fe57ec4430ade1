"""The search language of `q`: "name = 'a' and trashed = false and ('x' in parents or mimeType = 'b')".

Terms and operators, those that somebody asks by: "Search query terms and operators" (Drive API guides). Letters' case
does not matter in names (wiki of GAM-team/GAM, Users-Drive-Query). There is no term "id"
(langchain-ai/langchain-google issue 1867, 2026). No source says whether "and" or "or" binds tighter: a mixture without
brackets is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.fakes.drive.answers import invalid
from tests.fakes.drive.files import Caller, File, Files
from tests.fakes.drive.requests import Index

Test: TypeAlias = "Callable[[File, Files, Caller], bool]"

TOKEN = re.compile(r"\s*('(?:[^'\\]|\\.)*'|[<>!]=|[=<>(){}]|[\w.:+-]+)")
STRINGS: dict[str, Callable[[File], str]] = {
    "name": lambda file: file.name,
    "title": lambda file: file.name,
    "mimeType": lambda file: file.mime,
}
OF_VERSION = {"v2": "title", "v3": "name"}


@dataclass(frozen=True)
class Query:
    """`matches` decides about one file. `by`: the indexes that the answer comes from, which may lag. `parents`: the
    folders that are asked for, as they are written."""

    matches: Test
    by: frozenset[Index]
    parents: tuple[str, ...] = ()


def parse(text: str, version: str) -> Query:
    """The query that `text` writes for "v2" or "v3". Raises ApiError 400, as the service does, for anything else."""
    tokens, end = [], 0
    text = text.strip()
    while end < len(text):
        found = TOKEN.match(text, end)
        if found is None:
            raise invalid("q")
        tokens.append(found[1])
        end = found.end()
    if not tokens:
        return Query(lambda file, files, caller: True, frozenset())
    parser = _Parser(tokens, version)
    matches = parser.all()
    return Query(matches, frozenset(parser.by), tuple(parser.parents))


class _Parser:
    def __init__(self, tokens: list[str], version: str) -> None:
        self._tokens = tokens
        self._other = OF_VERSION["v2" if version == "v3" else "v3"]
        self.by: set[Index] = set()
        self.parents: list[str] = []

    def all(self) -> Test:
        test = self._chain()
        if self._tokens:
            raise invalid("q")
        return test

    def _chain(self) -> Test:
        tests, words = [self._one()], set()
        while self._tokens and self._tokens[0] in ("and", "or"):
            words.add(self._take())
            tests.append(self._one())
        if len(words) > 1:
            raise invalid("q", "Invalid Value: put brackets around what belongs together of 'and' and 'or'.")
        every = all if words != {"or"} else any
        return lambda file, files, caller: every(test(file, files, caller) for test in tests)

    def _one(self) -> Test:
        token = self._take()
        if token == "not":
            test = self._one()
            return lambda file, files, caller: not test(file, files, caller)
        if token == "(":
            test = self._chain()
            self._take(")")
            return test
        if token.startswith("'"):
            self._take("in")
            return self._membership(_string(token), self._take())
        return self._comparison(token)

    def _membership(self, value: str, collection: str) -> Test:
        if collection == "parents":
            self.by.add("parents")
            self.parents.append(value)
            return lambda file, files, caller: file.parent == files.real_id(value, caller)
        raise invalid("q")

    def _comparison(self, term: str) -> Test:
        if term == self._other:
            raise invalid("q")
        if term in OF_VERSION.values():
            self.by.add("name")
        sign = self._take()
        if term in ("properties", "appProperties") and sign == "has":
            return self._has(term)
        value = self._take()
        if term == "trashed" and sign in ("=", "!=") and value in ("true", "false"):
            wanted = (value == "true") == (sign == "=")
            return lambda file, files, caller: files.in_trash(file) == wanted
        if sign in ("=", "!=") and term in STRINGS:
            said, wanted_text = STRINGS[term], _string(value).casefold()
            return lambda file, files, caller: (said(file).casefold() == wanted_text) == (sign == "=")
        raise invalid("q")

    def _has(self, term: str) -> Test:
        """v3: properties (of all apps) and appProperties (of this one); v2 has both under "properties"."""
        self._take("{")
        said = {}
        while True:
            key = self._take()
            self._take("=")
            said[key] = _string(self._take())
            if self._take() == "}":
                break
        if not {"key", "value"} <= said.keys() <= {"key", "value", "visibility"}:
            raise invalid("q")
        self.by.add("properties")
        private = term == "appProperties" or said.get("visibility") == "PRIVATE"

        def test(file: File, files: Files, caller: Caller) -> bool:
            held = file.app_properties.get(caller.client, {}) if private else file.properties
            return held.get(said["key"]) == said["value"]

        return test

    def _take(self, wanted: str | None = None) -> str:
        if not self._tokens or (wanted is not None and self._tokens[0] != wanted):
            raise invalid("q")
        return self._tokens.pop(0)


def _string(token: str) -> str:
    if not token.startswith("'"):
        raise invalid("q")
    return re.sub(r"\\(.)", r"\1", token[1:-1])
