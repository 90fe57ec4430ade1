"""Real clients of Drive against the stand-in: what they cannot tell from Google, nobody's tests can."""

from __future__ import annotations

import hashlib
import io

import google_auth_httplib2
import pytest
from googleapiclient.discovery import build_from_document
from googleapiclient.errors import HttpError
from googleapiclient.http import MediaInMemoryUpload, MediaIoBaseDownload, build_http
from pydrive2.auth import GoogleAuth
from pydrive2.drive import GoogleDrive
from pydrive2.files import ApiRequestError

from tests.fakes.drive import Settings, refuse
from tests.fakes.drive.checking import checked_drive
from tests.fakes.drive.discovery import document

DATA = bytes(range(251)) * 3000
CHUNK = 256 * 1024


@pytest.fixture
def drive(tmp_path):
    with checked_drive(tmp_path, settings=Settings(quota_bytes=3_000_000)) as drive:
        yield drive


@pytest.fixture
def service(drive):
    """Makes the client that Google's own library builds from its own document, with the server's address in it."""
    made = []

    def make(version, credentials):
        whole = {**document(version), "rootUrl": f"{drive.url}/", "mtlsRootUrl": f"{drive.url}/"}
        http = google_auth_httplib2.AuthorizedHttp(
            credentials, http=build_http()
        )  # with a plain httplib2.Http a 308 would be a redirect
        made.append(build_from_document(whole, http=http))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Bridge:
    """A google-auth credential as PyDrive2 wants it: never expired, for google-auth refreshes by itself."""

    access_token_expired = False

    def __init__(self, credentials):
        self._credentials = credentials

    def authorize(self, http):
        return google_auth_httplib2.AuthorizedHttp(self._credentials, http=http)

    def refresh(self, http):
        self._credentials.refresh(google_auth_httplib2.Request(http))

    def set_store(self, store):
        """Nothing is stored."""


@pytest.fixture
def pydrive(drive, service):
    auth = GoogleAuth(settings_file=None, http_timeout=30)
    credentials = drive.credentials(scopes=("drive",))
    auth.credentials = Bridge(credentials)
    auth.service = service("v2", credentials)
    yield GoogleDrive(auth)
    auth.thread_local.http.close()


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_googles_client_uploads_in_chunks_and_downloads_in_ranges(drive, service, version):
    """next_chunk to the end, across a 503 and a 429, and MediaIoBaseDownload back."""
    files = service(version, drive.credentials()).files()
    body = {"name" if version == "v3" else "title": "weights"}
    media = MediaInMemoryUpload(DATA, "application/octet-stream", chunksize=CHUNK, resumable=True)
    create = files.create if version == "v3" else files.insert
    request = create(body=body, media_body=media, fields="id,sha256Checksum")
    drive.faults(refuse(503).on("PUT", skip=1), refuse(429, "rateLimitExceeded").on("PUT", skip=2))
    made, refused = None, []
    while made is None:
        try:
            _, made = request.next_chunk(num_retries=0)
        except HttpError as error:
            refused.append(error.resp.status)
    assert refused == [503, 429]
    assert made["sha256Checksum"] == hashlib.sha256(DATA).hexdigest()
    got = io.BytesIO()
    download, done = MediaIoBaseDownload(got, files.get_media(fileId=made["id"]), chunksize=CHUNK), False
    while not done:
        _, done = download.next_chunk()
    assert got.getvalue() == DATA
    assert [seen.status for seen in drive.requests("GET")] == [206, 206, 206]


