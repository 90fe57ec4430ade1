"""What copies cost on this GPU, and whether they are of their moment while it is busy. Lines that begin with FACT."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from typing import Any

import torch
from torch import nn

from colabkeep.frameworks.torch.adapter import TorchFramework

QUICK = "--quick" in sys.argv  # to see that it runs
ROUNDS, WIDTH, LAYERS, ROWS = (2, 64, 2, 8) if QUICK else (20, 2048, 10, 512)
MS = 1e3


def fact(text: str) -> None:
    print(f"FACT {text}", flush=True)


def timed(work: Any) -> float:
    """Seconds, with the device at rest before and after."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


class Training:
    """Layers with AdamW's moments: `state` bytes."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)) for _ in range(LAYERS)]
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **settings)
        self.x = torch.randn(ROWS, WIDTH, device="cuda")
        self.framework = TorchFramework()
        self.parts = {"model": self.model, "optimizer": self.optimizer}
        self.boundary = self.framework.boundary(self.parts)
        for _ in range(3):
            self.step()
        held = [*self.model.parameters(), *self.model.buffers()]
        held += [one for state in self.optimizer.state.values() for one in state.values() if one.is_cuda]
        self.state = sum(one.nbytes for one in held)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        self.boundary.mark()


def wire() -> None:
    """The bus, and what page-locked memory costs to get."""
    for megabytes in (4,) if QUICK else (64, 512):
        size = megabytes * 10**6
        start = time.perf_counter()
        locked = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        took = time.perf_counter() - start
        source = torch.ones(size, dtype=torch.uint8, device="cuda")
        ordinary = torch.zeros(size, dtype=torch.uint8)
        there = statistics.median(timed(lambda: locked.copy_(source, non_blocking=True)) for _ in range(3))
        slow = statistics.median(timed(lambda: ordinary.copy_(source)) for _ in range(3))
        here = statistics.median(timed(source.clone) for _ in range(3))
        fact(
            f"{megabytes} MB: page-locked memory taken in {took * MS:.0f} ms, copied to it in {there * MS:.1f} ms "
            f"({size / there / 1e9:.1f} GB/s), to ordinary memory in {slow * MS:.1f} ms, on the device in "
            f"{here * MS:.2f} ms"
        )


def held(training: Training) -> None:
    """How long a save holds the stream and the thread of training, and the steps beside the drain."""
    streams, calls, beside, plain, drains, wrong = [], [], [], [], [], 0
    for _ in range(ROUNDS):
        plain.append(timed(lambda: [training.step() for _ in range(5)]))
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        training.step()
        before.record()
        start = time.perf_counter()
        capture = training.framework.capture(training.parts)
        calls.append(time.perf_counter() - start)
        after.record()
        truth = [one.detach().clone() for one in training.model.parameters()]
        after.synchronize()
        streams.append(before.elapsed_time(after) / MS)
        start, came = time.perf_counter(), list[Any]()
        writer = threading.Thread(target=lambda: came.extend((capture.finish(), time.perf_counter())))
        writer.start()  # as a run's own writer does, beside the steps
        for _ in range(5):
            training.step()
        torch.cuda.current_stream().synchronize()
        beside.append(time.perf_counter() - start)
        writer.join()
        snapshot, arrived = came
        drains.append(arrived - start)
        kept = training.framework.native(snapshot.parts["model"]["weights"])
        names = [name for name, _ in training.model.named_parameters()]
        wrong += sum(not torch.equal(kept[name], one.cpu()) for name, one in zip(names, truth, strict=True))
        snapshot.stored()
        snapshot.release()
    bare = torch.empty(training.state, dtype=torch.uint8, pin_memory=True)
    source = torch.ones(training.state, dtype=torch.uint8, device="cuda")
    wire = statistics.median(timed(lambda: bare.copy_(source, non_blocking=True)) for _ in range(3))
    stream, call = statistics.median(streams), statistics.median(calls)
    fact(
        f"state {training.state / 1e6:.0f} MB: the stream is held {stream * MS:.2f} ms, the thread {call * MS:.2f} ms; "
        f"a page-locked copy takes {wire * MS:.1f} ms: {stream / wire:.3f} and {call / wire:.3f} of it (goal 0.1)"
    )
    fact(
        f"five steps {statistics.median(plain) * MS:.1f} ms, beside a drain {statistics.median(beside) * MS:.1f} ms: "
        f"{statistics.median(beside) / statistics.median(plain):.3f} times (goal 1.05); drained after "
        f"{statistics.median(drains) * MS:.1f} ms; tensors wrong: {wrong} of {ROUNDS * len(names)}"
    )


def watched(training: Training) -> None:
    """Torch's own watch over steps and saves."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            training.step()
            capture = training.framework.capture(training.parts)
            torch.cuda.set_sync_debug_mode("default")
            capture.finish().release()
            torch.cuda.set_sync_debug_mode("error")
        fact("set_sync_debug_mode('error'): no step and no save raised")
    except RuntimeError as error:
        fact(f"set_sync_debug_mode('error'): {error}")
    finally:
        torch.cuda.set_sync_debug_mode("default")


