"""PaddlePaddle: state, data order and the arithmetic of a training loop. State goes out and in without pickle."""

from __future__ import annotations
