"""The obligations of `colabkeep.platforms.base`, one test each, for any platform; and what code does to the
machine, as Python sees it.

Subclass it in a test file, and every obligation is checked on your platform::

    class TestMyService(PlatformContract):
        def make_platform(self):
            return MyService()

        @contextmanager
        def machine(self, folder):
            with fake_my_service(folder) as machine:
                yield machine.environment

`machine` makes a new machine of that service below an empty folder. Set `matches_everything = True` for the platform
that is asked last.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, get_args
from unittest.mock import patch

import pytest

from colabkeep.core.errors import MountError, SecretError
from colabkeep.core.system import Environment
from colabkeep.platforms import find_platform, platform_names
from colabkeep.platforms.base import Confidence, DefaultStorage, Menus, Platform, SessionLimits
from colabkeep.stores import open_store

__all__ = [
    "LAPTOP_VARIABLES",
    "PlatformContract",
    "SideEffects",
    "laptop",
    "watched",
]

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec")
_LOOKS = (
    (os, ("stat", "lstat", "access")),
    (os.path, ("exists", "lexists", "isdir", "isfile", "islink")),
    (Path, ("stat", "lstat", "exists", "is_dir", "is_file", "is_symlink", "open")),
)


@dataclass(slots=True)
class SideEffects:
    """`looked`: paths; `changed`: paths opened for writing, or made, renamed, removed; `imported`: modules; `started`:
    processes and connections, in words."""

    looked: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take down one audit event of Python."""
        if event == "open" and not isinstance(arguments[0], int):
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if arguments[2] else 0
            (self.changed if writes else self.looked).append(_text(arguments[0]))
        elif event in ("os.scandir", "os.listdir") and not isinstance(arguments[0], int):
            self.looked.append(_text(arguments[0]))
        elif event in _CHANGES:
            self.changed.append(_text(arguments[0]))
        elif event == "import":
            self.imported.append(str(arguments[0]))
        elif event in _STARTS or event.startswith("socket."):
            self.started.append(f"{event} {arguments!r:.100}")


class _Spy:
    """Python's audit hook, which can never be taken away again; it is deaf while nobody listens."""

    def __init__(self) -> None:
        self.deeds: SideEffects | None = None
        self.thread = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.deeds is not None and threading.get_ident() == self.thread:
            self.deeds.note(event, arguments)


@cache
def _spy() -> _Spy:
    spy = _Spy()
    sys.addaudithook(spy)
    return spy


@contextmanager
def watched() -> Iterator[SideEffects]:
    """What this thread does in the block. Looking at a file's facts is no audit event, so those calls are wrapped."""
    deeds, spy = SideEffects(), _spy()
    with ExitStack() as stack:
        for owner, names in _LOOKS:
            for name in names:
                stack.enter_context(patch.object(owner, name, _noting(getattr(owner, name), deeds)))
        spy.deeds, spy.thread = deeds, threading.get_ident()
        try:
            yield deeds
        finally:
            spy.deeds = None


def _noting(real: Callable[..., Any], deeds: SideEffects) -> Callable[..., Any]:
    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(path, int):
            deeds.looked.append(_text(path))
        return real(path, *arguments, **options)

    return call


def _text(path: Any) -> str:
    return os.fsdecode(path) if path is not None else os.curdir


