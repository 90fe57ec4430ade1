"""`colabkeep auth`: one consent, and one line to store."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading

import pytest
import requests

from colabkeep.stores.google.account import read_secret
from colabkeep.ui.cli import main
from tests.fakes.drive import running_drive

PATIENCE = 60.0  # seconds until a hanging test gives up


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    with running_drive(tmp_path_factory.mktemp("drive")) as drive:
        yield drive


@pytest.fixture
def client_file(drive, tmp_path):
    """Writes the file that the Cloud console offers for download."""

    def write():
        client_id, secret = drive.client("own")
        values = {
            "client_id": client_id,
            "client_secret": secret,
            "auth_uri": f"{drive.url}/o/oauth2/v2/auth",
            "token_uri": drive.token_uri,
        }
        path = tmp_path / "client_secret.json"
        path.write_text(json.dumps({"installed": values}))
        return path

    return write


def converse(*words, answer, tmp_path, **environ):
    """Runs the command in a process of its own; `answer` gets each line of talk and returns what to type, or None.
    Without a browser, as over SSH, unless `environ` says otherwise."""
    without = {"DISPLAY", "WAYLAND_DISPLAY", "JPY_PARENT_PID", "SSH_CONNECTION"}
    environ = {name: value for name, value in os.environ.items() if name not in without} | (
        environ or {"SSH_CONNECTION": "127.0.0.1 50000 127.0.0.1 22"}
    )
    command = [sys.executable, "-m", "colabkeep", "auth", *map(str, words)]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        guard = threading.Timer(PATIENCE, process.kill)
        guard.start()
        talk = []
        for line in process.stderr:
            talk.append(line)
            typed = answer(line)
            if typed is not None:
                process.stdin.write(typed + "\n")
                process.stdin.flush()
        out = process.stdout.read()
        status = process.wait()
        guard.cancel()
    return status, out, "".join(talk)


@pytest.mark.parametrize("more", [[], ["--scope", "drive"], ["--paste"]], ids=" ".join)
def test_a_consent_prints_one_secret(drive, client_file, tmp_path, more):
    """The talk goes beside, so that the output is the secret and nothing else: it can be piped where it belongs."""

    def answer(line):
        if line.startswith("http"):
            return requests.get(line.strip(), allow_redirects=False, timeout=10).headers["Location"]
        return None

    status, out, talk = converse("--client", client_file(), *more, answer=answer, tmp_path=tmp_path)
    assert status == 0, talk
    assert read_secret(out).scopes[0].rpartition("/")[2] == ("drive" if "drive" in more else "drive.file")
    assert out == read_secret(out).text() + "\n"
    assert "COLABKEEP_DRIVE" in talk
    assert "Testing" in talk
    assert read_secret(out).refresh_token not in talk
    assert read_secret(out).client_secret not in talk


@pytest.fixture
def browser(tmp_path):
    """A program that opens an address, says yes, and goes where it is sent; before, it asks for an icon."""
    program = tmp_path / "browser.py"
    program.write_text(
        "import sys, requests\n"
        "there = requests.get(sys.argv[1], allow_redirects=False, timeout=10).headers['Location']\n"
        "assert requests.get(there.partition('?')[0] + 'favicon.ico', timeout=10).status_code == 404\n"
        "page = requests.get(there, timeout=10)\n"
        f"open({str(tmp_path / 'shown')!r}, 'w').write(page.text)\n"
    )
    return {"DISPLAY": ":0", "BROWSER": f"{sys.executable} {program} %s"}


def test_a_browser_on_this_machine_brings_the_answer_by_itself(drive, client_file, tmp_path, browser):
    """Nothing is to be copied from a page that cannot be reached: one click, and the secret is there."""

    def answer(line):
        assert "Address:" not in line

    status, out, talk = converse("--client", client_file(), answer=answer, tmp_path=tmp_path, **browser)
    assert status == 0, talk
    assert read_secret(out).scopes[0].endswith("drive.file")
    assert out == read_secret(out).text() + "\n"
    assert "paste" not in talk
    shown = (tmp_path / "shown").read_text()
    assert "Close this page" in shown
    assert read_secret(out).refresh_token not in shown


def test_who_wants_to_paste_pastes(drive, client_file, tmp_path, browser):
    """The browser may be on another machine than the one whose screen this is."""

    def answer(line):
        if line.startswith("http"):
            return requests.get(line.strip(), allow_redirects=False, timeout=10).headers["Location"]
        return None

    words = "--client", client_file(), "--paste"
    status, out, talk = converse(*words, answer=answer, tmp_path=tmp_path, **browser)
    assert (status, read_secret(out).scopes[0].rpartition("/")[2]) == (0, "drive.file"), talk
    assert not (tmp_path / "shown").exists()


@pytest.mark.parametrize("inside", [True, False])
def test_a_notebook_that_would_keep_the_secret_is_warned_of(drive, client_file, tmp_path, browser, inside):
    """Before anything is asked; a terminal is not."""
    kernel = {"JPY_PARENT_PID": "4711"} if inside else {}
    status, out, talk = converse(
        "--client", client_file(), answer=lambda line: None, tmp_path=tmp_path, **browser, **kernel
    )
    assert status == 0, talk
    assert talk.startswith("WARNING: this runs in a notebook") is inside
    assert read_secret(out)


def test_an_answer_that_does_not_come_is_told(monkeypatch, capsys, client_file):
    """A page that was closed: what to do with a browser elsewhere."""
    import colabkeep.ui.auth as auth

    monkeypatch.setattr(auth, "_PATIENCE", 0.05)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("BROWSER", "true %s")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert main(["auth", "--client", str(client_file())]) == 5
    said = capsys.readouterr()
    assert said.out == ""
    assert "brought no answer" in said.err
    assert "--paste" in said.err


def test_without_a_client_it_says_how_to_make_one(colabkeep_cli, monkeypatch):
    """colabkeep has none of its own, and says why nobody can go without."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    said = colabkeep_cli("auth")
    assert (said.status, said.out) == (2, "")
    for words in ("console.cloud.google.com", "Publish app", "--client"):
        assert words in said.err


