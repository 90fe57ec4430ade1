"""What is Paddle's own in a capture: the forms and leaves of its tensors, how its layers are built, its optimizers."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import prod
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.base import framework
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.core.state import HostTensor, Tagged, Tree
from colabkeep.frameworks.paddle.rng import GeneratorState, plain_state
from colabkeep.frameworks.shared import capture
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
)
from colabkeep.frameworks.shared.host_memory import FrozenTensor, HostMemory
from colabkeep.frameworks.shared.trees import SlotCache, child, encode, encode_object, not_storable

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


# Not through `tensor.numpy()`: that copies (104 MB took 60 ms, the bare copy 6), and NumPy has no bfloat16.


_CPU = paddle.CPUPlace()


def on_cpu(tensor: Any) -> bool:
    """Is the tensor in memory that the CPU reads directly?"""
    return bool(tensor.place.is_cpu_place())


def place_name(place: Any) -> str:
    """A device as Paddle's functions take it: "cpu", "gpu:0"."""
    return str(place).removeprefix("Place(").removesuffix(")")


def size_of(tensor: Any) -> int:
    """Its bytes."""
    size: int = prod(tensor.shape) * tensor.element_size()
    return size


def has_data(tensor: Any) -> bool:
    """Has it its numbers? An empty tensor has them all, though to Paddle it is not initialized either."""
    return is_somewhere(tensor) or not size_of(tensor)


def is_somewhere(tensor: Any) -> bool:
    """Has it memory, and so a device? The dropout state of an RNN has none until a forward pass needs it."""
    return bool(tensor._is_initialized())


def bytes_of(tensor: Any) -> memoryview:
    """The bytes of a row-major tensor in the CPU's memory, page-locked or not. The view keeps the memory alive."""
    size = size_of(tensor)
    if size == 0:
        return memoryview(b"")
    buffer = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    buffer.tensor = tensor  # type: ignore[attr-defined]  # ctypes arrays take attributes; typeshed knows of none
    return memoryview(buffer).cast("B")


def cpu_tensor(shape: Sequence[int], dtype: Any) -> Any:
    """A new tensor on the CPU, whatever the device in use; its numbers are left to chance."""
    with framework._dygraph_place_guard(place=_CPU):
        return paddle.empty(list(shape), dtype=dtype)


def holding(tensor: Any) -> Any:
    """What keeps the tensor's memory. A detached tensor would lose it together with this one (`_clear_data`)."""
    holder = paddle.Tensor()
    tensor._share_buffer_to(holder)
    return holder


def copy_host(tensor: Any, host: HostTensor) -> None:
    """Copy stored bytes into a row-major tensor on the CPU, of the same size. Other threads go on meanwhile."""
    if host.data.nbytes:
        np.copyto(np.frombuffer(bytes_of(tensor), np.uint8), np.frombuffer(host.data, np.uint8))


_PLAIN_TYPES = (paddle.Tensor, framework.EagerParamBase)
_PLACES = (paddle.CPUPlace, paddle.CUDAPlace, paddle.XPUPlace, paddle.CustomPlace)


