"""What the user of a kept folder sees, and can ask for: pace, room, the end in time, words, and the commands on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colabkeep.api import keep_folder
from colabkeep.core.errors import UsageError
from colabkeep.core.events import DeadlineNear, Event, FolderSeen, Noted, RunStopped, SaveCommitted, SpaceShort
from colabkeep.core.rate_limits import Budget, Limit
from colabkeep.core.system import Environment
from colabkeep.stores.base import StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.faults import FaultyStore
from colabkeep.ui.cli import main
from tests.fakes.platforms import fake_aistudio, fake_kaggle

ROOT = Path(__file__).parents[2]


class User:
    """Somebody with one folder and one storage, who hears all events."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.storage = tmp_path / "machine" / "runs", tmp_path / "storage"
        self.heard: list[Event] = []

    def keep(self, storage: Any = None, **words: Any) -> Any:
        words = {"settle": 0.1, "progress": False, "callbacks": [self.heard.append], **words}
        return keep_folder(words.pop("folder", self.folder), "r", storage=storage or str(self.storage), **words)

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.heard if isinstance(event, kind)]

    def said(self, words: str) -> list[str]:
        return [event.text for event in self.of(Noted) if words in event.text]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine" / "cache"))
    monkeypatch.setattr("colabkeep.keep.session._PAUSE", 0.1)
    return User(tmp_path)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[[Environment], None]:
    return lambda environment: monkeypatch.setattr(Environment, "here", classmethod(lambda cls: environment))


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


class Small(FaultyStore):
    """A directory store of which the properties are told otherwise."""

    def __init__(self, folder: Path, **told: Any) -> None:
        super().__init__(DirectoryStore(folder))
        self._told = told

    @property
    def properties(self) -> StoreProperties:
        return replace(super().properties, **self._told)


# -- pace and room -------------------------------------------------------------------------------------


def test_another_pace_holds_from_now_on(user: User) -> None:
    with user.keep(every="1 h") as kept:
        user.write("last.pt", "1")
        until(lambda: kept.version == 1)
        user.write("last.pt", "22")
        assert kept.save()
        assert kept.version == 2
        user.write("last.pt", "333")
        kept.every("0.1 s")
        until(lambda: kept.version == 3)
        with pytest.raises(UsageError, match="every"):
            kept.every("soon")


def test_versions_come_no_faster_than_the_place_takes_them(user: User, tmp_path: Path) -> None:
    limit = Limit(what="commits", most=1, seconds=3600.0, each=1, source="the test")
    with user.keep(Small(tmp_path / "storage", budget=Budget((limit,))), every="0.1 s") as kept:
        user.write("last.pt", "1")
        until(lambda: kept.version == 1)
        user.write("last.pt", "22")
        until(lambda: any(seen.changed and not seen.waits for seen in user.of(FolderSeen)[1:]))
        assert kept.version == 1
    assert len(user.said("Versions come 67 min apart at least")) == 1
    assert kept.version == 2  # the last one is made in any case


def test_a_version_that_may_not_fit_is_told_before_it_is_made(user: User, tmp_path: Path) -> None:
    with user.keep(Small(tmp_path / "storage", free_bytes=1000), every="1 h") as kept:
        user.write("last.pt", b"x" * 5000)
        assert kept.save()
    (short,) = user.of(SpaceShort)[:1]
    assert (short.free_bytes, short.save_bytes) == (1000, 5000)
    assert user.heard.index(short) < user.heard.index(user.of(SaveCommitted)[0])


# -- what would be lost --------------------------------------------------------------------------------


def test_what_would_be_lost_is_named(user: User) -> None:
    with user.keep(every="1 h", settle=1) as kept:
        user.write("last.pt", "1")
        assert "no version of it is known to be safe" in kept.durability.sentence
        assert kept.save()
        assert kept.durability.lost == ""
        assert "you would lose nothing; version 1 would come back" in kept.durability.sentence
        user.write("log.csv", "1")
        path = user.write("weights/last.pt", "22")
        os.utime(path, (path.stat().st_mtime - 5, path.stat().st_mtime - 5))
        until(lambda: kept.durability.lost != "")
        clock = time.strftime("%H:%M", time.localtime(path.stat().st_mtime))
        assert f"(weights/last.pt of {clock} and " in kept.durability.sentence
        assert " s (" in kept.durability.sentence


def test_what_is_waited_for_is_told_to_displays(user: User) -> None:
    with user.keep(every="1 h") as kept, (user.folder / "last.pt").open("wb") as file:
        file.write(b"1")
        file.flush()
        until(lambda: any("last.pt (the process" in seen.waits for seen in user.of(FolderSeen)))
        assert kept.version == 0


