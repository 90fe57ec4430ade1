"""The guard that keeps all other tests on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]

LEAVING = {
    "connect": "socket.create_connection(('192.0.2.1', 80), timeout=5)",
    "connect over IPv6": "socket.socket(socket.AF_INET6).connect(('2001:db8::1', 80, 0, 0))",
    "connect no exception": "assert socket.socket().connect_ex(('192.0.2.1', 80)); raise OSError",
    "sendto": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
    "look up": "socket.getaddrinfo('www.googleapis.com', 443)",
    "urllib": "urllib.request.urlopen('http://example.com/', timeout=5)",
    "requests": "requests.get('https://www.googleapis.com/drive/v3/files', timeout=5)",
    "thread": "in_a_thread(lambda: socket.create_connection(('192.0.2.1', 80), timeout=5))",
}
STAYING = {
    "loopback": "talk(socket.AF_INET, ('127.0.0.1', 0))",
    "IPv4 by name": "socket.getaddrinfo('localhost', 80)",
    "own name": "socket.getaddrinfo(None, 0)",
    "UNIX": "talk(socket.AF_UNIX, str(tmp_path / 's'))",
    "pair": "pair = socket.socketpair(); pair[0].send(b'x'); [one.close() for one in pair]",
}
HEAD = """
import socket
import threading
import urllib.request

import requests

def talk(family, address):
    with socket.create_server(address, family=family) if family == socket.AF_INET else socket.socket(family) as server:
        if family == socket.AF_UNIX:
            server.bind(address)
            server.listen()
        with socket.socket(family) as client:
            client.connect(server.getsockname())
            client.send(b"x")

def in_a_thread(work):
    def quietly():
        try:
            work()
        except OSError:
            pass
    thread = threading.Thread(target=quietly)
    thread.start()
    thread.join()
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pytest, with the guard, says of one test for each line, each swallowing what it can: why it fails, or ""."""
    folder = tmp_path_factory.mktemp("guarded")
    body = "def test_{}(tmp_path):\n    try:\n        {}\n    except OSError as error:\n        print(error)\n"
    tests = [body.format(name.replace(" ", "_"), line) for name, line in {**LEAVING, **STAYING}.items()]
    test, report = folder / "test_one.py", folder / "report.xml"
    test.write_text("\n\n".join([HEAD, *tests]))
    options = ["-q", "-p", "tests.fakes.loopback", "-c", "/dev/null", f"--junitxml={report}"]
    plain = {
        name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"
    }  # of this suite's own options
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, test], cwd=ROOT, env=plain, capture_output=True, check=False
    )
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["name"].removeprefix("test_").replace("_", " ")
        found[name] = found.get(name, "") + "".join(
            child.attrib.get("message", "") + (child.text or "") for child in case
        )
    return found


@pytest.mark.parametrize("name", LEAVING)
def test_a_test_that_leaves_the_machine_fails_even_if_it_swallows_the_error(verdicts, name):
    """Whatever way out: the attempt is named, and the test fails."""
    assert "The test left the machine: it " in verdicts[name]


@pytest.mark.parametrize("name", STAYING)
def test_a_test_that_stays_on_the_machine_passes(verdicts, name):
    """Loopback, pairs and UNIX sockets are free."""
    assert verdicts[name] == ""
