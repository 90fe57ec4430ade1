"""All tests run away from the source folder, with the package that this interpreter found.

`pytest --frameworks=paddle` is what an environment with Paddle and without torch says: it collects what needs no
other framework, and fails if the environment is another one. Without it, what is installed decides.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

import colabkeep
from tests.environments import FRAMEWORKS, chosen, needs
from tests.fakes.loopback import guarded_sockets, only_loopback  # noqa: F401  # no test leaves this machine

# A grammar of addresses: jsonschema, which nbformat imports, takes five seconds to build it, and no test asks for it.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

CONTRACTS = ("colabkeep", "testing")  # the folders of their files, wherever they are installed
CHOSEN = pytest.StashKey[frozenset[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--frameworks", default="installed", help='those of this environment: "torch", "torch,paddle", …')
    parser.addoption("--simulated-gpu", metavar="SCHEDULE", help="two simulated GPUs, see tests/simcuda/README.md")
    parser.addoption("--no-skips", action="store_true", help="fail if a test was skipped")
    parser.addoption("--every-fault", action="store_true", help="a failing disk: each fault at each call, for an hour")
    parser.addoption("--long", action="store_true", help="also the tests marked `long`, which CI leaves out")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("no-clock", deadline=None)  # how long an example takes says nothing on a busy machine
    settings.load_profile("no-clock")
    os.environ["COLABKEEP_LANG"] = "en"  # whoever runs the tests; those of other languages say so
    ordinary = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number, handler in ordinary.items():
        if signal.getsignal(number) is signal.SIG_IGN:  # by nohup, or a shell; what tests start inherits it
            signal.signal(number, handler)
    try:
        config.stash[CHOSEN] = chosen(config.getoption("frameworks"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if schedule := config.getoption("simulated_gpu"):
        # Not a line that begins with "import": by those, tests/environments.py knows who needs torch.
        import_module("tests.simcuda.device").start(schedule)


def pytest_report_header(config: pytest.Config) -> str:
    simulated = f"; simulated GPUs: {config.getoption('simulated_gpu')}" if config.getoption("simulated_gpu") else ""
    return f"frameworks: {', '.join(sorted(config.stash[CHOSEN])) or 'none'}{simulated}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What needs a framework that this environment does not have is no part of its suite."""
    return True if needs(collection_path) - config.stash[CHOSEN] else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-m "torch and paddle"` finds what needs both, `-m paddle` also what runs with each."""
    each = getattr(getattr(item, "callspec", None), "params", {}).get("framework_name")
    for name in needs(item.path) | ({each} if each else set()):
        item.add_marker(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nor is a test that is marked with one, or with `long`. Files of few tests come first: among them are those that
    take a minute, and a process that begins with one of them at the end keeps the others waiting."""
    absent = set(FRAMEWORKS) - config.stash[CHOSEN]
    if not config.getoption("long"):
        absent.add("long")
    theirs = [item for item in items if any(item.get_closest_marker(name) for name in absent)]
    config.hook.pytest_deselected(items=theirs)
    left = set(theirs)
    tests = Counter(item.path for item in items)
    items[:] = sorted((item for item in items if item not in left), key=lambda item: tests[item.path])


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Trainers of others leave variables of a launcher behind (Lightning: LOCAL_RANK, Accelerate then RANK), by which
    the next test, or a program that it begins, would take itself for one of several processes."""
    before = dict(os.environ)
    yield
    for name in {*os.environ} - {*before}:
        del os.environ[name]
    os.environ.update(before)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `framework_name` is run with each framework of the environment."""
    if "framework_name" in metafunc.fixturenames:
        metafunc.parametrize("framework_name", sorted(metafunc.config.stash[CHOSEN]), scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Of what is made here nothing is garbage: to look for it takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_stays() -> None:
    """Packages and thousands of tests are a million objects, and each session that a test opens asks the garbage
    collector what the user left lying about. What is older than a file's first test is none of that."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("no_skips"):
        return
    # What a contract asks of some parts only (a store that locks) is skipped by the contract itself: that is no gap.
    places = [Path(report.longrepr[0]).parts for report in reporter.stats.get("skipped", [])]
    if any(parts[-3:-1] != CONTRACTS for parts in places):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # A child process looks for packages in its current folder first. There the source must not lie, or it would
    # be tested instead of what is installed; and a run without a named storage must not be kept in the repository.
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.MonkeyPatch.context() as patch:
        home = Path(colabkeep.__file__).resolve().parents[1]
        if (home / "pyproject.toml").exists():  # not installed: children need to be told where it is
            patch.setenv("PYTHONPATH", str(home))
        yield
    os.chdir(before)
