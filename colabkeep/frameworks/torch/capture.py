"""What is torch's own in a capture: the forms and leaves of its tensors, how its modules are built, its optimizers."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from math import prod
from operator import attrgetter, is_
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from colabkeep.core.errors import NotStorable
from colabkeep.core.state import Tagged, Tree
from colabkeep.frameworks.shared import capture as shared
from colabkeep.frameworks.shared import host_memory
from colabkeep.frameworks.shared.capture import (
    Form,
    Kit,
    ModuleLayout,
    ParameterNames,
    Plan,
    Slot,
    TensorLeaves,
    TensorPlace,
    Tensors,
    Watch,
    view,
)
from colabkeep.frameworks.shared.host_memory import FrozenTensor, HostMemory
from colabkeep.frameworks.shared.trees import (
    FUNCTIONS,
    SlotCache,
    child,
    encode,
    encode_object,
    not_storable,
    told_state,
)
from colabkeep.frameworks.torch.copies import Copies, Devices, is_gapless, is_quantised, is_straight
from colabkeep.frameworks.torch.shells import KIND as SHELL
from colabkeep.frameworks.torch.shells import taken_apart

_PAIRS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
# An older torch lacks the youngest of them.
_NAMES = {getattr(torch, plain): name for plain, name in _PAIRS.items() if hasattr(torch, plain)}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_MKLDNN = getattr(torch, "_mkldnn", None)
_SUB_BYTE = {getattr(torch, f"{sign}int{bits}", None) for sign in ("", "u") for bits in range(1, 8)}  # not copyable
CONSTANTS = {torch.dtype: "torch.dtype", torch.layout: "torch.layout", torch.memory_format: "torch.memory_format"}
_GRADIENT = attrgetter("grad")


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


@contextmanager
def ordinary() -> Iterator[None]:
    """What is made in here may be written to later, also if the caller is in inference mode: its tensors may not."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():  # leaving it would turn gradients on
            yield
    else:
        yield


