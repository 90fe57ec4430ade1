"""The reader of `tests/frameworks/data`, and its data sets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.frameworks.data.reading import open_kit


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    return open_kit("paddle")