class PaddleKit(Kit):
    """See `Kit`."""

    tensor = paddle.Tensor
    module = nn.Layer
    optimizer = Optimizer
    marks = (
        *map(attrgetter, ("shape", "dtype", "stop_gradient")),
        methodcaller("is_contiguous"),  # copied by address
        on_cpu,
    )

    def __init__(self) -> None:
        self.module_layout, self.optimizer_recorder = _PADDLE, OptimizerRecorder

    def same(self, tensor: Any) -> object:
        return tuple(tensor.shape), plain_name(tensor.dtype), str(tensor.place)

    def form(self, tensor: Any, *, keep_order: bool) -> Form:
        shape, plain = tuple(tensor.shape), plain_name(tensor.dtype)
        name, details = dtype_name(tensor.dtype), dict[str, Tree]()
        if name is None:  # safetensors does not know it: its bytes
            name, shape, details = "U8", (*shape, int(tensor.element_size())), {"dtype": plain}
        return Form(self.same(tensor), "paddle.tensor", name, shape, size_of(tensor), details)

    def refuse(self, tensor: Any, path: str) -> None:
        if tensor.is_sparse():
            raise not_storable(tensor, path, "Make it an ordinary tensor first: x.to_dense().")
        if type(tensor) not in _PLAIN_TYPES or tensor.is_dist():
            raise not_storable(tensor, path, "Store a plain tensor on one device, or its parts.")
        if not has_data(tensor):
            raise not_storable(
                tensor, path, "It has no data yet. Build the model outside paddle.LazyGuard(), or call x.initialize()."
            )

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr()) if is_somewhere(tensor) else 0

    def is_straight(self, tensor: Any, slot: Slot) -> bool:
        return on_cpu(tensor) and bool(tensor.is_contiguous())

    def is_here(self, tensor: Any) -> bool:
        return on_cpu(tensor)

    def device(self, tensor: Any) -> str:
        return place_name(tensor.place).partition(":")[0]

    def frozen_now(self, tensor: Any, copies: Any) -> FrozenTensor:
        # The version stays as it is when an optimizer steps, when batch norm moves its means, and in `set_value` (tried
        # with all optimizers of Paddle 3.3.1): nothing is concluded from it, but that one that has moved is copied.
        return FrozenTensor(tensor.data_ptr(), tensor.inplace_version, holding(tensor))

    def is_frozen(self, place: TensorPlace) -> bool:
        return place.parameter and bool(place.tensor.stop_gradient) and not is_statistic(place.tensor)

    def is_unfilled(self, place: TensorPlace) -> bool:
        return not place.parameter and not has_data(place.tensor)

    def leaf(self, value: Any, path: str, leaves: TensorLeaves) -> Tree | None:
        kind = type(value)
        if isinstance(value, paddle.Tensor):
            return self._tensor_leaf(value, path, leaves)
        if kind is paddle.dtype:
            return Tagged("paddle.dtype", plain_name(value))
        if kind in _PLACES:
            return Tagged("paddle.place", place_name(value))
        if kind is GeneratorState:
            return Tagged("paddle.generator_state", _told(value, path))
        return None

    def tell(self, part: str, target: Any, leaves: TensorLeaves) -> Tree:
        if not isinstance(target, LRScheduler):
            return encode_object(part, target, leaves)
        state = encode(scheduler_state(target), part, leaves)
        return {"kind": "object", "class": type(target).__name__, "state": state}

    def copies(self) -> Copies:
        return Copies()

    def _tensor_leaf(self, tensor: Any, path: str, leaves: TensorLeaves) -> Tree:
        self.refuse(tensor, path)
        details: dict[str, Tree] = {}
        if leaves.devices and not on_cpu(tensor):
            details["device"] = place_name(tensor.place)
        if isinstance(tensor, framework.EagerParamBase):
            details["parameter"] = not tensor.stop_gradient
        elif not tensor.stop_gradient and tensor.is_leaf:
            details["requires_grad"] = True
        return leaves.dense(tensor, path, **details)


def _told(state: Any, path: str) -> Tree:
    plain = plain_state(state)
    if plain is None:
        raise not_storable(
            state,
            path,
            f"Paddle {paddle.__version__} does not tell the position of its CPU generator; leave the state out, the "
            "run keeps the random numbers itself.",
        )
    return plain


# What lies on a device is brought tensor by tensor through page-locked memory, in the order of its stream, and waited
# for. That was reviewed by reading, and has never run on a card.


class Copies(capture.Copies):
    """Copies from the live tensors (held here, so that none goes away) to their slots."""

    def __init__(self) -> None:
        super().__init__()
        self._device: list[tuple[Slot, Any]] = []
        self._held: list[Any] = []

    def add(self, slot: Slot, source: Any) -> None:
        if not slot.size:
            return
        if not on_cpu(source):
            self._device.append((slot, source))
            return
        straight = source if source.is_contiguous() else _gapless(source)
        self._held.append(straight)
        self.host.add(slot, slot.address, straight.data_ptr(), slot.size)

    def run(self) -> None:
        for slot, source in self._device:
            slot.new = True
            here = _brought(source)
            ctypes.memmove(slot.address, here.data_ptr(), slot.size)
        super().run()


def _brought(source: Any) -> Any:
    """A row-major copy in memory that the CPU reads. Page-locked, it takes one from a GPU at full speed."""
    if source.place.is_gpu_place() and source.is_contiguous():
        try:
            return source.pin_memory()
        except MemoryError:  # there is no more of that kind; ordinary memory takes the copy too
            pass
    return _gapless(source)


def _gapless(source: Any) -> Any:
    """A row-major copy. Not by `source.contiguous()`, which turns the live tensor itself (Paddle 3.3.1)."""
    copy = cpu_tensor(source.shape, source.dtype)
    copy.copy_(source, True)
    return copy


def is_statistic(parameter: Any) -> bool:
    """May a forward pass change this parameter?

    Paddle keeps running means and the vectors of spectral norms as parameters without gradient, and changes
    them without a trace. From frozen weights they differ in that they have one dimension at most.
    """
    return parameter is not None and bool(parameter.stop_gradient) and len(parameter.shape) < 2


