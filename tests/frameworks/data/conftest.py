"""The data of each framework that is installed is tested by the same sentences."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.frameworks.data.reading import open_kit


@pytest.fixture(scope="session")
def kit(framework_name: str) -> SimpleNamespace:
    return open_kit(framework_name)
