"""The run browser: what a user sees and clicks; as text; on real places; and with whatever others wrote there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import colabkeep
from colabkeep.checkpoint.inspect import run_names
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.core.errors import RunBusy, UsageError
from colabkeep.core.system import Environment
from colabkeep.session.open import take_lock
from colabkeep.stores import open_store
from colabkeep.stores.base import Entry, to_type
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.faults import FaultyStore
from colabkeep.ui.drawing import RED
from tests.fakes.drive import running_drive
from tests.fakes.platforms import fake_colab, fake_kaggle


def ids(storage, run="first"):
    return sorted((path.stem for path in (storage / run / "checkpoints").iterdir()), reverse=True)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# -- looking -------------------------------------------------------------------------------------------


def test_one_look_says_where_and_what_and_how_safe(user, trained):
    """The storage, the runs, and the checkpoints of the chosen one with their sizes."""
    him = user(trained)
    assert him.runs == ["first", "second"]
    assert f"{trained} may or may not survive this machine" in him.page
    assert "free" in him.page
    assert all(id in him.page for id in ids(trained))
    assert "KiB" in him.page
    assert "committed local" in him.page
    assert "If this machine vanished now, you would lose 0 s (back to step 3" in him.page
    him.choose("second")
    assert ids(trained, "second")[0] in him.page
    assert ids(trained)[0] not in him.page


def test_nothing_is_changed_by_looking(user, storage, kit):
    """Choosing, verifying, reporting, asking what would be deleted: not a file is written."""
    before = kit.contents(storage)
    him = user(storage)
    for words in ("Look again", "Verify", "Report", "Delete"):
        him.click(words)
    him.choose("second")
    assert kit.contents(storage) == before


def test_what_others_saved_meanwhile_is_seen_by_looking_again(user, storage, kit):
    """And the run that was chosen stays chosen."""
    him = user(storage)
    him.choose("second")
    kit.train(storage, "a-new-one", 1)
    kit.train(storage, "second", 4)
    him.click("Look again")
    assert him.runs == ["a-new-one", "first", "second"]
    assert him.view.runs.value == "second"
    assert "000000000004" in him.page


def test_an_empty_place_says_so(user, tmp_path):
    """A mistyped folder is easy to see, and is not made; what needs a run cannot be clicked."""
    him = user(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in him.page
    assert "no runs here" in him.page
    assert him.runs == []
    for words in ("Report", "Verify", "Delete"):
        assert him.button(words).disabled, words
    assert not (tmp_path / "nowhere").exists()


def test_a_storage_that_cannot_be_opened_is_explained(user):
    """Problem and remedy, no traceback."""
    him = user("nonsense://x")
    assert "there is no store for nonsense://" in him.page
    assert "→ Use one of" in him.page
    assert him.runs == []


def test_a_checkpoint_that_cannot_be_used_is_shown_as_what_it_is(user, storage):
    """Its manifest is damaged, or its bytes are gone: it promises nothing."""
    newest, middle, oldest = ids(storage)
    flip(storage / f"first/checkpoints/{newest}.json")
    him = user(storage)

    def found():
        (run,) = (run for run in him.browser.runs if run["name"] == "first")
        return {each["id"]: (each["state"], each["level"]) for each in run["checkpoints"]}

    assert found() == {newest: ("unreadable", None), middle: ("committed", "local"), oldest: ("committed", None)}
    for blob in (storage / "first/blobs").iterdir():
        blob.unlink()
    him.click("Look again")
    assert [level for _, level in found().values()] == [None, None, None]
    assert "you would lose all" in him.page


def test_the_report_of_a_run_is_shown(user, trained, kit):
    """The same that `colabkeep.report` draws."""
    him = user(trained)
    him.click("Report")
    drawn = kit.text_of(colabkeep.report("first", storage=trained)._repr_html_())
    assert len(drawn) > 100
    assert drawn[:60] in him.page


def test_verifying_shows_how_far_it_is_and_what_was_found(user, storage):
    """Bytes and a bar on the way; then one sentence, or each file that is not as it was written."""
    him = user(storage)
    told = []
    him.view.status.observe(lambda change: told.append(change["new"]), names="value")
    him.click("Verify")
    assert "Reading first" in told[0]
    assert "<progress" in told[0]
    assert re.search(r"first: \d\d files, [\d.]+ KiB, all as written", him.status)
    assert RED.ink not in him.view.status.value
    (blob, *_) = (storage / "first/blobs").iterdir()
    flip(blob)
    him.click("Verify")
    assert "NOT all as written" in him.status
    assert f"first/blobs/{blob.name}: damaged" in him.status
    assert RED.ink in him.view.status.value


# -- deleting ------------------------------------------------------------------------------------------


def test_a_run_is_deleted_only_when_its_name_is_typed(user, storage, kit):
    """Exactly that name; the button is dead before. The other run stays as it was."""
    him = user(storage)
    him.click("Delete")
    assert "first: the whole run with 3 checkpoint(s)" in him.page
    go = him.button("Delete for good")
    for typed in ("", "First", "first ", "second"):
        him.field("Run's name").value = typed
        assert go.disabled, typed
        before = kit.contents(storage)
        go.click()  # as a page that was left open may still send it
        assert "is not its name" in him.status
        assert kit.contents(storage) == before
    him.delete("first")
    assert "are deleted" in him.status
    assert him.runs == ["second"]
    assert {name.split("/")[0] for name in kit.contents(storage)} == {"second"}
    assert him.view.runs.value == "second"


def test_what_would_be_deleted_belongs_to_the_run_that_was_asked_about(user, storage):
    """The button is gone as soon as another run is chosen."""
    him = user(storage)
    him.click("Delete")
    him.choose("second")
    assert "Delete for good" not in [button.description for button in him.of("Button")]


def test_nothing_is_deleted_of_a_run_that_is_being_trained(user, storage, kit):
    """Its lock is held: who holds it is said, with what to do, and not a byte changes."""
    him = user(storage)
    before = kit.contents(storage)
    with take_lock(DirectoryStore(storage), "first", {"pid": os.getpid(), "host": "this-one"}):
        him.click("Delete")
        him.delete("first")
    assert f"is in use right now by process {os.getpid()} on this-one" in him.status
    assert "→ Let it run" in him.status
    assert kit.contents(storage) == before
    net = kit.Net()
    with colabkeep.Run("first", model=net, storage=storage, progress=False):  # in this very process
        browser = colabkeep.browse(storage)
        assert browser.verify("first").good
        with pytest.raises(RunBusy):
            browser.delete("first").go("first")


# -- when something fails ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (RuntimeError("a wire <b>broke</b>"), "RuntimeError: a wire <b>broke</b>"),
        (KeyboardInterrupt(), "Stopped by you."),
    ],
    ids=["unexpected", "stopped"],
)
def test_a_failure_is_shown_in_the_browser_and_the_buttons_live_on(user, storage, failure, words):
    """An error that nobody foresaw, or the stop button in the middle: said where the user looks, and it goes on."""
    store = FaultyStore(DirectoryStore(storage))
    him = user(store)

    def fail(point):
        if point.startswith("before get first/blobs"):
            raise failure

    store.at = fail
    him.click("Verify")
    assert words in him.status
    store.at = lambda point: None
    him.click("Verify")
    assert "all as written" in him.status


# -- text ----------------------------------------------------------------------------------------------


def test_every_line_to_type_does_what_it_says(storage, kit, monkeypatch, tmp_path):
    """The listing, then a line for each button: typed as they stand, each works, and none deletes anything."""
    monkeypatch.chdir(tmp_path)
    before = kit.contents(storage)
    lines = repr(colabkeep.browse(storage)).splitlines()
    assert lines[0].startswith(f"{storage} may or may not survive")
    assert [line for line in lines if line in ("first", "second")] == ["first", "second"]
    assert len([line for line in lines if "  committed" in line]) == 4
    first, *typed = [line.partition("  # ")[0].strip() for line in lines[lines.index("What you can type") + 1 :]]
    assert first == f"browser = colabkeep.browse({str(storage)!r})"
    names = {"colabkeep": colabkeep}
    exec(first, names)
    said = {line: str(eval(line, names)) for line in typed}
    assert "all as written" in said["browser.verify('first')"]
    assert said["browser.report('first')"].startswith("first: ")
    assert "call .go('first') on this" in said["browser.delete('first')"]
    assert kit.contents(storage) == before


def test_deleting_by_typing_asks_for_the_same(storage, kit):
    """What would be deleted first, then the run's name; a storage that was handed in stays open."""
    closed = []

    class Watched(DirectoryStore):
        def close(self):
            closed.append(True)

    browser = colabkeep.browse(Watched(storage))
    before = kit.contents(storage)
    for wrong in ((), ("firs",)):
        with pytest.raises(UsageError) as caught:
            browser.delete("first").go(*wrong)
        assert caught.value.remedy == "Type it exactly: first"
    assert kit.contents(storage) == before
    assert "are deleted" in repr(browser.delete("first").go("first"))
    browser.refresh()
    browser.close()
    assert [run["name"] for run in browser.runs] == ["second"]
    assert closed == []
    assert "browser = colabkeep.browse(storage)" in repr(browser)
    assert to_type((storage, "s3://key:secret@bucket/runs")) == f"({str(storage)!r}, 's3://…@bucket/runs')"


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


