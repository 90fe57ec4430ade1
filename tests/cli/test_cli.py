"""The command line: what is there, is it whole, take it elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import colabkeep
from colabkeep.core.errors import CheckpointDamaged, NotStorable
from colabkeep.core.layout import seal, unseal
from colabkeep.core.state import HostTensor, Tagged
from colabkeep.session.weights import plain_tensor
from colabkeep.ui import demo, records
from colabkeep.ui import text as ui_text
from colabkeep.ui.cli import main


def ids(storage, run="first"):
    return sorted((path.stem for path in (storage / run / "checkpoints").iterdir()), reverse=True)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def blob_of(storage, id, run="first"):
    manifest = unseal((storage / run / f"checkpoints/{id}.json").read_bytes())
    return storage / run / "blobs" / manifest["blobs"][0]["file"]


# -- list ----------------------------------------------------------------------------------------------


def test_list_shows_runs_and_checkpoints(colabkeep_cli, trained):
    """One look says which runs there are, how far they came and how large they are."""
    said = colabkeep_cli("list", "--storage", trained)
    lines = said.out.splitlines()
    assert (said.status, said.err) == (0, "")
    runs = [line for line in lines if not line.startswith(" ")]
    assert [line.split()[:2] for line in runs] == [["first", "finished,"], ["second", "finished,"]]
    assert all("ago: val_loss 1.5" in line for line in runs)
    newest = lines[2].split()
    assert newest[:3] == [ids(trained)[0], "6", "3"]
    assert newest[4] == "KiB"
    assert datetime.fromisoformat(newest[5]).tzinfo is not None
    assert newest[6] == "committed"


def test_list_speaks_json(colabkeep_cli, trained):
    """Machines get exactly the words that are documented, checkpoints newest first."""
    said = colabkeep_cli("list", "--storage", trained, "--json")
    assert said.err == ""
    assert [run["name"] for run in said.json["runs"]] == ["first", "second"]
    first = said.json["runs"][0]
    assert set(said.json) == {"runs"}
    assert set(first) == {"name", "state", "last_seen", "metrics", "checkpoints"}
    assert (first["state"], first["metrics"]) == ("finished", {"val_loss": 1.5})
    assert [checkpoint["id"] for checkpoint in first["checkpoints"]] == ids(trained)
    newest = first["checkpoints"][0]
    assert set(newest) == {"id", "step", "epoch", "bytes", "created", "state", "framework"}
    assert (newest["step"], newest["epoch"], newest["state"]) == (6, 3, "committed")
    assert newest["bytes"] == blob_of(trained, ids(trained)[0]).stat().st_size
    assert abs(newest["created"] - blob_of(trained, ids(trained)[0]).stat().st_mtime) < 3600


def test_list_of_an_empty_place_says_where_it_looked(colabkeep_cli, tmp_path):
    """A mistyped folder is easy to see, and nothing is made there."""
    said = colabkeep_cli("list", "--storage", tmp_path / "nowhere")
    assert said.status == 0
    assert str(tmp_path / "nowhere") in said.out
    assert "--storage" in said.out
    assert colabkeep_cli("list", "--storage", tmp_path / "nowhere", "--json").json == {"runs": []}
    assert not (tmp_path / "nowhere").exists()


def test_list_shows_damaged_manifests_and_those_set_aside(colabkeep_cli, storage):
    """A checkpoint that cannot be read or was skipped is shown as such, with what is known of it."""
    newest, middle, _ = ids(storage)
    flip(storage / f"first/checkpoints/{newest}.json")
    (storage / "first/aside").mkdir()
    (storage / f"first/aside/{middle}.json").write_bytes(seal({"id": middle, "reason": "x", "protects": []}))
    found = colabkeep_cli("list", "--storage", storage, "--json").json["runs"][0]["checkpoints"]
    states = {checkpoint["id"]: checkpoint["state"] for checkpoint in found}
    assert (states[newest], states[middle]) == ("unreadable", "quarantined")
    unreadable = next(checkpoint for checkpoint in found if checkpoint["id"] == newest)
    assert (unreadable["step"], unreadable["epoch"], unreadable["bytes"]) == (6, None, None)
    assert "unreadable" in colabkeep_cli("list", "--storage", storage).out


def test_a_run_in_a_folder_of_its_own_is_listed_by_its_whole_name(colabkeep_cli, storage):
    """Run names may have parts; each run is found under the name that it was trained with."""
    (storage / "vision").mkdir()
    (storage / "first").rename(storage / "vision/first")
    assert [run["name"] for run in colabkeep_cli("list", "--storage", storage, "--json").json["runs"]] == [
        "second",
        "vision/first",
    ]


# -- show ----------------------------------------------------------------------------------------------


def test_show_tells_of_sessions_checkpoints_and_what_is_inside(colabkeep_cli, trained):
    """Who trained it where, why each checkpoint was saved with which metrics, and what the newest is made of."""
    said = colabkeep_cli("show", "first", "--storage", trained)
    assert said.status == 0
    for word in (
        str(trained),
        "Sessions",
        *ids(trained),
        "val_loss 0.5",
        "optimizer",
        "torch",
        str(os.getpid()),
    ):
        assert word in said.out


def test_show_speaks_json(colabkeep_cli, trained):
    """The same facts for machines."""
    record = colabkeep_cli("show", "first", "--storage", trained, "--json").json
    assert [session["fence"] for session in record["sessions"]] == [3, 2, 1]
    assert all(session["pid"] == os.getpid() for session in record["sessions"])
    assert [checkpoint["metrics"]["val_loss"] for checkpoint in record["checkpoints"]] == [1.5, 0.5, 1.5]
    assert {checkpoint["reason"] for checkpoint in record["checkpoints"]} <= {"left", "finished"}
    inside = record["checkpoint"]
    assert (inside["id"], inside["parent"]) == tuple(ids(trained)[:2])
    assert (inside["framework"], inside["version"]) == ("torch", colabkeep.__version__)
    assert inside["fingerprint"]["torch"] == torch.__version__
    sizes = {part["name"]: (part["tensors"], part["bytes"]) for part in inside["parts"]}
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    tensors = model.state_dict().values()
    assert sizes["model"] == (len(tensors), sum(tensor.nbytes for tensor in tensors))


def test_show_looks_into_any_checkpoint(colabkeep_cli, trained):
    """An older one by its id."""
    oldest = ids(trained)[-1]
    record = colabkeep_cli("show", "first", "--checkpoint", oldest, "--storage", trained, "--json").json
    assert (record["checkpoint"]["id"], record["checkpoint"]["parent"]) == (oldest, None)
    missing = colabkeep_cli("show", "first", "--checkpoint", "nope", "--storage", trained)
    assert missing.status == 3
    assert "colabkeep show first" in missing.err


def test_show_of_a_damaged_run_shows_what_is_left(colabkeep_cli, storage):
    """Files that are gone or garbage do not keep the rest from being seen."""
    newest, middle, _ = ids(storage)
    flip(storage / f"first/checkpoints/{newest}.json")
    blob_of(storage, middle).unlink()
    (storage / "first/run.json").write_bytes(b"garbage")
    for lease in (storage / "first/lease").glob("0*.json"):
        lease.write_bytes(b"garbage")
    said = colabkeep_cli("show", "first", "--storage", storage, "--json")
    assert said.status == 0
    assert said.json["created"] is None
    assert [session["pid"] for session in said.json["sessions"]] == [None, None, None]
    assert said.json["checkpoint"]["id"] == middle
    assert "missing" in said.json["checkpoint"]["problem"]
    assert "missing" in colabkeep_cli("show", "first", "--storage", storage).out
    assert colabkeep_cli("show", "first", "--checkpoint", newest, "--storage", storage).status == 1


def test_what_a_file_says_cannot_steer_the_terminal(colabkeep_cli, storage):
    """Escape sequences in a prepared manifest or lease are shown as harmless signs."""
    manifest = storage / f"first/checkpoints/{ids(storage)[0]}.json"
    evil = "\x1b]0;owned\x07\r\n\x9b31m"
    fields = {"reason": evil, "fingerprint": {evil: evil}, "framework": evil, "metrics": {evil: 1.0}, "parent": evil}
    manifest.write_bytes(seal({**unseal(manifest.read_bytes()), **fields, "version": evil, "created": 9e18}))
    for lease in (storage / "first/lease").glob("0*.json"):
        record = unseal(lease.read_bytes())
        lease.write_bytes(seal({**record, "host": evil, "pid": [evil], "started": "x"}))
    (storage / "first/run.json").write_bytes(seal({"format": 1, "run": evil, "created": evil}))
    for words in (["show", "first"], ["list"], ["verify", "first"]):
        said = colabkeep_cli(*words, "--storage", storage)
        assert not set(said.out + said.err) & set("\x1b\x07\r\x9b")


# -- verify --------------------------------------------------------------------------------------------


def test_verify_of_good_runs_says_so(colabkeep_cli, trained):
    """Every file was read; one line for each run; the exit status is that of success."""
    said = colabkeep_cli("verify", "--storage", trained)
    assert said.status == 0
    assert [line.split(":")[0] for line in said.out.splitlines()] == ["first", "second"]
    assert said.out.count("all as written") == 2
    assert said.err.splitlines() == ["reading first", "reading second"]


def test_verify_names_what_is_damaged(colabkeep_cli, storage):
    """The damaged file, what it means, and an exit status that a script can rely on; the other run is judged apart."""
    bad = blob_of(storage, ids(storage)[0])
    flip(bad)
    said = colabkeep_cli("verify", "--storage", storage)
    assert said.status == 1
    assert f"first/blobs/{bad.name}: damaged" in said.out
    assert ids(storage)[0] in said.out
    assert "NOT all as written" in said.out.splitlines()[1]
    assert "second" in said.out.splitlines()[2]
    assert colabkeep_cli("verify", "second", "--storage", storage).status == 0


def test_verify_speaks_json(colabkeep_cli, storage):
    """Machines get the findings that are not well, and no word besides."""
    bad = blob_of(storage, ids(storage)[0])
    bad.unlink()
    said = colabkeep_cli("verify", "--json", "--storage", storage)
    assert (said.status, said.err) == (1, "")
    first, second = said.json["runs"]
    assert (first["ok"], second["ok"]) == (False, True)
    assert [(finding["file"], finding["state"]) for finding in first["findings"]] == [(f"blobs/{bad.name}", "missing")]
    assert second["findings"] == []
    assert second["files"] > 3
    assert second["bytes"] > 1000


def test_verify_notices_a_deleted_checkpoint(colabkeep_cli, storage):
    """A manifest that somebody deleted is missed, since the journal knows of it."""
    newest = ids(storage)[0]
    (storage / f"first/checkpoints/{newest}.json").unlink()
    said = colabkeep_cli("verify", "first", "--storage", storage)
    assert said.status == 1
    assert f"first/checkpoints/{newest}.json: missing" in said.out


def test_verify_tells_a_newer_format_from_damage(colabkeep_cli, storage):
    """What a newer colabkeep wrote cannot be verified here: neither success nor damage."""
    manifest = storage / f"first/checkpoints/{ids(storage)[0]}.json"
    manifest.write_bytes(seal({**unseal(manifest.read_bytes()), "format": 99}))
    said = colabkeep_cli("verify", "first", "--storage", storage)
    assert said.status == 5
    assert f"{manifest.name}: newer." in said.out
    assert "format 99" in said.out


def test_list_and_show_call_a_newer_format_newer_as_verify_does(colabkeep_cli, storage):
    """What a newer colabkeep wrote is no damage in any of the three, also where an older one marked it; the update
    is named."""
    newest = ids(storage)[0]
    manifest = storage / f"first/checkpoints/{newest}.json"
    manifest.write_bytes(seal({**unseal(manifest.read_bytes()), "format": 99}))
    (storage / "first/aside").mkdir()
    (storage / f"first/aside/{newest}.json").write_bytes(seal({"id": newest, "reason": "x", "protects": []}))
    for words in (["list"], ["show", "first"]):
        said = colabkeep_cli(*words, "--storage", storage)
        (row,) = (line for line in said.out.splitlines() if line.split()[:1] == [newest])
        assert "newer" in row.split()
        assert "pip install -U colabkeep" in said.out
    found = colabkeep_cli("show", "first", "--storage", storage, "--json").json["checkpoints"]
    assert [checkpoint["state"] for checkpoint in found] == ["newer", "committed", "committed"]


def test_show_tells_of_a_run_whose_newest_tensors_are_of_a_newer_kind(colabkeep_cli, storage):
    """A dtype that this version does not know does not hide the rest of the run."""
    newest = ids(storage)[0]
    blob, manifest = blob_of(storage, newest), storage / f"first/checkpoints/{newest}.json"
    text = blob.read_bytes().replace(b'"F32"', b'"F99"')
    digest, record = hashlib.sha256(text).hexdigest(), unseal(manifest.read_bytes())
    (blob.parent / f"{digest}.safetensors").write_bytes(text)
    made = {**record["blobs"][0], "sha256": digest, "file": f"{digest}.safetensors"}
    manifest.write_bytes(seal({**record, "blobs": [made, *record["blobs"][1:]]}))
    said = colabkeep_cli("show", "first", "--storage", storage)
    assert (said.status, said.err) == (0, "")
    assert "F99" in said.out


def test_verify_of_nothing_is_not_success(colabkeep_cli, tmp_path):
    """A mistyped folder must not look like a run that is all right."""
    assert colabkeep_cli("verify", "--storage", tmp_path).status == 3


def test_verify_changes_nothing(colabkeep_cli, storage):
    """Also where there is damage, no file is made, changed or removed."""
    flip(blob_of(storage, ids(storage)[0]))
    before = {path: path.read_bytes() for path in storage.rglob("*") if path.is_file()}
    for words in (["verify"], ["list"], ["show", "first"], ["export", "first", storage.parent / "out.safetensors"]):
        colabkeep_cli(*words, "--storage", storage)
    assert {path: path.read_bytes() for path in storage.rglob("*") if path.is_file()} == before


# -- export --------------------------------------------------------------------------------------------


def test_export_writes_a_file_that_every_reader_takes(colabkeep_cli, trained, tmp_path):
    """The exported weights are those of the run, in torch and NumPy alike."""
    out = tmp_path / "model.safetensors"
    said = colabkeep_cli("export", "first", out, "--storage", trained)
    assert said.status == 0
    expected = colabkeep.load_weights("first", storage=trained)
    found = safetensors.torch.load_file(out)
    assert sorted(found) == sorted(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert safetensors.numpy.load_file(out)["0.weight"].tolist() == expected["0.weight"].tolist()
    with safetensors.safe_open(out, "np") as file:
        assert file.metadata()["format"] == "pt"
        assert file.metadata()["colabkeep.checkpoint"] == ids(trained)[0]


def test_export_says_what_it_wrote(colabkeep_cli, trained, tmp_path):
    """File, checkpoint, size and digest, for people and machines."""
    out = tmp_path / "deep/er/weights.safetensors"
    record = colabkeep_cli("export", "first", out, "--storage", trained, "--json").json
    data = out.read_bytes()
    assert record == {
        "file": str(out),
        "checkpoint": ids(trained)[0],
        "tensors": 9,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    again = colabkeep_cli("export", "first", out, "--storage", trained, "--force")
    assert record["sha256"] in again.out
    assert str(out) in again.out


def test_export_takes_the_best_or_any_checkpoint(colabkeep_cli, trained, tmp_path):
    """Which one is the user's choice, by metric or by id."""
    newest, best, oldest = ids(trained)
    choices = {
        newest: [],
        best: ["--which", "best"],
        oldest: ["--which", oldest],
    }
    for id, words in choices.items():
        said = colabkeep_cli("export", "first", tmp_path / id, "--storage", trained, "--json", *words)
        assert said.json["checkpoint"] == id
    worst = colabkeep_cli(
        "export", "first", tmp_path / "w", "--which", "best", "--mode", "max", "--storage", trained, "--json"
    )
    assert worst.json["checkpoint"] != best
    none = colabkeep_cli("export", "first", tmp_path / "n", "--which", "best", "--monitor", "f1", "--storage", trained)
    assert none.status == 3
    assert "f1" in none.err


