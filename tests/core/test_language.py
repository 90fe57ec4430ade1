"""English, and the Chinese that stands for it: complete where promised, alike in its places, and of sentences that are
still there.
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter
from types import FrameType

import pytest

from colabkeep.core.chinese import CHINESE
from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.core.language import VARIABLE, _Template, language, said
from colabkeep.core.system import Environment
from colabkeep.hardware.catalogue import cards
from colabkeep.platforms.aistudio import AIStudioPlatform

PACKAGE = Path(__file__).parents[2] / "colabkeep"

# A place of `str.format`, as templates that are no f-strings have it.
FIELD = re.compile(r"\{[A-Za-z_][A-Za-z_0-9.\[\]]*(?:![rsa])?(?::[^{}]*)?\}|\{\}")
SENTENCE = re.compile(r"[A-Z][a-z]+ .*[a-z]+.*\.$|[A-Za-z]{2,}[,;:.)]? [a-z({].* [a-z]{2,}", re.DOTALL)
NOT_SAID = re.compile(r"^\s*<|\\[bdsSD(]|^\n?import |^\n +import |^\nexcept ")  # HTML, patterns, programs

ARGPARSE = {"show this help message and exit", "show program's version number and exit"}  # its own

COMPOSED = {
    "hashed, with fsync, to {}",
    "number of threads ({}) and instruction set ({})",
}  # of pieces, in one of which a bracket is a place's end

# What other programs say, and is recognised by; and names.
OF_OTHERS = {
    *("NVCC architecture flags:(.*)", "TPU v5 lite", "TPU v6 lite", "already contain files", "directory or not exist"),
    *("directory that exists", "exist with label", "is not compatible with the current PyTorch installation"),
    *("must be a directory if present", "must not be a symlink", "no kernel image is available", "not a valid field"),
    *("no longer supports this GPU because it is too old", "not contain a space", "out of memory"),
    *("timeout during initial read of root folder", "unsaved {} steps ({})"),  # the line for programs is English
}

# What people are told, by the area; and the share of its sentences that has to be Chinese: it may rise, and not fall.
AREAS = {
    "check": (("ui/check", "ui/magics.py", "platforms", "core/rate_limits.py", "hardware"), 1.0),
    "command line": (
        (
            *("ui/cli.py", "ui/text.py", "ui/auth.py", "ui/records.py", "ui/export.py", "ui/compare.py"),
            "ui/report.py",
            *(
                "ui/gpus.py",
                "ui/bench.py",
                "ui/trainers.py",
                "ui/messages.py",
                "ui/curve.py",
                "ui/loggers.py",
                "ui/figures.py",
                "keep/command.py",
            ),
            *("session/copy.py", "session/prune.py", "session/weights.py", "checkpoint/inspect.py"),
            *("checkpoint/verify.py", "core/events.py", "ui/panel", "ui/browse.py"),
        ),
        1.0,
    ),
    # Beside sentences there are names of settings, and what other programs say.
    "training": (("session", "frameworks", "stores", "checkpoint", "core", "integrations", "keep"), 0.96),
}

ERRORS = 0.97
"""As above, of what is written as the problem or the remedy of an error. It was 1.0 in November 2026."""


def _template(node: ast.Constant | ast.JoinedStr) -> str:
    """The text with `{}` where something is put in, as the table has it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(each) if isinstance(each, ast.Constant) else "{}" for each in node.values)
    text = str(node.value)
    if "{{" in text:  # made for `str.format`
        return FIELD.sub("{}", text)
    pieces = [piece.replace("{", "{{").replace("}", "}}") for piece in FIELD.split(text)]
    return "{}".join(pieces)