# -- the end -------------------------------------------------------------------------------------------


def test_max_time_interrupts_the_program_and_goes_on_behind_it(user: User) -> None:
    with user.keep(max_time="1 s") as kept:
        user.write("last.pt", "1")
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            user.write("last.pt", "saved on the way out")
            raise
    assert kept.version >= 1
    (stopped,) = user.of(RunStopped)
    assert stopped.reason == "max_time"
    shutil.rmtree(user.folder)
    with user.keep():
        assert (user.folder / "last.pt").read_text() == "saved on the way out"


def test_in_a_notebook_a_program_that_was_started_there_is_interrupted_too(user: User) -> None:
    """A kernel leads a group of its own, as this process does."""
    program = saver(user)
    user.folder.mkdir(parents=True)
    code = (
        "import os, subprocess, time, colabkeep\n"
        f"process = subprocess.Popen({program!r})\n"
        f"while not os.path.exists({str(user.folder / 'ready')!r}):\n"
        "    time.sleep(0.02)\n"
        f"with colabkeep.keep_folder({str(user.folder)!r}, 'r', storage={str(user.storage)!r}, max_time='0.2 s'):\n"
        "    try:\n"
        "        process.wait()\n"
        "    except KeyboardInterrupt:\n"
        "        process.wait()\n"
        "        raise\n"
    )
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, cwd=ROOT, start_new_session=True, check=False).returncode == 0
    assert (user.folder / "last.pt").read_text() == f"saved for signal {signal.SIGINT:d}"