def test_export_never_overwrites_unless_told_to(colabkeep_cli, trained, tmp_path):
    """A file that is there is safe from a command that was typed too fast."""
    out = tmp_path / "model.safetensors"
    out.write_bytes(b"precious")
    said = colabkeep_cli("export", "first", out, "--storage", trained)
    assert said.status == 2
    assert "--force" in said.err
    assert out.read_bytes() == b"precious"
    assert colabkeep_cli("export", "first", out, "--storage", trained, "--force").status == 0
    assert safetensors.torch.load_file(out)


def test_export_into_a_folder_names_the_file_itself(colabkeep_cli, trained, tmp_path):
    """A folder as the place gets a model.safetensors; so does the current folder, when nothing is said."""
    (tmp_path / "folder").mkdir()
    assert colabkeep_cli("export", "first", tmp_path / "folder", "--storage", trained).status == 0
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model.safetensors"]


def test_export_leaves_nothing_when_it_fails(colabkeep_cli, trained, tmp_path):
    """A part that is no model, or is not there, is told with those that are; no file appears."""
    for part in ("optimizer", "nope"):
        said = colabkeep_cli("export", "first", tmp_path / "out", "--part", part, "--storage", trained)
        assert said.status == 3
        assert "model" in said.err
    assert not (tmp_path / "out").exists()


