"""A JupyterLab on loopback with settings of its own, and pages of it that know what leaves the machine."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat

__all__ = ["FLAGS", "Laboratory", "Sheet", "running"]

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Options of Chromium: it runs as any user, and asks its maker nothing."""

_OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--ServerApp.terminals_enabled=False",
    "--LabApp.extension_manager=readonly",
)
_PATIENCE = 60  # seconds for a server to answer; a busy machine takes six

# JupyterLab says "idle" for some 60 ms before there is a kernel, and what is run then is lost without a word: so the
# kernel's name must be there, too (seen with JupyterLab 4.6.6).
_READY = """() => {
  const bar = document.querySelector('.jp-NotebookPanel-toolbar');
  const kernel = bar?.querySelector('[data-jp-item-name=kernelName]')?.innerText || '';
  const state = bar?.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status;
  return state === 'idle' && kernel && !kernel.includes('No Kernel');
}"""


class Laboratory:
    """A running JupyterLab. `folder` is what it shows."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "notebooks"
        self.folder.mkdir()
        self._home = home
        self._token = secrets.token_hex(16)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._set("notification", fetchNews="false", checkForUpdates=False)  # it would ask jupyter.org
        self.theme("Light")

    def start(self) -> subprocess.Popen[bytes]:
        """Start it in a process group of its own, and wait until it answers."""
        names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        environ = {
            **os.environ,
            **{name: str(self._home / name.lower()) for name in names},
            "JUPYTER_PREFER_ENV_PATH": "1",
            "JUPYTERLAB_SETTINGS_DIR": str(self._home / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(self._home / "workspaces"),
        }
        own = (
            f"--port={self._port}",
            f"--IdentityProvider.token={self._token}",
            f"--ServerApp.root_dir={self.folder}",
        )
        log = self._home / "lab.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [sys.executable, "-m", "jupyter", "lab", *_OPTIONS, *own],
                env=environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        end = time.monotonic() + _PATIENCE
        while not self._answers():
            if server.poll() is not None or time.monotonic() > end:
                _stop(server)
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        return server

    def theme(self, name: str) -> None:
        """Light or Dark, for the pages that are opened from now on."""
        self._set("themes", theme=f"JupyterLab {name}")

    def write(self, name: str, *cells: str) -> None:
        """A notebook that runs on this Python."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
        book.cells = [nbformat.v4.new_code_cell(cell.strip()) for cell in cells]
        nbformat.write(book, self.folder / name)

    def read(self, name: str) -> Any:
        """A notebook as it was saved."""
        return nbformat.read(self.folder / name, as_version=4)

    def address(self, name: str) -> str:
        """Where a browser finds a notebook alone, without the list of files."""
        return f"{self.url}/doc/tree/{name}?token={self._token}"

    def end_kernels(self) -> None:
        """All of them."""
        for session in json.loads(self._ask("/api/sessions")):
            self._ask(f"/api/sessions/{session['id']}", "DELETE")

    def _answers(self) -> bool:
        try:
            self._ask("/api/status")
        except OSError:
            return False
        return True

    def _ask(self, path: str, method: str = "GET") -> bytes:
        head = {"Authorization": f"token {self._token}"}
        request = urllib.request.Request(self.url + path, method=method, headers=head)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    def _set(self, plugin: str, **settings: Any) -> None:
        file = self._home / f"settings/@jupyterlab/apputils-extension/{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))


@contextmanager
def running(home: Path) -> Iterator[Laboratory]:
    """A JupyterLab that lives in this folder, until the block is left."""
    laboratory = Laboratory(home)
    server = laboratory.start()
    try:
        yield laboratory
    finally:
        _stop(server)


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


class Sheet:
    """A page of the browser that shows one notebook. `outside`: the addresses beyond the server that it asked for."""

    def __init__(self, laboratory: Laboratory, page: Any) -> None:
        self.page = page
        self.outside: list[str] = []
        self._laboratory = laboratory
        inside = (laboratory.url, laboratory.url.replace("http", "ws", 1), "data:", "blob:")
        page.on("request", lambda request: request.url.startswith(inside) or self.outside.append(request.url))

    def open(self, name: str, *, kernel: bool = True) -> None:
        """Open a notebook: with a kernel, which is waited for, or without one, as a reader whose server has none."""
        if not kernel:
            none = {"default": "", "kernelspecs": {}}
            self.page.route("**/api/kernelspecs*", lambda route: route.fulfill(json=none))
        self.page.goto(self._laboratory.address(name), wait_until="domcontentloaded")
        if kernel:
            self.page.wait_for_function(_READY, timeout=60_000)
        else:
            self.page.locator(".jp-Dialog .jp-mod-accept").click(timeout=60_000)  # "No Kernel" is chosen there
            self.page.locator(".jp-Dialog").wait_for(state="hidden")

    def run(self) -> None:
        """Run all cells. A click that a busy page loses, after which no cell waits or has run, is made once more."""
        from playwright.sync_api import TimeoutError as PlaywrightTimeout  # not everywhere

        asked = self.page.locator(".jp-CodeCell .jp-InputPrompt", has_text=re.compile(r"\[(?:\*|\d+)\]:"))
        for again in (False, True):
            self.page.get_by_role("menuitem", name="Run", exact=True).click()
            self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
            try:
                asked.first.wait_for(timeout=30_000)
            except PlaywrightTimeout:
                if again:
                    raise
            else:
                return

    def save(self) -> None:
        """Save it; the file is whole when the server has answered."""

        def saved(answer: Any) -> bool:
            return answer.request.method == "PUT" and "/api/contents/" in answer.url and answer.ok

        with self.page.expect_response(saved):
            self.page.locator(".jp-Notebook").press("Control+s")
