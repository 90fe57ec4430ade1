"""Methods, scopes and schemas of Drive v2 and v3, read from the discovery documents inside google-api-python-client.

So neither the routes nor the scopes of this server are an opinion: they are Google's own description.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSIONS = ("v2", "v3")
SCOPE = "https://www.googleapis.com/auth/"


@dataclass(frozen=True)
class Method:
    """One method of the API. `scopes` are short ("drive.file"); `response` names a schema."""

    version: str
    name: str
    http: str
    pattern: re.Pattern[str]
    scopes: frozenset[str]
    parameters: dict[str, Any]
    response: str | None


@dataclass(frozen=True)
class Match:
    """A request's method, the path's parameters, and whether it came in by an upload path."""

    method: Method
    parameters: dict[str, str]
    upload: bool


def document(version: str) -> dict[str, Any]:
    """The discovery document of "v2" or "v3"."""
    spec = importlib.util.find_spec("googleapiclient")
    assert spec is not None, "google-api-python-client is needed; PyDrive2 brings it"
    assert spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations))) / "discovery_cache/documents"
    content: dict[str, Any] = json.loads((folder / f"drive.{version}.json").read_text(encoding="utf-8"))
    return content


class Discovery:
    """Both documents, and the way from a request to its method."""

    def __init__(self) -> None:
        self.documents = {version: document(version) for version in VERSIONS}
        methods = [method for version in VERSIONS for method in self._methods(version)]
        # "files/trash" before "files/{fileId}"
        self.methods = sorted(methods, key=lambda method: method.pattern.groups)

    def find(self, http: str, path: str) -> Match | None:
        """The method that `path` ("/upload/drive/v3/files") asks for."""
        for method in self.methods:
            found = method.pattern.fullmatch(path) if method.http == http else None
            if found is not None:
                parameters = {k: v for k, v in found.groupdict().items() if k != "upload"}
                return Match(method, parameters, found["upload"] is not None)
        return None

    def _methods(self, version: str) -> Iterator[Method]:
        whole = self.documents[version]
        for resource, content in whole["resources"].items():
            for name, one in content["methods"].items():
                path = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(one["path"]))
                # "/resumable/upload" stands beside "/upload" under mediaUpload.protocols
                upload = "(?P<upload>(?:/resumable)?/upload)?" if "mediaUpload" in one else "(?P<upload>(?!))?"
                yield Method(
                    version=version,
                    name=f"{resource}.{name}",
                    http=one["httpMethod"],
                    pattern=re.compile(f"{upload}/{re.escape(whole['servicePath'])}{path}"),
                    scopes=frozenset(scope.removeprefix(SCOPE) for scope in one.get("scopes", ())),
                    parameters=one.get("parameters", {}),
                    response=one.get("response", {}).get("$ref"),
                )
