"""How this Drive is set up: what a test may choose, before the start or later."""

from __future__ import annotations

from dataclasses import dataclass, field

USER = "student@example.com"


@dataclass
class Settings:
    """Sizes in bytes, times in seconds.

    `quota_bytes` None: unlimited. `others_bytes` is what mail and photos take of the quota. `skew_seconds` is how far
    the server's clock is ahead of the real one. An access token lives an hour, an upload session a week: "Using OAuth
    2.0 to Access Google APIs" and "Performing a Resumable Upload" (Drive API guides). `keep_answers`: the log of the
    requests also holds what was answered. `requests_a_minute` and
    `upload_bytes_a_day` are what the service takes of a user before it refuses, see
    `budgets`; None: any number.
    """

    quota_bytes: int | None = 15 * 2**30
    others_bytes: int = 0
    skew_seconds: float = 0.0
    token_seconds: int = 3600
    session_seconds: int = 7 * 24 * 3600
    shared_drives: list[str] = field(default_factory=list)
    keep_answers: bool = False
    requests_a_minute: int | None = None
    upload_bytes_a_day: int | None = None