def test_export_skips_a_damaged_checkpoint_and_says_so(colabkeep_cli, storage, tmp_path):
    """An older state is never handed out as the newest in silence."""
    newest, middle, _ = ids(storage)
    flip(blob_of(storage, newest))
    said = colabkeep_cli("export", "first", tmp_path / "out", "--storage", storage)
    assert said.status == 0
    assert middle in said.out
    assert f"skipped checkpoint {newest}" in said.err
    asked = colabkeep_cli("export", "first", tmp_path / "other", "--which", newest, "--storage", storage)
    assert asked.status == 1
    assert not (tmp_path / "other").exists()


def tensor(*numbers, shape):
    data = torch.tensor(numbers, dtype=torch.float32).numpy().tobytes()
    return HostTensor(dtype="F32", shape=shape, data=memoryview(data))


def test_a_weight_in_another_memory_order_is_exported_in_rows():
    """Channels-last or transposed weights come out as any reader expects them."""
    source = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)  # strides (1, 12, 4): kept as 2 x 3 x 4 in memory
    kept = HostTensor(dtype="F32", shape=(2, 3, 4), data=memoryview(torch.arange(24.0).numpy().tobytes()))
    leaf = Tagged("torch.tensor", {"data": kept, "stride": tuple(source.stride())})
    plain = plain_tensor("weight", leaf)
    assert (plain.dtype, plain.shape) == ("F32", (4, 2, 3))
    assert bytes(plain.data) == source.contiguous().numpy().tobytes()


