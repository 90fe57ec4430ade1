"""What a test does to a running server: /_fake/… , not logged and no part of Drive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from tests.fakes.drive.answers import Answer, json_answer
from tests.fakes.drive.call import json_object
from tests.fakes.drive.faults import Fault
from tests.fakes.drive.requests import Request
from tests.fakes.drive.settings import USER
from tests.fakes.drive.state import State

PREFIX = "/_fake/"


def serve(state: State, request: Request) -> Answer:
    """Do what `running.Drive` asks for."""
    said = json_object(request.body.read())
    with state.guard:
        return json_answer(ORDERS[request.path.removeprefix(PREFIX)](state, said))


def _faults(state: State, said: dict[str, Any]) -> dict[str, Any]:
    state.faults.set([Fault(**one) for one in said["faults"]])
    return {}


def _settings(state: State, said: dict[str, Any]) -> dict[str, Any]:
    for name, value in said.items():
        assert name in asdict(state.settings), name
        setattr(state.settings, name, value)
    state.save_settings()
    return {}


def _client(state: State, said: dict[str, Any]) -> dict[str, Any]:
    return asdict(state.tokens.register(said["client"]))


def _grant(state: State, said: dict[str, Any]) -> dict[str, Any]:
    return asdict(state.tokens.grant(said["client"], USER, said["scopes"]))


def _expire(state: State, said: dict[str, Any]) -> dict[str, Any]:
    state.tokens.expire()
    return {}


def _revoke(state: State, said: dict[str, Any]) -> dict[str, Any]:
    state.tokens.revoke()
    return {}


def _read_only(state: State, said: dict[str, Any]) -> dict[str, Any]:
    file = state.files.lookup(said["id"])
    assert file is not None, said["id"]
    state.files.save(replace(file, read_only=said["read_only"]))
    return {}


ORDERS: dict[str, Callable[[State, dict[str, Any]], dict[str, Any]]] = {
    "faults": _faults,
    "settings": _settings,
    "client": _client,
    "grant": _grant,
    "expire": _expire,
    "revoke": _revoke,
    "read_only": _read_only,
}
