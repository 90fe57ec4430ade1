"""What can be wrong with NVIDIA's cards and their driver, in words for whoever wants to train on one."""

from __future__ import annotations

from collections.abc import Sequence

from colabkeep.hardware.base import Trouble

__all__ = ["MISMATCH", "failed", "silent", "traces", "without_driver", "without_slices"]

MISMATCH = Trouble(
    problem="The NVIDIA driver was updated while it ran: its library and its kernel module are of different versions",
    remedy="Restart the machine (end this session and start a new one); nothing can compute on the GPU before that.",
    usable=False,
)


def silent(who: str) -> Trouble:
    """`who` should answer and did not."""
    return Trouble(
        problem=f"{who} gave no answer",
        remedy="Run !nvidia-smi in a cell: if it hangs too, restart the session.",
    )


def failed(who: str, how: str) -> Trouble:
    """`who` answered, and the answer is an error or nonsense."""
    return Trouble(
        problem=f"{who} {how}",
        remedy="Run !nvidia-smi in a cell: if it does not list the GPU as it should, restart the session.",
    )


def traces(sign: str) -> Trouble:
    """A `sign` of a card is there, and nothing that tells which."""
    return Trouble(
        problem=f"A GPU of NVIDIA's is on this machine ({sign}), and no tool of its driver says which",
        remedy=(
            "Run !nvidia-smi in a cell. If it lists no GPU, restart the session; a container of your own has to be "
            "started with --gpus=all."
        ),
    )


def without_driver(sign: str, code: int) -> Trouble:
    """A `sign` of a card is there, and nvidia-smi says by its exit code that there is no driver to talk to."""
    what = "its driver is not loaded" if code == 9 else "the library of its driver is missing"
    return Trouble(
        problem=f"A GPU of NVIDIA's is on this machine ({sign}), and {what} (nvidia-smi ended with exit code {code})",
        remedy=(
            "Restart the machine (end this session and start a new one); a container of your own has to be started "
            "with --gpus=all. On a machine of your own that stays like this, install NVIDIA's driver anew."
        ),
        usable=False,
    )


def without_slices(names: Sequence[str]) -> Trouble:
    """The cards `names` are to be used in slices (MIG), and none is made."""
    return Trouble(
        problem=f"{', '.join(names)}: in MIG mode, but not divided yet, so no framework can use any of it",
        remedy=(
            'Make one slice of the whole card, "sudo nvidia-smi mig -cgi 0 -C", or leave the mode, "sudo nvidia-smi '
            '-mig 0"; then restart the kernel.'
        ),
        usable=False,
    )