def test_a_user_s_own_interrupt_is_theirs(user: User) -> None:
    def program() -> None:
        with user.keep():
            user.write("last.pt", "1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program()
    assert user.of(RunStopped)[0].reason == "interrupt"


def test_on_another_thread_nothing_is_interrupted_and_that_is_said(user: User) -> None:
    def program() -> None:
        with user.keep(max_time="0.2 s"):
            user.write("last.pt", "1")
            until(lambda: bool(user.said("Nothing here can end the program")))

    thread = threading.Thread(target=program)
    thread.start()
    thread.join()
    assert user.of(SaveCommitted)


def test_a_version_is_made_before_the_session_ends_whatever_the_pace(user: User) -> None:
    """The margin before the end of a session is two minutes: one that lasts so long has its end at once."""
    with user.keep(every="1 h", session_limit="365 days") as kept:
        user.write("last.pt", "1")
        until(lambda: kept.version == 1)
        user.write("last.pt", "22")
        kept._spec = replace(kept._spec, deadline=replace(kept._spec.deadline, at=time.monotonic() + 60))
        until(lambda: kept.version == 2)
    (near,) = user.of(DeadlineNear)
    assert not near.ends
    assert user.of(SaveCommitted)[1].reason == "deadline"


PROGRAM = """
out=$1
save() { printf "saved for signal $1" > "$out/last.pt"; exit "$2"; }
if [ "$2" = stubborn ]; then trap "" INT; else trap "save 2 7" INT; fi
trap "save 15 143" TERM
printf begun > "$out/last.pt"
: > "$out/ready"
while :; do sleep 0.05; done
"""
"""It is there in milliseconds, and saves when it is interrupted or terminated."""


def saver(user: User, *words: str) -> list[str]:
    return ["sh", "-c", PROGRAM, "sh", str(user.folder), *words]


def command(user: User, *options: str, program: tuple[str, ...] = ()) -> list[str]:
    keep = [sys.executable, "-m", "colabkeep", "keep", str(user.folder), "--run", "r", "--storage", str(user.storage)]
    return [*keep, "--settle", "0.1 s", *options, "--", *(program or saver(user))]


def test_the_command_interrupts_in_time_and_keeps_what_the_program_saves_then(user: User) -> None:
    done = subprocess.run(
        command(user, "--max-time", "1 s", "--json"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 7
    record = json.loads(done.stdout)
    assert (record["exit_status"], record["restored"]) == (7, None)
    assert "its time limit was reached" in done.stderr
    shutil.rmtree(user.folder)
    with user.keep() as kept:
        assert kept.version == record["version"]
        assert (user.folder / "last.pt").read_text() == f"saved for signal {signal.SIGINT:d}"


def test_a_program_that_will_not_be_interrupted_is_terminated(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colabkeep.keep.command.STOP_PATIENCE", 0.5)
    program = saver(user, "stubborn")
    words = ["keep", str(user.folder), "--run", "r", "--storage", str(user.storage), "--max-time", "1 s"]
    assert main([*words, "--settle", "0.1 s", "--", *program]) == 128 + signal.SIGTERM
    assert (user.folder / "last.pt").read_text() == f"saved for signal {signal.SIGTERM:d}"


@pytest.mark.parametrize(
    ("number", "group", "status", "why"),
    [(signal.SIGINT, True, 7, "the program failed"), (signal.SIGTERM, False, 143, "the service ended the process")],
)
def test_signals_are_the_program_s_first(user: User, number: int, group: bool, status: int, why: str) -> None:
    """It saves, and the last version has that."""
    process = subprocess.Popen(command(user), cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until((user.folder / "ready").exists)
    (os.killpg if group else os.kill)(process.pid, number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == status
    assert why in said
    shutil.rmtree(user.folder)
    with user.keep():
        assert (user.folder / "last.pt").read_text() == f"saved for signal {number:d}"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 7), (signal.SIGTERM, 143)])
def test_a_signal_in_the_program_s_first_moment_is_the_program_s_too(
    user: User, number: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, and who started it has not heard so yet."""

    class Late(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            until((user.folder / "ready").exists)
            if number == signal.SIGINT:
                self.send_signal(number)  # as a terminal does, to both
            os.kill(os.getpid(), number)
            time.sleep(0.1)

    monkeypatch.setattr("colabkeep.keep.command.subprocess.Popen", Late)
    words = ["keep", str(user.folder), "--run", "r", "--storage", str(user.storage), "--settle", "0.1 s"]
    assert main([*words, "--", *saver(user)]) == status
    assert (user.folder / "last.pt").read_text() == f"saved for signal {number:d}"


class Slow(FaultyStore):
    """A directory store that is interrupted while it is waited for."""

    interrupts = 1

    def flush(self, timeout: float) -> bool:
        if self.interrupts:
            self.interrupts -= 1
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return super().flush(timeout)


@pytest.mark.parametrize("times", [1, 2])
def test_who_interrupts_the_wait_for_storage_is_told_and_the_second_time_obeyed_at_once(
    user: User, tmp_path: Path, times: int
) -> None:
    storage = Slow(DirectoryStore(tmp_path / "storage"))
    storage.interrupts, kept = times, user.keep(storage)

    def program() -> None:
        with kept:
            user.write("last.pt", "1")

    with pytest.raises(KeyboardInterrupt):
        program()
    assert kept.version == 1
    assert user.said("Stop requested: everything is saved on this machine.")


def test_sigterm_in_a_context_lets_the_last_version_be_made(user: User) -> None:
    code = (
        "import os, signal, time, colabkeep\n"
        f"with colabkeep.keep_folder({str(user.folder)!r}, 'r', storage={str(user.storage)!r}, progress=False):\n"
        f"    open({str(user.folder / 'last.pt')!r}, 'w').write('1')\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 143
    shutil.rmtree(user.folder)
    with user.keep() as kept:
        assert kept.restored.version == 1


def test_an_empty_folder_and_a_killed_program_are_told_as_they_are(
    user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(user, program=("true",))[3:]) == 0
    said = capsys.readouterr().err
    assert "Does the program write elsewhere?" in said
    assert "There is no version." in said
    assert "The folder is empty" in said
    assert main(command(user, program=("sh", "-c", "kill -9 $$"))[3:]) == 137
    assert "its exit status is 137, as after SIGKILL: often the memory was full" in capsys.readouterr().err


def test_a_program_that_is_not_there_takes_nothing(user: User, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(user, program=("pyhton", "train.py"))[3:]) == 2
    assert "There is no program 'pyhton' here" in capsys.readouterr().err
    assert not user.folder.exists()
    assert not user.storage.exists()


# -- where -------------------------------------------------------------------------------------------------


def test_files_that_another_machine_went_on_from_are_not_gone_on_with(user: User, tmp_path: Path) -> None:
    """The first machine comes back after the second one has made a version: its unchanged files are replaced by that,
    and changed ones are never overwritten."""
    other, mine = tmp_path / "other", tmp_path / "machine" / "runs"
    for _ in range(2):
        with user.keep():
            user.write("last.pt", "1")
    user.folder = other
    with user.keep():
        user.write("last.pt", "22")
    user.folder = mine
    with user.keep() as kept:
        assert kept.restored.source == "storage"
        assert (mine / "last.pt").read_text() == "22"
    user.folder = other
    with user.keep():
        user.write("last.pt", "333")
    user.folder = mine
    user.write("last.pt", "mine")
    with pytest.raises(UsageError, match="overwrite"), user.keep():
        pass
    assert (mine / "last.pt").read_text() == "mine"


def test_on_kaggle_versions_are_in_what_a_saved_version_keeps(
    user: User, tmp_path: Path, here: Callable[[Environment], None]
) -> None:
    """A second version of the notebook, on a fresh machine with only the output of the first, has the files."""
    with fake_kaggle(tmp_path, run_type="Batch") as machine:
        here(machine.environment)
        working = machine.environment.path("/kaggle/working")
        with user.keep("auto", folder=working / "runs") as kept:
            (working / "runs" / "last.pt").write_text("1")
        assert kept._spec.store.url == str(working / "colabkeep-runs")
        assert kept._spec.deadline.ends  # the program is interrupted in time, for else nothing of it is kept
        assert user.said("takes room again")
        output = machine.save_version()
    shutil.rmtree(output / "runs", ignore_errors=True)
    user.heard.clear()
    with fake_kaggle(tmp_path, run_type="Batch", inputs={"notebooks/you/first": output}) as machine:
        here(machine.environment)
        with user.keep("auto", folder=machine.root / "tmp" / "runs") as kept:
            assert kept.restored.source == "storage"
            assert (machine.root / "tmp" / "runs" / "last.pt").read_text() == "1"
        assert not user.said("takes room again")


def test_in_ai_studio_versions_are_in_work(user: User, tmp_path: Path, here: Callable[[Environment], None]) -> None:
    with fake_aistudio(tmp_path) as studio:
        here(studio.environment)
        with user.keep("auto", folder=studio.home / "runs") as kept:
            (studio.home / "runs" / "last.pt").write_text("1")
        assert kept._spec.store.url == str(studio.work / "colabkeep-runs")
        assert not user.said("takes room again")
    with fake_aistudio(tmp_path) as studio:
        here(studio.environment)
        with user.keep("auto", folder=studio.home / "runs") as kept:
            assert (studio.home / "runs" / "last.pt").read_text() == "1"


# -- words ---------------------------------------------------------------------------------------------


@pytest.fixture
def ended(user: User) -> User:
    """Two versions, the second after a session that was cut off; and the words of a training nowhere."""
    with user.keep():
        user.write("weights/last.pt", "1")
        user.write("log.csv", "1")
    user.folder.joinpath("weights/last.pt").write_text("22")
    with user.keep():
        pass
    return user


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["list", "show", "report", "prune"])
def test_no_command_speaks_of_a_training(ended: User, capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = [command, *([] if command == "list" else ["r"]), "--storage", str(ended.storage)]
    said = run(capsys, *words, *(["--keep-last", "1", "--dry-run"] if command == "prune" else []))
    assert "ersion" in said
    assert [word for word in ("training", "step", "epoch", "loss", "tensor") if word in said] == []


def test_show_lists_the_files_of_a_version(ended: User, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "show", "r", "--storage", str(ended.storage))
    assert "2 file(s), 3 B" in said
    assert "weights/last.pt" in said
    record = json.loads(run(capsys, "show", "r", "--storage", str(ended.storage), "--json"))
    sizes = {file["path"]: file["bytes"] for file in record["checkpoint"]["files"] if file["kind"] == "file"}
    assert sizes == {"log.csv": 1, "weights/last.pt": 2}


def test_export_writes_the_files_of_a_version_into_an_empty_folder(
    ended: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = ["--storage", str(ended.storage)]
    assert "every byte checked" in run(capsys, "export", "r", str(tmp_path / "out"), *storage)
    assert (tmp_path / "out" / "weights" / "last.pt").read_text() == "22"
    (first, *_) = sorted(path.stem for path in ended.storage.rglob("checkpoints/*.json"))
    run(capsys, "export", "r", str(tmp_path / "first"), "--which", first, *storage)
    assert (tmp_path / "first" / "weights" / "last.pt").read_text() == "1"
    assert main(["export", "r", str(tmp_path / "out"), *storage]) == 2
    assert main(["export", "r", *storage]) == 2
    blob = max(ended.storage.rglob("blobs/*"), key=lambda path: path.stat().st_mtime_ns)
    blob.chmod(0o600)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    assert main(["export", "r", str(tmp_path / "damaged"), "--which", "000000000002-" + _session(ended), *storage]) == 1
    assert list((tmp_path / "damaged").iterdir()) == []


def _session(user: User) -> str:
    return max(path.stem for path in user.storage.rglob("checkpoints/*.json")).partition("-")[2]


def test_the_report_says_what_a_cut_off_session_lost(user: User, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os, signal, colabkeep\n"
        f"with colabkeep.keep_folder({str(user.folder)!r}, 'r', storage={str(user.storage)!r}, settle=0.1) as kept:\n"
        f"    open({str(user.folder / 'last.pt')!r}, 'w').write('1')\n"
        "    kept.save()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode
        == -signal.SIGKILL
    )
    shutil.rmtree(user.folder)
    with user.keep():
        pass
    said = run(capsys, "report", "r", "--storage", str(user.storage))
    assert "1 of them cut off" in said
    assert "what came after " in said
