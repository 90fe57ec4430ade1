"""What the service takes of one user before it refuses: requests a minute, and bytes of uploads a day.

12,000 requests in 60 seconds (from May 2026 on for new projects 325,000 quota units a minute), then 403
userRateLimitExceeded or 429: "Usage limits" and "Resolve errors" (Drive API guides). 750 GB of uploads a day, then the
same 403 for hours (the guides' limits of Workspace users; rclone/rclone issue 1339 for copies). No source tells when
the day begins, nor what becomes of an upload under way: here it is the last 24 hours, and one that has begun may end. A
request that is refused counts, too.
"""

from __future__ import annotations

from collections import defaultdict, deque

from tests.fakes.drive.answers import ApiError
from tests.fakes.drive.settings import Settings

MINUTE, DAY = 60.0, 24 * 3600.0


class Budgets:
    """What each account has used of late. In memory only: a server that was killed has forgotten it."""

    def __init__(self) -> None:
        self._requests: defaultdict[str, deque[float]] = defaultdict(deque)
        self._uploads: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)

    def request(self, account: str, now: float, settings: Settings) -> None:
        """One request more. Raises ApiError 403 where it is one too many."""
        used = self._requests[account]
        while used and used[0] <= now - MINUTE:
            used.popleft()
        used.append(now)
        if settings.requests_a_minute is not None and len(used) > settings.requests_a_minute:
            raise ApiError(403, "userRateLimitExceeded", "User Rate Limit Exceeded")

    def begin_upload(self, account: str, now: float, settings: Settings) -> None:
        """An upload is to begin. Raises ApiError 403 where the day's bytes are used up."""
        used = self._uploads[account]
        while used and used[0][0] <= now - DAY:
            used.popleft()
        if settings.upload_bytes_a_day is not None and sum(size for _, size in used) >= settings.upload_bytes_a_day:
            raise ApiError(403, "userRateLimitExceeded", "User rate limit exceeded.")

    def uploaded(self, account: str, now: float, size: int) -> None:
        """So many bytes have become a file."""
        self._uploads[account].append((now, size))
