"""The fake machine behaves as Colab does, for a wrong fake makes every test that uses it worthless."""

from __future__ import annotations

import errno
import inspect
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from types import ModuleType

import pytest

from colabkeep.platforms.colab.page import TooLate, deadline
from colabkeep.testing.faults import raising
from tests.fakes.platforms.colab import fake_colab

SIGNATURES = {  # googlecolab/colabtools, 2026-04
    "drive.mount": {
        "mountpoint": inspect.Parameter.empty,
        "force_remount": False,
        "timeout_ms": 120000,
        "readonly": False,
    },
    "auth.authenticate_user": {"clear_output": True, "project_id": None},
    "userdata.get": {"key": inspect.Parameter.empty},
    "_message.blocking_request": {
        "request_type": inspect.Parameter.empty,
        "request": "",
        "timeout_sec": 5,
        "parent": None,
    },
}


def colab_module(name: str) -> ModuleType:
    return import_module(f"google.colab.{name}")


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signatures_are_those_of_colab(machine, name):
    """Names, order and defaults."""
    machine()
    module, _, function = name.partition(".")
    parameters = inspect.signature(getattr(colab_module(module), function)).parameters
    assert {one.name: one.default for one in parameters.values()} == SIGNATURES[name]


def test_the_exceptions_have_the_parents_of_colab(machine):
    """NotebookAccessError is no child of Colab's own base class."""
    machine()
    errors, userdata, message = (colab_module(name) for name in ("errors", "userdata", "_message"))
    assert issubclass(message.MessageError, errors.Error)
    assert issubclass(userdata.SecretNotFoundError, errors.Error)
    assert issubclass(userdata.TimeoutException, errors.Error)
    assert not issubclass(userdata.NotebookAccessError, errors.Error)


def test_the_modules_come_and_go(tmp_path):
    """`google.auth`, where it is installed, works beside them; afterwards google.colab is as it was before."""
    before = {name for name in sys.modules if name.startswith("google.colab")}
    with fake_colab(tmp_path):
        from google.colab import drive

        assert import_module("google.colab.drive") is drive is import_module("google").colab.drive
        if import_module("importlib.util").find_spec("google.auth") is not None:
            assert import_module("google.auth.exceptions").DefaultCredentialsError
    assert {name for name in sys.modules if name.startswith("google.colab")} == before
    assert not hasattr(import_module("google"), "colab")
    with pytest.raises(ImportError):
        import_module("google.colab.drive")


def test_the_modules_go_also_after_an_error(tmp_path):
    """A failing test leaves nothing for the next one, and a machine within a machine gives the outer one back."""
    with fake_colab(tmp_path):
        outer = colab_module("drive")
        with suppress(ZeroDivisionError), fake_colab(tmp_path):
            assert colab_module("drive") is not outer
            raise ZeroDivisionError
        assert colab_module("drive") is outer
    with pytest.raises(ImportError):
        import_module("google.colab")


def test_an_import_can_fail(tmp_path):
    """With the very error that was asked for, and only for google.colab."""
    with fake_colab(tmp_path, on_import=raising(RuntimeError("broken"))):
        with pytest.raises(RuntimeError, match="broken"):
            import_module("google.colab")
        assert import_module("google")


def test_mounting_asks_before_it_looks(machine):
    """A Drive that is mounted already costs a question all the same, as in Colab."""
    colab = machine(drive="mounted")
    colab_module("drive").mount("/content/drive")
    assert colab.calls[1] == "sent request_auth {'authType': 'dfs_ephemeral'}"
    assert colab.calls[-1] == "printed: Drive already mounted at /content/drive"


@pytest.mark.parametrize(
    "words", [{"mountpoint": "/content/gdrive"}, {"mountpoint": "/content/drive", "force_remount": True}]
)
def test_a_second_mount_or_force_kills_the_first(machine, words):
    """The program behind the healthy mount dies, with what it had not uploaded; another place is left dead."""
    colab = machine(drive="mounted")
    colab_module("drive").mount(**words)
    assert colab.mounts[words["mountpoint"]] == "mounted"
    if words["mountpoint"] != "/content/drive":
        assert "killed the Drive mounted at /content/drive" in colab.calls
        assert colab.mounts["/content/drive"] == "dead"


def test_a_dead_mount_says_errno_107_and_shows_no_files(machine):
    """Through the environment with the true error; a plain path finds nothing."""
    colab = machine(drive="mounted")
    colab.write("/content/drive/MyDrive/note", "kept")
    colab.set_drive("/content/drive", "dead")
    for touch in ("stat", "exists", "open", "iterdir"):
        with pytest.raises(OSError, match="endpoint") as caught:
            getattr(colab.environment.path("/content/drive/MyDrive/note"), touch)()
        assert caught.value.errno == errno.ENOTCONN
    assert not colab.environment.is_dir("/content/drive/MyDrive")
    assert colab.environment.text("/content/drive/MyDrive/note") == ""
    assert not (colab.root / "content/drive/MyDrive").exists()
    assert (colab.account / "note").read_text() == "kept"
    assert "fuse.drive" in colab.environment.text("/proc/mounts")


def test_a_silent_mount_answers_when_the_machine_is_gone(tmp_path):
    """Who looks waits, so that a deadline can be tested, and no thread is left over for ever."""
    with fake_colab(tmp_path, drive="silent") as colab:
        looker = threading.Thread(target=colab.environment.is_dir, args=("/content/drive/MyDrive",))
        looker.start()
        looker.join(0.2)
        assert looker.is_alive()
    looker.join(30.0)
    assert not looker.is_alive()


def test_a_short_timeout_is_no_timeout(machine):
    """Below 1000 ms the wait for the page is for ever, and only an interrupt gets through."""
    machine(front_end="absent")
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TooLate), deadline(1.0):
        colab_module("drive").mount("/content/drive", timeout_ms=999)
    assert signal.getsignal(signal.SIGALRM) is before


def test_no_answer_is_no_error_of_the_message(machine):
    """`blocking_request` returns None when its time is over."""
    colab = machine(front_end="absent")
    colab.pace = 0.001
    assert colab_module("_message").blocking_request("request_auth", timeout_sec=5) is None
    colab.front_end = "late"
    assert colab_module("_message").blocking_request("request_auth", timeout_sec=5) == {}
    assert colab_module("_message").blocking_request("request_auth", timeout_sec=0.1) is None


def test_signing_in_is_as_in_colab(machine):
    """Asked once; refused where the environment is managed; Enterprise is only warned."""
    colab = machine()
    for _ in range(2):
        colab_module("auth").authenticate_user()
    assert sum("auth_user_ephemeral" in call for call in colab.calls) == 1
    colab.write("/var/colab/mp", "")
    with pytest.raises(NotImplementedError):
        colab_module("auth").authenticate_user()
    enterprise = machine(kind="enterprise")
    colab_module("auth").authenticate_user()
    assert "WARNING" in enterprise.calls[-1]
