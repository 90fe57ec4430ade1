"""Files and folders of the stand-in for Drive: what is seen, found, changed and deleted, in v3 and v2."""

from __future__ import annotations

import pytest

from tests.fakes.asking import FOLDER, Asking, reason
from tests.fakes.drive import Settings, partial_listing, short_page, stale_listing
from tests.fakes.drive.checking import checked_drive

SHARED = "0AShared"
SHORTCUT = "application/vnd.google-apps.shortcut"


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    settings = Settings(quota_bytes=5_000_000, shared_drives=[SHARED])
    with checked_drive(tmp_path_factory.mktemp("drive"), settings=settings) as drive:
        yield drive


@pytest.fixture
def ask(drive):
    return Asking(drive)


@pytest.fixture
def folder(ask, request):
    """A folder for one test."""
    made = ask.folder(request.node.name)
    yield made
    assert ask("DELETE", f"/drive/v3/files/{made}").status_code == 204


def names(ask, query, **params):
    return [file["name"] for file in ask.get("/drive/v3/files", q=query, **params)["files"]]


@pytest.mark.parametrize(
    ("wanted", "status", "got", "said"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=8-100", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
    ],
)
def test_a_download_can_start_anywhere(ask, folder, wanted, status, got, said):
    """A broken download goes on where it broke."""
    file = ask.create("ten", b"0123456789", parents=[folder])
    answer = ask("GET", f"/drive/v3/files/{file['id']}?alt=media", headers={"Range": wanted})
    assert (answer.status_code, answer.content, answer.headers["Content-Range"]) == (status, got, said)


def test_no_part_of_an_empty_file_can_be_had(ask, folder):
    """Any range of an empty file is answered 416, which clients must take for success."""
    file = ask.create("empty", parents=[folder])
    answer = ask("GET", f"/drive/v3/files/{file['id']}?alt=media", headers={"Range": "bytes=0-1048575"})
    assert (answer.status_code, answer.headers["Content-Range"]) == (416, "bytes */0")


def test_a_folder_has_no_content(ask, folder):
    """Downloading a folder is refused."""
    assert reason(ask("GET", f"/drive/v3/files/{folder}?alt=media")) == (403, "fileNotDownloadable")


def test_an_id_taken_beforehand_makes_a_create_repeatable(ask, folder):
    """The same create with the same id is answered 409 and makes no second file."""
    (file_id,) = ask.get("/drive/v3/files/generateIds", count=1)["ids"]
    ask.create("once", b"data", id=file_id, parents=[folder])
    again = ask("POST", "/drive/v3/files", json={"id": file_id, "name": "once", "parents": [folder]})
    assert reason(again) == (409, "fileIdInUse")
    path = "/upload/drive/v3/files?uploadType=resumable"
    assert reason(ask("POST", path, json={"id": file_id, "name": "once"})) == (409, "fileIdInUse")
    assert names(ask, f"'{folder}' in parents") == ["once"]


def test_an_id_of_ones_own_making_is_refused(ask):
    """Only ids from generateIds are taken."""
    assert reason(ask("POST", "/drive/v3/files", json={"id": "mine", "name": "a"})) == (400, "invalid")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("name = 'alpha'", ["alpha"]),
        ("name = 'ALPHA'", ["alpha"]),
        ("name != 'alpha'", ["Valentine's Day", "beta-2"]),
        (r"name = 'Valentine\'s Day'", ["Valentine's Day"]),
        ("not name = 'alpha' and mimeType != 'a/b'", ["beta-2"]),
        ("(name = 'alpha' or name = 'beta-2') and mimeType = 'text/plain'", ["alpha"]),
        ("mimeType = 'text/plain'", ["alpha"]),
        ("properties has { key='run' and value='a' }", ["alpha"]),
        ("appProperties has { key='run' and value='b' }", ["beta-2"]),
        ("appProperties has { key='run' and value='a' }", []),
        ("trashed = true", []),
    ],
)
def test_the_search_language(ask, folder, query, found):
    """Terms and operators of files.list, as the guide describes them."""
    said = {"modifiedTime": "2019-06-01T12:00:00.123Z", "mimeType": "text/plain", "properties": {"run": "a"}}
    ask.create("alpha", parents=[folder], **said)
    ask.create("beta-2", parents=[folder], appProperties={"run": "b"})
    ask.create("Valentine's Day", parents=[folder], mimeType="a/b")
    assert names(ask, f"'{folder}' in parents and ({query})") == found