@pytest.mark.parametrize("text", [None, "{}", "\x00PLANTED", "\udcff"])
def test_a_file_that_is_none_is_told(colabkeep_cli, tmp_path, text):
    """Missing, not JSON, not a client's, not even text."""
    path = tmp_path / "client.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    said = colabkeep_cli("auth", "--client", path)
    assert (said.status, said.out) == (2, "")
    assert "PLANTED" not in said.err
    error = colabkeep_cli("auth", "--client", path, "--json").json["error"]
    assert error["type"] == "UsageError"
    assert error["remedy"]


def test_a_refused_consent_prints_no_secret(drive, client_file, tmp_path):
    """The end is an error with its own status."""

    def answer(line):
        return "http://127.0.0.1:53217/?error=access_denied" if line.startswith("http") else None

    status, out, talk = converse("--client", client_file(), answer=answer, tmp_path=tmp_path)
    assert (status, out) == (5, "")
    assert "The consent was not given" in talk


def test_a_consent_that_ends_soon_is_warned_of(capsys, monkeypatch, client_file):
    """Seven days for a client in Testing: said in capitals before the secret is stored and forgotten."""
    import colabkeep.ui.auth as auth
    from colabkeep.stores.google.account import UserSecret

    def ask(client, scope, ask, clock):
        return UserSecret(client_id="a", client_secret="b", refresh_token="c", expires=clock.time() + 7 * 86400 + 60)

    monkeypatch.setattr(auth, "ask_by_address", ask)
    assert main(["auth", "--client", str(client_file()), "--paste"]) == 0
    said = capsys.readouterr()
    assert "WARNING" in said.err
    assert "in 7 days" in said.err
    assert "Publish app" in said.err
