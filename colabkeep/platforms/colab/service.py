"""What Colab offers and how long it lets one have it: limits and menus, per kind. Figures age; each has its source."""

from __future__ import annotations

from dataclasses import replace

from colabkeep.platforms.base import Menus, SessionLimits
from colabkeep.vocabulary.environment import Environment

__all__ = ["clicks", "limits_of", "menus_of"]

_HOUR = 3600.0

_HOSTED_LIMITS = SessionLimits(
    max_seconds=12 * _HOUR,
    idle_seconds=90 * 60.0,
    idle_confidence="medium",
    source="Colab's FAQ: 12 hours at most, often less, up to 24 with Pro+; about 90 minutes idle is what the "
    "documentation of googlecolab/google-colab-cli says (2026-07)",
    confidence="high",
    usual_seconds=2.5 * _HOUR,
    usual_source="users report 1.5 to 3.5 hours on free machines and 1 to 5 on paid ones (googlecolab/colabtools "
    "issues 1759, 5566 and 5793, 2025-09 to 2026-09)",
)
_ENTERPRISE_LIMITS = SessionLimits(
    max_seconds=18 * _HOUR,
    idle_seconds=180 * 60.0,
    idle_confidence="medium",
    source="Google Cloud's documentation of Colab Enterprise: a default runtime is deleted 18 hours after it was made, "
    "and stops after 180 idle minutes; runtimes of other templates differ",
    confidence="medium",
)
_LOCAL_LIMITS = SessionLimits(max_seconds=None, source="a machine of your own sets no limit", confidence="high")

_HOSTED_MENUS = Menus(
    enable="Runtime > Change runtime type > Hardware accelerator: T4 GPU > Save, then run the notebook from the top.",
    reconnect="Runtime > Disconnect and delete runtime > Yes, then Connect (top right), and run the notebook "
    "from the top.",
    switch="Runtime > Change runtime type > another hardware accelerator > Save, then run the notebook from the top.",
    # googlecolab/colabtools #5566 (2025-09) for the free ones, the option lists of google-colab-cli (2026-07)
    # and colab-vscode (2026-08) for the others. The free GPUs of 2019-22 (K80, P4, P100) were drawn by chance.
    offered="free: T4 GPU and TPU v5e-1, when there are any; with compute units also L4, G4, A100 and H100 GPUs and "
    "TPU v6e-1 (as of 2026)",
    draws=True,
)
_ENTERPRISE_MENUS = Menus(
    enable="Google Cloud console > Colab Enterprise > Runtime templates > New template with an accelerator, "
    "then in the notebook: Connect > Connect to a runtime > that template.",
    reconnect="Google Cloud console > Colab Enterprise > Runtimes > Delete, then Connect in the notebook.",
    switch="Google Cloud console > Colab Enterprise > Runtime templates > New template with another accelerator.",
    offered="the GPUs of the project's region and quota; none is free",
)
_LOCAL_MENUS = Menus(
    enable="Stop the container and start it with the machine's GPUs: docker run --gpus=all …, "
    "then Connect > Connect to a local runtime.",
    offered="the GPUs of the machine that runs the container",
)


def limits_of(kind: str) -> SessionLimits:
    """How long a session of that kind lasts at most."""
    return {"enterprise": _ENTERPRISE_LIMITS, "local": _LOCAL_LIMITS}.get(kind, _HOSTED_LIMITS)


def menus_of(kind: str, environment: Environment) -> Menus:
    """What to click on a Colab of that kind, in the front end at hand."""
    menus = {"enterprise": _ENTERPRISE_MENUS, "local": _LOCAL_MENUS}.get(kind, _HOSTED_MENUS)
    return replace(
        menus,
        enable=clicks(environment, menus.enable or ""),
        reconnect=clicks(environment, menus.reconnect or "") or None,
        switch=clicks(environment, menus.switch or "") or None,
    )


def clicks(environment: Environment, text: str) -> str:
    """The same text with the clicks of VS Code, where that shows the notebook: it has no menu called Runtime."""
    for page, vscode in _VSCODE if environment.vscode else ():
        text = text.replace(page, vscode)
    return text


# googlecolab/colab-vscode: README and the user guide of its wiki (2026-04). The longer ones come first.
_REMOVE = "the Colab button above the notebook > Remove Server"
_NEW = "Select Kernel (top right) > Colab > New Colab Server"
_VSCODE = (
    ("Runtime > Change runtime type > Hardware accelerator: T4 GPU > Save", f"{_NEW} > GPU > T4"),
    ("Runtime > Change runtime type > another hardware accelerator > Save", f"{_NEW} > another machine type"),
    ("Runtime > Disconnect and delete runtime > Yes, then Connect (top right)", f"{_REMOVE}, then {_NEW}"),
    ("Runtime > Disconnect and delete runtime, connect again", f"{_REMOVE}, then {_NEW}"),
    ("Runtime > Disconnect and delete runtime", _REMOVE),
    ("Runtime > Restart session", "Restart, above the notebook"),
)
