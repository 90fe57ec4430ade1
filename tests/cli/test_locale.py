"""Names and folders in any script, on a machine whose locale has only the letters of ASCII."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import colabkeep

POOR = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
OTHERS = {"ascii output": {"PYTHONIOENCODING": "ascii"}, "no UTF-8 at all": POOR}
CELL = """
import colabkeep

class Counter:
    value = 0
    def state_dict(self): return {"value": self.value}
    def load_state_dict(self, state): self.value = state["value"]

with colabkeep.Run("模型", state={"counter": Counter()}, storage="店", progress="text") as run:
    for epoch in run.epochs(2):
        for batch in run.batches([1, 2, 3]):
            run.step(loss=0.5)
"""


COMMANDS = """
import itertools, sys
from colabkeep.ui.cli import main
status = []
for ends, words in itertools.groupby(sys.argv[1:], lambda word: word == ";"):
    if not ends:
        status.append(main(list(words)))
        print(end="\\0", flush=True)
print(*status, file=sys.stderr)
"""


def called(folder: Path, environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[bytes]:
    package = str(Path(colabkeep.__file__).parents[1])
    given = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": package, **environ}
    command = [sys.executable, *(os.fsencode(word) for word in words)]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, check=False)


@pytest.mark.parametrize("locale", OTHERS)
def test_every_command_writes_what_it_can(tmp_path: Path, locale: str) -> None:
    """A training and all that looks at it: question marks where a letter has no place, and no traceback."""
    folder = tmp_path / "训 练"
    folder.mkdir()
    (folder / "cell.py").write_text(CELL, encoding="utf-8")
    for _ in range(2):  # the second one resumes
        done = called(folder, OTHERS[locale], "cell.py")
        assert done.returncode == 0, done.stderr.decode()
        assert b"not called any more" not in done.stdout
    assert sorted(each.name for each in (folder / "店").iterdir() if each.is_dir()) == ["u8---6a21.578b-"]
    where = ["--storage", "店"]
    ours = (["list"], ["show", "模型"], ["report", "模型"], ["verify"], ["prune", "模型"], ["report"])
    commands = [[*words, *more, *where] for words in ours for more in ([], ["--json"])]
    commands += [["doctor"], ["doctor", "--json"], ["report", "--html", "page.html", *where], ["show", "无", *where]]
    done = called(folder, OTHERS[locale], "-c", COMMANDS, *(word for words in commands for word in (*words, ";")))
    assert done.stderr.split(b"\n")[-2].decode() == " ".join(["0"] * (len(commands) - 1) + ["3"]), done.stderr.decode()
    assert b"Traceback" not in done.stderr
    for words, said in zip(commands, done.stdout.split(b"\0"), strict=False):
        if "--json" in words and words[0] != "doctor":
            assert "模型" in str(json.loads(said)), words
    assert "模型" in (folder / "page.html").read_text(encoding="utf-8")