# -- real places ---------------------------------------------------------------------------------------


@pytest.fixture
def at(monkeypatch):
    """`at(environment)`: this process is there."""
    return lambda environment: monkeypatch.setattr(Environment, "here", classmethod(lambda cls: environment))


def test_a_pair_is_shown_and_deleted_from_on_both_sides(user, storage, tmp_path):
    """Both places by name; what has arrived on the remote side is "sent"; the run goes from both."""
    store = open_store((storage, tmp_path / "behind"))
    for run in ("first", "second"):
        take_up(Repository(store, run))
    assert store.flush(60)
    store.close()
    him = user(f"{storage} + {tmp_path / 'behind'}")
    assert f"{storage} + {tmp_path / 'behind'}" in him.page
    assert "free on this machine" in him.page
    assert "committed sent" in him.page
    him.click("Delete")
    him.delete("first")
    assert him.runs == ["second"]
    for side in (storage, tmp_path / "behind"):
        assert run_names(DirectoryStore(side)) == ["second"]


def test_a_drive_is_browsed_by_its_address(user, kit, monkeypatch, tmp_path):
    """Who is signed in, the room that is left, checkpoints that Google itself vouches for; verified, and deleted from
    there. The secret is on no page and in no text of the browser."""
    with running_drive(tmp_path, quota_bytes=10_000_000) as drive:
        where = f"drive://colabkeep?service={drive.url}"
        monkeypatch.delenv("COLABKEEP_DRIVE", raising=False)
        nobody = user(where)
        assert "Nobody is signed in to Google Drive" in nobody.page
        assert "colabkeep auth" in nobody.page
        secret = drive.authorized_user()
        monkeypatch.setenv("COLABKEEP_DRIVE", json.dumps(secret))
        for until in (1, 2):
            kit.train(where, "first", until)
        him = user(where)
        for words in ("signed in as student@example.com", "survives this machine", "MiB free", "committed confirmed"):
            assert words in him.page
        assert "(back to step 2, confirmed by drive://colabkeep" in him.page
        him.click("Verify")
        assert "all as written" in him.status
        pair = user((tmp_path / "here", where))
        assert "signed in as student@example.com" in pair.page
        for value in (secret["refresh_token"], secret["client_secret"]):
            assert value not in him.markup
            assert value not in repr(him.browser)
        him.click("Delete")
        him.delete("first")
        assert him.runs == []
        assert [file.name for file in drive.files() if file.size is not None and not file.trashed] == []