@pytest.mark.parametrize(
    "query",
    [
        "id = 'x'",
        "title = 'x'",
        "name = x",
        "name < 'x'",
        "name = 'x' name = 'y'",
        "trashed = maybe",
        "(name = 'x'",
        "name = 'x' and name = 'y' or trashed = true",
        "modifiedTime > '2020-01-01'",
        "'x' in boxes",
        "properties has { key='a' }",
        "name ~ 'x'",
        "name =",
    ],
)
def test_a_query_that_drive_does_not_know_is_refused(ask, query):
    """A wrong query is an error, never an empty list."""
    assert reason(ask("GET", "/drive/v3/files", params={"q": query})) == (400, "invalid")


def test_pages_show_each_file_once_also_when_others_come_and_go(ask, folder):
    """A listing that runs while files are made and deleted neither repeats nor skips one that stays."""
    made = [ask.create(f"f{n}", parents=[folder])["id"] for n in range(7)]
    query = {"q": f"'{folder}' in parents", "orderBy": "name", "pageSize": 3}
    first = ask.get("/drive/v3/files", **query)
    for gone in (made[0], made[2]):
        assert ask("DELETE", f"/drive/v3/files/{gone}").status_code == 204
    second = ask.get("/drive/v3/files", pageToken=first["nextPageToken"], **query)
    for n in range(5):
        ask.create(f"a-new-one-{n}", parents=[folder])
    third = ask.get("/drive/v3/files", pageToken=second["nextPageToken"], **query)
    assert [f["name"] for page in (first, second, third) for f in page["files"]] == [f"f{n}" for n in range(7)]
    assert "nextPageToken" not in third


def test_a_page_may_have_fewer_than_were_asked_for_and_not_be_the_last(ask, drive, folder):
    """Or none at all. (google-api-nodejs-client issue 722)"""
    for n in range(5):
        ask.create(f"f{n}", parents=[folder])
    drive.faults(short_page(2).on("GET", "/files$"), short_page(0).on("GET", "/files$"))
    query, sizes, token = {"q": f"'{folder}' in parents", "pageSize": 1000}, [], None
    while token or not sizes:
        page = ask.get("/drive/v3/files", **query, **({"pageToken": token} if token else {}))
        sizes.append(len(page["files"]))
        token = page.get("nextPageToken")
    assert sizes == [2, 0, 3]


def test_a_page_token_belongs_to_its_query(ask, folder):
    """A token that was made up, or that another query gave, is refused."""
    for n in range(2):
        ask.create(f"f{n}", parents=[folder])
    token = ask.get("/drive/v3/files", q=f"'{folder}' in parents", pageSize=1)["nextPageToken"]
    for params in ({"pageToken": token, "pageSize": 1}, {"pageToken": "BOGUS"}):
        assert reason(ask("GET", "/drive/v3/files", params=params)) == (400, "invalid")


def test_an_unknown_order_is_refused(ask):
    """A misspelt key is an error."""
    assert reason(ask("GET", "/drive/v3/files?orderBy=size")) == (400, "invalid")


def test_a_listing_may_miss_a_fresh_file_by_name_but_not_by_parent_or_id(ask, drive, folder):
    """The search index lags for names only."""
    file = ask.create("fresh", parents=[folder])
    drive.faults(stale_listing(3600).on("GET", "/files$", count=2))
    assert names(ask, "name = 'fresh'") == []
    assert names(ask, f"'{folder}' in parents") == ["fresh"]
    assert names(ask, "name = 'fresh'") == ["fresh"]
    assert ask.get(f"/drive/v3/files/{file['id']}")["name"] == "fresh"


@pytest.mark.parametrize("by", ["parents", "properties"])
def test_a_listing_by_parent_or_by_properties_may_lag_and_says_that_it_is_complete(ask, drive, folder, by):
    """What is older is shown, and by its id a file is always found. (bellingcat/auto-archiver issue 191)"""
    file = ask.create("fresh", parents=[folder], appProperties={"kind": "object"})
    queries = {
        "parents": f"'{folder}' in parents",
        "properties": "appProperties has { key='kind' and value='object' }",
    }
    drive.faults(stale_listing(100, by=[by]).on("GET", "/files$", count=None))
    for index, query in queries.items():
        page = ask.get("/drive/v3/files", q=query, fields="incompleteSearch,files(name)")
        assert page == {"incompleteSearch": False, "files": [] if index == by else [{"name": "fresh"}]}
    assert ask.get(f"/drive/v3/files/{file['id']}")["name"] == "fresh"
    drive.faults(stale_listing(100, by=[by], within=["elsewhere"]).on("GET", "/files$", count=2))
    assert names(ask, queries[by]) == ["fresh"]
    drive.faults(stale_listing(100, by=[by]).on("GET", "/files$", count=None))
    drive.set(skew_seconds=101)
    assert names(ask, queries[by]) == ["fresh"]
    drive.set(skew_seconds=0)