def test_googles_client_does_everyday_work_in_v3(drive, service):
    """About, ids, folders, lists over pages, moves, copies, trash and delete."""
    client = service("v3", drive.credentials(scopes=("drive",)))
    files = client.files()
    folder = files.create(body={"name": "run", "mimeType": "application/vnd.google-apps.folder"}).execute()["id"]
    ids = files.generateIds(count=3).execute()["ids"]
    for number, file_id in enumerate(ids):
        media = MediaInMemoryUpload(b"x" * number, "application/octet-stream")
        files.create(body={"id": file_id, "name": f"f{number}", "parents": [folder]}, media_body=media).execute()
    with pytest.raises(HttpError) as taken:
        files.create(body={"id": ids[0], "name": "f0", "parents": [folder]}).execute()
    assert taken.value.resp.status == 409
    listing = {"q": f"'{folder}' in parents and trashed = false", "pageSize": 2, "orderBy": "name"}
    pages, request = [], files.list(**listing, fields="nextPageToken,files(id,size)")
    while request is not None:
        pages.append(request.execute())
        request = files.list_next(request, pages[-1])
    assert [[one["id"] for one in page["files"]] for page in pages] == [ids[:2], ids[2:]]
    twin = files.copy(fileId=ids[2], body={"name": "twin"}, fields="id,size,parents").execute()
    assert (twin["size"], twin["parents"]) == ("2", [folder])
    files.update(fileId=twin["id"], addParents="root", removeParents=folder).execute()
    files.update(fileId=ids[0], body={"trashed": True}).execute()
    files.delete(fileId=ids[1]).execute()
    files.emptyTrash().execute()
    assert [one["id"] for one in files.list(q=f"'{folder}' in parents").execute()["files"]] == [ids[2]]
    assert client.about().get(fields="storageQuota").execute()["storageQuota"]["usage"] == "4"
    assert client.drives().list().execute()["drives"] == []


def test_pydrive2_reads_and_writes(drive, pydrive, tmp_path):
    """Folder, upload, search over pages, download, change, trash, untrash, delete: v2 as PyDrive2 speaks it."""
    folder = pydrive.CreateFile({"title": "run", "mimeType": "application/vnd.google-apps.folder"})
    folder.Upload()
    source = tmp_path / "source"
    source.write_bytes(DATA)
    for title in ("a", "b", "it's"):
        file = pydrive.CreateFile({"title": title, "parents": [{"id": folder["id"]}]})
        file.SetContentFile(str(source))
        file.Upload()
        file.content.close()  # PyDrive2 leaves it open
        assert file["md5Checksum"] == hashlib.md5(DATA).hexdigest()
    pages = list(pydrive.ListFile({"q": f"'{folder['id']}' in parents and trashed=false", "maxResults": 2}))
    assert [len(page) for page in pages] == [2, 1]
    (found,) = pydrive.ListFile({"q": r"title = 'it\'s'"}).GetList()
    found.GetContentFile(str(tmp_path / "target"), chunksize=CHUNK)
    assert (tmp_path / "target").read_bytes() == DATA
    found["title"] = "renamed"
    found.Upload()
    found.Trash()
    assert pydrive.ListFile({"q": "trashed=true"}).GetList()[0]["title"] == "renamed"
    found.UnTrash()
    found.Delete()
    about = pydrive.GetAbout()
    assert (about["quotaBytesTotal"], about["quotaBytesUsed"]) == ("3000000", str(2 * len(DATA)))
    assert [file.name for file in drive.files()] == ["run", "a", "b"]


def test_pydrive2_replaces_content_and_hears_of_errors(drive, pydrive):
    """The same file with new bytes; a full Drive and a file that is gone as PyDrive2's own errors."""
    file = pydrive.CreateFile({"title": "notes.txt", "mimeType": "text/plain"})
    for text in ("one", "a second one"):
        file.SetContentString(text)
        file.Upload()
        assert pydrive.CreateFile({"id": file["id"]}).GetContentString() == text
    drive.set(others_bytes=3_000_000)
    big = pydrive.CreateFile({"title": "big"})
    big.SetContentString("x" * 100)
    with pytest.raises(ApiRequestError, match="storage quota") as full:
        big.Upload()
    assert full.value.error["errors"][0]["reason"] == "storageQuotaExceeded"
    file.Delete()
    with pytest.raises(ApiRequestError, match="File not found"):
        pydrive.CreateFile({"id": file["id"]}).FetchMetadata()
