"""What the documentation says is so: its code compiles and names what exists, its commands parse, its links lead
somewhere, its tables have every row that the code has."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

import colabkeep
from colabkeep import api
from colabkeep.core import errors, events
from colabkeep.stores import open_store
from colabkeep.ui import cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TOPS = ("colabkeep", "docs", "scripts", "tests")
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.name != "README.md")
FENCE = re.compile(r"^(?P<mark>```+|:::+)(?P<kind>[^\n]*)\n(?P<body>.*?)^(?P=mark)\s*$", re.MULTILINE | re.DOTALL)
RUNNABLE = re.compile(r"<!-- runnable, shows: (.+) -->\n\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    kind: str
    body: str
    shows: str | None  # what it prints, if it is whole and can be run

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(text: str, page: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start()) + 1,
            kind=match["kind"].strip(),
            body=match["body"],
            shows=said[1] if (said := RUNNABLE.search(text, 0, match.start())) else None,
        )


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", text)


@cache
def all_blocks() -> tuple[Block, ...]:
    pages = (*PAGES, ROOT / "README.md")
    return tuple(block for page in pages for block in blocks(page.read_text(), str(page.relative_to(ROOT))))


def of_kind(kind: str) -> list[Block]:
    return [block for block in all_blocks() if block.kind == kind]


def python_of(block: Block) -> ast.Module:
    """The block as Python; lines that only a notebook understands are left out."""
    kept = [line for line in block.body.splitlines() if not line.lstrip().startswith(("%", "!"))]
    return ast.parse("\n".join(kept), filename=str(block))


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def unknown_words(tree: ast.AST) -> list[str]:
    """Names of colabkeep, and arguments of its functions, that do not exist."""
    wrong = []
    for node in ast.walk(tree):
        name = dotted(node) if isinstance(node, ast.Attribute) else ""
        if re.fullmatch(r"colabkeep\.\w+", name) and name.partition(".")[2] not in colabkeep.__all__:
            wrong.append(name)
        called = dotted(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and called.partition(".")[2] in colabkeep.__all__:
            known = inspect.signature(getattr(colabkeep, called.partition(".")[2])).parameters
            taken = {name for name, one in known.items() if one.kind is not inspect.Parameter.VAR_KEYWORD}
            wrong += [f"{called}({word.arg}=)" for word in node.keywords if word.arg and word.arg not in taken]
    return wrong


@pytest.mark.parametrize("block", of_kind("python"), ids=str)
def test_code_of_the_documentation_compiles_and_names_what_exists(block: Block) -> None:
    """Whoever copies a block meets no syntax error, no function that is not there and no argument that is refused."""
    assert unknown_words(python_of(block)) == []


def test_a_word_that_does_not_exist_would_be_noticed() -> None:
    """The rule above is not blind: neither for names nor for arguments, of a class too."""
    tree = ast.parse("colabkeep.resume_fit(m)\ncolabkeep.mount(seconds=3)\ncolabkeep.Run('a', models=m)")
    assert sorted(unknown_words(tree)) == [
        "colabkeep.Run(models=)",
        "colabkeep.mount(seconds=)",
        "colabkeep.resume_fit",
    ]


def without_remark(line: str) -> str:
    """A line of a table of commands without the sentence at its end; other lines as they are."""
    first, *others = re.split(r" {2,}", line.strip())
    return " ".join([first, *(part for part in others if re.match(r"-|[A-Z]{2}", part))])


def commands() -> list[tuple[str, str]]:
    """Every command line of colabkeep that is shown, with its place."""
    shown = []
    for block in [*of_kind("shell"), *of_kind("")]:
        lines = (without_remark(line) for line in block.body.splitlines())
        shown += [(str(block), line) for line in lines if line.startswith("colabkeep ")]
    for page in PAGES:
        spans = re.findall(r"`(colabkeep [^`]+)`", prose(page.read_text()))
        shown += [(str(page.relative_to(ROOT)), span) for span in spans]
    return shown


@pytest.mark.parametrize(("place", "line"), commands(), ids=lambda text: text)
def test_every_command_that_is_shown_is_understood(place: str, line: str) -> None:
    """The real parser takes it; in running text a command may also be named alone, without the run that it needs."""
    words = shlex.split(line)[1:]
    if len(words) == 1 and words[0] in command_names():
        return
    try:
        cli._read(words)
    except SystemExit as refusal:  # how argparse refuses
        pytest.fail(f"{place}: {line} is refused ({refusal.code})")


def test_the_readme_names_every_command() -> None:
    """Its list of commands has all of them."""
    listed = {shlex.split(line)[1] for place, line in commands() if place.startswith("README.md")}
    assert command_names() - listed == set()


def command_names() -> set[str]:
    (choices,) = (action.choices for action in cli._parser()._actions if isinstance(action.choices, dict))
    return set(choices)


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings have, as GitHub and the site make them."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", prose(text), re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_internal_link_leads_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / unquote(file)).resolve() if file else page
        assert there.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(there.read_text()), f"{target}: there is no such heading"


def missing_files(text: str) -> list[str]:
    """Files and folders of the repository that a page names and that are not there; "copies.py" may be anywhere."""
    named = re.findall(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.py\b|(?:colabkeep|docs|scripts|tests)/[\w./-]*\w)", text)
    there = {f"/{path.relative_to(ROOT).as_posix()}" for top in TOPS for path in (ROOT / top).rglob("*")}
    return [name for name in named if not any(path.endswith(f"/{name}") for path in there)]


def missing_names(text: str) -> list[str]:
    """Of "`session/run.py` `Run.step`": what the file does not define."""
    missing = []
    for file, name in re.findall(r"`([\w/]+\.py)` `([\w.]+)`", text):
        tree: ast.AST | None = ast.parse((ROOT / "colabkeep" / file).read_text())
        for part in name.split("."):
            inside = [] if tree is None else ast.iter_child_nodes(tree)
            tree = next((node for node in inside if getattr(node, "name", "") == part), None)
        if tree is None:
            missing.append(f"{file}: {name}")
    return missing


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_what_newcomers_are_shown_is_there(page: str) -> None:
    """The files, classes and functions on the way of a save, and the tests to run first."""
    text = (ROOT / page).read_text()
    assert missing_files(text) == []
    assert missing_names(text) == []


def test_every_page_is_in_the_contents() -> None:
    """No page is left that no reader can find."""
    listed = {
        entry
        for block in blocks((DOCS / "index.md").read_text(), "index")
        if block.kind == "{toctree}"
        for entry in re.findall(r"^[a-z][\w/-]*$", block.body, re.MULTILINE)
    }
    assert listed == {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES} - {"index"}


def test_every_error_has_an_entry_in_troubleshooting() -> None:
    """Whoever searches the page for an error's name finds a heading of its own."""
    headings = set(re.findall(r"^### `(\w+)`$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE))
    assert headings == set(errors.__all__) - {"ColabKeepError"}


def test_every_name_of_the_library_is_in_the_reference() -> None:
    """The public names, the errors and the events, each from its docstring."""
    pages = "".join((DOCS / "reference" / name).read_text() for name in ("api.md", "errors.md", "events.md"))
    for name in set(colabkeep.__all__) - {"__version__"}:
        assert re.search(rf"^\.\. auto\w+:: colabkeep\.{name}$", pages, re.MULTILINE), name
    for module in (errors, events):
        assert f".. automodule:: {module.__name__}" in pages
        undocumented = [name for name in module.__all__ if name != "Event" and not getattr(module, name).__doc__]
        assert undocumented == []


def test_every_foreign_word_is_translated() -> None:
    """The page for those who come from elsewhere has a row for each word that is refused, with the same answer."""
    rows = [line for line in (DOCS / "coming-from.md").read_text().splitlines() if line.startswith("| ")]
    for word, ours in api._FOREIGN.items():
        named = [row for row in rows if re.search(rf"\b{word}\b", row.split(" | ")[0])]
        assert any(f"`{ours}`" in row for row in named), f"{word} → {ours}"


def test_the_table_of_exit_statuses_is_that_of_the_help() -> None:
    """The page and `colabkeep --help` list the same numbers, with the same words."""
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", (DOCS / "reference" / "command-line.md").read_text(), re.MULTILINE)
    told = re.findall(r"^ +(\d+)  (.+)$", cli._EXIT_CODES, re.MULTILINE)
    assert rows == told
    assert {int(number) for number, _ in told} >= {status for _, status in cli._STATUS}


@cache
def names_of_tests(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_kind_of_death_is_proven() -> None:
    """Each row of "what survives what" names the test that proves it, and that test is there."""
    rows = [line for line in (DOCS / "survival.md").read_text().splitlines() if line.startswith("| ")]
    claims = [row for row in rows if not row.startswith("| what happens")]
    assert len(claims) >= 30
    for row in claims:
        proofs = re.findall(r"<!-- proof: (\S+)::(\w+) -->", row)
        assert proofs, f"without a proof: {row[:60]}"
        assert all(name in names_of_tests(path) for path, name in proofs), proofs


def test_every_storage_that_is_written_down_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL of the overview opens a store, or names the package that it needs."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nothing is contacted; if it were, this is nobody
    table = (DOCS / "storage" / "index.md").read_text()
    urls = re.findall(r'`"([a-z0-9]+://[^"`]+)"`', table)
    assert len(urls) >= 8
    for url in urls:
        with suppress(errors.MissingDependency):  # it is known, and a package for it is not here
            open_store(url).close()


def test_pictures_are_made_of_the_panel_itself() -> None:
    """Without a browser too: there is a panel for each of its states, on a page that loads nothing from elsewhere."""
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "pictures" / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    panels = make.panels()
    assert {"resumed", "durable", "degraded", "finished", "failed"} <= set(panels)
    assert len(set(panels.values())) == len(panels)
    for panel in panels.values():
        assert panel in make.page(panel, "#ffffff")
        assert "http" not in make.page(panel, "#ffffff")


def test_each_rule_sees_what_it_is_to_see() -> None:
    """The readers above are not blind: a block, a heading with code in it, and a marked block are found."""
    marked = "<!-- runnable, shows: 1 -->\n```python\nprint(1)\n```\n"
    text = f"# A `b` c!\n\n{marked}\n```shell\ncolabkeep list\n```\n"
    first, second = blocks(text, "page")
    assert (first.kind, first.body, first.shows, first.line) == ("python", "print(1)\n", "1", 4)
    assert (second.kind, second.shows) == ("shell", None)
    assert anchors(text) == {"a-b-c"}
    assert without_remark("colabkeep show   RUN --storage DIR      one run") == "colabkeep show RUN --storage DIR"
    assert missing_files("`tests/core` `core/gone.py` `copies.py` and pytest tests/gone") == [
        "core/gone.py",
        "tests/gone",
    ]
    gone = "`session/run.py` `Run.save` | `session/run.py` `Run.gone` | `api.py` `Gone`"
    assert missing_names(gone) == ["session/run.py: Run.gone", "api.py: Gone"]
