"""What advice calls things by, in the words of the framework that will train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Words", "words_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """`first`: the call that names the first GPU. `default`: what the plain word for a GPU is. `nth`: the word for
    another one, and `put`: the call that chooses it; both with a place for its number. `all`: the line that trains one
    model on all of them in one process; "" where there is none."""

    first: str
    default: str
    nth: str
    put: str
    all: str = ""


_WORDS: Mapping[str, Words] = {
    "torch": Words(
        first="torch.cuda.get_device_name(0)",
        default="cuda",
        nth='"cuda:{}"',
        put='model.to("cuda:{}")',
        all="model = torch.nn.DataParallel(model)",
    ),
    "paddle": Words(
        first="paddle.device.cuda.get_device_name(0)", default="gpu", nth='"gpu:{}"', put='paddle.set_device("gpu:{}")'
    ),
}


def words_of(framework: str) -> Words:
    """Those of "torch" or "paddle"."""
    return _WORDS[framework]