def test_a_weight_that_only_says_more_is_exported_as_it_is():
    """Being a parameter, or having lived on a GPU, is nothing that a file of weights holds."""
    data = tensor(1, 2, shape=(2,))
    assert plain_tensor("w", data) is data
    assert plain_tensor("w", Tagged("torch.tensor", {"data": data, "parameter": True, "device": "cuda:0"})) is data


@pytest.mark.parametrize(
    "leaf",
    [
        Tagged("torch.tensor", {"data": tensor(1, 2, shape=(2,)), "dtype": "complex128"}),
        Tagged("torch.sparse", {"layout": "sparse_coo", "parts": []}),
        Tagged("torch.tensor", "odd"),
        None,
        3,
    ],
    ids=["complex128", "sparse", "odd", "none", "a number"],
)
def test_a_weight_without_a_safetensors_form_is_named(leaf):
    """What such a file cannot hold is refused with its name and another way."""
    with pytest.raises(NotStorable, match=r"layer\.weight") as caught:
        plain_tensor("layer.weight", leaf)
    assert "load_weights" in caught.value.remedy


@pytest.mark.parametrize("stride", [(1,), (1, 2, 3), "ab", 5, (None, 1)], ids=str)
def test_strides_that_were_made_up_are_refused(stride):
    """A weight that contradicts itself is damage, not a crash."""
    with pytest.raises(CheckpointDamaged, match="strides"):
        plain_tensor("w", Tagged("torch.tensor", {"data": tensor(1, 2, 3, 4, shape=(2, 2)), "stride": stride}))


