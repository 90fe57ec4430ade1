"""What others wrote into a storage is shown as text: it is never markup, never a script, and never ends the browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colabkeep.checkpoint.lease import take_lease
from colabkeep.checkpoint.repository import Repository
from colabkeep.stores.base import Entry
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore

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
    harmless(him)
    for words in ("Verify", "Export", "Delete old checkpoints", "Delete the run", "Sign in and mount"):
        him.click(words)
        harmless(him)
    assert "\x1b" not in repr(him.browser)
    assert "\u202e" not in repr(him.browser)


def test_what_a_checkpoint_says_of_itself_is_text(user, storage):
    """Metrics and reasons of a manifest that somebody else made: listed, offered for choice, and harmless."""
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
    for words in ("Report", "Verify", "Export", "Delete old checkpoints", "Show what would go", "Delete the run"):
        him.click(words)
        assert "was not foreseen" not in him.status
        harmless(him)
    him.click("Export")
    assert f"the best: less of it is better ({EVIL})" in [label for label, _ in him.field("Checkpoint").options]


def test_who_trains_a_run_is_text(user, trained, kit):
    """The name of a machine, in a lease that somebody else wrote."""

    class Remote(MemoryStore):
        @property
        def properties(self):
            return replace(super().properties, locks=False)

    remote = Remote()
    remote._objects.update(kit.contents(trained))
    him = user(remote)
    him.click("Delete the run")
    take_lease(Repository(remote, "first"), "99999999", {"host": EVIL, "pid": 1, "started": 2.0**61})
    him.click("Delete the run")
    him.field("Run's name").value = "first"
    him.click("Delete for good")
    assert f"seems to be trained on {EVIL}" in him.status
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
    him.choose("first")
    him.click("Verify")
    assert "all as written" in him.status


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"sha256": 1}'], ids=lambda b: b[:9].hex()
)
def test_garbage_in_any_file_of_a_run_is_lived_with(user, storage, damage):
    """Manifests, leases, diary, run.json: the browser opens, and every button answers in words."""
    for file in storage.glob("first/**/*.json*"):
        file.write_bytes(damage)
    him = user(storage)
    assert him.runs == ["first", "second"]
    for words in (
        "Report",
        "Verify",
        "Export",
        "Export to this folder",
        "Delete old checkpoints",
        "Show what would go",
    ):
        him.click(words)
        assert "was not foreseen" not in him.status, him.status
        harmless(him)
    him.click("Delete the run")
    him.field("Run's name").value = "first"
    him.click("Delete for good")
    assert him.runs == ["second"], him.status
