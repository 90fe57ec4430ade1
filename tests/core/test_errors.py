"""Every error is a problem and a remedy, wherever it ends up."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from colabkeep.core import errors
from colabkeep.core.errors import ColabKeepError
from colabkeep.session.launch import NotTogether

ALL = [getattr(errors, name) for name in errors.__all__]
ORDINARY = {
    "UsageError": ValueError,
    "UnknownArgument": TypeError,
    "MissingDependency": ImportError,
    "NotStorable": TypeError,
    "MemoryFull": MemoryError,
    "CheckpointDamaged": OSError,
    "CheckpointNotFound": LookupError,
    "Incompatible": ValueError,
    "StoreError": OSError,
    "ObjectNotFound": FileNotFoundError,
    "NameTaken": FileExistsError,
    "StoreBusy": BlockingIOError,
    "RunBusy": BlockingIOError,
}
EXTRAS = {
    "NotStorable": {"path": "model.weight"},
    "Incompatible": {"differences": ("model.a: missing", "model.b: (3,) and not (4,)")},
    "StoreBusy": {"holder": "process 7"},
    "NotTogether": {"why": "it rained"},
}


def make(kind: type[ColabKeepError]) -> ColabKeepError:
    return kind(problem="It rained.", remedy="Take an umbrella.", **EXTRAS.get(kind.__name__, {}))


@pytest.mark.parametrize("kind", ALL)
def test_an_error_reads_as_its_problem_and_then_its_remedy(kind: type[ColabKeepError]) -> None:
    """The last lines of a traceback say what happened and what to do, also for errors with an ordinary parent."""
    lines = str(make(kind)).splitlines()
    assert lines[0] == "It rained."
    assert lines[-1] == "→ Take an umbrella."


def test_what_differs_is_listed_line_by_line() -> None:
    """A model that does not fit shows every difference, between the problem and the remedy."""
    assert str(make(errors.Incompatible)).splitlines()[1:-1] == [
        "  - model.a: missing",
        "  - model.b: (3,) and not (4,)",
    ]


@pytest.mark.parametrize("kind", [*ALL, NotTogether])
@pytest.mark.parametrize("travel", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_an_error_crosses_process_borders_whole(kind: type[ColabKeepError], travel: object) -> None:
    """Raised in a loader's worker, it arrives with its kind, its words and its details."""
    sent = make(kind)
    arrived = travel(sent)  # type: ignore[operator]
    assert type(arrived) is kind
    assert str(arrived) == str(sent)
    assert vars(arrived) == vars(sent)


@pytest.mark.parametrize("kind", ALL)
def test_plain_except_clauses_catch_what_they_should(kind: type[ColabKeepError]) -> None:
    """`except OSError` around a storage works, without knowing colabkeep; and one root catches all."""
    assert issubclass(kind, ColabKeepError)
    assert issubclass(kind, ORDINARY.get(kind.__name__, Exception))


@pytest.mark.parametrize("kind", ALL)
def test_an_error_without_a_remedy_cannot_be_built(kind: type[ColabKeepError]) -> None:
    """Both sentences are required, by name."""
    with pytest.raises(TypeError):
        kind(problem="It rained.")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        kind("It rained.", "Take an umbrella.")  # type: ignore[misc]


def test_only_what_may_pass_is_worth_trying_again() -> None:
    """Full memory, a full disk and a silent network may pass; damage and misuse do not."""
    assert {kind.__name__ for kind in ALL if kind.retryable} == {"MemoryFull", "StoreFull", "StoreUnavailable"}


def test_the_tree_in_the_documentation_is_the_tree() -> None:
    """The drawing on top of the module shows every class, under its parent, with its ordinary parent."""
    drawn: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z]\w+)(?: \((\w+)\))?", line)
        if found:
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            drawn[found[2]] = (path[depth - 1] if depth else None, found[3])
    real = {}
    for kind in ALL:
        parents = [base for base in kind.__bases__ if issubclass(base, ColabKeepError)]
        others = [base.__name__ for base in kind.__bases__ if not issubclass(base, ColabKeepError)]
        own = others[0] if parents and others else None
        real[kind.__name__] = (parents[0].__name__ if parents else None, own)
    assert drawn == real
    defined = {n for n, k in vars(errors).items() if isinstance(k, type) and issubclass(k, ColabKeepError)}
    assert set(real) == defined, "every error class is public"
