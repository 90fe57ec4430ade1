"""A folder as a store: nothing in it, however hostile, leads out of it or stops it; ordinary files stay ordinary."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.stores.base import BytesSource, Entry
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.shared.files import OS_FILES
from colabkeep.testing.stores import ChunkedSource


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def store(root):
    store = DirectoryStore(root)
    store.put("run/a", BytesSource(b"ours"))
    return store


@pytest.fixture
def secret(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    return outside / "secret"


def make_link(place, secret):
    place.symlink_to(secret)


def make_folder_link(place, secret):
    place.symlink_to(secret.parent, target_is_directory=True)


def make_dangling_link(place, secret):
    place.symlink_to(secret.parent / "nothing")


def make_pipe(place, secret):
    os.mkfifo(place)


def make_folder(place, secret):
    place.mkdir()


def make_socket(place, secret):
    with socket.socket(socket.AF_UNIX) as it, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place.parent)  # a socket's path has at most 107 bytes
        it.bind(place.name)


HOSTILE = [make_link, make_dangling_link, make_folder_link, make_pipe, make_folder, make_socket]


@pytest.mark.parametrize("make", HOSTILE)
def test_what_is_no_plain_file_is_no_object(store, root, secret, make):
    """A link, pipe, socket or folder under a legal name is not read, listed, overwritten, deleted or waited for."""
    make(root / "run" / "b", secret)
    before = (root / "run" / "b").lstat()
    with pytest.raises(ObjectNotFound):
        store.get("run/b")
    assert list(store.list("")) == [Entry(name="run/a", size=4)]
    with pytest.raises(NameTaken):
        store.put("run/b", BytesSource(b"x"))
    store.delete("run/b")
    store.sweep("")
    assert os.path.samestat((root / "run" / "b").lstat(), before)
    assert secret.read_bytes() == b"secret"


def test_a_folder_that_is_a_link_leads_nowhere(store, root, secret):
    """Nothing is read, written, deleted, locked or swept through a link in the place of a folder."""
    leftover = secret.parent / ".secret.0123456789abcdef.tmp"
    leftover.write_bytes(b"")
    before = sorted(secret.parent.iterdir())
    (root / "linked").symlink_to(secret.parent, target_is_directory=True)
    with pytest.raises(ObjectNotFound):
        store.get("linked/secret")
    for call in (lambda: store.put("linked/new", BytesSource(b"x")), lambda: store.lock("linked/lock", "me")):
        with pytest.raises(StoreError, match="Could not"):
            call()
    store.delete("linked/secret")
    assert (store.sweep("linked"), store.sweep("")) == (0, 0)
    assert list(store.list("linked")) == []
    assert list(store.list("")) == [Entry(name="run/a", size=4)]
    assert sorted(secret.parent.iterdir()) == before


def test_foreign_files_are_neither_listed_nor_swept(store, root):
    """Files whose names no object can have stay, unseen: hidden ones, ones with spaces, other programs' temporaries."""
    for name in (".hidden", "with space", "ü", ".a.tmp", "a.tmp part", ".a.0123.tmp", "~lock"):
        (root / "run" / name).write_bytes(b"foreign")
    (root / "run" / ".folder").mkdir()
    (root / "run" / ".folder" / "inside").write_bytes(b"foreign")
    before = sorted(root.rglob("*"))
    assert list(store.list("")) == [Entry(name="run/a", size=4)]
    assert store.sweep("") == 0
    assert sorted(root.rglob("*")) == before


def test_sweep_removes_temporary_files_below_the_prefix_only(store, root):
    """What a killed writer left in one run is removed there; another run may be writing at this moment."""
    for run in ("run", "other"):
        (root / run / "blobs").mkdir(parents=True)
        (root / run / "blobs" / ".x.safetensors.0123456789abcdef.tmp").write_bytes(b"half")
    assert store.sweep("run") == 1
    assert [path.relative_to(root).parts[0] for path in root.rglob("*.tmp")] == ["other"]


def test_files_have_the_permissions_of_ordinary_files(tmp_path):
    """Objects and folders follow the umask, so that others may read what the user lets them read."""
    old = os.umask(0o027)
    try:
        DirectoryStore(tmp_path / "root").put("run/a", BytesSource(b"x"))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "root/run/a").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "root/run").stat().st_mode) == 0o750


def test_an_object_is_one_plain_file(store, root):
    """After a put there is the file and nothing else, with one name: any tool can copy, move or open it."""
    assert [path.relative_to(root).as_posix() for path in root.rglob("*")] == ["run", "run/a"]
    assert (root / "run/a").read_bytes() == b"ours"
    assert (root / "run/a").stat().st_nlink == 1


def test_opening_and_reading_write_nothing(tmp_path):
    """A store that is only looked at makes no folder."""
    store = DirectoryStore(tmp_path / "none" / "yet")
    assert list(store.list("")) == []
    store.delete("a")
    assert store.sweep("") == 0
    with pytest.raises(ObjectNotFound):
        store.get("a")
    assert store.properties.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_is_told(tmp_path):
    """A file in the place of the store's folder is an error that names it, not an empty store."""
    (tmp_path / "file").write_bytes(b"x")
    store = DirectoryStore(tmp_path / "file")
    for call in (lambda: store.list(""), lambda: store.put("a", BytesSource(b"x")), lambda: store.get("a")):
        with pytest.raises(StoreError, match=str(tmp_path / "file")):
            call()