def _texts(node: ast.AST) -> Iterator[str]:
    """All texts in a piece of code but its documentation: also those inside of the places of another."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield _template(node)
        return
    if isinstance(node, ast.JoinedStr):
        yield _template(node)
    for child in ast.iter_child_nodes(node):
        if not _documents(child) and not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from _texts(child)


def _documents(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@cache
def source() -> tuple[dict[str, frozenset[str]], frozenset[str], tuple[ast.Module, ...]]:
    """The texts of each file of the package, read once; the documentation, which is the help of commands; the code."""
    texts, documentation, trees = {}, set(), list[ast.Module]()
    for file in PACKAGE.rglob("*.py"):
        if file.name != "chinese.py" and "testing" not in file.parts:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            texts[file.relative_to(PACKAGE).as_posix()] = frozenset(_texts(tree))
            trees.append(tree)
            documentation |= {_template(node.value) for node in ast.walk(tree) if _documents(node)}
    return texts, frozenset(documentation), tuple(trees)


def sentences(*places: str) -> set[str]:
    """The texts below these places that are sentences for people."""
    found = {text for file, texts in source()[0].items() if file.startswith(places) for text in texts}
    return {text for text in found - OF_OTHERS if SENTENCE.search(text) and not NOT_SAID.search(text)}


def places(text: str) -> list[str]:
    """The places of a text, numbered."""
    names = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    return [name or str(number) for number, name in enumerate(names)]


@pytest.mark.parametrize("area", AREAS)
def test_what_people_are_told_is_there_in_chinese(area: str) -> None:
    """A sentence that is added or changed gets its Chinese in `core/chinese.py`."""
    where, floor = AREAS[area]
    told = sentences(*where)
    lacking = sorted(told - CHINESE.keys())
    assert len(told) > 50
    assert 1 - len(lacking) / len(told) >= floor, "\n".join(lacking)


def errors() -> set[str]:
    """What is written as the problem or the remedy of an error, anywhere."""
    found = set()
    for node in (each for tree in source()[2] for each in ast.walk(tree) if isinstance(each, ast.keyword)):
        if node.arg in ("problem", "remedy"):
            found |= {text for text in _texts(node.value) if re.search("[A-Za-z]{2,} .*[A-Za-z]{2,}", text)}
    return found


def test_errors_are_there_in_chinese() -> None:
    """The sentences that are written where an error is made."""
    told = errors()
    lacking = sorted(told - CHINESE.keys())
    assert len(told) > 500
    assert 1 - len(lacking) / len(told) >= ERRORS, "\n".join(lacking)


def test_both_have_the_same_places() -> None:
    """Each thing that is put into the English is in the Chinese once or more."""
    assert [text for text, chinese in CHINESE.items() if set(places(text)) != set(places(chinese))] == []


def test_each_can_be_filled_in() -> None:
    """Places are numbered all or none, as `str.format` wants them."""
    for english, chinese in CHINESE.items():
        names = {name for _, name, _, _ in Formatter().parse(chinese) if name}
        values = [f"<{number}>" for number in range(len(places(english)))]
        filled = chinese.format(*values, **dict.fromkeys(names - {*map(str, range(9))}, "<name>"))
        assert [value for value in values if value not in filled] == [], chinese


def test_no_chinese_is_left_of_a_sentence_that_is_gone() -> None:
    """The text stands somewhere in the source as it is in the table. Words alone may be made of pieces."""
    texts, documentation, _ = source()
    data = {place for card in cards() for place in card.free}
    there = frozenset().union(ARGPARSE, COMPOSED, documentation, data, *texts.values())
    assert [text for text in CHINESE if SENTENCE.search(text) and text not in there] == []


def test_chinese_is_chinese() -> None:
    """Each has Chinese letters, unless it is a line of code; and no sentence ends twice."""
    letters = re.compile("[\u4e00-\u9fff]")
    words = {text: chinese for text, chinese in CHINESE.items() if not letters.search(chinese) and chinese != text}
    assert words == {" of {}": "/ {}", "a Space of the Hugging Face Hub": "Hugging Face Space", ", CPU": "，CPU"}  # noqa: RUF001
    assert [chinese for chinese in CHINESE.values() if "。。" in chinese or "，。" in chinese] == []  # noqa: RUF001


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("mode='up' is unknown.", "mode='up' 无效。"),
        ("", ""),
        ("No such sentence is in the table", "No such sentence is in the table"),
        # Several, one that is unknown between them.
        (
            "Is that the right place? Grue is a word. Wait for its first save.",
            "Is that the right place? Grue is a word. 请等待第一次保存。",
        ),
        # One in the place of another, and a mark before it.
        (
            "! Checkpoints go to /content/runs, which is lost when this session ends, 3.5 GiB free.",
            "! 检查点保存在 /content/runs，会话结束后会丢失，剩余 3.5 GiB。",  # noqa: RUF001
        ),
        # Places beside each other, and one at the end that would take in the next sentence.
        (
            "Step 9 after 1 s of training, in 5 sessions over 5 min (4 min of that without a machine). "
            "No steps were repeated.",
            "第 9 步，已训练 1 s，5 个会话，历时 5 min（其中 4 min 没有机器）。没有重复的步数。",  # noqa: RUF001
        ),
        (
            "If this machine vanished now, you would lose 3 s (back to step 20, confirmed by hf://a/b).",
            "如果这台机器现在断开，将丢失 3 s（退回到第 20 步，hf://a/b 已确认）。",  # noqa: RUF001
        ),
        ("! Wait for its first save.", "! 请等待第一次保存。"),
        ("  best  local  1.0", "  best  local  1.0"),  # a row of a table is as it is
        # What is put in is not taken for a part of the sentence.
        ("No run in /a. b is called x.", "/a. b 中没有名为 x 的训练。"),
        ("No run in {0} is called {}.", "{0} 中没有名为 {} 的训练。"),
    ],
)
def test_a_text_is_said_in_chinese(english: str, chinese: str) -> None:
    """By whole sentences, those in the places of others too; what has no Chinese stays as it is."""
    assert said(english, "zh") == chinese
    assert said(english, "en") == english


WORDS = sorted({word for text in CHINESE for word in re.findall("[A-Za-z]{2,}", text)})
STRANGE = {
    "the words of the table, in no order": "".join(
        random.Random(7).choice(WORDS) + random.Random(number).choice((" ", " ", ", ", ". ", "; ", ": "))
        for number in range(500)
    ),
    "a sentence in the place of another, and so on": "Did you mean " * 280 + "x y" + "?" * 280,
    "marks": "! " * 1900 + "Wait for it",
    "one line without end": "Did you mean No run in a, " * 20_000,
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_what_others_wrote_into_a_file_keeps_nobody_waiting(text: str) -> None:
    """Texts that stand in the files of a run are shown, too: what is looked through for them is bounded."""
    looked = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal looked
        if event == "call" and frame.f_code is _Template.values.__code__:
            looked += len(frame.f_locals["text"])

    sys.setprofile(profile)
    try:
        shown = said(text, "zh")
    finally:
        sys.setprofile(None)
    assert looked < 5_000_000
    assert shown.count("Did you mean") + shown.count("是否想写") == text.count("Did you mean")


def test_a_long_report_is_chinese_to_its_end() -> None:
    """What is not looked for in one line too long is for each of many lines."""
    report = "".join(f"Wait for its first save, {number}.\nWait for its first save.\n" for number in range(2_000))
    assert said(report, "zh").endswith("\n请等待第一次保存。\n")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "en"),
        ({"COLABKEEP_LANG": "zh"}, "zh"),
        ({"COLABKEEP_LANG": " ZH-cn "}, "zh"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "COLABKEEP_LANG": "en"}, "en"),
        ({"COLABKEEP_LANG": "klingon"}, "en"),
    ],
)
def test_the_language_is_the_one_asked_for_or_that_of_the_system(
    variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    """One variable overrides the system's own."""
    assert language(Environment(environ=variables, root=tmp_path, folder=tmp_path)) == expected


