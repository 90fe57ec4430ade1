"""The dtypes of Paddle under the names of safetensors."""

from __future__ import annotations

from typing import Any

import paddle

__all__ = ["dtype_name", "dtype_of", "plain_name"]

_PAIRS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16",
    "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_PLAIN = {name: plain for plain, name in _PAIRS.items()}


def dtype_name(dtype: Any) -> str | None:
    """The safetensors name; None if there is none (complex128)."""
    return _PAIRS.get(plain_name(dtype))


def dtype_of(name: str) -> Any:
    """The dtype of a safetensors name or of a plain one ("complex128"); None if this Paddle has none."""
    found = getattr(paddle, _PLAIN.get(name, name), None)
    return found if isinstance(found, paddle.dtype) else None


def plain_name(dtype: Any) -> str:
    """The name without "paddle."."""
    return str(dtype).rpartition(".")[2]