def test_a_root_that_is_a_link_is_followed(tmp_path):
    """The user's own link to the folder is meant so; only links inside it are not followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    DirectoryStore(tmp_path / "link").put("a", BytesSource(b"x"))
    assert (tmp_path / "real" / "a").read_bytes() == b"x"


def test_a_relative_root_stays_where_it_was(tmp_path, monkeypatch):
    """A notebook that changes its folder in the middle still has its checkpoints in one place."""
    monkeypatch.chdir(tmp_path)
    store = DirectoryStore("here")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.put("a", BytesSource(b"x"))
    assert (tmp_path / "here" / "a").read_bytes() == b"x"


def spied_files(order):
    """System calls that write their names into `order`."""

    def spy(name):
        def call(*args, **options):
            order.append(name)
            return getattr(OS_FILES, name)(*args, **options)

        return call

    return replace(OS_FILES, **{name: spy(name) for name in ("write", "fsync", "link", "unlink")})


def test_the_bytes_and_the_name_are_made_durable_in_this_order(tmp_path):
    """The file is flushed before it gets its name, and the folder after: a crash shows no torn object."""
    order = []
    (tmp_path / "run").mkdir()
    DirectoryStore(tmp_path, files=spied_files(order)).put("run/a", BytesSource(b"x"))
    assert order == ["write", "fsync", "link", "unlink", "fsync"]


def test_a_deletion_is_durable_when_delete_returns(store, root):
    """A manifest that was deleted before its blobs does not come back after a crash of the machine without them."""
    order = []
    DirectoryStore(root, files=spied_files(order)).delete("run/a")
    assert order == ["unlink", "fsync"]


def test_new_folders_are_made_durable(tmp_path):
    """Each folder made on the way is flushed into its parent, the root's own parents too."""
    order = []
    DirectoryStore(tmp_path / "a" / "b", files=spied_files(order)).put("c/d", BytesSource(b"x"))
    assert order[: order.index("write")] == ["fsync"] * 3


def test_short_writes_are_continued(tmp_path):
    """A system that takes only a part of what it is given gets the rest in further calls."""
    files = replace(OS_FILES, write=lambda descriptor, data: os.write(descriptor, data[:7]))
    DirectoryStore(tmp_path, files=files).put("a", BytesSource(bytes(range(100))))
    assert (tmp_path / "a").read_bytes() == bytes(range(100))


def test_files_that_cannot_be_told_apart_are_not_mixed_up(store, root):
    """On a file system without inode numbers, undoing a refused put does not remove what has the name."""

    def unnumbered(call):
        return lambda *args, **options: os.stat_result((call(*args, **options).st_mode, *[0] * 9))

    other = DirectoryStore(root)
    files = replace(OS_FILES, stat=unnumbered(OS_FILES.stat), fstat=unnumbered(OS_FILES.fstat))
    source = ChunkedSource(b"x", before=lambda number: number and other.put("run/b", BytesSource(b"the other's")))
    with pytest.raises(NameTaken):
        DirectoryStore(root, files=files).put("run/b", source)
    assert (root / "run/b").read_bytes() == b"the other's"


def test_folders_that_cannot_be_flushed_are_accepted(tmp_path):
    """Some mounted drives refuse to flush a folder; that is their nature and no failure."""

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        os.fsync(descriptor)

    DirectoryStore(tmp_path, files=replace(OS_FILES, fsync=fsync)).put("run/a", BytesSource(b"x"))
    assert (tmp_path / "run" / "a").read_bytes() == b"x"


def test_the_longest_name_fits(tmp_path):
    """A name as long as the file system allows has a temporary name that fits too."""
    DirectoryStore(tmp_path).put("x" * 255, BytesSource(b"x"))
    assert (tmp_path / ("x" * 255)).read_bytes() == b"x"


def test_a_user_s_home_is_understood(monkeypatch, tmp_path):
    """`~` means the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert DirectoryStore("~/runs").url == str(Path(tmp_path) / "runs")


def test_a_folder_for_copies_is_made_again_where_it_was_deleted(root):
    """Nothing is in it, no call fails, and it is known that it happened."""
    store = DirectoryStore(root).as_front()
    store.put("run/a", BytesSource(b"a copy"))
    for times, look in enumerate([lambda: store.list("run"), lambda: store.list(""), lambda: store.delete("run/a")], 1):
        shutil.rmtree(root)
        assert not look()
        assert (store.remade, root.is_dir()) == (times, True)
    shutil.rmtree(root)
    store.put("run/a", BytesSource(b"another"))
    assert (root / "run/a").read_bytes() == b"another"
    shutil.rmtree(root)
    with pytest.raises(ObjectNotFound):
        store.get("run/a")


@pytest.mark.parametrize("above", [False, True])
def test_a_folder_for_copies_whose_disk_is_gone_is_not_made_on_another(tmp_path, above):
    """What was mounted above it is not there any more: it would fill the disk of the system."""
    disk, mounted = tmp_path / "disk", [True]

    def look(path, *arguments, **options):
        facts = list(OS_FILES.stat(path, *arguments, **options))
        facts[2] += not mounted[0]
        return os.stat_result(facts)

    store = DirectoryStore(disk / "front", files=replace(OS_FILES, stat=look)).as_front()
    store.put("run/a", BytesSource(b"a copy"))
    shutil.rmtree(disk)
    if above:
        disk.mkdir()
    mounted[0] = False
    for call in (lambda: store.list("run"), lambda: store.put("run/b", BytesSource(b"b"))):
        with pytest.raises(StoreUnavailable, match="its disk was unmounted"):
            call()
    assert (store.remade, disk.exists()) == (0, above)
