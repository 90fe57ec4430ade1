"""`colabkeep auth`: one consent, one line to store. The line goes to the output, all talk beside it."""

from __future__ import annotations

import argparse
import sys
import time
import webbrowser
from pathlib import Path

from colabkeep.core.errors import PlatformError, UsageError
from colabkeep.core.language import said
from colabkeep.core.system import Environment, SystemClock
from colabkeep.stores.google.account import SECRET_NAME, UserSecret
from colabkeep.stores.google.consent import (
    Loopback,
    OAuthClient,
    ask_by_address,
    read_client,
)

_SCOPES = "https://www.googleapis.com/auth/"
SET_UP = """\
colabkeep has no OAuth client of its own; yours takes ten minutes, once:
  1. https://console.cloud.google.com: make a project, and in APIs & Services enable the Google Drive API.
  2. https://console.cloud.google.com/auth/overview: Get started, audience External; then Audience > Publish app
     (as long as it is "Testing", the consent ends after seven days).
  3. https://console.cloud.google.com/auth/clients: Create client, type Desktop app, and Download JSON.
Then: colabkeep auth --client <the downloaded file>
"""
STORE = f"""\
Store the line as the secret {SECRET_NAME}:
  Colab   the key symbol at the left edge > Add new secret, Notebook access on
  Kaggle  Add-ons > Secrets > Add secret, attached to the notebook
  else    the environment variable {SECRET_NAME}
Whoever has it can read and change what colabkeep keeps in your Drive, and nothing else there.
It is taken back at https://myaccount.google.com/connections.
"""
_PATIENCE = 300.0  # seconds to say yes in a browser
_IN_A_NOTEBOOK = """\
WARNING: this runs in a notebook, and what it prints is saved in the notebook's file: whoever gets that file can use the
line. Run `colabkeep auth` in a terminal instead, or clear this cell's output as soon as the line is stored.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The words of this command."""
    parser.add_argument("--client", metavar="FILE", help="the JSON file of your OAuth client, as downloaded")
    parser.add_argument(
        "--scope",
        choices=("drive.file", "drive"),
        default="drive.file",
        help="drive.file: only what colabkeep makes (default); drive: everything, for a folder that others made",
    )
    parser.add_argument(
        "--paste",
        action="store_true",
        help="by a pasted address, also where this machine has a browser",
    )


def main(words: argparse.Namespace) -> int:
    """Ask for the consent and print the secret; returns the exit status."""
    clock, here = SystemClock(), Environment.here()
    if _is_saved(here):
        _tell(_IN_A_NOTEBOOK)
    client = _client(words.client)
    scope = _SCOPES + words.scope
    if _has_browser(here) and not words.paste:
        secret = _by_browser(client, scope, clock)
    else:
        secret = ask_by_address(client, scope, _ask_for_address, clock)
    _warn(secret, clock.time())
    _tell(STORE)
    sys.stdout.write(secret.text() + "\n")
    return 0


def _client(file: str | None) -> OAuthClient:
    if file is None:
        _tell(SET_UP)
        raise UsageError(
            problem="It is not said which OAuth client to ask for.", remedy="Name its file: --client FILE."
        )
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            problem=f"The file of the OAuth client cannot be read: {file} ({type(error).__name__}).",
            remedy="Give the path of the JSON file that was downloaded.",
        ) from error
    return read_client(text)


def _is_saved(here: Environment) -> bool:
    """Is what is printed kept in a notebook's file? Jupyter gives its kernels JPY_PARENT_PID (jupyter_client's
    launcher.py), which a command after an exclamation mark inherits, and a terminal does not have."""
    return bool(here.shell) or "JPY_PARENT_PID" in here.environ


def _has_browser(here: Environment) -> bool:
    """Does the person sit at this machine, with a browser?"""
    if "SSH_CONNECTION" in here.environ:
        return False
    return sys.platform in ("darwin", "win32") or bool(here.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"})


def _by_browser(client: OAuthClient, scope: str, clock: SystemClock) -> UserSecret:
    """By a browser on this machine, which brings the answer by itself."""
    with Loopback() as loopback:

        def ask(address: str) -> str:
            _tell("A browser opens on this machine: click Continue there. If none does, open this address:")
            _tell(f"\n{address}\n")
            webbrowser.open(address)
            answer = loopback.wait(_PATIENCE)
            if answer is None:
                raise PlatformError(
                    problem="The browser brought no answer in five minutes.",
                    remedy="Run it again; with a browser on another machine: colabkeep auth --paste.",
                )
            return answer

        return ask_by_address(client, scope, ask, clock, loopback.address)


def _ask_for_address(address: str) -> str:
    _tell(
        "Open this address in a browser, on any machine, and click Continue:\n\n"
        f"{address}\n\n"
        "The browser then shows a page that cannot be reached. That is right: copy its whole address, which begins "
        "with http://127.0.0.1, and paste it here."
    )
    sys.stderr.write(said("Address: "))
    sys.stderr.flush()
    line = sys.stdin.readline().strip()
    if not line:
        raise UsageError(problem="Nothing was typed in.", remedy="Run `colabkeep auth` again.")
    return line


def _warn(secret: UserSecret, now: float) -> None:
    if secret.expires is None:
        _tell(
            "Google said nothing of an end. If the client's publishing status is still Testing, the consent ends "
            "after seven days: see https://console.cloud.google.com/auth/audience."
        )
    else:
        day = time.strftime("%d %B %Y", time.gmtime(secret.expires))
        _tell(
            f"WARNING: this consent ends on {day}, in {(secret.expires - now) / 86400:.0f} days. To have one that "
            "lasts: https://console.cloud.google.com/auth/audience > Publish app, and then `colabkeep auth` again."
        )


def _tell(text: str) -> None:
    sys.stderr.write(said(text).rstrip("\n") + "\n")
    sys.stderr.flush()
