"""A run of many sessions in a bucket is folded, and reads as before."""

from __future__ import annotations

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.verify import audit
from colabkeep.stores.memory import MemoryStore
from tests.fakes.runs import RUN, folding, old_sessions, told


def test_what_old_sessions_left_in_a_bucket_is_folded(s3, place, opened, library, tmp_path):
    """By each of the two libraries; another client sees the few objects that are left."""
    url, made = place(tmp_path), MemoryStore()
    old_sessions(made, 40, lines=1)
    for name, body in made._objects.items():
        s3.put_object(Bucket="checkpoints", Key=f"{url.removeprefix('s3://checkpoints/')}/{name}", Body=body)
    before = told(opened(url))
    work = folding(opened(url))
    while work.work(lambda: False):
        pass
    found = s3.list_objects_v2(Bucket="checkpoints", Prefix=url.removeprefix("s3://checkpoints/"))["Contents"]
    assert len(found) == 1 + 2 * (40 - 16) + 1 + 1
    assert told(opened(url)) == before
    assert {finding.state for finding in audit(Repository(opened(url), RUN))} == {"ok"}