# -- how it answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "kind"),
    [
        (["show", "nope", "--storage", "{trained}"], 3, "CheckpointNotFound"),
        (["verify", "nope", "--storage", "{trained}"], 3, "CheckpointNotFound"),
        (["export", "nope", "{tmp}/out", "--storage", "{trained}"], 3, "CheckpointNotFound"),
        (["list", "--storage", "nosuch://x"], 2, "UsageError"),
        (["list", "--storage", ""], 2, "UsageError"),
        (["export", "first", "{tmp}/bad name", "--storage", "{trained}"], 2, "UsageError"),
        (["list", "--storage", "{tmp}/file/below"], 4, "StoreError"),
        (["export", "first", "{tmp}/file/below/out", "--storage", "{trained}"], 4, "StoreError"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else str(value),
)
def test_an_error_is_a_problem_a_remedy_and_a_status(colabkeep_cli, trained, tmp_path, words, status, kind):
    """No traceback: what happened, what to do, and a number that means something; the same in JSON."""
    (tmp_path / "file").write_text("a file where a folder should be")
    filled = [word.format(trained=trained, tmp=tmp_path) for word in words]
    said = colabkeep_cli(*filled)
    assert said.status == status
    assert said.out == ""
    problem, remedy = said.err.rstrip().split("\n→ ")
    assert problem.startswith("colabkeep: ")
    in_json = colabkeep_cli(*filled, "--json")
    assert (in_json.status, in_json.err) == (status, "")
    assert in_json.json == {"error": {"problem": problem.removeprefix("colabkeep: "), "remedy": remedy, "type": kind}}


@pytest.mark.parametrize("words", [[], ["nope"], ["list", "--nope"], ["show"], ["list", "extra"]], ids=str)
def test_a_command_line_that_cannot_be_read_is_told_so(capsys, words):
    """argparse says what is wrong and ends with 2."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: colabkeep" in capsys.readouterr().err


def test_help_documents_the_exit_status(capsys):
    """Whoever writes a script finds what the numbers mean."""
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    said = capsys.readouterr().out
    assert caught.value.code == 0
    for status in (0, 1, 2, 3, 4, 5, 130, 141):
        assert f"{status:>5}  " in said
    for command in ("list", "show", "verify", "export", "demo"):
        assert command in said


def test_the_demo_is_a_command_like_the_others(monkeypatch, capsys):
    """Its options are read, and its status is ours."""
    seen = []
    monkeypatch.setattr(demo, "main", lambda words: seen.append(words) or 1)
    assert main(["demo", "--epochs", "3"]) == 1
    assert (seen[0].epochs, seen[0].json) == (3, False)
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--nope"])
    assert caught.value.code == 2
    assert "usage: colabkeep" in capsys.readouterr().err


def test_an_interrupt_is_answered_briefly(monkeypatch, colabkeep_cli, trained):
    """Ctrl-C in a long verification ends with a word and status 130."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(records, "verify_record", interrupted)
    said = colabkeep_cli("verify", "--storage", trained)
    assert (said.status, said.out, said.err) == (130, "", "Interrupted.\n")


def test_the_commands_that_only_read_are_light(process, trained, tmp_path):
    """list, show, verify and export work where torch is not installed, and do not wait for it where it is."""
    blocked = "import sys; sys.modules |= dict.fromkeys(['torch', 'numpy', 'ipywidgets', 'requests', 'pydrive2'])\n"
    program = blocked + "from colabkeep.ui.cli import main; sys.exit(main(sys.argv[1:]))"
    for words in (["list"], ["show", "first"], ["verify"], ["export", "first", str(tmp_path / "out.safetensors")]):
        command = [sys.executable, "-c", program, *words, "--storage", str(trained)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert safetensors.torch.load_file(tmp_path / "out.safetensors")


def test_python_m_is_the_same_command(process, trained):
    """`python -m colabkeep` works wherever the script is not on the path."""
    said = process("list", "--storage", trained, "--json")
    assert (said.status, said.err) == (0, "")
    assert [run["name"] for run in said.json["runs"]] == ["first", "second"]
    assert process("show", "nope", "--storage", trained).status == 3


def test_the_storage_of_this_platform_is_the_default(process, storage, tmp_path):
    """Without --storage the command looks where a training without storage= keeps its runs."""
    storage.rename(tmp_path / "colabkeep-runs")
    assert [run["name"] for run in process("list", "--json").json["runs"]] == ["first", "second"]


def test_a_reader_that_goes_away_is_no_error(trained):
    """`colabkeep list | head -1` ends in peace: no traceback, and the status that a shell expects."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "colabkeep", "show", "first", "--storage", str(trained)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (3 * 2**30 // 2, "1.5 GiB"),
        (2**70, "1048576.0 PiB"),
        (None, "?"),
    ],
)
def test_sizes_are_readable(size, text):
    """Bytes in the unit that a person would use."""
    assert ui_text.size_text(size) == text


@pytest.mark.parametrize("odd", [None, "x", 1e300, -1e300, 9e18, float("nan"), [1]], ids=str)
def test_a_time_that_no_calendar_has_is_a_question_mark(odd):
    """What a file claims about time cannot break the listing."""
    assert ui_text.local_time(odd) == "?"


def test_json_is_one_line_of_strict_json(colabkeep_cli, storage):
    """Numbers that JSON lacks go as text, so that every parser reads the answer."""
    manifest = storage / f"first/checkpoints/{ids(storage)[0]}.json"
    record = unseal(manifest.read_bytes())
    manifest.write_bytes(seal({**record, "metrics": {"a": "nan", "b": "inf", "c": 0.5}}))
    said = colabkeep_cli("show", "first", "--storage", storage, "--json")

    def refuse(constant):
        raise ValueError(constant)

    (line,) = said.out.splitlines()
    found = json.loads(line, parse_constant=refuse)
    assert found["checkpoints"][0]["metrics"] == {"a": "nan", "b": "inf", "c": 0.5}


def test_progress_moves_on_a_terminal_only(monkeypatch, colabkeep_cli, trained):
    """On a terminal one line moves and is taken away; elsewhere nothing but a line for each run."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    said = colabkeep_cli("verify", "--storage", trained)
    assert said.err.count("\r") > 5
    assert "\n" not in said.err
    assert said.err.endswith(" \r")
    assert Path(trained).name not in said.out