LAPTOP_VARIABLES: Mapping[str, str] = dict.fromkeys(
    (
        *("KAGGLE_USERNAME", "KAGGLE_KEY", "KAGGLE_API_TOKEN", "KAGGLE_CONFIG_DIR", "AISTUDIO_ACCESS_TOKEN"),
        *("AISTUDIO_CACHE_HOME", "STUDIO_GIT_HOST", "STUDIO_CDN_HOST", "HF_TOKEN", "HF_HOME", "COLAB_TOKEN", "SYSTEM"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "LIGHTNING_API_KEY", "LIGHTNING_USER_ID"),
        *("LIGHTNING_TEAMSPACE", "DATABRICKS_HOST", "DATABRICKS_TOKEN", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"),
        *("MODELSCOPE_API_TOKEN", "MODELSCOPE_CACHE", "RUNPOD_API_KEY", "PAPERSPACE_API_KEY", "DEEPNOTE_API_KEY"),
        *("GITHUB_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ),
    "the user's own",
)
"""Variables that people set on machines of their own; none says where a program runs."""

_SENTENCE_ENDS = (".", ")")


def laptop(root: Path) -> Environment:
    """A machine of one's own on which every token is set: below `root`, with nothing of any service."""
    home = root / "home" / "student"
    home.mkdir(parents=True, exist_ok=True)
    environ = {**LAPTOP_VARIABLES, "HOME": "/home/student", "USER": "student", "PATH": "/usr/bin"}
    return Environment(environ=environ, root=root, folder=home, hostname="laptop", prefix="/usr")


def _as_huge_file(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(2**32)


_HOSTILE: Mapping[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "empty file": Path.touch,
    "garbage": lambda place: place.write_bytes(os.urandom(4096) + b"\x00\xff\n"),
    "huge file": _as_huge_file,
    "dangling link": lambda place: place.symlink_to(place.parent / "nowhere"),
    "link to itself": lambda place: place.symlink_to(place),
    "unreadable": lambda place: place.mkdir(mode=0),
}


class PlatformContract:
    """One test per obligation. See the top of this page for how to use it."""

    matches_everything: ClassVar[bool] = False

    def make_platform(self) -> Platform:
        raise NotImplementedError("return the platform under test")

    def machine(self, folder: Path) -> AbstractContextManager[Environment]:
        raise NotImplementedError("return a context manager that yields the environment of a new machine of it")

    @pytest.fixture
    def platform(self) -> Platform:
        """The platform."""
        return self.make_platform()

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Iterator[Environment]:
        """A machine of it."""
        with self.machine(tmp_path / "world") as environment:
            yield environment

    def test_its_own_machine_is_recognised(self, platform: Platform, environment: Environment) -> None:
        """It matches, and no platform that is asked before it does."""
        assert platform.matches(environment) is True
        assert find_platform(environment).name == platform.name

    def test_it_can_be_asked_for_by_name(self, platform: Platform, tmp_path: Path) -> None:
        """On any machine, by argument and by variable; and its name is short, lower case, and only its own."""
        here = laptop(tmp_path)
        assert platform_names().count(platform.name) == 1
        assert find_platform(here, platform.name).name == platform.name
        variable = {**here.environ, "COLABKEEP_PLATFORM": platform.name.upper()}
        asked = Environment(environ=variable, root=here.root, folder=here.folder)
        assert find_platform(asked).name == platform.name
        assert platform.name.isidentifier()
        assert platform.name == platform.name.lower()
        assert platform.title.strip()

    def test_a_laptop_with_every_token_is_no_machine_of_it(self, platform: Platform, tmp_path: Path) -> None:
        """What a user sets at home says nothing about where a program runs."""
        assert platform.matches(laptop(tmp_path)) is self.matches_everything

    def test_it_tells_all_that_is_promised(self, platform: Platform, environment: Environment) -> None:
        """Kind, home, limits and menus, in whole sentences; where a home may vanish, with what to do now."""
        _told(platform, environment)
        home = platform.home(environment)
        store = open_store(home.storage, home.earlier)
        assert list(store.list("")) == []
        store.close()

    def test_a_machine_with_nothing_of_it_breaks_nothing(self, platform: Platform, tmp_path: Path) -> None:
        """When a user names the wrong platform, it still answers everything; a bare machine has no files at all."""
        _told(platform, laptop(tmp_path))
        _told(platform, Environment(environ={}, root=tmp_path / "nothing", folder=tmp_path / "nothing"))

    def test_telling_changes_and_starts_nothing(
        self, platform: Platform, environment: Environment, tmp_path: Path
    ) -> None:
        """No file is written, no process or connection started, and no package of the service imported."""
        modules, files = set(sys.modules), _files(tmp_path)
        _told(platform, environment)
        foreign = {name.partition(".")[0] for name in set(sys.modules) - modules} - set(sys.stdlib_module_names)
        assert foreign <= {"colabkeep"}
        with watched() as deeds:
            _told(platform, environment)
        assert (deeds.changed, deeds.started) == ([], [])
        assert {name.partition(".")[0] for name in deeds.imported} <= {*sys.stdlib_module_names, "colabkeep"}
        assert _files(tmp_path) == files

    def test_it_looks_only_below_the_root(self, platform: Platform, environment: Environment) -> None:
        """The real machine is never asked in place of the one that was handed in."""
        _told(platform, environment)  # from now on all modules are loaded
        with watched() as deeds:
            _told(platform, environment)
        root = str(environment.root)
        assert [path for path in deeds.looked if not f"{path}/".startswith(f"{root}/")] == []

    @pytest.mark.parametrize("make", _HOSTILE.values(), ids=_HOSTILE.keys())
    def test_a_hostile_machine_breaks_nothing(
        self, platform: Platform, make: Callable[[Path], object], tmp_path: Path
    ) -> None:
        """Whatever lies in place of a file or folder that is looked at, everything is answered."""
        with self.machine(tmp_path / "first") as environment, watched() as deeds:
            _told(platform, environment)
            below = {Path(path).relative_to(environment.root) for path in deeds.looked} - {Path()}
        for number, place in enumerate(sorted(below)):
            with self.machine(tmp_path / str(number)) as environment:
                target = environment.root / place
                _remove(target)
                target.parent.mkdir(parents=True, exist_ok=True)
                make(target)
                _told(platform, environment)
                _remove(target)

    def test_mounting_gives_a_home_or_says_what_to_do(self, platform: Platform, environment: Environment) -> None:
        """It comes back, with a home as `home` gives it, or with an error that names the next click."""
        try:
            _check_home(platform.mount(environment, timeout=5.0))
        except MountError as error:
            refusal = error
        else:
            return
        assert refusal.problem.strip()
        assert refusal.remedy.strip()

    def test_whether_the_pages_user_can_be_asked_is_told_without_asking(
        self, platform: Platform, environment: Environment
    ) -> None:
        """Google's libraries learn of the user when the answer is called, and not before."""
        before = set(sys.modules)
        user = platform.google_user(environment)
        assert user is None or callable(user)
        assert not {name for name in set(sys.modules) - before if name.startswith("google.")}

    def test_a_secret_that_nobody_has_is_told(self, platform: Platform, environment: Environment) -> None:
        """The error names it, is a LookupError, and says where to put it."""
        with pytest.raises(SecretError) as caught:
            platform.secret(environment, "COLABKEEP_NO_SUCH_SECRET", timeout=5.0)
        assert isinstance(caught.value, LookupError)
        assert "COLABKEEP_NO_SUCH_SECRET" in caught.value.problem
        assert caught.value.remedy.strip()


def _told(platform: Platform, environment: Environment) -> None:
    """Ask for everything that never raises, and see that it is what is promised."""
    assert platform.matches(environment) in (True, False)
    assert platform.kind(environment).strip()
    _check_home(platform.home(environment))
    limits = platform.limits(environment)
    assert isinstance(limits, SessionLimits)
    assert limits.source.strip()
    assert {limits.confidence, limits.idle_confidence} <= set(get_args(Confidence))
    assert all(seconds is None or seconds > 0 for seconds in (limits.max_seconds, limits.idle_seconds))
    menus = platform.menus(environment)
    assert isinstance(menus, Menus)
    for click in (menus.enable, menus.reconnect, menus.switch):
        assert click is None or click.strip().endswith(_SENTENCE_ENDS)


def _check_home(home: DefaultStorage) -> None:
    assert isinstance(home, DefaultStorage)
    assert home.storage
    assert home.folder
    assert home.persists in (True, False, None)
    assert home.reason.endswith(_SENTENCE_ENDS)
    assert home.persists is True or home.remedy.strip()


def _files(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Path → facts that change when a file is written, made or removed."""
    found = {}
    for path in folder.rglob("*"):
        facts = path.lstat()
        found[str(path)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns)
    return found


def _remove(place: Path) -> None:
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir():
        place.chmod(0o700)
        shutil.rmtree(place)