def test_on_colab_without_drive_it_says_how_to_mount_it(user, kit, tmp_path, at):
    """The line to type; and once it is mounted, what lies there."""
    with fake_colab(tmp_path) as machine:
        at(machine.environment)
        him = user("auto")
        assert "Google Drive is not mounted" in him.page
        assert "colabkeep.mount()" in him.page
        colabkeep.mount()
        kit.train("auto", "on-drive", 1, flush_timeout=0.1)  # this mount never says that it has sent anything
        him.click("Look again")
        assert "MyDrive/colabkeep" in him.page
        assert him.runs == ["on-drive"]


def test_what_an_earlier_kaggle_session_left_cannot_be_deleted_and_is_said_to_stay(user, kit, tmp_path, at):
    """It lies in an input that nobody can write: the run is listed again, and how to get rid of it is said."""
    with fake_kaggle(tmp_path, run_type="Batch") as first:
        at(first.environment)
        kit.train("auto", "r", 2)
        output = first.save_version()
    with fake_kaggle(tmp_path, run_type="Batch", inputs={"my-notebook": output}) as second:
        at(second.environment)
        him = user("auto")
        him.click("Delete")
        him.delete("r")
        assert "attached to this notebook: remove it there" in him.status
        assert him.runs == ["r"]
        shutil.rmtree(output)


