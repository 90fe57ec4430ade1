"""What a user sees and clicks in the browser of runs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from colabkeep.session.open import take_lock
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.faults import FaultyStore
from colabkeep.ui.drawing import RED


def ids(storage, run="first"):
    return sorted((path.stem for path in (storage / run / "checkpoints").iterdir()), reverse=True)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# -- looking -------------------------------------------------------------------------------------------


def test_one_look_says_where_and_what_and_how_safe(user, trained):
    """The storage with what it promises, the runs, and the checkpoints of the chosen one on their rungs."""
    him = user(trained)
    assert him.runs == ["first", "second"]
    assert f"{trained} is where it is: whether it outlives this machine cannot be told" in him.page
    assert "the highest rung there is local" in him.page
    assert "free" in him.page
    for id in ids(trained):
        assert id in him.page
    assert "committed local" in him.page
    assert "If this machine vanished now, you would lose 0 s (back to step 3" in him.page
    him.choose("second")
    assert ids(trained, "second")[0] in him.page
    assert ids(trained)[0] not in him.page


def test_nothing_is_changed_by_looking(user, storage, kit):
    """Opening, choosing, verifying, asking what would go: not a file is written."""
    before = kit.contents(storage)
    him = user(storage)
    for words in ("Look again", "Verify", "Delete old checkpoints", "Show what would go", "Delete the run"):
        him.click(words)
    him.choose("second")
    him.click("Sign in and mount")
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
    for words in ("Report", "Verify", "Export", "Delete old checkpoints", "Delete the run"):
        assert him.button(words).disabled, words
    assert not (tmp_path / "nowhere").exists()


def test_another_storage_is_opened_by_its_name(user, storage, tmp_path, kit):
    """The field on top takes what `storage=` takes, and says where one is."""
    kit.train(tmp_path / "other", "elsewhere", 1)
    him = user(storage)
    assert him.field("Storage").value == str(storage)
    him.field("Storage").value = str(tmp_path / "other")
    him.click("Open")
    assert him.runs == ["elsewhere"]
    assert f"{tmp_path}/other" in him.page
    assert him.field("Storage").value == str(tmp_path / "other")
    him.field("Storage").value = "nonsense://x"
    him.click("Open")
    assert "there is no store for nonsense://" in him.page
    assert "1. Where this is (done)" in him.page
    assert him.runs == []
    him.field("Storage").value = str(storage)
    him.click("Open")
    assert him.runs == ["first", "second"]
    assert "nonsense" not in him.page


def test_a_storage_that_cannot_be_opened_is_explained_with_the_way_to_one(user):
    """Problem and remedy, no traceback, and the steps of signing in and mounting below."""
    him = user("nonsense://x")
    assert "there is no store for nonsense://" in him.page
    assert "→ Use one of" in him.page
    assert "1. Where this is (done)" in him.page
    assert him.runs == []


def test_a_checkpoint_that_cannot_be_used_has_no_rung(user, storage):
    """Its manifest is damaged, or its bytes are gone: it is shown as what it is, and promises nothing."""
    newest, middle, oldest = ids(storage)
    flip(storage / f"first/checkpoints/{newest}.json")
    him = user(storage)
    rungs = {shown.info.id: (shown.info.state, shown.rung) for shown in him.browser.listing.run("first").checkpoints}
    assert rungs == {newest: ("unreadable", None), middle: ("committed", "local"), oldest: ("committed", "local")}
    for blob in (storage / "first/blobs").iterdir():
        blob.unlink()
    him.click("Look again")
    rungs = [shown.rung for shown in him.browser.listing.run("first").checkpoints]
    assert rungs == [None, None, None]
    assert "you would lose all" in him.page


# -- verifying -----------------------------------------------------------------------------------------


def test_verifying_shows_how_far_it_is_and_what_was_found(user, storage):
    """Bytes and a bar on the way; then one sentence, or each file that is not as it was written."""
    him = user(storage)
    told = []
    him.view.status.observe(lambda change: told.append(change["new"]), names="value")
    him.click("Verify")
    assert "Reading first" in told[0]
    assert "<progress" in told[0]
    assert "first: 17 files" in him.status
    assert "all as written" in him.status
    assert RED.ink not in him.view.status.value
    (blob, *_) = (storage / "first/blobs").iterdir()
    flip(blob)
    him.click("Verify")
    assert "NOT all as written" in him.status
    assert f"first/blobs/{blob.name}: damaged" in him.status
    assert RED.ink in him.view.status.value


# -- the report ----------------------------------------------------------------------------------------


def test_the_report_of_a_run_is_shown(user, trained, kit):
    """The same that `colabkeep.report` draws."""
    him = user(trained)
    him.click("Report")
    from colabkeep.ui.report import report

    drawn = kit.text_of(report("first", storage=trained)._repr_html_())
    assert len(drawn) > 100
    assert drawn[:60] in him.page


# -- exporting -----------------------------------------------------------------------------------------


def test_the_folder_has_to_be_named(user, trained):
    """Nothing is written to a place that nobody chose."""
    him = user(trained)
    him.click("Export")
    him.click("Export to this folder")
    assert "not said where" in him.status
    assert "→ Name a folder." in him.status


@pytest.mark.torch
def test_weights_are_exported_without_the_framework(with_torch, tmp_path):
    """One safetensors file that says where it is from, in a folder that is made for it, on a machine without torch."""
    program = f"""