def memory_order(shape: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The dimensions from the slowest to the fastest; None if memory has gaps or overlaps.

    The order depends on the strides alone, so that it can be found again without the shape.
    """
    order = sorted(range(len(stride)), key=lambda d: -stride[d])
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and stride[d] != step:
            return None
        step *= shape[d]
    return order if prod(shape) else None


def is_expanded(tensor: torch.Tensor) -> bool:
    """Does one number in memory stand for many?"""
    return any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


class TorchKit(Kit):
    """See `Kit`."""

    tensor = torch.Tensor
    module = torch.nn.Module
    optimizer = torch.optim.Optimizer
    marks = tuple(map(attrgetter, ("dtype", "is_cuda", "requires_grad")))
    sizes = (
        (attrgetter("shape"), None),
        (torch.Tensor.stride, lambda tensor: tensor.layout is torch.strided),  # compressed ones have none
    )

    def __init__(self) -> None:
        self.module_layout, self.optimizer_recorder = _TORCH, OptimizerRecorder
        self._devices = Devices()

    def same(self, tensor: torch.Tensor) -> object:
        return tensor.shape, tensor.dtype, tensor.stride(), tensor.device

    def form(self, tensor: torch.Tensor, *, keep_order: bool) -> Form:
        shape, stride, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
        order = memory_order(shape, stride) if keep_order else None
        details: dict[str, Tree] = {}
        name = dtype_name(dtype)
        if name is None:
            details["dtype"] = plain_name(dtype)
        kept = None if order is None or stride == _row_major(shape) else stride
        if kept is not None:
            details["stride"] = kept
        dims = shape if order is None else tuple(shape[d] for d in order)
        if name is None:  # safetensors does not know it: its bytes
            name, dims = "U8", (*dims, dtype.itemsize)
        size = tensor.numel() * dtype.itemsize
        return Form(self.same(tensor), "torch.tensor", name, dims, size, details, kept, late=tensor.is_cuda)

    def refuse(self, tensor: torch.Tensor, path: str) -> None:
        remedy = _remedy(tensor)
        if remedy:
            raise not_storable(tensor, path, remedy)
        if isinstance(tensor, torch.nn.Parameter) and tensor.layout is torch.strided and is_expanded(tensor):
            raise NotStorable(
                problem=f"{path} is an expanded tensor: one number in memory stands for many of its "
                f"{tuple(tensor.shape)}, so that neither an optimizer nor a resume can write them.",
                remedy="Give each number a place of its own: torch.nn.Parameter(x.expand(…).clone()).",
                path=path,
            )

    def address(self, tensor: torch.Tensor) -> int:
        try:
            return tensor.data_ptr()
        except RuntimeError:  # of a device whose tensors have no memory that can be read
            return 0

    def is_straight(self, tensor: torch.Tensor, slot: Slot) -> bool:
        return is_straight(tensor, slot)

    def is_here(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cpu

    def device(self, tensor: torch.Tensor) -> str:
        return tensor.device.type

    def is_provable(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda or host_memory.READS

    def frozen_now(self, tensor: torch.Tensor, copies: Copies) -> FrozenTensor:
        version = None if tensor.is_inference() else tensor._version
        landing = copies.device.look(tensor, checksum=True) if tensor.is_cuda else None
        return FrozenTensor(tensor.data_ptr(), version, tensor.detach(), landing)

    def is_frozen(self, place: TensorPlace) -> bool:
        return place.constant or (place.parameter and not place.tensor.requires_grad)

    def checksum(self, tensor: torch.Tensor) -> bytes | None:
        if tensor.is_meta or tensor.layout is not torch.strided or _leads_elsewhere(tensor):
            return None
        rows = tensor.detach().cpu().contiguous()
        return hashlib.blake2b(view(rows.data_ptr(), rows.nbytes), digest_size=32).digest()

    def is_referable(self, tensor: torch.Tensor) -> bool:
        straight = tensor.layout is torch.strided and is_gapless(tensor, None)
        return straight and tensor.nbytes >= host_memory.LET_GO and self.is_provable(tensor)

    def size(self, tensor: torch.Tensor) -> int:
        return tensor.nbytes

    def is_scattered(self, tensor: torch.Tensor) -> bool:
        return tensor.layout is not torch.strided

    def beside(self, part: str, places: shared.TensorPlaces, leaves: TensorLeaves) -> dict[str, Tree]:
        told = {
            name: encode(module.get_extra_state(), f"{part}.{name}.get_extra_state()", leaves)
            for name, module in extras(places)
        }
        counted = {name: encode(value, f"{part}.{name}", leaves) for name, value in counted_by(places).items()}
        return {"extra": told, **({"metrics": counted} if counted else {})}

    def leaf(self, value: Any, path: str, leaves: TensorLeaves) -> Tree | None:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return _tensor_leaf(self, value, path, leaves)
        if kind in CONSTANTS:
            return Tagged(CONSTANTS[kind], plain_name(value))
        if kind is torch.device:
            return Tagged("torch.device", str(value))
        if kind is torch.Size:
            return Tagged("torch.Size", tuple(value))
        if kind is torch.Generator:
            state = leaves(value.get_state(), f"{path}.<state>")
            return Tagged("torch.generator", {"device": str(value.device), "state": state})
        told = taken_apart(value)
        if told is not None:
            return Tagged(SHELL, encode(told, path, leaves))
        return _tensor_leaf(self, value, path, leaves) if isinstance(value, torch.Tensor) else None

    def tell(self, part: str, target: Any, leaves: TensorLeaves) -> Tree:
        if isinstance(target, torch.amp.GradScaler) and _is_on_gpu(target):
            return _scaler_tree(part, target, leaves)
        return encode_object(part, target, leaves, _without_functions if isinstance(target, LRScheduler) else None)

    def copies(self) -> Copies:
        return Copies(self._devices)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _remedy(tensor: torch.Tensor) -> str:
    """What to do about a tensor whose numbers are not there, or not in a form that can be copied; "" for any other."""
    if torch.nn.parameter.is_lazy(tensor):
        return "It has no shape yet. Run one forward pass before training begins to save."
    if tensor.is_meta:
        return "It is on the meta device and has no data. Call module.to_empty() or load it."
    if tensor.is_quantized:
        return "Quantized tensors cannot be trained: save x.dequantize(), or leave it out."
    if tensor.is_nested or tensor.layout is _MKLDNN or tensor.dtype in _SUB_BYTE or _leads_elsewhere(tensor):
        return "Make it an ordinary tensor first: x.to_dense(), x.full_tensor() or x.to(...)."
    return ""


def _leads_elsewhere(tensor: torch.Tensor) -> bool:
    """Is it a shell around others: distributed, quantized?"""
    return bool(torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor))


def _tensor_leaf(kit: TorchKit, tensor: torch.Tensor, path: str, leaves: TensorLeaves) -> Tree:
    remedy = _remedy(tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        remedy = remedy or "Store a plain tensor: x.as_subclass(torch.Tensor), or its parts."
    if remedy:
        raise not_storable(tensor, path, remedy)
    if tensor.layout is torch.strided:
        details: dict[str, Tree] = {}
        if leaves.devices and not tensor.is_cpu:
            details["device"] = str(tensor.device)
        if isinstance(tensor, torch.nn.Parameter):
            details["parameter"] = tensor.requires_grad
        elif tensor.requires_grad and tensor.is_leaf:
            details["requires_grad"] = True
        return leaves.dense(tensor, path, **details)
    sparse = tensor.layout is torch.sparse_coo
    names = ("_indices", "_values") if sparse else (*_COMPRESSED[tensor.layout], "values")
    parts = [_tensor_leaf(kit, getattr(tensor, name)().detach(), f"{path}.{name}", leaves) for name in names]
    coalesced = tensor.is_coalesced() if sparse else None
    layout, size = plain_name(tensor.layout), tuple(tensor.shape)
    return Tagged("torch.sparse", {"layout": layout, "parts": parts, "size": size, "coalesced": coalesced})


def _is_on_gpu(scaler: Any) -> bool:
    """Is its state what torch's own class tells, and on a GPU by now?"""
    scale = getattr(scaler, "_scale", None)
    own = type(scaler).state_dict is torch.amp.GradScaler.state_dict
    return own and scaler.is_enabled() and isinstance(scale, torch.Tensor) and scale.is_cuda


def _scaler_tree(part: str, scaler: Any, leaves: TensorLeaves) -> Tree:
    """What it would tell (torch/amp/grad_scaler.py, torch 2.4 to 2.13), without waiting for its two numbers."""
    told = {
        "scale": 0.0,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        "_growth_tracker": 0,
    }
    tree, copies = told_state(scaler, told, part, leaves), leaves.copies
    if isinstance(copies, Copies):
        copies.fill(tree["state"], {"scale": scaler._scale, "_growth_tracker": scaler._growth_tracker})
    return tree


def _without_functions(state: Any) -> Any:
    """A scheduler's state without the functions that it was built with.

    Torch leaves out lambdas itself, and forgets others (SWALR.anneal_func before 2.6). The constructor has put them
    into the new scheduler already.
    """
    if isinstance(state, dict):
        return {key: _without_functions(value) for key, value in state.items() if not isinstance(value, FUNCTIONS)}
    if isinstance(state, list):
        return [_without_functions(value) for value in state]
    return state


def extras(places: shared.TensorPlaces) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules with state beside tensors (`get_extra_state`), by name."""
    own = torch.nn.Module.get_extra_state
    return ((prefix, each) for prefix, each in places.modules if type(each).get_extra_state is not own)


def metrics(places: shared.TensorPlaces) -> Iterator[tuple[str, Any]]:
    """Metrics of torchmetrics, by name. What they have counted is in attributes, which `state_dict()` leaves out."""
    return ((prefix, each) for prefix, each in places.modules if _is_metric(each))


def counted_by(places: shared.TensorPlaces) -> dict[str, dict[str, Any]]:
    """What each of them has counted: tensors, and lists of them, live."""
    return {
        prefix: {
            name: [_detached(each) for each in value] if isinstance(value, list) else _detached(value)
            for name, value in counts_of(each).items()
        }
        for prefix, each in metrics(places)
    }


def counts_of(metric: Any) -> dict[str, Any]:
    """Its states, and tensors in other attributes of it, as `MinMaxMetric` has them; not what it computed of these."""
    others = {name: value for name, value in vars(metric).items() if name[0] != "_" and isinstance(value, torch.Tensor)}
    return {**others, **metric.metric_state}


def _is_metric(module: torch.nn.Module) -> bool:
    package = sys.modules.get("torchmetrics")
    kind = getattr(package, "Metric", None)
    return kind is not None and isinstance(module, kind) and hasattr(module, "metric_state")


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tells_plainly(module: torch.nn.Module) -> bool:
    if _is_metric(module):
        return True
    kind, base = type(module), torch.nn.Module
    return kind.state_dict is base.state_dict and kind._save_to_state_dict is base._save_to_state_dict


# Of a weight that bitsandbytes has quantised, the scales are attributes (bitsandbytes 0.45 to 0.50, functional.py,
# `QuantState.as_dict`; nn/modules.py, `Linear8bitLt._save_to_state_dict`). `state_dict()` tells them, and beside them
# copies, and a text of what the code that loads the model says too.


_SCALES = (("absmax", "absmax"), ("code", "quant_map"), ("offset", "nested_offset"))
_NESTED = (("absmax", "nested_absmax"), ("code", "nested_quant_map"))
_TOLD_BESIDE = re.compile(r"(.*\.)?(weight\.(nested_quant_map|quant_state\.bitsandbytes__\w+)|weight_format)")


def _quantised(start: str, module: torch.nn.Module) -> Iterator[TensorPlace]:
    for key, weight in module._parameters.items():
        if weight is None or not is_quantised(weight):
            continue
        state = vars(weight).get("quant_state")
        if state is not None:
            owners = [(vars(state), _SCALES), *([(vars(state.state2), _NESTED)] if state.nested else ())]
            for owner, names in owners:
                for own, told in names:
                    if isinstance(owner.get(own), torch.Tensor):
                        yield TensorPlace(f"{start}{key}.{told}", owner, own, parameter=False, kept=True, constant=True)
        for owner in (vars(weight), vars(getattr(module, "state", weight))):  # it goes from the one to the other
            if isinstance(owner.get("SCB"), torch.Tensor):
                yield TensorPlace(f"{start}SCB", owner, "SCB", parameter=False, kept=True, constant=True)
                break


def _told(module: torch.nn.Module) -> dict[str, Any]:
    told = module.state_dict(keep_vars=True)
    return {key: value for key, value in told.items() if not _TOLD_BESIDE.fullmatch(key)}


_TORCH = ModuleLayout(
    children="_modules",
    transient="_non_persistent_buffers_set",
    wrappers=(
        ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
        ("torch.nn.parallel", "DataParallel", "module"),
        ("torch.nn.parallel", "DistributedDataParallel", "module"),
        (
            "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
            "CheckpointWrapper",
            "_checkpoint_wrapped_module",
        ),
    ),
    plain=_tells_plainly,
    told=_told,
    elsewhere="Its state_dict() holds more than parameters and buffers. Register them as buffers, or return "
    "them from get_extra_state() and take them back in set_extra_state().",
    beside=_quantised,
)
TensorPlaces = partial(shared.TensorPlaces, _TORCH)
"""The places of a module and its children."""


# The tree of an optimizer has "kind", "class", "groups", "state", "other", "more", "loose", "graded" and "inner":
# `groups` name their parameters and hold the settings; `state` is by parameter name; `other` is state under keys that
# are no parameters; `more` is what a subclass or hook adds to `state_dict()`; `loose` are the values of parameters that
# no module of the run holds, which nobody else would keep; `graded` names the parameters that have a gradient; `inner`
# are the states of optimizers that this one holds, where there are any; `host` names the state that is in host memory
# though its parameter is not, where there is any: torch's loading would move it to the parameter.
#
# One whose `state_dict()` has not the two entries of torch's own is an object that tells its state, and no more.
#
# Gradients themselves are not kept here: the next step clears them. But `zero_grad(set_to_none=False)` makes them zero,
# and by a zero gradient moments still move a parameter that a step did not use, while one without a gradient stays
# where it is.


def inner_optimizers(optimizer: torch.optim.Optimizer) -> dict[str, torch.optim.Optimizer]:
    """The optimizers that it holds and whose state torch's `state_dict()` leaves out, by attribute. A class with a
    `state_dict` of its own tells there what it needs."""
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        return {}
    held = ((name, each) for name, each in vars(optimizer).items() if isinstance(each, torch.optim.Optimizer))
    return {name: each for name, each in held if each.state is not optimizer.state}


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Those of all its groups."""
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


def parameter_names(optimizer: torch.optim.Optimizer, names: ParameterNames) -> list[list[str]]:
    """The names of each group's parameters; "group0.1" for one that no module holds."""
    return [
        [names.get(parameter) or f"group{i}.{j}" for j, parameter in enumerate(group["params"])]
        for i, group in enumerate(optimizer.param_groups)
    ]


class OptimizerRecorder(shared.Recorder):
    """Captures one optimizer, with a plan where its state is tensors by parameter, as nearly always."""

    def __init__(self, part: str, target: torch.optim.Optimizer, kit: Kit, memory: HostMemory) -> None:
        super().__init__(part, target, kit, memory)
        self._slots: SlotCache[Slot] = SlotCache()
        self._names = ParameterNames(())
        self._plan: _StatePlan | None = None

    def refresh(self, names: ParameterNames) -> None:
        self._names = names
        if self._plan is None or not self._plan.holds(names):
            self._plan = self._new_plan(names)

    def tree(self, copies: shared.Copies) -> Tree:
        optimizer = self.target
        named = parameter_names(optimizer, self._names) if self._plan is None else self._plan.named
        state: dict[str, Tree] = {}
        other: dict[Any, Any] = {}
        more: dict[str, Any] = {}
        groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
        if self._plan is None:
            told = optimizer.state_dict()
            if not told.keys() >= {"state", "param_groups"}:
                return told_state(optimizer, told, self.part, self._leaves)
            groups = told["param_groups"]
            state, other = self._told_state(told["state"], list(chain.from_iterable(named)))
            more = {key: value for key, value in told.items() if key not in ("state", "param_groups")}
        else:
            copies.take(self._plan.tensors)
            state = self._plan.state
        tree = {
            "kind": "optimizer",
            "class": type(optimizer).__name__,
            "groups": [self._group(i, group, named[i]) for i, group in enumerate(groups)],
            "state": state,
            "other": encode(other, f"{self.part}.state", self._leaves),
            "more": encode(more, self.part, self._leaves),
            "loose": self._loose(named),
            "graded": _graded(named, optimizer),
        }
        inner = inner_optimizers(optimizer)
        if inner:
            tree["inner"] = {
                name: encode(each.state_dict(), f"{self.part}.{name}", self._state_leaves)
                for name, each in inner.items()
            }
        if host := _on_host(named, optimizer):
            tree["host"] = host
        return tree

    def _group(self, i: int, group: Mapping[str, Any], named: list[str]) -> Tree:
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        parameters = self.target.param_groups[i]["params"]
        return {
            "params": named,
            "device": parameters[0].device.type if parameters else "cpu",
            "options": encode(options, f"{self.part}.param_groups[{i}]", self._leaves),
        }

    def _told_state(self, told: Mapping[Any, Any], flat: list[str]) -> tuple[dict[str, Tree], dict[Any, Any]]:
        state, other = {}, {}
        for key, value in told.items():
            if type(key) is int and key < len(flat):
                state[flat[key]] = encode(value, f"{self.part}.state[{flat[key]!r}]", self._state_leaves)
            else:
                other[key] = value
        return state, other

    def _loose(self, named: list[list[str]]) -> dict[str, Tree]:
        if self._plan is not None and self._plan.all_held:
            return {}
        found = {}
        for i, group in enumerate(self.target.param_groups):
            for j, parameter in enumerate(group["params"]):
                if self._names.get(parameter) is None:
                    path = f"{self.part}.param_groups[{i}].params[{j}]"
                    found[named[i][j]] = self._state_leaves(parameter.detach(), path)
        return found

    def _new_plan(self, names: ParameterNames) -> _StatePlan | None:
        optimizer = self.target
        inherited = type(optimizer).state_dict is torch.optim.Optimizer.state_dict
        if inherited and "_optimizer_state_dict_pre_hooks" not in vars(optimizer):
            raise _unmade(self.part, optimizer)
        told_plainly = (
            inherited
            and not optimizer._optimizer_state_dict_pre_hooks
            and not optimizer._optimizer_state_dict_post_hooks
        )
        known = {id(parameter) for parameter in parameters_of(optimizer)}
        if not told_plainly or not all(
            id(key) in known and _is_plain_entry(entry) for key, entry in optimizer.state.items()
        ):
            return None
        return _StatePlan(self.part, optimizer, names, Plan(self._kit, self._memory, self._slots))


def _on_host(named: list[list[str]], optimizer: torch.optim.Optimizer) -> dict[str, list[str]]:
    """The state in host memory of parameters that are elsewhere, by parameter name."""
    found = {}
    for name, parameter in zip(chain.from_iterable(named), parameters_of(optimizer), strict=True):
        entry = None if parameter.is_cpu else optimizer.state.get(parameter)
        held = entry.items() if isinstance(entry, dict) else ()
        keys = [key for key, value in held if isinstance(value, torch.Tensor) and value.is_cpu and value.dim()]
        if keys:
            found[name] = keys
    return found


def _graded(named: list[list[str]], optimizer: torch.optim.Optimizer) -> list[str]:
    gradients = map(_GRADIENT, parameters_of(optimizer))
    pairs = zip(chain.from_iterable(named), gradients, strict=True)
    return [name for name, each in pairs if each is not None and each.layout is torch.strided]


def _is_plain_entry(entry: object) -> bool:
    """Is this state of a parameter a dict of tensors (or None), as torch's own optimizers keep it?"""
    return type(entry) is dict and all(
        type(name) is str and (value is None or (type(value) is torch.Tensor and value.layout is torch.strided))
        for name, value in entry.items()
    )


class _StatePlan:
    """What a capture of an optimizer does, as long as it keeps the same tensors."""

    def __init__(self, part: str, optimizer: torch.optim.Optimizer, names: ParameterNames, plan: Plan) -> None:
        self._optimizer, self._names = optimizer, names
        self.named = parameter_names(optimizer, names)
        self._parameters = list(parameters_of(optimizer))
        self.all_held = all(names.get(parameter) is not None for parameter in self._parameters)
        name_of = dict(zip(map(id, self._parameters), chain.from_iterable(self.named), strict=True))
        self._entries = optimizer.state  # loading a state replaces the dict itself
        self._watch = Watch([optimizer.state, *optimizer.state.values()])
        self.state: dict[str, Tree] = {}
        for parameter, entry in optimizer.state.items():
            name = name_of[id(parameter)]
            leaves: dict[str, Tree] = {}
            for key, value in entry.items():
                leaves[key] = None
                if value is not None:
                    plan.show(value, child(f"{part}.state[{name!r}]", key), leaves, key)
            self.state[name] = leaves
        self.tensors: Tensors = plan.tensors(keep_order=True)

    def holds(self, names: ParameterNames) -> bool:
        """Has the optimizer still the parameters, names and state tensors that were planned for?"""
        now = list(parameters_of(self._optimizer))
        return (
            names is self._names
            and self._optimizer.state is self._entries
            and len(now) == len(self._parameters)
            and [len(group["params"]) for group in self._optimizer.param_groups] == list(map(len, self.named))
            and all(map(is_, now, self._parameters))
            and self._watch.unchanged()
            and self.tensors.unchanged()
        )


def _unmade(part: str, optimizer: torch.optim.Optimizer) -> NotStorable:
    name = type(optimizer).__name__
    return NotStorable(
        problem=f"{part}: {name} cannot tell its state: torch's state_dict() needs what Optimizer.__init__ makes, and "
        f"{name}.__init__ does not call it.",
        remedy=f"Call super().__init__(params, defaults) in {name}.__init__; or, if it wraps another optimizer, give "
        "it a state_dict() and a load_state_dict() of its own that include the other's.",
        path=part,
    )