def test_a_listing_of_several_parents_may_leave_some_out_and_says_that_it_is_complete(ask, drive, folder):
    """One parent alone is always answered for. (rclone issue 9810, google-api-nodejs-client issue 1957)"""
    first, second, third = (ask.folder(name, parents=[folder]) for name in ("a", "b", "c"))
    for parent in (first, second, third):
        ask.create(f"in {parent}", parents=[parent])
    both = f"('{first}' in parents or '{second}' in parents or '{third}' in parents)"
    drive.faults(partial_listing().on("GET", "/files$", count=2))
    whole = ask.get("/drive/v3/files", q=both, fields="incompleteSearch,files(name)")
    assert whole == {"incompleteSearch": False, "files": [{"name": f"in {first}"}]}
    assert names(ask, f"'{second}' in parents") == [f"in {second}"]
    drive.faults(partial_listing("a", "c").on("GET", "/files$"))
    assert names(ask, both) == [f"in {second}"]
    assert sorted(names(ask, both)) == sorted(f"in {parent}" for parent in (first, second, third))


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ("id", {"id"}),
        ("id,name", {"id", "name"}),
        ("owners(me,kind),name", {"owners", "name"}),
        ("owners/me", {"owners"}),
        ("", set()),
    ],
)
def test_a_field_mask_selects(ask, folder, fields, left):
    """Only what was asked for is answered."""
    file = ask.create("masked", parents=[folder])
    shown = ask.get(f"/drive/v3/files/{file['id']}", fields=fields)
    assert shown.keys() == left
    if "owners" in left:
        assert shown["owners"][0].keys() in ({"me", "kind"}, {"me"})


@pytest.mark.parametrize("fields", ["nme", "id,", "owners(me", "files(id)", "owners/you", "id)", "(id)", "id name"])
def test_a_wrong_mask_is_refused(ask, folder, fields):
    """A misspelt field is an error, not a missing one."""
    assert reason(ask("GET", f"/drive/v3/files/{folder}", params={"fields": fields})) == (400, "invalidParameter")


def test_v2_says_everything_in_its_own_words(ask, folder):
    """The same file in v2."""
    file = ask.create("both", b"data", parents=[folder])
    shown = ask.get(f"/drive/v2/files/{file['id']}")
    assert (shown["title"], shown["fileSize"], shown["labels"]["trashed"]) == ("both", "4", False)
    assert shown["sha256Checksum"] == file["sha256Checksum"]
    assert [one["id"] for one in shown["parents"]] == [folder]
    listed = ask.get("/drive/v2/files", q="title = 'both'", maxResults=10)
    assert [one["id"] for one in listed["items"]] == [file["id"]]


def test_a_file_has_one_parent(ask, folder):
    """A second is refused; moving is adding one and removing the other."""
    left, right = (ask.folder(name, parents=[folder]) for name in ("left", "right"))
    file = ask.create("wanderer", parents=[left])
    path = f"/drive/v3/files/{file['id']}"
    assert reason(ask("POST", "/drive/v3/files", json={"parents": [left, right]})) == (403, "cannotAddParent")
    assert reason(ask("PATCH", f"{path}?addParents={right}")) == (403, "cannotAddParent")
    assert reason(ask("PATCH", path, json={"parents": [right]})) == (403, "fieldNotWritable")
    moved = ask("PATCH", f"{path}?addParents={right}&removeParents={left}&fields=parents")
    assert moved.json() == {"parents": [right]}


def test_properties_are_set_one_by_one_and_removed_by_null(ask, folder):
    """What is not mentioned stays."""
    file = ask.create("tagged", parents=[folder], appProperties={"a": "1", "b": "2"})
    changed = ask("PATCH", f"/drive/v3/files/{file['id']}?fields=appProperties", json={"appProperties": {"a": None}})
    assert changed.json() == {"appProperties": {"b": "2"}}


