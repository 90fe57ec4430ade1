"""What README promises stands in a table, and each row names the tests that prove it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_docs import names_of_tests

PROOF = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(page: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """README's words and the tests, of each row of the tables."""
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith("| README says"):
            words, _, proofs = line.strip().strip("|").rpartition(" | ")
            yield flat(words), PROOF.findall(proofs)


def flat(text: str) -> str:
    """In one line."""
    return " ".join(text.split())


def promised(readme: str) -> list[str]:
    """What README says under "What is promised": the rows of its table, and its points."""
    section = readme.partition("\n## What is promised\n")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| what happens")]
    points = re.findall(r"^\* (\*\*.*?)(?=^\* |\n\n)", section + "\n\n", re.MULTILINE | re.DOTALL)
    return [flat(each) for each in (*table, *points)]


def test_each_promise_stands_in_readme_and_is_proven(root: Path) -> None:
    """A row whose words were changed or taken away there is one to be written anew; its tests have to be there."""
    readme = flat((root / "README.md").read_text())
    table = list(rows((root / "docs" / "promises.md").read_text()))
    assert len(table) >= 60
    assert [words for words, _ in table if words not in readme] == [], "not in README any more"
    assert [words for words, proofs in table if not proofs] == [], "without a proof"
    gone = [f"{path}::{name}" for _, proofs in table for path, name in proofs if name not in names_of_tests(path)]
    assert gone == [], "no such tests"


def test_nothing_is_promised_without_a_row(root: Path) -> None:
    """Each row and each point of README's list of promises has one in the table, or this names it."""
    known = [words for words, _ in rows((root / "docs" / "promises.md").read_text())]
    claims = promised((root / "README.md").read_text())
    assert len(claims) >= 10
    assert [claim for claim in claims if not any(words in claim for words in known)] == []


def test_the_rules_above_are_not_blind() -> None:
    """A row without a proof, one that README does not have, a promise without a row: each is seen."""
    page = (
        "| README says | proven by |\n|---|---|\n| a *b* | `tests/a/b.py::test_c`, `tests/d.py::test_e` |\n| f | g |\n"
    )
    assert list(rows(page)) == [("a *b*", [("tests/a/b.py", "test_c"), ("tests/d.py", "test_e")]), ("f", [])]
    section = (
        "x\n\n## What is promised\n\n| what happens | y |\n|---|---|\n| a | b |\n\n* **C** d\n  e.\n* **F** g.\n\nh\n"
    )
    assert promised(f"{section}\n## More\n\n* **I**\n") == ["| a | b |", "**C** d e.", "**F** g."]
