"""In what order a GPU's copies are asked for. No GPU is here to run them: one that notes what it is told stands in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from colabkeep.frameworks.torch.state.side_stream import SideCopies, record_events
from colabkeep.frameworks.torch.state.staging import Copies


class Gpu:
    """Notes what is asked of the streams of two devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.capturing = False
        self.breaks_at: int | None = None
        self._on = ["main 0"]
        gpu = self

        class Stream:
            def __init__(self, device: Any, name: str = "side") -> None:
                self.name = f"{name} {device}"

            def wait_stream(self, other: Stream) -> None:
                gpu.log.append(f"{self.name} waits for {other.name}")

            def wait_event(self, event: Event) -> None:
                gpu.log.append(f"{self.name} waits for what {event.stream} was told")

            def synchronize(self) -> None:
                gpu.log.append(f"host waits for {self.name}")

        class Event:
            stream = ""

            def record(self, stream: Stream) -> None:
                self.stream = stream.name
                gpu.log.append(f"event on {stream.name}")

            def synchronize(self) -> None:
                gpu.log.append(f"host waits for what {self.stream} was told")

        @contextmanager
        def stream(which: Stream) -> Iterator[None]:
            gpu._on.append(which.name)
            yield
            gpu._on.pop()

        @contextmanager
        def device(which: Any) -> Iterator[None]:
            yield

        for name, value in {
            "Stream": Stream,
            "Event": Event,
            "stream": stream,
            "device": device,
            "current_stream": lambda device: Stream(device, "main"),
            "is_current_stream_capturing": lambda: gpu.capturing,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def buffer(self) -> Any:
        """Host memory that notes from where it is filled."""
        gpu = self

        class Buffer:
            def copy_(self, source: Any, non_blocking: bool) -> None:
                if gpu.breaks_at == len([line for line in gpu.log if "copy" in line]):
                    raise KeyboardInterrupt
                gpu.log.append(f"copy from {source.device} on {gpu._on[-1]}, {non_blocking=}")

        return Buffer()


class Source:
    """A tensor on a device."""

    is_cuda, is_cpu = True, False

    def __init__(self, device: int) -> None:
        self.device = device


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_each_device_copies_after_its_kernels_and_before_the_next_step(gpu: Gpu) -> None:
    """The kernels of the step before come first, those of the next wait on the device, the host waits when it reads."""
    pairs: Any = [(gpu.buffer(), Source(0)), (gpu.buffer(), Source(1)), (gpu.buffer(), Source(0))]
    copies = SideCopies(pairs)
    copies.start()
    on = {
        device: [f"side {device} waits for main {device}"]
        + [f"copy from {device} on side {device}, non_blocking=True"] * count
        + [f"event on side {device}"]
        for device, count in ((0, 2), (1, 1))
    }
    assert gpu.log == [*on[0], *on[1]]
    gpu.log.clear()
    copies.hold_kernels()
    assert gpu.log == [f"main {device} waits for what side {device} was told" for device in (0, 1)]
    gpu.log.clear()
    assert copies, "what is read is held until it is read"
    copies.wait()
    assert gpu.log == [f"host waits for what side {device} was told" for device in (0, 1)]
    assert not copies


def test_copies_that_are_interrupted_come_to_an_end_before_their_memory_is_lent_again(gpu: Gpu) -> None:
    """A stopped cell leaves no copy under way that would fall into the next snapshot."""
    gpu.breaks_at = 1
    pairs: Any = [(gpu.buffer(), Source(0)), (gpu.buffer(), Source(1))]
    with pytest.raises(KeyboardInterrupt):
        SideCopies(pairs).start()
    assert gpu.log[-2:] == ["host waits for side 0", "host waits for side 1"]


def test_a_step_that_is_captured_into_a_graph_is_not_broken_by_waiting(gpu: Gpu) -> None:
    """Waiting for an event from outside would end the user's capture with an error."""
    pairs: Any = [(gpu.buffer(), Source(0))]
    copies = SideCopies(pairs)
    copies.start()
    gpu.log.clear()
    gpu.capturing = True
    copies.hold_kernels()
    assert gpu.log == []


def test_without_copies_no_gpu_is_asked_anything(gpu: Gpu) -> None:
    """A training on the CPU never touches a GPU's driver."""
    gpu.capturing = True
    copies = SideCopies(())
    copies.start()
    copies.hold_kernels()
    copies.wait()
    assert gpu.log == []
    assert record_events(()) == []


def test_what_is_copied_at_once_is_ordered_on_the_stream_of_the_training(gpu: Gpu) -> None:
    """What comes after it waits on the device; the host waits only if it must not go on."""
    source: Any = Source(0)
    target: Any = gpu.buffer()
    copies = Copies()
    copies.extend([target], [source])
    events = copies.launch()
    assert gpu.log == ["copy from 0 on main 0, non_blocking=True", "event on main 0"]
    assert len(events) == 1
    copies.run()
    assert gpu.log[2:] == [*gpu.log[:2], "host waits for what main 0 was told"]
