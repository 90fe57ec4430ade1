"""A file that is cut anywhere, or whose writer was killed, is not taken for a whole one, where its format tells."""

from __future__ import annotations

import io
import json
import signal
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from colabkeep.keep.formats import incomplete


def write_torch(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.arange(3000.0), "step": 7}, path)


def write_safetensors(path: Path) -> None:
    save_file({"weight": numpy.arange(3000.0), "bias": numpy.zeros(0)}, path)


def write_npz(path: Path) -> None:
    with path.open("wb") as file:
        numpy.savez(file, weight=numpy.arange(3000.0), bias=numpy.ones(4))


def write_npy(path: Path) -> None:
    with path.open("wb") as file:
        numpy.save(file, numpy.arange(3000.0).reshape(3, 1000))


def write_json(path: Path) -> None:
    log = [{"loss": 0.5 + n, "名": "ж\n\u0007", "best": n == 3, "lr": -1e-05, "none": None} for n in range(40)]
    path.write_text(json.dumps({"epoch": 3, "log": log}, ensure_ascii=False, indent=1))


def write_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table trials (number integer, value real)")
        database.executemany("insert into trials values (?, ?)", [(n, n / 7) for n in range(3000)])
    database.close()


def write_hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["weight"] = numpy.arange(3000.0)


def write_new_hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w", libver="latest") as file:
        file["weight"] = numpy.arange(3000.0)


def write_keras(path: Path) -> None:
    """The members that Keras writes, in its order (keras/src/saving/saving_lib.py, `_save_model_to_fileobj`)."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.15.1"}))
        archive.writestr("config.json", json.dumps({"class_name": "Sequential", "config": {}}))
        with archive.open("model.weights.h5", "w") as member:
            member.write(b"\x89HDF\r\n\x1a\n" + bytes(20_000))


FORMATS: dict[str, Callable[[Path], None]] = {
    "last.pt": write_torch,
    "model.safetensors": write_safetensors,
    "arrays.npz": write_npz,
    "array.npy": write_npy,
    "trainer_state.json": write_json,
    "optuna.db": write_sqlite,
    "weights.h5": write_hdf5,
    "new.h5": write_new_hdf5,
    "model.keras": write_keras,
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_whole_file_is_complete(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name)
    assert incomplete(str(tmp_path / name)) == ""


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_cut_anywhere_is_not(tmp_path: Path, name: str) -> None:
    """Also where nothing but its last byte is missing, or all: one that is being written looks like this."""
    path = tmp_path / name
    FORMATS[name](path)
    whole = path.read_bytes()
    empty = 1 if name.endswith(".db") else 0  # an empty file is a database without tables
    few = 7 if name.endswith(".json") else 97
    for size in {*range(empty, 130), *range(130, len(whole), few), *range(len(whole) - 70, len(whole))}:
        path.write_bytes(whole[:size])
        assert incomplete(str(path)), size


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_whose_bytes_are_still_zeros_is_not(tmp_path: Path, name: str) -> None:
    """Its size was asked for first, and its beginning is written last."""
    path = tmp_path / name
    if name.endswith((".db", ".safetensors")):
        path.write_bytes(bytes(8))  # of a database no name tells, and nothing before its first bytes
        assert bool(incomplete(str(path))) == name.endswith(".safetensors")
        return
    FORMATS[name](path)
    path.write_bytes(bytes(path.stat().st_size))
    assert incomplete(str(path))


KILLED = """
import os, sys, h5py, numpy
with h5py.File(sys.argv[1], "w", libver=sys.argv[2] or None) as file:
    for number in range(30):
        file[f"w{number}"] = numpy.arange(30000.0)
        if number == 9 and sys.argv[3]:
            file.flush()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("flushed", ["", "flushed"])
@pytest.mark.parametrize("version", ["", "earliest", "latest"])
def test_a_file_on_which_its_writer_was_killed_is_not(tmp_path: Path, version: str, flushed: str) -> None:
    """HDF5 keeps its directory in memory until it is closed: the file may open, and lack what was written last."""
    pytest.importorskip("h5py")
    path = tmp_path / "weights.h5"
    done = subprocess.run([sys.executable, "-c", KILLED, path, version, flushed], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.stat().st_size > 1_000_000
    assert incomplete(str(path))


@pytest.mark.parametrize("name", ["last.pt", "arrays.npz", "model.keras"])
def test_an_archive_that_grows_is_complete_at_its_end_only(tmp_path: Path, name: str) -> None:
    """It is written through a buffer, as the packages do it."""
    FORMATS[name](tmp_path / "whole")
    whole = io.BytesIO((tmp_path / "whole").read_bytes())
    path = tmp_path / name
    with path.open("wb", buffering=4096) as file:
        while piece := whole.read(1000):
            assert incomplete(str(path))
            file.write(piece)
    assert incomplete(str(path)) == ""


@pytest.mark.parametrize(
    "text",
    [
        '{"step": 1}\n{"step": 2}\n',
        '{"step": 1}\n{"step": 2',
        "// settings\n{}",
        '{"lr": 1e-3, /* as in the paper */ "epochs": 3}',
        "{'single': 'quotes'}",
        "\xff\xfe",
        "name: value",
    ],
)
def test_what_is_called_json_and_is_another_dialect_does_not_tell(tmp_path: Path, text: str) -> None:
    """Lines of JSON, comments: such a file would be waited for for ever, or kept as it was first for ever."""
    path = tmp_path / "metrics.json"
    path.write_bytes(text.encode("latin-1"))
    assert incomplete(str(path)) == ""


def test_a_database_with_a_write_ahead_log_is_one_with_it(tmp_path: Path) -> None:
    """Both files as they are at any moment between two transactions are a database with all that was committed."""
    path, copy = tmp_path / "optuna.db", tmp_path / "copy"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("pragma journal_mode = wal")
    database.execute("create table trials (number integer)")
    for number in range(50):
        database.execute("insert into trials values (?)", (number,))
    assert incomplete(str(path)) == ""
    copy.mkdir()
    for each in ("optuna.db", "optuna.db-wal", "optuna.db-shm"):
        (copy / each).write_bytes((tmp_path / each).read_bytes())
    database.close()
    back = sqlite3.connect(copy / "optuna.db")
    assert back.execute("select count(*) from trials").fetchone() == (50,)
    back.close()


def test_a_database_in_a_transaction_is_not_complete(tmp_path: Path) -> None:
    """Its pages may be of two states; the journal beside it says so until the transaction is over."""
    path = tmp_path / "optuna.db"
    write_sqlite(path)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("pragma cache_size = 1")  # pages are written before the commit
    database.execute("begin")
    database.execute("update trials set value = 0")
    assert incomplete(str(path)) == "a transaction is under way"
    database.execute("commit")
    assert incomplete(str(path)) == ""
    database.close()


def test_a_file_of_no_known_format_tells_nothing(tmp_path: Path) -> None:
    for name, data in {"model.bin": b"\x80\x04" * 90, "notes.txt": b"", "a.onnx": b"\x08\x07"}.items():
        (tmp_path / name).write_bytes(data)
        assert incomplete(str(tmp_path / name)) == ""


def test_a_large_archive_with_64_bit_sizes_is_complete(tmp_path: Path) -> None:
    """More than 65,535 members need the longer directory, as one of more than 4 GiB does."""
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(65536):
            archive.writestr(f"{number}", b"")
    assert incomplete(str(path)) == ""
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert incomplete(str(path))
