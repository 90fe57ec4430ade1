"""The official torch wheels for Linux, and what each has kernels for.

Read from the build scripts of the releases (pytorch/builder up to 2.5, pytorch/pytorch `.ci/manywheel` after that) and
their release matrices (pytorch pull requests 164471, 175253, 182849, 187075, 194367, 197555), autumn 2026. Where
release notes and wheel differ, the wheel is right: 2.8 still has 7.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from colabkeep.hardware.drivers import needed_driver, runs_on
from colabkeep.hardware.support import has_kernels

__all__ = ["architectures", "has_wheel", "wheels_for", "wheels_in_short"]

Capability = tuple[int, int]
Python = tuple[int, int]

_TO_AMPERE = "37 50 60 70 75 80 86"
_TO_HOPPER = "50 60 70 75 80 86 90"
_WITH_KEPLER = "37 50 60 70 75 80 86 90"
_FROM_VOLTA = "70 75 80 86 90 100 120"
_FROM_TURING = "75 80 86 90 100 120"
_PORTABLE = f"{_FROM_TURING} compute_120"
_CU129 = f"{_FROM_VOLTA} compute_120"
"""By the build script, and `get_arch_list` of 2.9.1. The matrices leave cu129 out; its index has it to 2.13."""
_LATER = f"{_FROM_TURING} …"  # whether 7.0 is still in it is not known


@dataclass(frozen=True, slots=True)
class _Release:
    """`default` is the wheel that a bare `pip install torch` gives; `wheels` has the codes of each by its tag."""

    series: str
    default: str
    wheels: Mapping[str, str]


_RELEASES = (
    _Release("1.13", "cu117", {"cu116": _TO_AMPERE, "cu117": _TO_AMPERE}),
    _Release("2.0", "cu117", {"cu117": _TO_AMPERE, "cu118": _WITH_KEPLER}),
    _Release("2.1", "cu121", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER}),
    _Release("2.2", "cu121", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER}),
    _Release("2.3", "cu121", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER}),
    _Release("2.4", "cu121", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER, "cu124": _TO_HOPPER}),
    _Release("2.5", "cu124", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER, "cu124": _TO_HOPPER}),
    _Release("2.6", "cu124", {"cu118": _WITH_KEPLER, "cu124": _TO_HOPPER, "cu126": _TO_HOPPER}),
    _Release("2.7", "cu126", {"cu118": _WITH_KEPLER, "cu126": _TO_HOPPER, "cu128": _FROM_TURING}),
    _Release("2.8", "cu128", {"cu126": _TO_HOPPER, "cu128": _FROM_VOLTA, "cu129": _CU129}),
    _Release("2.9", "cu128", {"cu126": _TO_HOPPER, "cu128": _FROM_VOLTA, "cu129": _CU129, "cu130": _PORTABLE}),
    _Release("2.10", "cu128", {"cu126": _TO_HOPPER, "cu128": _FROM_VOLTA, "cu129": _CU129, "cu130": _PORTABLE}),
    _Release("2.11", "cu130", {"cu126": _TO_HOPPER, "cu128": _FROM_TURING, "cu129": _LATER, "cu130": _FROM_TURING}),
    _Release("2.12", "cu130", {"cu126": _TO_HOPPER, "cu129": _LATER, "cu130": _FROM_TURING, "cu132": _FROM_TURING}),
    _Release("2.13", "cu130", {"cu126": _TO_HOPPER, "cu129": _LATER, "cu130": _FROM_TURING, "cu132": _FROM_TURING}),
    _Release("2.14", "cu130", {"cu126": _TO_HOPPER, "cu130": _FROM_TURING, "cu132": _FROM_TURING}),
    _Release("2.15", "cu132", {"cu130": _FROM_TURING, "cu132": _FROM_TURING}),
)
_PYTHONS: Mapping[str, tuple[int, int]] = {
    "1.13": (7, 11),
    "2.2": (8, 12),
    "2.5": (9, 13),
    "2.9": (10, 14),
    "2.15": (11, 15),
}
"""The first and the last Python 3 that a series and those after it have wheels for (package index, November 2026)."""

_ARM: Mapping[str, str] = {"cu126": "80 90", "cu130": "80 90 100 110 120", "cu132": "80 90 100 110 120"}


def architectures(version: str, machine: str) -> tuple[str, ...] | None:
    """What the official wheel of this `version` ("2.11.0+cu128") has kernels for on a `machine` ("x86_64").

    None for any other: a version without the wheels' tag was compiled by somebody else, for what they chose.
    """
    release, _, tag = version.partition("+")
    series = ".".join(release.split(".")[:2])
    if not release.replace(".", "").isdigit():  # nightly and source builds: "2.9.0.dev2025", "2.5.0a0"
        return None
    wheels = next((known.wheels for known in _RELEASES if known.series == series), {})
    codes = wheels.get(tag)
    if codes is not None and machine == "aarch64":
        codes = _ARM.get(tag)
    elif machine != "x86_64":
        codes = None
    return None if codes is None else _names(codes)


def wheels_for(capability: Capability, driver: str | None = None, python: Python | None = None) -> str:
    """One sentence: which official torch wheels have kernels for cards of this capability, and how to get one. Where a
    `driver` is told, one that it can run; where a `python` is, one that is made for it."""
    default, other = _with(capability)
    card = f"cards of compute capability {capability[0]}.{capability[1]}"
    first, last = _RELEASES[0].series, _RELEASES[-1].series
    if not default and not other:
        return f"No official torch wheel from {first} to {last} has kernels for {card}."
    if _all_with(capability)[-1] not in _fitting(capability, driver, python):
        return _within(capability, driver, python, card)
    if last in default:
        since = (
            "Every default torch wheel has" if default[0] == first else f"Default torch wheels since {default[0]} have"
        )
        lacking = _lacking(capability, default[0])
        but = f", but their {' and '.join(lacking)} wheels have none" if lacking else ""
        tag = _RELEASES[-1].default
        return f"{since} kernels for {card}{but}: {_install('torch', tag)}."
    series, tag = other[-1] if other else (default[-1], _release(default[-1]).default)
    until = f"up to torch {default[-1]}" if default else "in no release"
    return (
        f"The default torch wheels had kernels for {card} {until}; the last official ones are those of {series} for "
        f"{tag}: {_install(f'torch=={series}.*', tag)}."
    )


def has_wheel(capability: Capability, driver: str | None = None, python: Python | None = None) -> bool:
    """Is there an official torch wheel for cards of this capability that this driver and this Python can run?"""
    return bool(_fitting(capability, driver, python))


def _within(capability: Capability, driver: str | None, python: Python | None, card: str) -> str:
    """The same where the newest of them does not run here."""
    running, fits = _fitting(capability, driver, None), _fitting(capability, driver, python)
    if not running:
        least = needed_driver(_cuda(_all_with(capability)[0][1]))
        return (
            f"No official torch wheel with kernels for {card} runs on driver {driver}: they need driver {least} or "
            "newer."
        )
    runs = "" if driver is None else f" and runs on driver {driver}"
    series, tag = (fits or running)[-1]
    newest = f"The newest official torch wheel that has kernels for {card}{runs}"
    if not fits:
        most = _pythons(series)[1]
        return (
            f"{newest} is that of {series} for {tag}, which there is up to Python 3.{most} only, and this is "
            f"{_text(python)}: in an environment with Python 3.{most} run {_install(f'torch=={series}.*', tag)}."
        )
    made = "" if fits[-1] == running[-1] else f", among those for Python {_text(python)},"
    return f"{newest}{made} is that of {series} for {tag}: {_install(f'torch=={series}.*', tag)}."


def _fitting(capability: Capability, driver: str | None, python: Python | None) -> list[tuple[str, str]]:
    """(series, tag) of the wheels with kernels for it that may run here, the newest last."""
    return [
        (series, tag)
        for series, tag in _all_with(capability)
        if runs_on(driver, _cuda(tag)) is not False and (python is None or _is_for(python, series))
    ]


def _is_for(python: Python, series: str) -> bool:
    first, last = _pythons(series)
    return (3, first) <= python <= (3, last)


def _pythons(series: str) -> tuple[int, int]:
    order = [release.series for release in _RELEASES]
    return [told for since, told in _PYTHONS.items() if order.index(since) <= order.index(series)][-1]


def _text(python: Python | None) -> str:
    return "" if python is None else f"{python[0]}.{python[1]}"


def _all_with(capability: Capability) -> list[tuple[str, str]]:
    """(series, tag) of every wheel that has kernels for it, the newest last; the default of a series after its others
    where CUDA is the same or newer."""
    return [(known.series, tag) for known in _RELEASES for tag in sorted(known.wheels) if _has(known, tag, capability)]


def _cuda(tag: str) -> str:
    """ "cu128" → "12.8"."""
    return f"{tag[2:-1]}.{tag[-1]}"


def _install(wanted: str, tag: str) -> str:
    # Without force, pip finds the request "already satisfied" by any build of that version, such as one for the CPU.
    return (
        f'pip install --force-reinstall "{wanted}" --index-url https://download.pytorch.org/whl/{tag} (packages made '
        "for the notebook's own torch may no longer fit)"
    )


def wheels_in_short(capability: Capability) -> str:
    """The same in a few characters, for a table: "all", "to 2.7; cu126 to 2.14", "since 2.8"."""
    default, other = _with(capability)
    if not default:
        return "none" if not other else f"{other[-1][1]} to {other[-1][0]}"
    if _RELEASES[-1].series in default:
        return "all" if default[0] == _RELEASES[0].series else f"since {default[0]}"
    more = f"; {other[-1][1]} to {other[-1][0]}" if other and other[-1][0] != default[-1] else ""
    return f"to {default[-1]}{more}"


def _with(capability: Capability) -> tuple[list[str], list[tuple[str, str]]]:
    """The series whose default wheel has kernels for it, and (series, tag) of the other wheels that have, in order."""
    default = [known.series for known in _RELEASES if _has(known, known.default, capability)]
    other = [
        (known.series, tag)
        for known in _RELEASES
        for tag in sorted(known.wheels)
        if tag != known.default and _has(known, tag, capability)
    ]
    return default, other


def _lacking(capability: Capability, since: str) -> list[str]:
    """The tags of wheels without kernels for it among the releases from `since` on."""
    later = _RELEASES[_RELEASES.index(_release(since)) :]
    return sorted({tag for known in later for tag in known.wheels if not _has(known, tag, capability)})


def _release(series: str) -> _Release:
    return next(known for known in _RELEASES if known.series == series)


def _has(release: _Release, tag: str, capability: Capability) -> bool:
    # Portable code is not counted on: few wheels carry it, and it is to leave them for its size.
    codes = [code for code in _names(release.wheels[tag]) if code.startswith("sm_")]
    return has_kernels(codes, capability) is True


def _names(codes: str) -> tuple[str, ...]:
    return tuple(code if not code.isdigit() else f"sm_{code}" for code in codes.split())