@pytest.mark.parametrize("kind", ["properties", "appProperties"])
def test_properties_are_few_and_short(ask, folder, kind):
    """30 of each kind, 124 bytes of UTF-8 each with their key. ("Add custom file properties")"""
    file = ask.create("f", parents=[folder], **{kind: {"k": "ü" * 61 + "x"}})
    assert len(("k" + file[kind]["k"]).encode()) == 124
    path = f"/drive/v3/files/{file['id']}"
    assert reason(ask("PATCH", path, json={kind: {"k": "ü" * 62}})) == (400, "invalid")
    assert ask("PATCH", path, json={kind: {f"n{n}": "v" for n in range(29)}}).status_code == 200
    assert reason(ask("PATCH", path, json={kind: {"one more": "v"}})) == (400, "invalid")
    assert ask("PATCH", path, json={kind: {"k": None, "one more": "v"}}).status_code == 200
    too_long = {"name": "g", "parents": [folder], kind: {"k": "x" * 124}}
    assert reason(ask("POST", "/drive/v3/files", json=too_long)) == (400, "invalid")
    assert names(ask, f"'{folder}' in parents") == ["f"]


def test_what_may_only_be_read_cannot_be_changed_nor_put_into(ask, drive, folder):
    """(prasmussen/gdrive issue 397, anasty17/mirror-leech-telegram-bot issue 427)"""
    below = ask.folder("below", parents=[folder])
    file = ask.create("f", b"data", parents=[below])["id"]
    elsewhere = ask.folder("elsewhere")
    own = ask.create("own", parents=[elsewhere])["id"]
    drive.read_only(folder)
    path = f"/drive/v3/files/{file}"
    assert ask("GET", f"{path}?alt=media").content == b"data"
    assert names(ask, f"'{below}' in parents") == ["f"]
    for answer in (
        ask("PATCH", path, json={"name": "g"}),
        ask("PATCH", path, json={"trashed": True}),
        ask("DELETE", path),
        ask("PATCH", f"{path}?addParents=root&removeParents={below}", json={}),
        ask("PATCH", f"/upload{path}?uploadType=media", data=b"new"),
    ):
        assert reason(answer) == (403, "insufficientFilePermissions")
    for answer in (
        ask("POST", "/drive/v3/files", json={"name": "g", "parents": [below]}),
        ask("POST", "/upload/drive/v3/files?uploadType=resumable", json={"name": "g", "parents": [folder]}),
        ask("PATCH", f"/drive/v3/files/{own}?addParents={below}&removeParents={elsewhere}", json={}),
    ):
        assert reason(answer) == (403, "insufficientParentPermissions")
    assert ask("GET", f"{path}?alt=media").content == b"data"
    drive.read_only(folder, read_only=False)
    assert ask("DELETE", path).status_code == 204


def test_a_shortcut_is_neither_the_folder_it_points_to_nor_a_file_with_bytes(ask, drive, folder):
    """("Create a shortcut to a Drive file")"""
    target = ask.folder("there", parents=[folder])
    ask.create("below", parents=[target])
    said = {"name": "here", "mimeType": SHORTCUT, "parents": [folder], "shortcutDetails": {"targetId": target}}
    made = ask("POST", "/drive/v3/files?fields=*", json=said).json()
    assert made["mimeType"] == SHORTCUT
    assert made["shortcutDetails"] == {"targetId": target, "targetMimeType": FOLDER}
    assert "size" not in made
    assert names(ask, f"'{folder}' in parents and mimeType = '{FOLDER}'") == ["there"]
    assert names(ask, f"'{made['id']}' in parents") == []
    assert reason(ask("GET", f"/drive/v3/files/{made['id']}?alt=media")) == (403, "fileNotDownloadable")
    assert ask("DELETE", f"/drive/v3/files/{made['id']}").status_code == 204
    assert names(ask, f"'{target}' in parents") == ["below"]


def test_the_trash_counts_until_it_is_gone(ask, drive, folder):
    """Trashing frees nothing; only a permanent delete does."""
    before = ask.get("/drive/v3/about", fields="storageQuota")["storageQuota"]
    file = ask.create("big", b"x" * 100_000, parents=[folder])
    ask("PATCH", f"/drive/v3/files/{file['id']}", json={"trashed": True})
    during = ask.get("/drive/v3/about", fields="storageQuota")["storageQuota"]
    assert int(during["usage"]) - int(before["usage"]) == 100_000
    assert int(during["usageInDriveTrash"]) - int(before["usageInDriveTrash"]) == 100_000
    assert during["limit"] == "5000000"
    assert ask("DELETE", f"/drive/v3/files/{file['id']}").status_code == 204
    assert ask.get("/drive/v3/about", fields="storageQuota")["storageQuota"] == before


