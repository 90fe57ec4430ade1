"""Google Colab, in four kinds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from colabkeep.platforms._front import front_end
from colabkeep.platforms.base import Home, Menus, SessionLimits
from colabkeep.platforms.colab.homes import find_home
from colabkeep.platforms.colab.service import limits_of, menus_of
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import MountError

__all__ = ["ColabPlatform"]

_HOSTED = "/var/colab/hostname"  # the file by which drive.mount itself decides (googlecolab/colabtools, 2026-04)
_TAGS = ("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION")


class ColabPlatform:
    """Google Colab. Ask Kaggle first: its image is built on Colab's and carries the same variables.

    The kinds:

    * "hosted": a machine of Google's, and this code runs in the notebook's kernel. Which front end shows the notebook
      (browser, VS Code, terminal client) is told by no variable: `frontend.py` says what is known.
    * "process": the same machine, outside the kernel (`!python train.py`, a terminal): nothing can be asked of the
      user; a Drive that is mounted already works.
    * "enterprise": Colab Enterprise, which has no Drive.
    * "local": Colab's image on another machine, such as the docker runtime on one's own.
    """

    name = "colab"
    title = "Google Colab"

    def matches(self, environment: Environment) -> bool:
        product = environment.environ.get("VERTEX_PRODUCT")
        if product:  # Workbench, the sister product, is another platform
            return product == "COLAB_ENTERPRISE"
        image = any(environment.environ.get(tag) for tag in _TAGS) and environment.is_dir("/content")
        return image or environment.is_file(_HOSTED) or "google.colab" in environment.shell

    def kind(self, environment: Environment) -> str:
        if environment.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE":
            return "enterprise"
        if not environment.is_file(_HOSTED):
            return "local"
        return "hosted" if front_end(environment) == "notebook" else "process"

    def home(self, environment: Environment) -> Home:
        return find_home(environment, self.kind(environment))

    def mount(self, environment: Environment, *, timeout: float) -> Home:
        # What asking takes is loaded when somebody asks: detection is to be quick.
        from colabkeep.platforms.colab.frontend import why_unreachable
        from colabkeep.platforms.colab.mounting import mount_drive

        kind = self.kind(environment)
        if kind == "enterprise":
            return self._given(environment)
        if kind == "local" and why_unreachable(environment):
            return self.home(environment)
        try:
            mount_drive(environment, timeout)
        except MountError as error:
            # Colab refuses here at once. It is asked all the same, in case the hosted machines lose their mark one day.
            if kind == "local" and isinstance(error.__cause__, NotImplementedError):
                return self.home(environment)
            raise
        return self.home(environment)

    def _given(self, environment: Environment) -> Home:
        """The home, where nothing can be mounted: one that lasts, or an error."""
        home = self.home(environment)
        if home.persists is False:
            raise MountError(problem=home.reason, remedy=home.remedy)
        return home

    def limits(self, environment: Environment) -> SessionLimits:
        return limits_of(self.kind(environment))

    def menus(self, environment: Environment) -> Menus:
        return menus_of(self.kind(environment), environment)

    def secret(self, environment: Environment, name: str, *, timeout: float) -> str:
        from colabkeep.platforms.colab.secrets import find_secret

        return find_secret(environment, name, timeout)

    def google_user(self, environment: Environment) -> Callable[[], None]:
        from colabkeep.platforms.colab.signing import sign_in_user

        return partial(sign_in_user, environment)
