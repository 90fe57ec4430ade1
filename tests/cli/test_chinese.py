"""The command line in Chinese: its help, what it says of a line that it cannot read, and the table of GPUs."""
# ruff: noqa: RUF001  # Chinese punctuation

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from colabkeep.core.language import VARIABLE, said
from colabkeep.hardware.support import wheels_for
from colabkeep.ui.cli import _parser, main
from colabkeep.ui.gpus import compare_gpus

WRONG = {
    "show": ("colabkeep show: 错误：缺少以下参数：run", "the following arguments are required: run"),
    "keep": ("colabkeep keep: 错误：缺少以下参数：folder, program, --run", "required: folder, program, --run"),
    "": ("colabkeep: 错误：缺少以下参数：command", "the following arguments are required: command"),
    "list --nosuch": ("colabkeep: 错误：无法识别的参数：--nosuch", "unrecognized arguments: --nosuch"),
    "prune x --keep-last y": ("参数 --keep-last: 'y' 不是有效的 int 值", "--keep-last: invalid int value: 'y'"),
    "list --json=1": ("参数 --json: 不接受值 '1'", "argument --json: ignored explicit argument '1'"),
    "show x --checkpoint": ("参数 --checkpoint: 后面需要一个值", "--checkpoint: expected one argument"),
    "bench --run a --size 1GB": ("参数 --size: 不能与参数 --run 同时使用", "not allowed with argument --run"),
    "prune x --keep 2": ("选项 --keep 不明确，可能是 --keep-last, --keep-best", "could match --keep-last, --keep-best"),
}  # with the end of what it says in English


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    told = capsys.readouterr().err.splitlines()
    return "\n".join((told[0], told[-1]))


@pytest.mark.parametrize("words", WRONG)
def test_a_line_that_cannot_be_read_is_told_in_the_language(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and what was typed are as they are: "run" is a word of the table, too."""
    chinese, english = WRONG[words]
    monkeypatch.setenv(VARIABLE, "zh")
    told = refused(words, capsys)
    assert told.startswith("用法：colabkeep ")
    assert told.endswith(chinese)
    monkeypatch.setenv(VARIABLE, "en")
    told = refused(words, capsys)
    assert told.startswith("usage: colabkeep ")
    assert ": error: " in told
    assert told.endswith(english)


def test_the_choices_are_not_translated(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the quotation marks of Python 3.10 to 3.12, and without them: "keep" is a word of the table."""
    monkeypatch.setenv(VARIABLE, "zh")
    told = refused("lst", capsys).replace("'", "")
    assert told.endswith(
        "colabkeep: 错误：参数 command: lst 不是可用的选项（可选：list, show, report, compare, verify, export, prune, "
        "copy, doctor, gpus, bench, auth, keep, demo）"
    )


def test_all_of_the_help_is_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage, headings, each argument's line: nothing of argparse's own is left."""
    monkeypatch.setenv(VARIABLE, "zh")
    seen = 0
    for parser in parsers(_parser()):
        page = parser.format_help()
        assert page.startswith("用法："), page
        assert not re.search("usage|positional|options|show this|show program", page), page
        helps = [action.help for action in parser._actions if action.help]
        assert [text for text in helps if not re.search("[\u4e00-\u9fff]", said(text))] == []
        seen += len(helps)
    assert seen > 80


def test_a_real_process_says_it_in_chinese() -> None:
    """With nothing but the variable set."""
    told = {
        word: subprocess.run(
            [sys.executable, "-m", "colabkeep", *word.split()],
            env={**os.environ, VARIABLE: "zh", "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        for word in ("show", "--help")
    }
    assert (told["show"].returncode, told["show"].stdout) == (2, "")
    assert told["show"].stderr.splitlines()[-1] == "colabkeep show: 错误：缺少以下参数：run"
    assert told["--help"].stdout.startswith("用法：colabkeep [-h]")


@pytest.mark.parametrize("python", [None, (3, 8), (3, 15)])
@pytest.mark.parametrize("driver", [None, "470.1", "100.1"])
@pytest.mark.parametrize("capability", [(2, 0), (3, 7), (7, 5), (10, 0)])
def test_which_torch_a_card_needs_is_told_in_chinese(
    capability: tuple[int, int], driver: str | None, python: tuple[int, int] | None
) -> None:
    """Whatever it depends on: no half of the sentence stays English."""
    told = said(wheels_for(capability, driver, python), "zh")
    assert set(re.findall("[A-Za-z]{3,}", re.sub(r"pip install [^（]*", "", told))) <= {"torch", "wheel", "Python"}


def test_the_table_of_gpus_is_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for names, units, and what is a term in Chinese too. The commands that install a torch are commands."""
    monkeypatch.setenv(VARIABLE, "zh")
    comparison = compare_gpus()
    text = "\n".join(map(said, comparison.lines()))
    page = re.sub(r"pip install [^<]*|<[^>]*>|&nbsp;", " ", comparison._repr_html_())
    for name in sorted((row["name"] for row in comparison.rows), key=len, reverse=True):
        text, page = text.replace(name, ""), page.replace(name, "")
    terms = {"Adam", "SGD", "LoRA", "CNN", "RNN", "GPU", "GiB", "TFLOPS", "Transformer", "Tensor", "Core", "tensor"}
    terms |= {"torch", "wheel", "adapter", "Colab", "Kaggle", "Studio"}
    assert set(re.findall("[A-Za-z]{3,}", text)) <= terms
    assert set(re.findall("[A-Za-z]{3,}", page)) <= terms
