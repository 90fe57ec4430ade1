"""An S3 service on this machine: moto, behind a door where requests can go wrong. Never shipped."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

__all__ = ["Door", "Wrong", "running_s3"]


@dataclass
class Wrong:
    """What goes wrong with requests of this method whose path and query match: after `skip` of them, `count` times.

    "refuse": answered with the status and S3's error code, and nothing is done. "lost": it is done, and answered with a
    failure. "cut": the answer's body breaks off. "else": `call` is called before it is done.
    """

    method: str
    path: str
    kind: Literal["refuse", "lost", "cut", "else"] = "refuse"
    status: int = 503
    code: str = "ServiceUnavailable"
    skip: int = 0
    count: int = 1
    call: Callable[[], object] = lambda: None

    def takes(self, method: str, path: str) -> bool:
        if method != self.method or not re.search(self.path, path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.count -= 1
        return self.count >= 0


class Door:
    """In front of the service. `log` has "METHOD path?query" of each request, `wrong` what is to go wrong."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._guard = threading.Lock()
        self.url = ""
        self.log: list[str] = []
        self.wrong: list[Wrong] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        path = f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
        with self._guard:
            self.log.append(f"{method} {path}")
            wrong = next((one for one in self.wrong if one.takes(method, path)), None)
        if wrong is None:
            return self._service(environ, start_response)
        if wrong.kind == "else":
            wrong.call()
            return self._service(environ, start_response)
        if wrong.kind == "cut":
            body = b"".join(self._service(environ, start_response))
            return [body[: len(body) // 2]]
        if wrong.kind == "lost":
            list(self._service(environ, lambda *ignored: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        error = f"<Error><Code>{wrong.code}</Code><Message>as the test wants it</Message></Error>".encode()
        start_response(f"{wrong.status} wrong", [("Content-Type", "application/xml"), ("Connection", "close")])
        return [error]

    def requests(self, pattern: str) -> list[str]:
        return [line for line in self.log if re.search(pattern, line)]


@contextmanager
def running_s3() -> Iterator[Door]:
    """The service, on a free port of this machine, until the end of the `with`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    door = Door(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=MotoRequestHandler)
    door.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield door
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
