"""A Google Drive for tests: the real protocol on loopback, with everything that can go wrong.

It is a server of its own (`python -m tests.fakes.drive --port P --state FOLDER [--faults FILE]`), so that it can be
killed, and so that any client of Drive can be held against it. In a test::

    with running_drive(tmp_path, quota_bytes=10_000_000) as drive:
        session = AuthorizedSession(drive.credentials())
        drive.faults(lose_answer().on("PUT", "/upload/", skip=1))
        ...
        assert len(drive.requests("PUT")) == 3

Where to look: `api` and `media` (what the methods do), `storing` (rules of making and changing files), `files` (the
tree and who sees it), `uploads` (resumable sessions), `query` and `masks` (the two small languages), `resources` (how
v2 and v3 show a file), `oauth` and `tokens` (signing in), `faults` and `effects` (what goes wrong), `traffic` (the log
of requests), `running` (the handle for tests), `server` (HTTP). Each says where it knows the behaviour from. What no
source tells is not imitated: methods without a need are answered 501.

It knows one person and any number of service accounts. Of permissions it knows one: what may only be read. There are no
comments, revisions or Google documents.
"""

from tests.fakes.drive.effects import (
    act_twice,
    cancel_upload,
    drop_session,
    expire_tokens,
    fill_quota,
    html,
    lose_answer,
    partial_listing,
    refuse,
    reset_answer,
    reset_request,
    restart,
    revoke,
    short_page,
    silence,
    slow,
    stale_listing,
    wrong_byte,
)
from tests.fakes.drive.faults import Fault
from tests.fakes.drive.files import File
from tests.fakes.drive.running import Drive, running_drive
from tests.fakes.drive.settings import Settings
from tests.fakes.drive.traffic import Seen

__all__ = [
    "Drive",
    "Fault",
    "File",
    "Seen",
    "Settings",
    "act_twice",
    "cancel_upload",
    "drop_session",
    "expire_tokens",
    "fill_quota",
    "html",
    "lose_answer",
    "partial_listing",
    "refuse",
    "reset_answer",
    "reset_request",
    "restart",
    "revoke",
    "running_drive",
    "short_page",
    "silence",
    "slow",
    "stale_listing",
    "wrong_byte",
]
