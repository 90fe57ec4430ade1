"""The program's own command line: which of its words it gets when."""

from __future__ import annotations

import pytest

from colabkeep.core.errors import UsageError
from colabkeep.keep.command import program_words


@pytest.mark.parametrize(
    ("given", "inner"),
    [
        (["{--resume}"], ["--resume"]),
        (["{--resume", "last}"], ["--resume", "last"]),
        (["{--resume last}"], ["--resume", "last"]),
        (["{--resume 'my runs/last.pt'}"], ["--resume", "my runs/last.pt"]),
        (["{--resume", "my runs/last.pt}"], ["--resume", "my runs/last.pt"]),
        (["{", "--resume", "}"], ["--resume"]),
        (["{{--resume}}"], ["--resume"]),
        (["{{--resume", "last}}"], ["--resume", "last"]),
        (["{--ckpt={last}}"], ["--ckpt={last}"]),
    ],
)
def test_what_stands_in_braces_is_there_only_where_files_were_put_back(given: list[str], inner: list[str]) -> None:
    """However the shell, or a notebook's `!`, has cut and quoted it."""
    words = ["train.py", *given, "--epochs", "3"]
    assert program_words(words, restored=True) == ["train.py", *inner, "--epochs", "3"]
    assert program_words(words, restored=False) == ["train.py", "--epochs", "3"]


@pytest.mark.parametrize("word", ["{}", '{"lr": 0.1}', "{'lr': 0.1}", "--config={a}", "model={a: 1}"])
def test_a_word_that_only_has_braces_is_the_program_s(word: str) -> None:
    """JSON for an option, or the place of a name, is never dropped."""
    for restored in (True, False):
        assert program_words(["train.py", word], restored=restored) == ["train.py", word]


@pytest.mark.parametrize("words", [["{--resume", "last"], ["{--resume 'last}"]])
def test_what_is_not_closed_is_told_before_the_program_runs(words: list[str]) -> None:
    """Also on the first machine, where it would be left out."""
    with pytest.raises(UsageError, match=r"not closed|cannot be read"):
        program_words(["train.py", *words], restored=False)
