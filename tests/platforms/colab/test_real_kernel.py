"""How a dead and a hanging Drive look is asked of the real Linux kernel, with a FUSE mount of Drive's type."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, os, sys
from pathlib import Path
from colabkeep.platforms.colab.drive import find_drive
from colabkeep.core.system import Environment

root = Path(sys.argv[1])
point = root / "content" / "drive"
point.mkdir(parents=True)
(root / "proc").mkdir()
try:
    device = os.open("/dev/fuse", os.O_RDWR)
except OSError as error:
    sys.exit(f"no fuse: {error}")
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"drive", os.fsencode(point), b"fuse.drive", 0, options):
    sys.exit(f"no fuse: {os.strerror(ctypes.get_errno())}")
table = Path("/proc/mounts").read_text().replace(str(root), "")
(root / "proc" / "mounts").write_text(table)
environment = Environment(environ={}, root=root, folder=root)

silent = find_drive(environment)  # mounted, and nobody reads its requests
os.close(device)
dead = find_drive(environment)  # the program behind it is gone
for drive in (silent, dead):
    print(drive.point, drive.folder, drive.listed, drive.gone, drive.trouble.errno)
"""


def test_a_real_fuse_mount_is_seen_hanging_and_dead(tmp_path):
    """Hanging is not taken for gone, so that no upload is killed; errno 107 is."""
    if sys.platform != "linux" or not os.access("/dev/fuse", os.R_OK | os.W_OK) or shutil.which("unshare") is None:
        pytest.skip("needs /dev/fuse and unshare")
    root = tmp_path / "root"
    root.mkdir()
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", PROGRAM, str(root.resolve())]
    home = str(Path(__file__).resolve().parents[3])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), home]))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=60)
    if "no fuse" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"this machine lets nobody mount: {done.stderr.strip()}")
    assert done.stdout.splitlines() == [
        "/content/drive None True False 110",
        "/content/drive None True True 107",
    ], done.stderr