def owners(layers: Iterable[nn.Layer]) -> list[tuple[dict[str, Any], Callable[[Any], bool]]]:
    """The dicts of these layers with tensors that a forward pass may change, and a test for which of them it may."""
    found: dict[int, tuple[dict[str, Any], Callable[[Any], bool]]] = {}
    for each in layers:
        if each._buffers:
            found[id(each._buffers)] = each._buffers, lambda _: True
        if any(map(is_statistic, each._parameters.values())):
            found[id(each._parameters)] = each._parameters, is_statistic
    return list(found.values())


def _tells_plainly(layer: nn.Layer) -> bool:
    kind, base = type(layer), nn.Layer
    return kind.state_dict is base.state_dict and kind._state_dict_impl is base._state_dict_impl


_PADDLE = ModuleLayout(
    children="_sub_layers",
    transient="_non_persistable_buffer_names_set",
    wrappers=(("paddle.distributed.parallel", "DataParallel", "_layers"),),
    plain=_tells_plainly,
    told=lambda layer: layer.state_dict(),
    elsewhere="Its state_dict() holds more than parameters and buffers. Register them as buffers: "
    "self.register_buffer(name, tensor).",
)
TensorPlaces = partial(capture.TensorPlaces, _PADDLE)
"""The places of a module and its children."""


_WARMED = "LinearWarmup_LR"  # under which LinearWarmup tells the state of the scheduler inside it


def scheduler_state(scheduler: LRScheduler) -> dict[str, Any]:
    """The state of a scheduler: its numbers, the schedulers inside it, and what else it tells.

    What it tells is not enough: CosineAnnealingWarmRestarts leaves out where in its cycle it is, and the best loss
    of a ReduceOnPlateau, a tensor, is told as a number, with which the next comparison is rounded differently.
    """
    own = {key: value for key, value in vars(scheduler).items() if _is_number(value)}
    inside = {key: scheduler_state(value) for key, value in vars(scheduler).items() if isinstance(value, LRScheduler)}
    told = {key: value for key, value in scheduler.state_dict().items() if key not in own and key != _WARMED}
    return {"own": own, "inside": inside, "told": told}


def _is_number(value: object) -> bool:
    return type(value) in (int, float) or isinstance(value, paddle.Tensor)


# The tree has "kind", "class", "groups", "state", "masters", "learning_rate", "more", "loose" and "graded": `groups`
# name their parameters and hold their settings; `state` is by parameter name, then by kind of accumulator; `masters`
# are the float32 weights behind half-precision parameters; `learning_rate` is a number, or the state of the scheduler
# in its place; `more` is state under no parameter; `loose` are the values of parameters that no layer of the run holds,
# which nobody else would keep; `graded` names the parameters that have a gradient.
#
# Gradients themselves are not kept: the next step clears them. But `clear_grad()` makes them zero, and by a gradient of
# zero moments still move a parameter that a step did not use, while one without a gradient stays where it is.
#
# Paddle's own `state_dict()` has names such as "linear_0.w_0_moment1_0", with counters that go on when the model is
# built again in the same notebook.


_MORE = ("state", "_global_step_var")
"""Attributes with state under no parameter: those of LBFGS and LookAhead."""

_MADE_BY = re.compile(r"_(?:fp32_master_\d+_)?(?P<kind>.+?)_\d+$")  # behind a parameter's name, in Paddle's own state


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The groups of parameters that the user made; none where there is but one list of them."""
    groups = optimizer._param_groups
    return groups if groups and isinstance(groups[0], dict) else []


def plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group that are numbers or text. Objects (decay, clipping) come back with the code."""
    return {key: value for key, value in group.items() if type(value) in (bool, int, float, str)}


def group_parameters(optimizer: Optimizer) -> list[list[Any]]:
    """The parameters of each group; of the one there is where the user made none."""
    return [group["params"] for group in groups_of(optimizer)] or [optimizer._param_groups]


def parameter_names(optimizer: Optimizer, names: ParameterNames) -> list[list[str]]:
    """The names of each group's parameters; "group0.1" for one that no layer holds."""
    return [
        [names.get(parameter) or f"group{i}.{j}" for j, parameter in enumerate(parameters)]
        for i, parameters in enumerate(group_parameters(optimizer))
    ]


def masters_of(optimizer: Optimizer) -> dict[str, Any]:
    """The float32 weights behind half-precision parameters, by the parameter's generated name."""
    masters: dict[str, Any] = optimizer._master_weights
    return masters