def test_ai_studio_is_chinese_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    """Its users are, whatever the image's own language is."""
    (tmp_path / "home/aistudio").mkdir(parents=True)
    there = Environment(environ={"LANG": "en_US.UTF-8", "STUDIO_X": "1"}, root=tmp_path, folder=tmp_path)
    assert AIStudioPlatform().matches(there)
    assert language(there) == "zh"
    english = Environment(environ={"COLABKEEP_LANG": "en"}, root=tmp_path, folder=tmp_path)
    assert language(english) == "en"


def test_an_error_is_shown_in_the_language_and_kept_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is caught, compared, stored or sent to another process is the same everywhere."""
    error = UsageError(problem="mode='up' is unknown.", remedy='Pass mode="min" or mode="max".')
    several = Incompatible(problem="mode='up' is unknown.", remedy="x", differences=("y", "No run in a is called b."))
    english = str(error)
    monkeypatch.setenv(VARIABLE, "zh")
    assert str(error) == 'mode=\'up\' 无效。\n→ 请用 mode="min" 或 mode="max"。'
    assert str(several) == "mode='up' 无效。\n  - y\n  - a 中没有名为 b 的训练。\n→ x"
    assert error.problem == "mode='up' is unknown."
    assert str(error) in error._render_traceback_()[-1]
    monkeypatch.setenv(VARIABLE, "en")
    assert str(error) == english


def test_who_reads_english_does_not_load_the_table() -> None:
    """Neither for an error nor for what the command line says."""
    program = (
        "import sys; from colabkeep.ui.cli import main; from colabkeep.core.errors import UsageError; "
        "str(UsageError(problem='a', remedy='b')); main(['list', '--storage', '/nowhere/at/all']); "
        "sys.exit('colabkeep.core.chinese' in sys.modules)"
    )
    environment = {"COLABKEEP_LANG": "en", "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