# -- what others wrote ---------------------------------------------------------------------------------

EVIL = '<img src=x onerror="alert(1)">'
MATHS = r"$\href{javascript:alert(1)}{x}$"


def harmless(him):
    """No piece of HTML has an element of theirs, and all tell the typesetter of mathematics to leave them alone."""
    pieces = [widget.value for widget in him.of("HTML") if widget.value]
    assert pieces
    for piece in pieces:
        assert "<img src=x" not in piece
        assert "<script" not in piece.lower()
        assert piece.startswith('<div class="tex2jax_ignore mathjax_ignore">')


def test_a_folder_may_be_called_anything(user, kit, tmp_path):
    """Its name is text on the page, and in every outcome and error."""
    folder = tmp_path / f"{EVIL}{MATHS}\n\u202e\x1b[2J"
    kit.train(folder, "first", 1)
    him = user(folder)
    assert f"{EVIL}{MATHS}" in him.page
    for words in ("Look again", "Report", "Verify", "Delete"):
        him.click(words)
        harmless(him)
    assert "\x1b" not in repr(him.browser)
    assert "\u202e" not in repr(him.browser)


def test_what_a_checkpoint_or_a_lease_says_is_text(user, storage, trained, kit):
    """Metrics and reasons of a manifest that somebody else made, and the name of the machine that trains."""
    repository = Repository(DirectoryStore(storage), "first")
    manifest = repository.manifest(max(repository.ids()))
    step = manifest.progress.step + 1
    evil = replace(
        manifest,
        id=f"{step:012d}-{manifest.session}",
        progress=manifest.progress._replace(step=step, seconds=2.0**62),
        metrics={EVIL: 1.0, MATHS: float("nan"), "val_loss": float("inf")},
        reason=EVIL,
        framework=EVIL,
        created=2.0**62,
    )
    repository.commit(evil)
    him = user(storage)
    assert evil.id in him.page
    for words in ("Report", "Verify", "Delete"):
        him.click(words)
        assert "unexpected" not in him.status
        harmless(him)

    class Remote(MemoryStore):
        @property
        def properties(self):
            return replace(super().properties, locks=False)

    remote = Remote()
    remote._objects.update(kit.contents(trained))
    take_lease(Repository(remote, "first"), "99999999", {"host": EVIL, "pid": 1, "started": 2.0**61})
    him = user(remote)
    him.click("Delete")
    him.delete("first")
    assert f"seems to be training on {EVIL}" in him.status
    harmless(him)
    assert him.runs == ["first", "second"]


@pytest.mark.parametrize("name", [EVIL, MATHS, "../../etc", "a b", "é"], ids=str)
def test_a_store_that_lists_impossible_names_does_not_end_the_browser(user, trained, kit, name):
    """They are no runs, and the others are as they were."""

    class Strange(MemoryStore):
        def list(self, prefix):
            return [*super().list(prefix), Entry(name=f"{name}/run.json", size=1)]

    store = Strange()
    store._objects.update(kit.contents(trained))
    him = user(store)
    assert him.runs == ["first", "second"]
    harmless(him)
    him.click("Verify")
    assert "all as written" in him.status


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"sha256": 1}'], ids=lambda b: b[:9].hex()
)
def test_garbage_in_any_file_of_a_run_is_lived_with(user, storage, damage):
    """Manifests, leases, journal, run.json: the browser opens, every button answers in words, and the run can go."""
    for file in storage.glob("first/**/*.json*"):
        file.write_bytes(damage)
    him = user(storage)
    assert him.runs == ["first", "second"]
    for words in ("Report", "Verify", "Delete"):
        him.click(words)
        assert "unexpected" not in him.status, him.status
        harmless(him)
    him.delete("first")
    assert him.runs == ["second"], him.status
