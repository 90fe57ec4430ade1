"""The dtypes of torch under the names of safetensors."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["dtype_name", "dtype_of", "plain_name"]

_PAIRS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
# An older torch lacks the youngest of them.
_NAMES = {getattr(torch, plain): name for plain, name in _PAIRS.items() if hasattr(torch, plain)}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(dtype: torch.dtype) -> str | None:
    """The safetensors name; None if there is none (complex128, odd floats)."""
    return _NAMES.get(dtype)


def dtype_of(name: str) -> torch.dtype | None:
    """The dtype of a safetensors name or of a plain one ("complex128"); None if this torch has none."""
    found: Any = _DTYPES.get(name) or getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def plain_name(dtype: torch.dtype | torch.layout | torch.memory_format) -> str:
    """The name without "torch."."""
    return str(dtype).rpartition(".")[2]
