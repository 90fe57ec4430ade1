"""`python -m tests.fakes.drive --port P --state FOLDER [--faults FILE]`, from the repository."""

from __future__ import annotations

import argparse
import os
import ssl
import sys
import threading
import time
from pathlib import Path

from tests.fakes.drive.faults import load
from tests.fakes.drive.server import Server
from tests.fakes.drive.state import State


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.drive", description="A Google Drive for tests.")
    parser.add_argument("--port", type=int, required=True, help="0: any that is free")
    parser.add_argument("--state", type=Path, required=True, help="the folder in which all is kept")
    parser.add_argument("--faults", type=Path, help="a JSON file, see faults.py; without, those of the last time")
    parser.add_argument("--tls", type=Path, help="a PEM file with key and certificate: speak TLS as well")
    parser.add_argument("--guarded", action="store_true", help="end when the standard input ends")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait before the port is opened")
    options = parser.parse_args(arguments)
    time.sleep(options.pause)
    tls = None
    if options.tls is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.tls)
    state = State(options.state, ())
    if options.faults is not None:
        state.faults.set(load(options.faults))
    server = Server(options.port, state, tls)
    port = server.server_address[1]
    again = [sys.executable, "-m", "tests.fakes.drive", f"--port={port}", f"--state={options.state}"]
    again += [f"--tls={options.tls}"] if options.tls is not None else []
    state.command = [*again, "--guarded"] if options.guarded else again
    if options.guarded:
        threading.Thread(target=_end_with_the_input, daemon=True).start()
    print(f"http://127.0.0.1:{port}", flush=True)
    server.serve_forever()


def _end_with_the_input() -> None:
    """A server whose test run was killed must not stay behind."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
