"""Check what would be uploaded: `python .ci/check_release.py FOLDER`, the folder holding one wheel and one sdist.

Run it in an environment where the package is installed from this source: what is installed, and
therefore tested, must be the wheel, file for file.
"""

from __future__ import annotations

import email
import hashlib
import importlib.metadata
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def wheel_problems(wheel: zipfile.ZipFile, version: str) -> list[str]:
    """What is wrong with the wheel, one sentence each."""
    names = wheel.namelist()
    info = f"colabkeep-{version}.dist-info"
    strangers = [name for name in names if not name.startswith(("colabkeep/", f"{info}/"))]
    problems = [f"the wheel holds {name}, which is not part of the package" for name in strangers]
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "colabkeep").rglob("*.py")}
    wanted |= {"colabkeep/py.typed", f"{info}/licenses/LICENSE"}
    problems += [f"the wheel lacks {name}" for name in sorted(wanted - set(names))]
    if problems:
        return problems
    head, _, description = wheel.read(f"{info}/METADATA").partition(b"\n\n")
    metadata = email.message_from_bytes(head)
    expected = {
        "Name": "colabkeep",
        "Version": version,
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Requires-Python": ">=3.10",
        "Description-Content-Type": "text/markdown",
    }
    problems += [
        f"{key} is {metadata[key]!r}, not {value!r}" for key, value in expected.items() if metadata[key] != value
    ]
    if description != (ROOT / "README.md").read_bytes():
        problems.append("the description is not README.md")
    if "colabkeep = colabkeep.ui.cli:main" not in wheel.read(f"{info}/entry_points.txt").decode():
        problems.append("the command `colabkeep` is not declared")
    return problems


def installed_problems(wheel: zipfile.ZipFile) -> list[str]:
    """Where the installed package differs from the wheel."""
    home = Path(importlib.metadata.distribution("colabkeep").locate_file(""))
    problems = []
    for name in wheel.namelist():
        if name.startswith("colabkeep/"):
            there = home / name
            digest = hashlib.sha256(there.read_bytes()).digest() if there.is_file() else b""
            if digest != hashlib.sha256(wheel.read(name)).digest():
                problems.append(f"installed is another {name} than the wheel's")
    return problems


def main(folder: Path) -> int:
    """Print each problem; 1 if there is any."""
    (wheel_path,) = folder.glob("*.whl")
    (sdist_path,) = folder.glob("*.tar.gz")
    version = importlib.metadata.version("colabkeep")
    problems = []
    if wheel_path.name != f"colabkeep-{version}-py3-none-any.whl":
        problems.append(f"the wheel is named {wheel_path.name}, and version {version} is installed")
    with zipfile.ZipFile(wheel_path) as wheel:
        problems += wheel_problems(wheel, version) + installed_problems(wheel)
    with tarfile.open(sdist_path) as sdist:
        if f"colabkeep-{version}/LICENSE" not in sdist.getnames():
            problems.append("the sdist lacks LICENSE")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## [{version}]" not in changelog and "## [Unreleased]" not in changelog:
        problems.append(f"CHANGELOG.md has neither a section [{version}] nor [Unreleased]")
    for problem in problems:
        print(f"check_release: {problem}", file=sys.stderr)
    if not problems:
        print(f"{wheel_path.name} and {sdist_path.name}: as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
