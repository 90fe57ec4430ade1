"""Every way in which mounting Drive fails, each with what it means and the next click.

The errors are those of googlecolab/colabtools: `drive.py`, `_message.py`, `_ipython.py` (2026-04). They are known by
type and by words of their text, for most are a bare ValueError.
"""

from __future__ import annotations

from colabkeep.platforms.colab.deadline import TooLate
from colabkeep.platforms.colab.service import clicks
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import MountError

__all__ = ["mount_refusal"]

_NOT_MOUNTED = "Google Drive is not mounted, and nothing would outlive this machine"
_AGAIN = "then run this cell again."
_NO_ANSWER = (
    f"{_NOT_MOUNTED}: the permission was not given in time.",
    "Run this cell again, keep the notebook's page open, and answer its questions: Connect to Google Drive > your "
    "account > Continue. In VS Code update the Colab extension (it can do this since January 2026); in Colab's "
    "terminal client use its command drivemount. It needed longer?  colabkeep.mount(timeout=300)",
)

_NO_START = (
    f"{_NOT_MOUNTED}: the permission was given, and then Drive's own program did not start ({{text}}).",
    "Run this cell again: the second try often works. If not, take a new machine: Runtime > Disconnect and delete "
    "runtime, connect again, and run the notebook from the top.",
)

_TEXTS: tuple[tuple[str, str, str], ...] = (
    (
        "already contain files",
        f"{_NOT_MOUNTED}: {{point}} holds files of this machine, written there while Drive was not mounted. "
        "They are not in Drive.",
        f"Move them away:  !mv {{point}} {{point}}-not-in-drive  {_AGAIN} Afterwards copy what you need to Drive.",
    ),
    (
        "must not be a symlink",
        f"{_NOT_MOUNTED}: {{point}} is a symbolic link.",
        f"Remove the link:  !rm {{point}}  {_AGAIN}",
    ),
    (
        "directory or not exist",
        f"{_NOT_MOUNTED}: {{point}} is a file.",
        f"Move it away:  !mv {{point}} {{point}}-file  {_AGAIN}",
    ),
    (
        "directory that exists",
        f"{_NOT_MOUNTED}: the folder around {{point}} is missing.",
        f'Make it:  !mkdir -p "$(dirname {{point}})"  {_AGAIN}',
    ),
    (
        "must be a directory if present",
        f"{_NOT_MOUNTED}: Drive's own settings cannot be written: {{text}}.",
        f"Move the file away:  !mv ~/.config/Google ~/.config/Google-old  {_AGAIN}",
    ),
    (
        "not contain a space",
        f"{_NOT_MOUNTED}: it was mounted at {{point}}, and Colab mounts no more where a name has a blank.",
        "Clear it away:  !umount -f '{point}'  then run this cell again.",
    ),
    (
        "domain policy",
        f"{_NOT_MOUNTED}: the administrator of this account's organisation does not allow it.",
        "Open the notebook with another Google account (menu at the top right), or ask the administrator to allow "
        "Google Drive for desktop.",
    ),
    (
        "timeout during initial read of root folder",
        f"{_NOT_MOUNTED}: the top folder of your Drive holds so many files that reading it took too long.",
        "Run this cell again, the second try is often quicker:  colabkeep.mount(timeout=300)  If not, move files from "
        "the top of My Drive into folders at https://drive.google.com.",
    ),
    ("mount failed", *_NO_START),
)


def mount_refusal(environment: Environment, error: BaseException, point: str) -> MountError:
    """The error to raise for what came out of `google.colab.drive.mount(point)`."""
    problem, remedy = _words(error)
    text = str(error).rstrip(".") or "it took too long"
    return MountError(
        problem=problem.format(point=point, text=text, type=type(error).__name__),
        remedy=clicks(environment, remedy.format(point=point)),
    )


def _words(error: BaseException) -> tuple[str, str]:
    text = str(error)
    for words, problem, remedy in _TEXTS:
        if isinstance(error, ValueError) and words in text:
            return problem, remedy
    if isinstance(error, TooLate) and not error.answered:
        return _NO_ANSWER
    if isinstance(error, TooLate) or type(error).__module__.startswith("pexpect"):
        return _NO_START
    if type(error).__name__ == "MessageError":
        return (
            f"{_NOT_MOUNTED}: the permission was refused, or its window was closed ({{text}}).",
            "Run this cell again, and in the page choose: Connect to Google Drive > your account > Continue, "
            "with all boxes ticked.",
        )
    if isinstance(error, NotImplementedError):
        return (
            f"{_NOT_MOUNTED}: Colab cannot mount it on this kind of machine ({{text}}).",
            'Name a folder that lasts:  storage="/path/to/it"  or use a machine of Google\'s: '
            "Connect (top right) > Connect to a hosted runtime.",
        )
    return _broken(error)


def _broken(error: BaseException) -> tuple[str, str]:
    new_machine = "Runtime > Disconnect and delete runtime, connect again, and run the notebook from the top."
    if isinstance(error, ImportError):
        return (
            f"{_NOT_MOUNTED}: Colab's own package cannot be loaded ({{text}}).",
            "Runtime > Restart session, and run the notebook from the top. If it stays so, a package that the "
            "notebook installs has replaced one that Colab needs: take that !pip line out.",
        )
    if isinstance(error, KeyError):
        return (
            f"{_NOT_MOUNTED}: this machine lacks what signing in to Drive needs (the variable {{text}}).",
            new_machine,
        )
    if isinstance(error, AttributeError):
        return (
            f"{_NOT_MOUNTED}: no notebook page answers this program ({{text}}).",
            f"Run  import colabkeep; colabkeep.mount()  in a cell of the notebook, {_AGAIN}",
        )
    return f"{_NOT_MOUNTED}: {{type}}: {{text}}.", f"Run this cell again. If it stays so: {new_machine}"
