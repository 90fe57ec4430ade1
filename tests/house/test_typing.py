"""What type checkers see of the public names: a misspelt word is an error in the editor, a right call is none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import colabkeep

GOOD = """
from datetime import timedelta
from pathlib import Path
from typing import Any

import colabkeep
from colabkeep.stores.memory import MemoryStore
from colabkeep.core.events import Event

def tell(event: Event) -> None: ...
def loss(output: Any, target: Any) -> Any: ...

model: Any = None
result = colabkeep.resumable_fit(
    model, [], optimizer=model, loss_fn=loss, max_epochs=3, resume="must", save_every=[1, "10 min"],
    max_time=timedelta(hours=1), storage=(Path("a"), "drive://b"), callbacks=[tell, print], precision="16-mixed",
)
steps: int = result.steps
with colabkeep.Run("r", model=model, storage=MemoryStore(), resume="000000000003-abcdef01", save_every=None) as run:
    for epoch in run.epochs(3):
        for batch in run.batches([]):
            run.step(loss=batch)
        run.log(val_loss=epoch)
weights: dict[str, Any] = colabkeep.load_weights("r", which="best", framework="numpy")
colabkeep.browse("x")
colabkeep.report("r", storage=Path("x"))
colabkeep.check(probe=True)
word: str = colabkeep.secret("a", timeout="1 min")
"""
BAD = {
    "colabkeep.resumable_fit(m, [], optimizer=m, max_epoch=3)": "call-arg",
    "colabkeep.resumable_fit(m, [], m)": "call-arg",
    "colabkeep.resumable_fit(m, [])": "call-arg",
    "colabkeep.resumable_fit(m, [], optimizer=m, resume=True)": "arg-type",
    'colabkeep.resumable_fit(m, [], optimizer=m, mode="largest")': "arg-type",
    'colabkeep.resumable_fit(m, [], optimizer=m, precision="fp16")': "arg-type",
    "colabkeep.resumable_fit(m, [], optimizer=m, storage=7)": "arg-type",
    "colabkeep.resumable_fit(m, [], optimizer=m, run_name=7)": "arg-type",
    'colabkeep.Run("r", modle=m)': "call-arg",
    "colabkeep.Run(model=m)": "call-arg",
    'colabkeep.Run("r", model=m, callbacks=[3])': "list-item",
    'colabkeep.Run("r", model=m).setp()': "attr-defined",
    'colabkeep.load_weights("r", wich="best")': "call-arg",
    'colabkeep.report("r", store="x")': "call-arg",
    "colabkeep.verify_resume(dict, step=3)": "call-arg",
    "colabkeep.browse(folder=3)": "call-arg",
}


def test_a_type_checker_sees_a_misspelt_word_and_no_right_one(tmp_path: Path) -> None:
    """mypy, as strict as it can be, finds each of the wrong lines and nothing in the right ones."""
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text("from typing import Any\nimport colabkeep\nm: Any = None\n" + "\n".join(BAD))
    package = Path(colabkeep.__file__).resolve().parents[1]
    found_so = {} if package.name == "site-packages" else {"MYPYPATH": str(package)}
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [*command, "--follow-imports=silent", "--ignore-missing-imports", "good.py", "bad.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **found_so},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert [each for each in found if each[0] == "good"] == [], done.stdout
    expected = [("bad", str(line), code) for line, code in enumerate(BAD.values(), 4)]
    assert found == expected, done.stdout + done.stderr