class OptimizerRecorder(capture.Recorder):
    """Captures one optimizer."""

    def __init__(self, part: str, target: Any, kit: Kit, memory: HostMemory) -> None:
        super().__init__(part, target, kit, memory)
        self._slots: SlotCache[Slot] = SlotCache()
        self._plan: _StatePlan | None = None
        # LookAhead drives another optimizer, and has accumulators of its own.
        inner = getattr(target, "inner_optimizer", None)
        self._inner = None if inner is None else OptimizerRecorder(f"{part}.inner_optimizer", inner, kit, memory)

    def refresh(self, names: ParameterNames) -> None:
        if self._plan is None or not self._plan.holds(names):
            self._plan = _StatePlan(self.part, self.target, names, Plan(self._kit, self._memory, self._slots))
        if self._inner is not None:
            self._inner.refresh(names)

    def tree(self, copies: capture.Copies) -> Tree:
        plan: Any = self._plan
        copies.take(plan.tensors)
        inner = {} if self._inner is None else {"inner": self._inner.record(copies)}
        settings = [plain_options(group) for group in groups_of(self.target)] or [{}]
        return {
            "kind": "optimizer",
            "class": type(self.target).__name__,
            "groups": [
                {"params": named, "options": options} for named, options in zip(plan.named, settings, strict=True)
            ],
            "state": plan.state,
            "masters": plan.masters,
            "learning_rate": self._learning_rate(),
            "more": self._more(),
            "loose": {
                name: self._state_leaves(parameter.detach(), f"{self.part}: parameter {name}")
                for name, parameter in plan.loose.items()
            },
            "graded": plan.graded(),
            **inner,
        }

    def _learning_rate(self) -> Tree:
        rate = self.target._learning_rate
        if not isinstance(rate, LRScheduler):
            return rate
        state = encode(scheduler_state(rate), f"{self.part}.learning_rate", self._leaves)
        return {"class": type(rate).__name__, "state": state}

    def _more(self) -> dict[str, Tree]:
        held = {name: vars(self.target).get(name) for name in _MORE}
        found = {name: value for name, value in held.items() if value is not None}
        return {name: encode(value, child(self.part, name), self._leaves) for name, value in found.items()}


class _StatePlan:
    """What a capture of an optimizer does, as long as it keeps the same tensors."""

    def __init__(self, part: str, optimizer: Any, names: ParameterNames, plan: Plan) -> None:
        self._optimizer, self._names = optimizer, names
        self.named = parameter_names(optimizer, names)
        self._parameters = list(chain.from_iterable(group_parameters(optimizer)))
        structured = dict(zip((p.name for p in self._parameters), chain.from_iterable(self.named), strict=True))
        self.loose = {
            name: parameter
            for name, parameter in zip(chain.from_iterable(self.named), self._parameters, strict=True)
            if names.get(parameter) is None
        }
        self._held = optimizer._accumulators, optimizer._accumulators_holder, masters_of(optimizer)
        self._watch = Watch([*self._held, *optimizer._accumulators.values()])
        self.masters: dict[str, Tree] = {}
        for name, master in masters_of(optimizer).items():
            if name in structured:  # else of a parameter that it does not train any more
                owner = structured[name]
                plan.show(master, f"{part}.masters[{owner!r}]", self.masters, owner)
        self.state: dict[str, dict[str, Tree]] = {}
        for name, kind, tensor in _accumulators(optimizer, structured):
            plan.show(tensor, f"{part}.state[{name!r}].{kind}", self.state.setdefault(name, {}), kind)
        self.tensors: Tensors = plan.tensors(keep_order=False)

    def holds(self, names: ParameterNames) -> bool:
        """Has the optimizer still the parameters, names and tensors that were planned for?"""
        optimizer = self._optimizer
        now = [id(parameter) for group in group_parameters(optimizer) for parameter in group]
        held = optimizer._accumulators, optimizer._accumulators_holder, masters_of(optimizer)
        return (
            names is self._names
            and all(one is other for one, other in zip(held, self._held, strict=True))
            and now == list(map(id, self._parameters))
            and self._watch.unchanged()
            and self.tensors.unchanged()
        )

    def graded(self) -> list[str]:
        """The names of the parameters that have a gradient, be it zero."""
        named = zip(chain.from_iterable(self.named), self._parameters, strict=True)
        return [name for name, parameter in named if parameter.grad is not None]


def _accumulators(optimizer: Optimizer, structured: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Parameter, kind and tensor of each accumulator, also of those that were loaded and not used yet."""
    owner = dict(structured)
    owner |= {master.name: owner[name] for name, master in masters_of(optimizer).items() if name in owner}
    known = set()
    for kind, entries in optimizer._accumulators.items():
        for name, tensor in entries.items():
            known.add(tensor.name)
            if name in owner:
                yield owner[name], kind, tensor
    for told, tensor in optimizer._accumulators_holder.items():
        if told not in known:
            name = max((name for name in structured if told.startswith(f"{name}_")), key=len, default=None)
            made = _MADE_BY.match(told, 0 if name is None else len(name))
            if name is not None and made is not None:
                yield structured[name], made["kind"], tensor
