"""Without buttons the browser is text: the same listing, and a line to type for each button."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import colabkeep
from colabkeep.core.errors import RunBusy, UsageError
from colabkeep.core.system import Environment
from tests.fakes.platforms import fake_colab, fake_kaggle


def typed(browser):
    """The lines to type that the text shows, without their comments."""
    lines = repr(browser).splitlines()
    below = lines[lines.index("What you can type") + 1 :]
    return [line.partition("  # ")[0].strip() for line in below if line.startswith("  ")]


def test_the_text_lists_what_is_there(storage):
    """Storage, runs, checkpoints on their rungs, and what would be lost: without a page, without a kernel."""
    said = repr(colabkeep.browse(storage))
    lines = said.splitlines()
    assert lines[0].startswith(f"{storage} is where it is")
    assert [line for line in lines if line in ("first", "second")] == ["first", "second"]
    assert len([line for line in lines if line.endswith("committed  local")]) == 4
    assert said.count("If this machine vanished now, you would lose 0 s") == 2


def test_every_line_to_type_does_what_it_says(storage, kit, monkeypatch, tmp_path):
    """Typed as they stand, in that order, in an empty folder: each works, and none deletes anything."""
    monkeypatch.chdir(tmp_path)
    before = kit.contents(storage)
    lines = typed(colabkeep.browse(storage))
    assert lines[0] == f"browser = colabkeep.browse({str(storage)!r})"
    names = {"colabkeep": colabkeep}
    exec(lines[0], names)
    said = {}
    for line in lines[1:]:
        if ".export(" not in line:  # these weights are no framework's
            said[line] = str(eval(line, names))
    assert "all as written" in said["browser.verify('first')"]
    assert "would go" in said["browser.prune('first')"]
    assert "call .go() on this" in said["browser.prune('first')"]
    assert "call .go('first') on this" in said["browser.delete('first')"]
    assert "Signing in and mounting, step by step" in said["browser.walk()"]
    assert "browser.export('first', \"exports\")" in lines
    assert kit.contents(storage) == before


def test_deleting_by_typing_asks_for_the_same(storage, kit):
    """A dry run first, the run's name for a whole run; then it is gone."""
    browser = colabkeep.browse(storage)
    assert "are deleted" in repr(browser.prune("first", keep_last=1).go())
    before = kit.contents(storage)
    for wrong in ((), ("firs",)):
        with pytest.raises(UsageError) as caught:
            browser.delete("first").go(*wrong)
        assert caught.value.remedy == "Type it exactly: first"
    assert kit.contents(storage) == before
    assert "are deleted" in repr(browser.delete("first").go("first"))
    assert [run.name for run in browser.refresh().runs] == ["second"]


def test_a_training_in_this_very_process_protects_its_run(storage, kit):
    """The cell above is still at it: its run can be looked at, and not deleted."""
    net = kit.Net()
    with colabkeep.Run("first", model=net, storage=storage, progress=False):
        browser = colabkeep.browse(storage)
        assert browser.verify("first").good
        with pytest.raises(RunBusy):
            browser.delete("first").go("first")
        with pytest.raises(RunBusy):
            browser.prune("first", keep_last=1).go()


def test_a_storage_that_was_handed_in_stays_open(storage, kit):
    """It is the user's: the browser closes only what it opened by name."""

    class Watched(type(colabkeep.browse(storage)._opened())):
        closed = 0

        def close(self):
            self.closed += 1
            super().close()

    store = Watched(storage)
    browser = colabkeep.browse(store)
    browser.delete("first").go("first")
    browser.close()
    assert store.closed == 0
    assert [run.name for run in browser.refresh().runs] == ["second"]
    assert "browser = colabkeep.browse(storage)" in repr(browser)


def test_a_place_that_cannot_be_opened_is_no_exception(monkeypatch, tmp_path):
    """On Colab without Drive: why, what to do, and the steps with the lines to type; one of them is the mount."""
    with fake_colab(tmp_path) as machine:
        monkeypatch.setattr(Environment, "here", classmethod(lambda cls: machine.environment))
        said = repr(colabkeep.browse())
    assert "Google Drive is not mounted" in said
    assert ">>> colabkeep.mount()" in said
    assert said.index("2. A storage that outlives this machine (to do)") < said.index("3. Your own Google Drive")


def test_the_steps_tell_what_is_done(monkeypatch, tmp_path):
    """On Kaggle nothing is mounted; the sign-in is done when there is a secret, which is not looked into."""

    class Sealed(dict):
        def __getitem__(self, name):
            assert name != "COLABKEEP_DRIVE"
            return super().__getitem__(name)

        def get(self, name, default=None):
            assert name != "COLABKEEP_DRIVE"
            return super().get(name, default)

    with fake_kaggle(tmp_path, run_type="Batch") as machine:
        sealed = Sealed(machine.environment.environ, COLABKEEP_DRIVE="nobody may see this")
        here = replace(machine.environment, environ=sealed)
        monkeypatch.setattr(Environment, "here", classmethod(lambda cls: here))
        walk = colabkeep.browse().walk()
    assert "1. Where this is (done)\n     Kaggle (batch)." in repr(walk)
    assert [step.done for step in walk.steps] == [True, True, True, True, None]
    assert not any(step.mounts for step in walk.steps)
    assert "nobody may see" not in repr(walk)


def test_a_mount_that_hangs_does_not_hang_the_steps(monkeypatch, tmp_path):
    """What gives no answer in a few seconds is named as not known, and the steps are shown without it."""
    import threading

    from colabkeep.platforms.local import ScriptPlatform

    never = threading.Event()
    monkeypatch.setattr(ScriptPlatform, "home", lambda self, environment: never.wait(60))
    browser = colabkeep.browse(tmp_path)
    walk = browser.walk()
    never.set()
    assert walk.untold == ("the storage (no answer in time)",)
    assert "Not known: the storage (no answer in time)" in repr(walk)
    assert walk.steps[0].title == "Where this is"


def test_in_a_shell_no_widget_is_loaded(storage):
    """Printed by a script: ipywidgets, IPython and every framework stay out of the process."""
    program = f"""
import sys
import colabkeep
print(colabkeep.browse({str(storage)!r}))
assert not [name for name in ("ipywidgets", "IPython", "torch", "numpy") if name in sys.modules]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "What you can type" in done.stdout