import sys
sys.modules["torch"] = None
import colabkeep
print(colabkeep.browse({str(with_torch)!r}).export("net", {str(tmp_path / "out/here")!r}))
assert "numpy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = (tmp_path / "out/here").iterdir()
    assert done.stdout.startswith(f"{file}: 2 tensors")
    assert hashlib.sha256(file.read_bytes()).hexdigest() in done.stdout
    import safetensors

    with safetensors.safe_open(file, "numpy") as opened:
        assert opened.metadata()["colabkeep.run"] == "net"
        assert opened.get_tensor("weight").shape == (1, 3)


@pytest.mark.torch
def test_any_checkpoint_can_be_chosen(user, with_torch, tmp_path):
    """The newest, the best by any of its metrics, or one by its name; the file says which one it is."""
    him = user(with_torch)
    him.click("Export")
    him.field("Folder").value = str(tmp_path / "out")
    labels = [label for label, _ in him.field("Checkpoint").options]
    oldest, newest = sorted(ids(with_torch, "net"))[0], ids(with_torch, "net")[0]
    for label in ("the newest", "the best: less of it is better (loss)", oldest):
        him.field("Checkpoint").index = labels.index(label)
        him.click("Export to this folder")
        assert "2 tensors" in him.status, label
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {f"net-{newest}-model.safetensors", f"net-{oldest}-model.safetensors"} | {
        f"net-{id}-model.safetensors" for id in ids(with_torch, "net") if id.startswith("000000000002")
    }


@pytest.mark.torch
def test_a_file_that_is_there_is_replaced_only_when_that_is_ticked(user, with_torch, tmp_path):
    """It may be somebody's."""
    him = user(with_torch)
    him.click("Export")
    him.field("Folder").value = str(tmp_path)
    him.click("Export to this folder")
    (file,) = tmp_path.glob("*.safetensors")
    good = file.read_bytes()
    file.write_bytes(b"mine")
    him.click("Export to this folder")
    assert "exists already" in him.status
    assert "tick it" in him.status
    assert file.read_bytes() == b"mine"
    him.field("Replace a file that is there").value = True
    him.click("Export to this folder")
    assert file.read_bytes() == good


# -- deleting ------------------------------------------------------------------------------------------


