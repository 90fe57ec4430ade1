"""Baidu AI Studio. No official marker is known; several that users have shown are taken together.

Sources: PaddlePaddle/Paddle issues 26263 and 28254 (2020) and 55564 (2023), PaddlePaddle/ERNIE issue 1382 (November
2025), PaddlePaddle/PaddleMIX issue 809 (November 2024), and the text of the service's notebook template (2020-21).
"""

from __future__ import annotations

import re

from colabkeep.core.system import Environment
from colabkeep.platforms.base import FOLDER, Copied, DefaultStorage, Menus, Platform, SessionLimits, in_folder

_USER = "/home/aistudio"
_WORK = f"{_USER}/work"
_LIBRARIES = f"{_USER}/external-libraries"
_MANY = 10 * 2**30  # bytes, chosen by us: well below what one user lost
_WHY = (
    "How much is too much has not been published: a user lost half of 35 GB when the compute card ran out (2023), and "
    "the 100 GB that are often named have no source. Use keep_last=1, keep_best=1, attach data sets instead of copying "
    "them there, and delete old runs (colabkeep prune)."
)
_HOURS = "it costs hours of the compute card (算力卡)"
_HOSTNAME = re.compile(r"jupyter-\d+-\d+")  # jupyter-<user>-<project>
_PREFIX = re.compile(r"/opt/conda/envs/python35-paddle\d+-env")  # still called so with Python 3.10
_SERVICE = ("STUDIO_", "WEBIDE_")
_SETTINGS = frozenset({"STUDIO_GIT_HOST", "STUDIO_CDN_HOST"})  # of aistudio-sdk, which is used on laptops too


class AIStudioPlatform(Platform):
    """Its only kind is "notebook"."""

    name = "aistudio"
    title = "Baidu AI Studio"

    def matches(self, environment: Environment) -> bool:
        # A user called aistudio has that folder on any machine, and may keep `work` and `data` in it, so a sign of the
        # service itself is asked for. Where it shows none, `local.py` takes the `work` folder all the same.
        return environment.is_dir(_USER) and (
            _HOSTNAME.match(environment.hostname) is not None
            or _PREFIX.match(environment.prefix) is not None
            or any(name.startswith(_SERVICE) and name not in _SETTINGS for name in environment.environ)
            or environment.is_dir(f"{_USER}/.webide")
        )

    def kind(self, environment: Environment) -> str:
        return "notebook"

    def home(self, environment: Environment) -> DefaultStorage:
        folder = environment.path(f"{_WORK}/{FOLDER}")
        if not environment.is_dir(_USER):
            reason = f"There is no {_USER} here, so this is not an AI Studio environment."
            return in_folder(
                folder, False, reason, 'Unset COLABKEEP_PLATFORM; or name a folder: storage="checkpoints".'
            )
        return in_folder(
            folder,
            None,
            f"{_WORK} survives a restart by what AI Studio says and users report; here it cannot be proven.",
            "Keep it small: all of it is copied at each start, and a large one makes the start slow or fail "
            "(keep_last=1, keep_best=1). Close the environment by its stop button rather than letting the compute card "
            "run out: a user lost half of a 35 GB folder so in 2023.",
            copied=Copied(folder=str(environment.path(_WORK)), many_bytes=_MANY, why=_WHY),
            packages=str(environment.path(_LIBRARIES)),
            keeps=str(environment.path(_WORK)),
        )

    def limits(self, environment: Environment) -> SessionLimits:
        return SessionLimits(
            max_seconds=None,
            idle_seconds=3600.0,
            source=(
                "an hour after the page was closed or the computer fell asleep (product manager in PaddlePaddle/Paddle "
                "issue 28254, October 2020). GPU hours come from the compute card: some 10 a day and 70 a week by what "
                "users wrote in 2020-21, which is hearsay; today's figure is on the page where the card is chosen"
            ),
            confidence="low",
        )

    def menus(self, environment: Environment) -> Menus:
        start = "The card is chosen at the start: save, stop the environment (停止), start it (启动环境) and choose"
        return Menus(
            enable=f"{start} one with a GPU; {_HOURS}.",
            switch=f"{start} another one; {_HOURS}.",
            offered="V100 with 16 or 32 GB and A100 or A800 with 80 GB, as the compute card allows",
            framework="paddle",
        )