def test_a_narrow_client_sees_only_what_it_made(drive, ask, folder):
    """drive.file: the files of another program do not exist; the whole Drive sees both."""
    mine = ask.create("mine", parents=[folder], appProperties={"secret": "1"})
    other = Asking(drive, client="another")
    theirs = other.create("theirs")
    assert reason(other("GET", f"/drive/v3/files/{mine['id']}")) == (404, "notFound")
    assert reason(other("DELETE", f"/drive/v3/files/{mine['id']}")) == (404, "notFound")
    assert reason(other("POST", "/drive/v3/files", json={"parents": [folder]})) == (404, "notFound")
    assert names(other, f"'{folder}' in parents") == []
    wide = Asking(drive, scopes=("drive",), client="another")
    shown = wide.get(f"/drive/v3/files/{mine['id']}", fields="*")
    assert "appProperties" not in shown, "private to the client that set them"
    assert wide("DELETE", f"/drive/v3/files/{theirs['id']}").status_code == 204


def test_my_drive_itself_is_hidden_from_a_narrow_client(drive, ask):
    """rclone and others must live with a 404 for "root", and can still create there."""
    assert reason(ask("GET", "/drive/v3/files/root")) == (404, "notFound")
    wide = Asking(drive, scopes=("drive",))
    root = wide.get("/drive/v3/files/root")
    assert root["name"] == "My Drive"
    made = ask.create("at the top")
    assert made["parents"] == [root["id"]]
    assert "at the top" in names(ask, "'root' in parents")
    assert reason(wide("DELETE", "/drive/v3/files/root")) == (403, "forbidden")
    ask("DELETE", f"/drive/v3/files/{made['id']}")


def test_reading_scopes_do_not_write(drive):
    """Scopes are those of the discovery document."""
    reader = Asking(drive, scopes=("drive.readonly",))
    assert reason(reader("POST", "/drive/v3/files", json={"name": "a"})) == (403, "insufficientPermissions")


def test_shared_drives_are_there_for_those_who_say_so(drive, ask):
    """Without supportsAllDrives nothing in a shared drive exists; what lies there does not count against the quota."""
    wide = Asking(drive, scopes=("drive",))
    assert [one["id"] for one in wide.get("/drive/v3/drives")["drives"]] == [SHARED]
    before = wide.get("/drive/v3/about", fields="storageQuota")
    said = {"name": "shared", "parents": [SHARED]}
    both = {"supportsAllDrives": "true", "includeItemsFromAllDrives": "true"}
    assert reason(wide("POST", "/drive/v3/files", json=said)) == (404, "notFound")
    assert reason(ask("POST", "/drive/v3/files", json=said, params=both)) == (404, "notFound")
    path = "/upload/drive/v3/files?uploadType=resumable&fields=*"
    begun = wide("POST", path, json=said, params=both)
    file = wide("PUT", begun.headers["Location"], data=b"data").json()
    assert file["driveId"] == SHARED
    assert "ownedByMe" not in file
    assert wide.get("/drive/v3/about", fields="storageQuota") == before
    assert reason(wide("GET", f"/drive/v3/files/{file['id']}")) == (404, "notFound")
    assert wide.get(f"/drive/v3/files/{file['id']}", **both)["name"] == "shared"
    assert names(wide, "name = 'shared'") == []
    assert names(wide, "name = 'shared'", **both, corpora="drive", driveId=SHARED) == ["shared"]


def test_about_wants_to_know_which_fields(ask):
    """v3 refuses about without `fields`."""
    assert reason(ask("GET", "/drive/v3/about")) == (400, "required")


def test_counts_are_numbers(ask):
    """Page sizes and counts that are no numbers are refused; too large ones are cut to 1,000."""
    assert reason(ask("GET", "/drive/v3/files?pageSize=NOPE")) == (400, "invalid")
    assert reason(ask("GET", "/drive/v3/files/generateIds?count=0")) == (400, "invalid")
    assert len(set(ask.get("/drive/v3/files/generateIds", count=5000)["ids"])) == 1000
    assert len(ask.get("/drive/v3/files/generateIds")["ids"]) == 10


def test_what_is_not_there_is_not_imitated(ask, folder):
    """A method that this server does not have says so, and a path that Drive does not have is not found."""
    assert reason(ask("GET", f"/drive/v3/files/{folder}/permissions")) in ((501, "notImplemented"), (404, "notFound"))
    assert reason(ask("POST", "/drive/v2/files", json={})) == (501, "notImplemented")
    assert reason(ask("GET", f"/drive/v3/files/{folder}/export?mimeType=a/b")) == (501, "notImplemented")
    assert reason(ask("GET", "/drive/v4/files")) == (404, "notFound")
