"""Where a browser on this machine brings the answer to a consent: an address of this machine, for one answer.

Google sends the browser of a Desktop client on to any port of 127.0.0.1 ("OAuth 2.0 for iOS & Desktop Apps",
developers.google.com/identity; RFC 8252, 7.3).
"""

from __future__ import annotations

import queue
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

__all__ = ["Loopback"]

_PAGE = """\
<!doctype html><meta charset="utf-8"><title>colabkeep</title>
<p>colabkeep has the answer. Close this page and go back to where you started it.</p>
"""


class Loopback:
    """Listens at `address` for as long as the `with` lasts."""

    def __init__(self) -> None:
        answers: queue.Queue[str] = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0  # seconds; a connection on which nothing comes does not keep the answer out

            def do_GET(self) -> None:
                brings = {"code", "error"} & parse_qs(urlsplit(self.path).query).keys()
                data = _PAGE.encode() if brings else b""
                self.send_response(200 if brings else 404)  # browsers also ask for an icon
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(data)
                if brings:
                    answers.put(self.path)

            def log_message(self, format: str, *args: object) -> None:
                """The address holds the answer, which is nobody else's business."""

        self._answers = answers
        # Not HTTPServer: that looks up this machine's name, which takes seconds where there is no name server.
        self._server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    def wait(self, seconds: float) -> str | None:
        """The whole address to which the browser was sent, None if it did not come in so many seconds."""
        try:
            return self.address.rstrip("/") + self._answers.get(timeout=seconds)
        except queue.Empty:
            return None

    def __enter__(self) -> Loopback:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
