"""The processes of torch.distributed that train one model: what they agree on, and the sums of their gradients."""

from __future__ import annotations

import importlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.hooks import RemovableHandle

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import METRICS
from colabkeep.frameworks.shared.capture import TensorPlace
from colabkeep.frameworks.torch.capture import TensorPlaces, counted_by
from colabkeep.frameworks.torch.facts import place

_WIDE = 16  # numbers that are told together
_BUCKET = 32 << 20  # bytes of gradients that are summed at a time: each is copied into one buffer


def device_count() -> int:
    """How many GPUs torch sees here."""
    return int(torch.cuda.device_count())


def held() -> list[int]:
    """Bytes of each GPU that this process holds, once what torch only keeps for its next tensors is given back."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return []
    cuda.empty_cache()
    return [int(cuda.memory_reserved(number)) for number in range(device_count())]


@contextmanager
def join(rank: int, size: int, folder: str) -> Iterator[None]:
    """Be one of the processes of this machine that train together; they meet in a file of `folder`."""
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(0)  # it sees one card, whichever one the notebook's tensors lie on
        torch.serialization.register_package(7, lambda _: None, _onto_this_card)  # before torch's own, 10 and up
        backend = "cpu:gloo,cuda:nccl"
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    yield
    dist.destroy_process_group()


def _onto_this_card(storage: Any, location: str) -> Any:
    return storage.cuda(0) if location.startswith("cuda") else None


def gradient_bytes(model: object) -> int:
    """Bytes of gradients that a step makes; 0 of what is no model."""
    if not isinstance(model, torch.nn.Module):
        return 0
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


SUMMING: ContextVar[float | None] = ContextVar("colabkeep_summing", default=None)
"""In a process that was begun here: the seconds that `try_out` told."""

_TRIES = 5


def try_out(rank: int, size: int, summed: int) -> float | None:
    """Sum over all processes, on the device that trains, what is known beforehand; then tell the seconds that a step
    spends on summing so many bytes of gradients. None for 0 bytes.

    The time is that of what `Reducer.reduce` does with a bucket, the median of five tries, as often as there are
    buckets. Nothing is copied that a step would not copy, and nobody waits for
    another's batch in it. It takes no more memory than two buckets.

    Raises:
        RuntimeError: the group cannot be used, or the sum is wrong.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    numbers = torch.arange(1, 1025, dtype=torch.float64, device=device)
    told = numbers * (rank + 1)
    dist.all_reduce(told)
    if not torch.equal(told, numbers * (size * (size + 1) // 2)):
        raise RuntimeError("the sum over the processes was not that of their numbers")
    if not summed:
        return None
    whole, rest = divmod(summed, _BUCKET)
    seconds = whole * _seconds(_BUCKET, device) if whole else 0.0
    seconds += _seconds(rest, device) if rest else 0.0
    if device.type == "cuda":
        torch.cuda.empty_cache()  # it is the training's
    return seconds


def _seconds(count: int, device: torch.device) -> float:
    """What a sum of so many bytes takes, copied together before and apart after."""
    halves = [torch.zeros(-(-count // 8), dtype=torch.float32, device=device) for _ in range(2)]
    taken: list[float] = []
    for _ in range(1 + _TRIES):  # the first one also makes what the others use
        began = time.perf_counter()
        flat = torch.cat(halves)
        dist.all_reduce(flat)
        _spread(flat, halves)
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def streams() -> tuple[Any, Any, Any]:
    """Where the random streams of Python, NumPy and torch's CPU are, for a process that is to begin from there."""
    numpy: Any = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state(), torch.get_rng_state()


def put_streams(taken: tuple[Any, Any, Any]) -> None:
    """Go on from there. Those of GPUs begin with torch's own first seed."""
    python, legacy, own = taken
    random.setstate(python)
    if legacy is not None:
        importlib.import_module("numpy.random").set_state(legacy)
    torch.set_rng_state(own)
    torch.cuda.manual_seed_all(torch.initial_seed())


def modes() -> dict[str, Any]:
    """What was chosen for all of torch here, for a process that is to compute alike: deterministic kernels, cuDNN's
    choice of them, type and device of new tensors, how workers are begun and share memory, and with how many digits it
    may multiply. With the number of its next hook: those that travel keep theirs."""
    cudnn: Any = torch.backends.cudnn
    workers: Any = torch.multiprocessing
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (cudnn.enabled, cudnn.deterministic, cudnn.benchmark),
        "attention": {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in _ATTENTION},
        "kind": torch.get_default_dtype(),
        "place": torch.get_default_device().type,
        "anomalies": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "workers": (workers.get_start_method(allow_none=True), workers.get_sharing_strategy()),
        "matmul": _of_both(torch.get_float32_matmul_precision),
        "convolution": _of_both(lambda: cudnn.allow_tf32),
        "digits": {where: _digits(where) for where in _WHERE},
        "reductions": {name: _reduction(name) for name in _REDUCTIONS},
        "hook": RemovableHandle.next_id,
    }


def put_modes(taken: Mapping[str, Any]) -> None:
    """Choose the same. What is so already is left alone: some settings of torch refuse to be mixed."""
    exact = taken["deterministic"], taken["warns"]
    if exact != (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()):
        torch.use_deterministic_algorithms(exact[0], warn_only=exact[1])  # imports torch's compiler, a second's work
    cudnn: Any = torch.backends.cudnn
    cudnn.enabled, cudnn.deterministic, cudnn.benchmark = taken["cudnn"]
    for name, on in taken["attention"].items():
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(on)
    torch.set_default_dtype(taken["kind"])
    if taken["place"] != torch.get_default_device().type:
        torch.set_default_device(taken["place"])
    torch.autograd.set_detect_anomaly(*taken["anomalies"])
    workers: Any = torch.multiprocessing
    start, sharing = taken["workers"]
    workers.set_start_method(start, force=True)
    workers.set_sharing_strategy(sharing)
    if taken["matmul"] not in (None, _of_both(torch.get_float32_matmul_precision)):
        torch.set_float32_matmul_precision(taken["matmul"])
    if taken["convolution"] not in (None, _of_both(lambda: cudnn.allow_tf32)):
        cudnn.allow_tf32 = taken["convolution"]
    core: Any = torch._C
    for where, digits in taken["digits"].items():
        if digits != _digits(where):
            core._set_fp32_precision_setter(*where, digits)
    for name, chosen in taken["reductions"].items():
        if chosen != _reduction(name):
            setattr(torch.backends.cuda.matmul, name, chosen if len(chosen) > 1 else chosen[0])
    RemovableHandle.next_id = max(RemovableHandle.next_id, taken["hook"])


def _of_both(older: Callable[[], Any]) -> Any:
    """From torch 2.9 on there is a newer way to choose the same; None where that says what the older cannot tell."""
    try:
        return older()
    except RuntimeError:  # `_digits` tells it
        return None


# From the general to the particular: what is said of all holds for each of which nothing is said.
_WHERE = (("generic", "all"), *((on, of) for on in ("cuda", "mkldnn") for of in ("all", "matmul", "conv", "rnn")))
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


def _digits(where: tuple[str, str]) -> Any:
    """As the newer way has it: "ieee", "tf32", "bf16" or "none"; None where there is only the older one."""
    tell = getattr(torch._C, "_get_fp32_precision_getter", None)
    return None if tell is None else tell(*where)


def _reduction(name: str) -> tuple[bool, ...]:
    """Of sums in 16 bits: may they be rounded on the way; and, where torch knows that, in pieces?"""
    matmul = torch.backends.cuda.matmul
    told = [getattr(matmul, each, None) for each in (name, f"{name}_split_k")]
    return tuple(each for each in told if each is not None)


class Waiting:
    """Since when this process waits in a collective of its run for the others: what a thread beside it can tell.
    `opens`: for what rank 0 loads, which may take long."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.opens = False
        self.times = 0  # that it has begun to wait

    def __enter__(self) -> None:
        self._since = time.monotonic()
        self.times += 1

    def __exit__(self, *_: object) -> None:
        self._since = None

    def seconds(self) -> float | None:
        """How long it has waited; None where it does not."""
        since = self._since
        return None if since is None else time.monotonic() - since


WAITING: ContextVar[Waiting | None] = ContextVar("colabkeep_waiting", default=None)
"""In a process that was begun here: what its launcher looks at."""


def lost(error: BaseException) -> bool:
    """Is it what a process meets whose partner has ended?"""
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        word in text for word in ("gloo", "Gloo", "NCCL", "Connection closed")
    )


def _trained(parts: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """The weights of all models that an optimizer may change, by name."""
    return {
        f"{part}.{name}": each.detach()
        for part, module in parts.items()
        if isinstance(module, torch.nn.Module)
        for name, each in module.named_parameters()
        if each.requires_grad and each.is_floating_point() and type(each) is torch.nn.Parameter
    }


def _options(parts: Mapping[str, object]) -> list[tuple[str, float]]:
    """What optimizers are set to, as far as it is plain numbers."""
    optimizers = (part for part in parts.values() if isinstance(part, torch.optim.Optimizer))
    items = (item for each in optimizers for group in each.param_groups for item in group.items())
    return [(name, value) for name, value in items if isinstance(value, (int, float))]


_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """In words of 8 bytes where these come out even: a sum takes them as they are, and others it copies into such."""
    flat, size = tensor.contiguous().view(-1), tensor.element_size()
    if flat.numel() * size % 8:
        return flat.view(_WORDS.get(size, torch.uint8))
    return (flat.clone() if flat.storage_offset() * size % 8 else flat).view(torch.int64)


def _is_buffer(place: TensorPlace) -> bool:
    return not place.parameter and place.tensor is not None and not torch.nn.parameter.is_lazy(place.tensor)


def _spreads_buffers(module: torch.nn.Module) -> bool:
    """Do all processes get those of rank 0 before each step?"""
    return isinstance(module, torch.nn.parallel.DistributedDataParallel) and bool(module.broadcast_buffers)


class TorchRanks:
    """See `Ranks`. Over host memory, by a group of its own: what is agreed on waits for no device."""

    def __init__(self) -> None:
        self.rank, self.size = place()
        self._waiting = WAITING.get() or Waiting()
        self._group: Any = dist.new_group(backend="gloo")

    def highest(self, numbers: Sequence[int]) -> list[int]:
        # Of the same length whatever they are: processes at different places of a loop are to hear of each other.
        told = torch.zeros(max(_WIDE, len(numbers)), dtype=torch.int64, device="cpu")
        told[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        with self._waiting:
            dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
        return [int(number) for number in told[: len(numbers)].tolist()]

    def from_first(self, pieces: Iterable[memoryview] | None) -> bytearray:
        self._waiting.opens = True
        try:
            return self._from_first(pieces)
        finally:
            self._waiting.opens = False

    def _from_first(self, pieces: Iterable[memoryview] | None) -> bytearray:
        given = [piece.cast("B") for piece in pieces or () if piece.nbytes]
        (count,) = self._broadcast([len(given)])
        sizes = self._broadcast([piece.nbytes for piece in given] or [0] * count) if count else []
        received = bytearray(0 if given else sum(sizes))
        for index, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
            if given:
                buffer = torch.frombuffer(bytearray(given[index]), dtype=torch.uint8)
            else:
                buffer = torch.frombuffer(received, dtype=torch.uint8, offset=end - size, count=size)
            with self._waiting:
                dist.broadcast(buffer, 0, group=self._group)
        return received

    def to_first(self, data: bytes) -> list[bytes]:
        sizes = self.highest([len(data) if rank == self.rank else 0 for rank in range(self.size)])
        padded = torch.frombuffer(bytearray(data.ljust(max(sizes))), dtype=torch.uint8)
        all_of_them = [torch.empty_like(padded) for _ in sizes] if self.rank == 0 else None
        with self._waiting:
            dist.gather(padded, all_of_them, 0, group=self._group)
        found = zip(all_of_them or (), sizes, strict=False)
        return [each.numpy().tobytes()[:size] for each, size in found]

    def seed(self, seed: int) -> None:
        random.seed(seed)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed & 0xFFFFFFFF)
        torch.manual_seed(seed)

    def shapes(self, parts: Mapping[str, object]) -> bytes:
        return repr([(name, str(each.dtype), *each.shape) for name, each in _trained(parts).items()]).encode()

    def sums(self, parts: Mapping[str, object]) -> bytes:
        bits = (_bits(each) for each in _trained(parts).values())
        sums = [each.sum(dtype=torch.int64) for each in bits]  # all are begun before the first is waited for
        return repr(([int(each) for each in sums], _options(parts))).encode()

    def buffers(self, parts: Mapping[str, object]) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = {}
        for name, part in parts.items():
            if isinstance(part, torch.nn.Module):
                places = TensorPlaces(part)
                own = [] if _spreads_buffers(part) else filter(_is_buffer, places.places)
                found[name] = {place.name: place.tensor for place in own}
                if counted := counted_by(places):
                    found[name][METRICS] = counted
        return found

    def _broadcast(self, numbers: Sequence[int]) -> list[int]:
        told = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        with self._waiting:
            dist.broadcast(told, 0, group=self._group)
        return [int(number) for number in told.tolist()]


class Reducer:
    """One model in each of several processes: the same weights, and gradients that are the sum over all.

    Gradients are summed when all of a step are there, in buckets. Buffers are those of rank 0, as in torch's
    DistributedDataParallel.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._waiting = WAITING.get() or Waiting()
        self._group: Any = dist.new_group(backend="gloo")  # of numbers that are in host memory

    def align(self) -> None:
        """All begin with the weights of rank 0."""
        self._send(self._model.parameters())
        self.buffers()

    def buffers(self) -> None:
        """All go on with the buffers of rank 0. One that is sparse is left as it is in each: a graph that is given."""
        self._send(self._model.buffers())

    def reduce(self, losses: Sequence[Any]) -> list[Any]:
        """Sum the gradients over all processes, in place, and the losses (numbers, or tensors of one).

        A parameter that no process has a gradient for keeps none: an optimizer leaves it alone.

        Raises:
            UsageError: a gradient is sparse.
        """
        held = [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]
        if any(p.grad is not None and p.grad.layout is not torch.strided for p in held):
            raise UsageError(
                problem="A gradient is sparse, and sparse gradients are not summed over several processes.",
                remedy="Build the embedding with sparse=False, or train in one process.",
            )
        device, kind = (held[0].device, held[0].dtype) if held else (torch.device("cpu"), torch.float64)
        if kind not in (torch.float32, torch.float64):  # in 16 bits a loss would lose digits
            kind = torch.float32
        missing = [p.grad is None for p in held]
        told = torch.tensor([not each for each in missing], dtype=kind, device=device)
        told = torch.cat([told, *(torch.as_tensor(loss, dtype=kind, device=device).reshape(1) for loss in losses)])
        for p in held:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        # What is told goes with the gradients: each time that processes wait for each other costs more than it sends.
        for bucket in _buckets([told, *(p.grad for p in held if p.grad is not None)]):
            flat = torch.cat([each.reshape(-1) for each in bucket])
            with self._waiting:
                dist.all_reduce(flat)
            _spread(flat, bucket)
        if any(missing):
            for p, count in zip(held, told.tolist(), strict=False):
                if not count:
                    p.grad = None
        sums = told[len(held) :]
        return sums.tolist() if device.type == "cpu" else list(sums.unbind())

    def total(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all processes."""
        told = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        with self._waiting:
            dist.all_reduce(told, group=self._group)
        return [float(number) for number in told.tolist()]

    def _send(self, tensors: Iterable[torch.Tensor]) -> None:
        with torch.no_grad():
            for bucket in _buckets([_once(each.detach()) for each in tensors if each.layout is torch.strided]):
                flat = torch.cat([each.reshape(-1) for each in bucket])
                with self._waiting:
                    dist.broadcast(flat.view(torch.uint8), 0)  # neither gloo nor NCCL knows all types
                _spread(flat, bucket)


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """What `expand` shows several times, once: only so can it be written."""
    strides = tensor.stride()
    return tensor[tuple(slice(None) if each else slice(0, 1) for each in strides)] if 0 in strides else tensor


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    """In groups of one type and device, none much larger than `_BUCKET`, in an order that is the same everywhere."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for members in kinds.values():
        bucket, size = list[torch.Tensor](), 0
        for tensor in members:
            bucket.append(tensor)
            size += tensor.numel() * tensor.element_size()
            if size >= _BUCKET:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


def _spread(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()