def test_old_checkpoints_go_after_a_dry_run(user, storage, kit):
    """What would go is shown with its size; until the second button is clicked nothing does; then just that."""
    before = kit.contents(storage)
    him = user(storage)
    him.click("Delete old checkpoints")
    him.field("Keep newest").value = 1
    him.field("Keep best").value = 0
    assert [button.description for button in him.of("Button")].count("Delete for good") == 0
    him.click("Show what would go")
    newest, middle, oldest = ids(storage)
    assert f"{oldest} step 1 {middle} step 2 first: 2 checkpoint(s) and " in him.page
    assert "would go, 1 checkpoint(s) stay" in him.page
    assert kit.contents(storage) == before
    him.click("Delete for good")
    assert "2 checkpoint(s)" in him.status
    assert "are deleted" in him.status
    assert ids(storage) == [newest]
    assert middle not in him.markup.replace(him.view.status.value, "")
    him.click("Verify")
    assert "all as written" in him.status


def test_other_words_need_another_dry_run(user, storage):
    """The button that deletes belongs to what was shown: it is gone as soon as something else is asked for."""
    him = user(storage)
    him.click("Delete old checkpoints")
    him.click("Show what would go")
    assert him.button("Delete for good")
    him.field("Keep newest").value = 1
    assert [button.description for button in him.of("Button")].count("Delete for good") == 0


def test_a_run_that_went_on_after_the_dry_run_is_left_alone(user, storage, kit):
    """What would go now is not what was shown: it says so, and deletes nothing."""
    him = user(storage)
    him.click("Delete old checkpoints")
    him.field("Keep best").value = 0
    him.click("Show what would go")
    kit.train(storage, "first", 4)
    before = kit.contents(storage)
    him.click("Delete for good")
    assert "not what it was when you looked" in him.status
    assert kit.contents(storage) == before


def test_where_there_is_nothing_to_delete_there_is_no_button(user, storage):
    """A dry run that finds nothing offers nothing."""
    him = user(storage)
    him.click("Delete old checkpoints")
    him.field("Keep newest").value = 9
    him.click("Show what would go")
    assert "0 checkpoint(s)" in him.page
    assert [button.description for button in him.of("Button")].count("Delete for good") == 0


def test_a_whole_run_goes_only_when_its_name_is_typed(user, storage, kit):
    """Exactly that name; the button is dead before. The other run stays as it was."""
    him = user(storage)
    him.click("Delete the run")
    assert "first: the whole run with 3 checkpoint(s)" in him.page
    go = him.button("Delete for good")
    for typed in ("", "First", "first ", "second"):
        him.field("Run's name").value = typed
        assert go.disabled, typed
        before = kit.contents(storage)
        go.click()  # as a page that was left open may still send it
        assert "not typed" in him.status
        assert kit.contents(storage) == before
    him.field("Run's name").value = "first"
    him.click("Delete for good")
    assert "are deleted" in him.status
    assert him.runs == ["second"]
    assert {name.split("/")[0] for name in kit.contents(storage)} == {"second"}
    assert him.view.runs.value == "second"


@pytest.mark.parametrize("what", ["Delete old checkpoints", "Delete the run"])
def test_nothing_is_deleted_of_a_run_that_is_being_trained(user, storage, kit, what):
    """Its lock is held: who holds it is said, with what to do, and not a byte changes."""
    him = user(storage)
    him.click(what)
    if what == "Delete the run":
        him.field("Run's name").value = "first"
    else:
        him.click("Show what would go")
    before = kit.contents(storage)
    with take_lock(DirectoryStore(storage), "first", {"pid": os.getpid(), "host": "this-one"}):
        him.click("Delete for good")
    assert f"is being trained right now by process {os.getpid()} on this-one" in him.status
    assert "→ Let it go on" in him.status
    assert kit.contents(storage) == before


# -- when something fails ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (RuntimeError("a wire <b>broke</b>"), "RuntimeError: a wire <b>broke</b>"),
        (KeyboardInterrupt(), "Stopped by you."),
    ],
    ids=["unforeseen", "stopped"],
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