def memory(training: Training) -> None:
    """What copies leave behind in the allocator, and a device that others have filled."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    training.framework.capture(training.parts).finish().release()
    peak = torch.cuda.memory_reserved() - before
    torch.cuda.empty_cache()
    fact(f"a save reserves {peak / 1e6:.0f} MB beyond a step, of {training.state / 1e6:.0f} MB of state")
    free = torch.cuda.mem_get_info()[0]
    filling = [
        torch.empty(2**26, dtype=torch.uint8, device="cuda") for _ in range(0 if QUICK else int(free * 0.99) >> 26)
    ]
    try:
        training.step()
        capture = training.framework.capture(training.parts)
        truth = {name: one.detach().cpu() for name, one in training.model.named_parameters()}
        training.step()
        kept = training.framework.native(capture.finish().parts["model"]["weights"])
        right = all(torch.equal(kept[name], one) for name, one in truth.items())
        fact(f"device filled up to {torch.cuda.mem_get_info()[0] / 1e6:.0f} MB: saved {'right' if right else 'WRONG'}")
        fact(f"told: {capture.remark or 'nothing'}")
        capture.release()
    except torch.OutOfMemoryError as error:
        fact(f"OUT OF MEMORY with the device filled: {str(error)[:120]}")
    del filling
    torch.cuda.empty_cache()


def graph() -> None:
    """A step that is a CUDA graph, saved between its replays."""
    training = Training(lr=1e-3, capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    training.optimizer.zero_grad()
    with torch.cuda.graph(recorded):
        training.model(training.x).square().mean().backward()
        training.optimizer.step()
    wrong = 0
    for _ in range(ROUNDS):
        recorded.replay()
        capture = training.framework.capture(training.parts)
        truth = {name: one.detach().clone() for name, one in training.model.named_parameters()}
        recorded.replay()
        snapshot = capture.finish()
        kept = training.framework.native(snapshot.parts["model"]["weights"])
        wrong += sum(not torch.equal(kept[name], one.cpu()) for name, one in truth.items())
        snapshot.release()
    fact(f"CUDA graph, replayed around {ROUNDS} saves: tensors wrong: {wrong}")


def captured_beside() -> None:
    """CUDA graphs that are captured while a save is on its way to the host, on another thread."""
    training = Training(lr=1e-3)
    x, failed = torch.randn(64, 64, device="cuda"), 0
    (x @ x).sum()  # what a first call sets up must not be captured
    for _ in range(ROUNDS):
        capture = training.framework.capture(training.parts)
        thread = threading.Thread(target=lambda capture=capture: capture.finish().release())
        thread.start()
        captured = 0
        while thread.is_alive():
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    (x @ x).sum()
                captured += 1
            except RuntimeError as error:
                failed += 1
                fact(f"a CUDA graph captured beside a save FAILED: {str(error)[:120]}")
        thread.join()
    fact(f"CUDA graphs captured beside {ROUNDS} saves: {captured} beside the last one, failed: {failed}")


def main() -> None:
    fact(f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
    wire()
    training = Training(lr=1e-3, fused=True)
    held(training)
    watched(training)
    memory(training)
    if not QUICK:
        graph()
        captured_beside()


if __name__ == "__main__":
    main()
