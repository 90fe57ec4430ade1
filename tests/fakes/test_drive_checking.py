"""The check that keeps the stand-in for Drive honest sees what is wrong."""

from __future__ import annotations

import pytest

from tests.fakes.drive.checking import error_mistakes, value_mistakes
from tests.fakes.drive.discovery import document


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"id": 5}, ".id is 5, not string"),
        ({"quotaBytesUsed": 5}, ".quotaBytesUsed is 5, not string"),
        ({"quotaBytesUsed": "five"}, ".quotaBytesUsed is 'five', not int64"),
        ({"sharedWithMeTime": 1, "sharedWithMeDate": 1}, "1, not string"),
        ({"videoMediaMetadata": {"width": "1"}}, ".videoMediaMetadata.width is '1', not integer"),
        ({"owners": {}}, ".owners is {}, not array"),
        ({"owners": [{"emailAddress": None}]}, ".owners[0].emailAddress is None, not string"),
        ({"shared": 1}, ".shared is 1, not boolean"),
        ({"wings": True}, ".wings is not known"),
        ([], " is [], not object"),
    ],
)
def test_a_wrong_answer_is_seen(version, wrong, said):
    """Types, whole numbers in strings, dates, and fields that nobody has described."""
    schemas = document(version)["schemas"]
    assert any(said in mistake for mistake in value_mistakes(wrong, {"$ref": "File"}, schemas))


@pytest.mark.parametrize(("version", "name"), [("v2", "modifiedDate"), ("v3", "modifiedTime")])
def test_a_date_is_a_date(version, name):
    """RFC 3339, with a zone."""
    schemas = document(version)["schemas"]
    assert list(value_mistakes({name: "2026-11-20T12:00:00.000Z"}, {"$ref": "File"}, schemas)) == []
    assert list(value_mistakes({name: "2026-11-20 12:00"}, {"$ref": "File"}, schemas))


@pytest.mark.parametrize(
    "error",
    [
        {"code": 500, "message": "m", "errors": [{"domain": "d", "reason": "r", "message": "m"}]},
        {"code": 404, "message": "", "errors": [{"domain": "d", "reason": "r", "message": "m"}]},
        {"code": 404, "message": "m", "errors": []},
        {"code": 404, "message": "m", "errors": [{"domain": "d", "message": "m"}]},
    ],
)
def test_a_wrong_error_is_seen(error):
    """Code, message, and at least one reason."""
    assert list(error_mistakes(404, {"error": error}))
