"""Installing colabkeep changes nothing that Colab or Kaggle came with.

pip keeps what satisfies a requirement, and else takes the newest release. So each requirement is held against the
dated package lists of the images (`images/`), and what would be added or replaced is followed through its own
requirements, which are kept there too. Colab asks for a restart when something it has loaded already is replaced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

IMAGES = Path(__file__).parent / "images"
LISTS = sorted(path.name for path in IMAGES.glob("[ck]*.txt"))
FOR_OURSELVES = {"docs", "test", "test-backends", "test-paddle", "test-recipes", "test-tools"}  # no user installs them


@dataclass(frozen=True)
class Image:
    """What is installed: name → version (the oldest possible one where the list says ">=")."""

    python: Version
    packages: Mapping[str, Version]

    @classmethod
    def read(cls, name: str) -> Image:
        """A list of lines "name==version", with a line "# python X.Y.Z"."""
        text = (IMAGES / name).read_text()
        (python,) = re.findall(r"^# python (\S+)$", text, re.MULTILINE)
        lines = [re.split(r"[=>]=", line) for line in text.splitlines() if line and not line.startswith("#")]
        return cls(Version(python), {canonicalize_name(name): Version(version) for name, version in lines})

    def environment(self, extra: str) -> dict[str, str]:
        """What markers are evaluated with."""
        return {
            "python_version": f"{self.python.major}.{self.python.minor}",
            "python_full_version": str(self.python),
            "sys_platform": "linux",
            "platform_machine": "x86_64",
            "extra": extra,
        }


def releases() -> dict[str, tuple[Version, list[Requirement]]]:
    """Name → the newest release and what it wants."""
    found: dict[str, tuple[Version, list[Requirement]]] = {}
    wants: list[Requirement] = []
    (path,) = IMAGES.glob("releases-*.txt")
    for line in path.read_text().splitlines():
        if line.startswith("    "):
            wants.append(Requirement(line))
        elif not line.startswith("#"):
            name, _, version = line.partition("==")
            wants = []
            found[canonicalize_name(name)] = Version(version), wants
    return found


def plan(wanted: Iterable[Requirement], image: Image) -> list[str]:
    """What pip would replace, one sentence each; empty if nothing."""
    known, problems, seen = releases(), [], set()
    todo = [("colabkeep", requirement) for requirement in wanted]
    while todo:
        who, requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate(image.environment("")):
            continue
        there = image.packages.get(name)
        if there is not None and requirement.specifier.contains(there, prereleases=True):
            continue
        if there is not None:
            problems.append(f"{name} {there} would be replaced, because {who} wants {requirement.specifier}")
        if name not in known:
            problems.append(f"{name} would be installed, and what it wants is not known: add it to images/releases")
        elif name not in seen:
            seen.add(name)
            todo += [(f"{name} {known[name][0]}", further) for further in known[name][1]]
    return problems


def project() -> dict[str, list[Requirement]]:
    """Extra → all that it installs; "" is colabkeep alone."""
    path = Path(__file__).parents[2] / "pyproject.toml"
    table = tomllib.loads(path.read_text())["project"]
    declared = {"": table["dependencies"], **table["optional-dependencies"]}

    def closed(extra: str) -> list[Requirement]:
        requirements = []
        for line in declared[extra]:
            requirement = Requirement(line)
            if requirement.name == "colabkeep":
                requirements += [one for further in sorted(requirement.extras) for one in closed(further)]
            else:
                requirements.append(requirement)
        return requirements

    return {extra: closed(extra) for extra in declared}


@pytest.mark.parametrize("image", LISTS)
@pytest.mark.parametrize("extra", sorted(project().keys() - FOR_OURSELVES))
def test_installing_replaces_nothing_that_the_notebook_has(image, extra):
    """Neither colabkeep alone nor with any of its extras, nor anything that these bring along."""
    wanted = [*project()[""], *project()[extra]]
    assert plan(wanted, Image.read(image)) == []


def test_paddle_comes_with_its_own_tests_only():
    """No extra that users install brings it, and where its tests run there is no torch."""
    with_paddle = {extra for extra, wanted in project().items() if "paddlepaddle" in {one.name for one in wanted}}
    assert with_paddle == {"test-paddle"}
    tools, torch, paddle = ({one.name for one in project()[extra]} for extra in ("test-tools", "test", "test-paddle"))
    assert tools < torch & paddle
    assert "torch" not in paddle


@pytest.mark.parametrize("image", LISTS)
def test_the_lists_are_whole(image):
    """A list that was cut, or that says nothing of what matters, would let everything pass."""
    packages = Image.read(image).packages
    assert len(packages) > 600
    assert {"torch", "google-auth", "pydrive2", "cryptography", "requests", "ipywidgets", "fsspec"} <= packages.keys()


def test_both_platforms_have_a_list():
    """Colab's and Kaggle's."""
    assert [name.partition("-")[0] for name in LISTS] == ["colab", "kaggle"]


def test_a_floor_above_colab_s_pydrive2_is_caught():
    """It would take Colab's cryptography back seven versions, and pyOpenSSL two."""
    problems = "\n".join(plan([Requirement("PyDrive2>=1.21.2")], Image.read("colab-2026-08-19.txt")))
    for replaced in ("pydrive2 1.21.1", "cryptography 50.0.0", "pyopenssl 26.4.0"):
        assert f"{replaced} would be replaced" in problems


def test_s3fs_as_a_requirement_is_caught():
    """Each of its releases wants fsspec of its own version, and Colab's gcsfs wants the one that is there."""
    assert "fsspec 2025.3.0 would be replaced" in "\n".join(
        plan([Requirement("s3fs>=2025.3.0")], Image.read("colab-2026-08-19.txt"))
    )


@pytest.mark.parametrize(
    ("requirement", "word"),
    [
        ("torch<2.5", "torch 2.11.0+cu128 would be replaced"),
        ("requests==2.34.2", "requests 2.32.4 would be replaced"),
        ("kagglehub>=1.0.3", "certifi 2026.7.22 would be replaced"),
        ("nobody-knows-this", "what it wants is not known"),
    ],
)
def test_other_ways_to_replace_something_are_caught(requirement, word):
    """An upper bound, a pin, a floor that drags something else along, and a package nothing is known about."""
    assert word in "\n".join(plan([Requirement(requirement)], Image.read("colab-2026-08-19.txt")))


def test_what_is_for_another_python_is_not_installed():
    """A requirement with a marker counts only where the marker is true."""
    image = Image.read("colab-2026-08-19.txt")
    assert plan([Requirement("requests<1; python_version < '3.0'")], image) == []
    assert plan([Requirement("requests<1; python_version >= '3.13'")], image) != []
