"""HTTP: a thread per connection, kept alive; TLS on the same port when a certificate is given."""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import traceback
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from tests.fakes.drive import api, control, oauth
from tests.fakes.drive.answers import Answer, ApiError
from tests.fakes.drive.effects import Effect, effect_of
from tests.fakes.drive.requests import Hangup, Request, incoming
from tests.fakes.drive.state import State

TLS_HANDSHAKE = b"\x16"  # the first byte of a TLS connection, RFC 8446, 5.1


class Server(ThreadingHTTPServer):
    """One server and what it knows."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, state: State, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.state = state
        self.tls = tls

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is nothing to report; all else is a mistake in this server."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        """Speak TLS to whoever begins with it."""
        self._scheme = "http"
        first = self.request.recv(1, socket.MSG_PEEK)
        if first == TLS_HANDSHAKE and self.server.tls is not None:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
            self._scheme = "https"
        super().setup()

    def finish(self) -> None:
        """Close what `setup` may have put in the place of the server's own socket."""
        super().finish()
        self.connection.close()

    def serve(self) -> None:
        """One request, from its first byte to the log and the last byte of the answer."""
        state = self.server.state
        stream = cast("socket.SocketIO", self.rfile)
        request = incoming(self.command, self.path, self.headers, stream, self._scheme)  # type: ignore[arg-type]
        if request.path.startswith(control.PREFIX):
            self._send(control.serve(state, request), Effect())
            return
        fault = state.faults.next(request)
        effect, name = effect_of(fault), fault.do if fault is not None else None
        try:
            answer = effect.before(state, request)
            if answer is None:
                answer = effect.act(state, request, lambda: perform(state, request))
            request.body.drain()
        except Hangup:
            state.traffic.note(request, None, name)
            self._reset()
            return
        state.traffic.note(request, answer, name, keep_answer=state.settings.keep_answers)
        try:
            self._send(answer, effect)
        except Hangup:
            self._reset()
        except ConnectionError:  # the client went away, as clients do when their patience ends
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815  # the names that http.server looks for

    def log_message(self, *_: object) -> None:
        """Not on the console: the log is `Traffic`."""

    def _send(self, answer: Answer, effect: Effect) -> None:
        self.send_response_only(answer.status, "Resume Incomplete" if answer.status == 308 else None)
        self.send_header("Date", formatdate(self.server.state.now(), usegmt=True))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(answer.length))
        self.end_headers()
        for piece in effect.outgoing(iter(answer.chunks)):
            self.wfile.write(piece)

    def _reset(self) -> None:
        """RST instead of a farewell: closing with a linger time of zero (socket(7))."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()


def perform(state: State, request: Request) -> Answer:
    """What the service would do and say."""
    try:
        sign_in = (request.method, request.path) in oauth.ROUTES
        signed = oauth.serve(state, request.method, request.path, request.form()) if sign_in else None
        return signed if signed is not None else api.serve(state, request)
    except ApiError as error:
        return error.answer()
    except Hangup:
        raise
    except Exception:  # noqa: BLE001  # this server is wrong: both the client and the test hear of it
        traceback.print_exc()
        return ApiError(500, "fakeIsWrong", traceback.format_exc()).answer()
