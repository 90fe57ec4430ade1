"""The fake mount does what the real one was seen to do, so that a store that stands it may be trusted."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from colabkeep.stores.base import BytesSource
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.shared.files import OS_FILES
from tests.fakes.mounts import FakeMount

ID, UNCOMMITTED = "user.drive.id", "user.drive.uncommitted"
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@pytest.fixture
def fake(tmp_path):
    return FakeMount(tmp_path)


def write(fake, name, data=b"data", flags=NEW):
    path = str(fake.root / name)
    descriptor = fake.files.open(path, flags)
    while data:
        data = data[fake.files.write(descriptor, data) :]
    fake.files.close(descriptor)
    return path


def code_of(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def attributes(fake, path):
    return fake.files.getxattr(path, ID), fake.files.getxattr(path, UNCOMMITTED)


def names(fake):
    with fake.files.scandir(str(fake.root)) as entries:
        return sorted(entry.name for entry in entries)


def test_a_file_that_is_overwritten_keeps_its_id(fake):
    """The trap: the id is one of Drive's, and the new bytes are not there."""
    path = write(fake, "a")
    fake.notice()
    fake.sync()
    before = attributes(fake, path)
    write(fake, "a", b"other data", flags=os.O_WRONLY)
    assert attributes(fake, path) == (before[0], b"1")
    assert fake.misuse == [f"{path} was opened for writing again"]


def test_a_file_that_is_open_is_not_uploaded(fake):
    """Logs that are kept open never reach Drive."""
    descriptor = fake.files.open(str(fake.root / "a"), NEW)
    fake.notice()
    assert fake.sync() == 0
    fake.files.close(descriptor)
    assert fake.sync() == 1


def test_a_thread_does_it_by_itself(fake):
    """As DriveFS does."""
    path = write(fake, "a")
    end = time.monotonic() + 30.0
    with fake.syncing(every=0.001):
        while not (fake.cloud / "a").exists():
            assert time.monotonic() < end
    assert attributes(fake, path)[1] == b"0"


def test_a_lost_machine_leaves_missing_empty_and_cut_files(fake):
    """Only what was uploaded is whole on the next one."""
    write(fake, "sent", b"x" * 100)
    fake.notice()
    fake.sync()
    for number in range(30):
        write(fake, f"waiting{number}", b"x" * 100)
    fake.reclaim()
    sizes = {path.name: path.stat().st_size for path in fake.root.iterdir()}
    assert sizes.pop("sent") == 100
    assert set(sizes.values()) == {0, 50}
    assert 0 < len(sizes) < 30
    assert attributes(fake, str(fake.root / "sent"))[1] == b"0"


def test_links_fail_and_renames_copy(fake):
    """Which is why a store for folders of a disk is not one for this."""
    path = write(fake, "a")
    assert code_of(lambda: fake.files.link(path, f"{path}b")) == errno.EPERM
    fake.files.rename(path, f"{path}c")
    assert names(fake) == ["a", "ac"]
    assert fake.misuse == [f"{path} was linked", f"{path} was renamed"]


def test_the_store_for_disks_is_found_out(fake):
    """The checks of this fake can fail: a store that renames is told, and leaves a second file for every object."""

    def absolute(call):
        return lambda source, target, *, src_dir_fd, **_: call(*(f"{below(src_dir_fd)}/{n}" for n in (source, target)))

    def below(descriptor):
        return Path(f"/proc/self/fd/{descriptor}").readlink()

    files = replace(OS_FILES, link=absolute(fake.files.link), rename=absolute(fake.files.rename))
    store = DirectoryStore(fake.root / "colabkeep", files=files)
    store.put("run/a", BytesSource(b"data"))
    assert [word.split()[-1] for word in fake.misuse] == ["linked", "renamed"]
    assert len(list((fake.root / "colabkeep" / "run").iterdir())) == 2
