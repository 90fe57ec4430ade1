"""The process in which Kaggle's client runs: `python -m colabkeep.stores.kaggle.child`.

Why a process of its own: kagglehub waits without a bound (its calls have no timeout, a blob may be asked after for
ever), prints, configures logging and decides at import whether this is Colab, where it then talks to the page. A thread
that does so can be neither stopped nor kept from publishing a stale version later; a process is killed, and ends by
itself with the one that started it.

Sources: kagglehub 0.4.0 and 1.0.2, kagglesdk 0.1.37.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from colabkeep.stores.shared.process import serve

_PAGE = 200  # files asked for at once
_CHUNK = 2**20


def main() -> None:
    """Answer requests until nobody asks any more."""
    serve(
        {
            "head": _head,
            "listing": _listing,
            "digests": _digests,
            "download": _download,
            "drop": _drop,
            "upload": _upload,
        },
        _secrets,
    )


def _secrets(_: Mapping[str, Any]) -> list[Any]:
    """The user's credentials, as far as the client has read them."""
    config = sys.modules.get("kagglehub.config")
    credentials = config.get_kaggle_credentials() if config is not None else None
    return [getattr(credentials, "key", None), getattr(credentials, "api_key", None)]


def _head(owner: str, name: str) -> dict[str, Any]:
    """The newest version, 0 if there is none, and the state of the dataset, "" if there is no dataset."""
    status, _ = _unless_missing(lambda api: _status(api, owner, name))
    found, refusal = _unless_missing(lambda api: api.get_dataset(_request("GetDataset", owner, name)))
    if status is None and refusal is not None and _is_listed(owner, name):
        raise refusal
    return {"version": found.current_version_number if found is not None else 0, "status": status or ""}


def _listing(owner: str, name: str, version: int) -> dict[str, Any]:
    """The files of a version: name → size in bytes."""
    files: dict[str, int] = {}
    request = _request("ListDatasetFiles", owner, name, version)
    request.page_size = _PAGE
    with _client() as client:
        while True:
            page = client.datasets.dataset_api_client.list_dataset_files(request)
            files |= {file.name: file.total_bytes for file in page.dataset_files}
            if not page.next_page_token:
                return {"files": files}
            request.page_token = page.next_page_token


def _digests(owner: str, name: str, version: int, files: list[str]) -> dict[str, Any]:
    """The MD5 of each file, in base64, as the storage behind Kaggle states it; where it does not, as it is read."""
    found: dict[str, str] = {}
    with _client() as client:
        for file in files:
            request = _request("DownloadDataset", owner, name, version)
            request.file_name = file
            with client.datasets.dataset_api_client.download_dataset(request) as response:
                found[file] = import_module("kagglehub.integrity").get_md5_checksum_from_response(response) or _md5(
                    response
                )
    return {"md5": found}


def _md5(response: Any) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in response.iter_content(_CHUNK):
        digest.update(chunk)
    return b64encode(digest.digest()).decode()


def _download(owner: str, name: str, version: int, file: str) -> dict[str, Any]:
    """Where the file lies now. What an earlier attempt had got of it is not fetched again, unless it was complete once
    and dropped: kagglehub (0.4.0 to 1.0.2) remembers that, and takes what is there for the whole."""
    handle = f"{owner}/{name}/versions/{version}"
    path = import_module("kagglehub").dataset_download(handle, path=file, force_download=True)
    return {"path": path}


def _drop(path: str, **_: str) -> dict[str, Any]:
    """Give back the room of a download."""
    Path(path).unlink(missing_ok=True)
    return {}


def _upload(owner: str, name: str, folder: str, files: dict[str, str], notes: str) -> dict[str, Any]:
    """Make a version of these files: their names in the dataset → where they lie.

    kagglehub takes a folder, and all of it, so it gets one of hard links: they need no room, and stay whole when an
    object is deleted meanwhile.
    """
    links = Path(folder)
    shutil.rmtree(links, ignore_errors=True)  # of one that was killed
    links.mkdir(parents=True)
    try:
        for file, path in files.items():
            os.link(path, links / file)
        import_module("kagglehub").dataset_upload(f"{owner}/{name}", str(links), version_notes=notes)
    finally:
        shutil.rmtree(links, ignore_errors=True)
    return {}


# -- Kaggle's client -------------------------------------------------------------------------------


def _client() -> Any:
    return import_module("kagglehub.clients").build_kaggle_client()


def _request(method: str, owner: str, name: str, version: int = 0) -> Any:
    types = import_module("kagglesdk.datasets.types.dataset_api_service")
    request = getattr(types, f"Api{method}Request")()
    request.owner_slug, request.dataset_slug = owner, name
    if version:
        request.dataset_version_number = version
    return request


def _status(api: Any, owner: str, name: str) -> str:
    return str(api.get_dataset_status(_request("GetDatasetStatus", owner, name)).status.name)


def _unless_missing(call: Callable[[Any], Any]) -> tuple[Any, Exception | None]:
    """The answer; or None and the refusal, where there may be no such dataset: that is a 404, or a 403, which does not
    tell whether there is one that belongs to somebody else."""
    requests = import_module("requests")
    try:
        with _client() as client:
            return call(client.datasets.dataset_api_client), None
    except requests.HTTPError as error:
        if error.response is None or error.response.status_code not in (403, 404):
            raise
        return None, error


def _is_listed(owner: str, name: str) -> bool:
    """Is the dataset among those of the user? With wrong credentials this fails, which is the answer then."""
    types = import_module("kagglesdk.datasets.types.dataset_api_service")
    enums = import_module("kagglesdk.datasets.types.dataset_enums")
    request = types.ApiListDatasetsRequest()
    request.group = enums.DatasetSelectionGroup.DATASET_SELECTION_GROUP_MY
    request.search = name
    with _client() as client:
        found = client.datasets.dataset_api_client.list_datasets(request)
    return any(dataset.ref == f"{owner}/{name}" for dataset in found.datasets)


if __name__ == "__main__":
    main()
