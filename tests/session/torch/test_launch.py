"""`devices=` and `launch`: processes that are really begun, from a script without `if __name__` and from a kernel."""

from __future__ import annotations

import ctypes
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import colabkeep
from colabkeep.core.errors import Incompatible, ProcessFailed, TrainingDiverged, UsageError

FIT = """
import hashlib, os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import colabkeep

folder, kill = sys.argv[1], sys.argv[2]
made = torch.Generator().manual_seed(0)
x = torch.randn(90, 6, generator=made)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=10, shuffle=True)
calls = 0

def step_fn(model, batch):
    global calls
    calls += 1
    time.sleep(0.02)
    if kill == f"{os.environ.get('RANK')} {calls}":
        os.kill(os.getpid(), signal.SIGKILL)
    if calls == 1:
        print("begun", os.environ["RANK"], flush=True)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

result = colabkeep.resumable_fit(
    model, loader, optimizer=optimizer, step_fn=step_fn, max_epochs=3, run_name="r", storage=folder,
    save_every="3 steps", devices=2, progress="text",
)
kept = colabkeep.load_weights("r", storage=folder)
assert all(torch.equal(kept[name], tensor) for name, tensor in model.state_dict().items())
assert len(optimizer.state) == 4 and next(iter(optimizer.state.values()))["step"] == 27
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.state_dict().values())).hexdigest())
print(result)
"""


FORKED = pytest.mark.usefixtures("forked")  # two interpreters that import torch are four seconds of work


def script(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    path = folder / "train.py"
    path.write_text(FIT)
    command = [sys.executable, str(path), *map(str, arguments)]
    environ = {**os.environ, "OMP_NUM_THREADS": "2", "COLABKEEP_LANG": "en"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def begun(folder: Path) -> subprocess.Popen[str]:
    """One that has begun to train."""
    process = script(folder, folder / "run", "")
    assert process.stdout is not None
    assert any("begun" in line for line in process.stdout)
    return process


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The outputs of the training as the cell of a real kernel, from its beginning to its end, as JSON."""
    folder = tmp_path_factory.mktemp("notebook")
    text = FIT.replace("import hashlib, os, signal, sys, time", "import hashlib, os, signal, time")
    text = text.replace("folder, kill = sys.argv[1], sys.argv[2]", f"folder, kill = {str(folder / 'run')!r}, ''")
    cells = [nbformat.v4.new_code_cell(text.replace('progress="text"', 'progress="html"'))]
    notebook = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources=where).execute()
    return json.dumps(notebook.cells[0].outputs)


def test_from_a_cell_of_a_notebook_the_panel_stays_in_the_cell(cell: str) -> None:
    """A real kernel: functions of the cell travel, and the training's display is the cell's one output of HTML."""
    assert "text/html" in cell
    assert "finished, 3 epochs, 27 steps" in cell
    assert "[rank 1] begun 1" in cell


@FORKED
def test_a_script_that_goes_on_where_a_process_was_killed_has_the_same_bits_and_the_weights_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    """A process that dies is named; the display of the cell shows the run."""
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "run"), "1 14"])
    with pytest.raises(ProcessFailed, match=r"Rank 1 of 2 was ended by SIGKILL"):
        exec(compile(FIT, "<cell>", "exec"), {"__name__": "__main__"})
    resumed, errors = script(tmp_path, tmp_path / "run", "").communicate(timeout=200)
    assert "finished at step 27" in resumed, errors
    assert resumed.count("No GPU was found") == 1  # the check at the start, once
    assert "<FitResult 'r': finished, 3 epochs, 27 steps>" in resumed
    assert {"begun 0", "[rank 1] begun 1"} < set(resumed.splitlines())
    assert re.findall(r"digest \w{64}", resumed) == re.findall(r"digest \w{64}", cell) != []


@FORKED
def test_the_process_that_ended_first_is_the_one_that_is_named() -> None:
    """NCCL ends the others a moment later, with SIGABRT."""

    def train() -> None:
        if os.environ["RANK"] == "0":
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGABRT)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ProcessFailed, match=r"Rank 1 of 2 was ended by SIGKILL"):
        colabkeep.launch(train, devices=2, progress=False)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGHUP))]
)
def test_who_asks_to_stop_has_the_last_step_of_all_saved(tmp_path: Path, number: signal.Signals) -> None:
    """The notebook's stop button sends SIGINT to the kernel, which passes it on. A closed terminal reads no more."""
    process = begun(tmp_path)
    time.sleep(0.2)
    if number == signal.SIGHUP:
        assert process.stdout is not None
        process.stdout.close()
    process.send_signal(number)
    said, errors = process.communicate(timeout=100)
    if number == signal.SIGINT:
        assert process.returncode == -number, errors
        assert re.search(r"KeyboardInterrupt: stopped at step \d+\. Saved: step \d+\.", errors)
    else:
        assert process.returncode in (128 + number, 120), errors  # Python's own, where nobody reads what it printed
    if number != signal.SIGHUP:
        assert "stopped" in said
    steps = [int(path.name[:12]) for path in (tmp_path / "run" / "r" / "checkpoints").glob("*.json")]
    assert 0 < max(steps) < 27
    assert number == signal.SIGHUP or f"at step {max(steps)};" in said


def test_processes_do_not_outlive_the_one_that_began_them(tmp_path: Path) -> None:
    """Killed with SIGKILL, as a machine's memory guard does."""
    process = begun(tmp_path)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) >= 2
    process.kill()
    process.communicate()
    end = time.monotonic() + 30
    while time.monotonic() < end and any(Path(f"/proc/{pid}/cmdline").exists() for pid in children):
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children)


class Broken(Exception):
    """One that no other process can make from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


@FORKED
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("on purpose", "on purpose"),
        pytest.param("exit", "Rank 1 of 2 was ended with status 3", marks=pytest.mark.long),
        pytest.param("odd", "Rank 1 of 2 ended with an error", marks=pytest.mark.long),
    ],
)
def test_what_a_process_prints_and_raises_comes_out_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str, error: str
) -> None:
    """An error is raised as itself, with the traceback of the process as its cause; the others end with it."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3])  # from where this file is imported there, too
    offset = torch.tensor([1.5])

    def work(number: int) -> None:
        rank = int(os.environ["RANK"])
        total = offset * number
        torch.distributed.all_reduce(total)
        print("here", rank, flush=True)
        torch.distributed.barrier()
        if rank == 1 and how == "exit":
            os._exit(3)
        if rank == 1:
            raise ValueError(how, total.item()) if how != "odd" else Broken(how, how)

    with pytest.raises((ValueError, ProcessFailed), match=error) as caught:
        colabkeep.launch(work, [2], devices=2)
    assert {"here 0", "[rank 1] here 1"} <= set(capsys.readouterr().out.splitlines())
    if how == "on purpose":
        assert caught.value.args == ("on purpose", 6.0)
        assert "rank 1 of 2" in str(caught.value.__cause__)
    else:
        assert caught.type is ProcessFailed


@FORKED
def test_what_begins_a_line_is_shown_and_what_cannot_be_returned_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dots that tell that something goes on, and bars that go back to the line's beginning."""
    monkeypatch.setattr(sys, "stdout", Noting())

    def work() -> Any:
        print("bar 1\rbar 2\rbar 3\r")
        print("waiting", end="", flush=True)
        time.sleep(3.0)
        print("... over", flush=True)
        return {"held": threading.Lock()}

    with pytest.raises(
        UsageError, match=r"what its function returned cannot be sent .* result\.held \(lock\): TypeError"
    ):
        colabkeep.launch(work, devices=2, progress=False)
    noted: Any = sys.stdout
    assert {"waiting", "... over\n", "[rank 1] waiting... over\n", "bar 2\r"} <= set(noted.pieces)


def test_a_long_line_is_shown_as_fast_as_many_short_ones() -> None:
    """As somebody prints who looks at a list of all losses. It comes in pieces; what ends it may be cut."""
    from colabkeep.session import launch

    nothing: Any = None
    process, told = launch._Process(0, nothing, nothing), list[tuple[str, str]]()
    line = b"0.123456, " * 100_000
    for piece in (line[:65536], line[65536:], b"\r", b"\nbar 1\rbar 2\r\n", b"end", b""):
        launch._say(process, piece, [], lambda text, end: told.append((text, end)))
    assert told == [(line.decode(), "\n"), ("bar 1", "\r"), ("bar 2", "\n"), ("end", "\n")]


class Noting(io.StringIO):
    """Standard output that knows what it was given between two flushes."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = list[str]()

    def flush(self) -> None:
        self.pieces.append(self.getvalue())
        self.seek(0)
        self.truncate()


@FORKED
def test_a_process_that_could_not_begin_is_the_one_whose_error_is_raised(tmp_path: Path) -> None:
    """The other one hears of it, and may be the first to say so."""

    def work(width: int, late: float) -> None:
        try:
            with colabkeep.Run("r", model=torch.nn.Linear(width, 1), storage=tmp_path, progress=False) as run:
                for _ in run.steps(1):
                    run.step(loss=0.5)
        except Incompatible:
            time.sleep(late)
            raise

    work(2, 0.0)
    with pytest.raises(Incompatible, match=r"weight has shape \(1, 2\) in the checkpoint and \(1, 3\) now"):
        colabkeep.launch(work, [3, 1.0], devices=2)


def test_a_process_asks_nobody_imports_what_the_notebook_would_and_draws_its_own_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New interpreters. Who asks is told that nobody answers. A file of the working directory stands for none of
    Python's modules. torch's compiler, a second of imports, is left to those who use it. Rank 0 draws the numbers of
    the notebook, and the other one others: else a dropout would be the same in all processes, and a run in one cell
    other than in two."""
    (tmp_path / "statistics.py").write_text("raise ImportError('this is not the one')")
    monkeypatch.chdir(tmp_path)

    def ask() -> tuple[str, int]:
        assert "torch._inductor" not in sys.modules
        code = subprocess.run([sys.executable, "-c", "input()"], stderr=subprocess.DEVNULL, check=False).returncode
        try:
            return input(), code
        except EOFError:
            return "nobody", code

    def draw() -> list[Any]:
        words: dict[str, Any] = {"storage": tmp_path, "progress": False}
        with colabkeep.Run("r", model=torch.nn.Linear(2, 1), **words):
            of_all: list[Any] = [None, None]
            torch.distributed.all_gather_object(of_all, [torch.rand(3).tolist(), random.random()])
        return of_all

    torch.manual_seed(11)
    random.seed(11)
    answer, (first, second) = colabkeep.launch(lambda: (ask(), draw()), devices=2)
    assert answer == ("nobody", 1)
    torch.nn.Linear(2, 1)
    assert first == [torch.rand(3).tolist(), random.random()]
    assert first[0] != second[0]
    assert first[1] != second[1]


ATTENTION = ("flash", "mem_efficient", "math", "cudnn")


@FORKED
def test_the_processes_compute_as_the_notebook_was_told_to() -> None:
    """With the kernels that it chose for equal bits, and the type of new tensors."""
    hooks = torch.utils.hooks.RemovableHandle.next_id = torch.utils.hooks.RemovableHandle.next_id + 1000

    def chosen() -> Any:
        cudnn, workers = torch.backends.cudnn, torch.multiprocessing
        attention = [getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in ATTENTION]
        kinds = torch.get_default_dtype(), cudnn.enabled, cudnn.deterministic, cudnn.benchmark, attention
        rounded = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        assert torch.utils.hooks.RemovableHandle.next_id >= hooks, "else a new hook takes the place of one that came"
        return (
            kinds,
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            (torch.get_default_device().type, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            (workers.get_start_method(allow_none=True), workers.get_sharing_strategy()),
            (torch.get_float32_matmul_precision(), cudnn.allow_tf32, rounded),
        )

    before = chosen()
    kind, cudnn, workers = torch.get_default_dtype(), torch.backends.cudnn, torch.multiprocessing
    start, sharing = workers.get_start_method(allow_none=True), workers.get_sharing_strategy()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        workers.set_start_method("spawn", force=True)
        workers.set_sharing_strategy("file_system")
        cudnn.enabled, cudnn.deterministic, cudnn.benchmark = False, True, True
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.set_float32_matmul_precision("high")
        cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        here = chosen()
        kinds = (torch.float64, False, True, True, [False, True, True, False])
        place, begun = ("meta", True, False), ("spawn", "file_system")
        assert here == (kinds, True, True, place, begun, ("high", False, False)) != before
        assert colabkeep.launch(chosen, devices=2) == here
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(kind)
        torch.set_default_device(None)
        torch.autograd.set_detect_anomaly(False)
        workers.set_start_method(start, force=True)
        workers.set_sharing_strategy(sharing)
        cudnn.enabled, cudnn.deterministic, cudnn.benchmark = True, False, False
        torch.backends.cuda.enable_flash_sdp(True)
        torch.backends.cuda.enable_cudnn_sdp(True)
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    assert chosen() == before


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch before 2.9 has the older way alone")
@pytest.mark.parametrize("place", ["backends", "backends.cuda.matmul", "backends.cudnn.conv"])
def test_the_newer_way_to_choose_digits_is_carried_over(place: str) -> None:
    """Where the older way is asked for the same, torch may raise."""
    from colabkeep.frameworks.torch.ranks import modes, put_modes

    owner: Any = attrgetter(place)(torch)
    before, kept = owner.fp32_precision, modes()
    wanted = "ieee" if before == "tf32" else "tf32"
    try:
        owner.fp32_precision = wanted
        taken = modes()
        owner.fp32_precision = before
        assert modes() == kept != taken
        put_modes(taken)
        assert modes() == taken
    finally:
        owner.fp32_precision = before


def test_what_cannot_travel_is_named_before_anything_is_begun(tmp_path: Path) -> None:
    """By the way to it."""

    class Reads(torch.utils.data.Dataset[torch.Tensor]):
        def __init__(self) -> None:
            self.guard = threading.Lock()

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.ones(2)

    model = torch.nn.Linear(2, 1)
    words: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step_fn": lambda model, batch: model(batch).mean(),
        "max_epochs": 1,
        "storage": tmp_path / "runs",
        "on_bad_gpu": "ignore",
    }
    loader = torch.utils.data.DataLoader(Reads())
    with pytest.raises(UsageError, match=r"^train_loader\.dataset\.guard \(lock\) cannot be sent"):
        colabkeep.resumable_fit(model, loader, **words, run_name="r", devices=2)
    with pytest.raises(UsageError, match="run_name is not given"):
        colabkeep.resumable_fit(model, loader, **words, devices=2)
    for wrong in (0, True, "two", 1.5):
        with pytest.raises(UsageError, match="is not known"):
            colabkeep.resumable_fit(model, loader, **words, run_name="r", devices=wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


class Few(io.RawIOBase):
    """A pipe that takes some bytes of what it is given, as the system does with more than 2 GiB."""

    def __init__(self) -> None:
        self.taken = b""

    def write(self, data: Any) -> int:
        self.taken += bytes(data[:3])
        return len(data[:3])


def test_a_message_that_a_pipe_takes_in_pieces_is_whole() -> None:
    """Both ways: the model to the processes, and what rank 0 returns."""
    from colabkeep.session.launch import _put

    pipe: Any = Few()
    _put(pipe, b"more than three")
    assert pipe.taken == (15).to_bytes(8, "little") + b"more than three"


class EverySecond(torch.optim.SGD):
    """An optimizer with attributes of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1.0)
        self.count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step() if self.count % 2 == 0 else None


def sent(*args: Any) -> Any:
    """As a process has them."""
    from colabkeep.frameworks.shared.workers import from_process
    from colabkeep.session.launch import _payload

    return from_process(_payload(lambda: None, args))[1]


def test_hooks_go_along_with_parameters_and_optimizers() -> None:
    """torch leaves them out when it pickles. They may hold what they are hooked on, and each other."""
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = EverySecond(model.parameters())
    heard = list[str]()
    weight = model.weight
    weight.register_hook(lambda grad: grad.clamp(max=0.5) * weight.numel())
    weight.register_post_accumulate_grad_hook(lambda tensor: heard.append(f"gradient {tensor is weight}"))
    optimizer.register_step_pre_hook(lambda own, *_: heard.append(f"before {own is optimizer}"))
    optimizer.register_step_post_hook(lambda own, *_: heard.append(f"after {own.count}"))
    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(lambda grad: grad * 3)
    there, own, told, other = sent(model, optimizer, heard, leaf)
    assert own.param_groups[0]["params"][0] is there.weight
    before = there.weight.detach().clone()
    for _ in range(2):
        there(torch.ones(1, 2)).sum().backward()
        own.step()
        own.zero_grad()
    assert torch.allclose(before - there.weight, torch.ones(1, 2))
    # torch hooks the step of each class that was made an object of: of SGD in some processes only.
    assert [*dict.fromkeys(told)] == ["gradient True", "before True", "after 1", "after 2"]
    other.sum().backward()
    assert other.grad.item() == 3.0
    assert not heard


def test_a_scheduler_in_another_process_knows_that_its_optimizer_steps(recwarn: pytest.WarningsRecorder) -> None:
    """torch warns else, falsely, that `step` was overridden."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    there, own = sent(torch.optim.lr_scheduler.StepLR(optimizer, 1), optimizer)
    own.step()
    there.step()
    assert own is there.optimizer
    assert own.param_groups[0]["lr"] == pytest.approx(0.01)
    assert not recwarn.list


class Doubled(torch.nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Twice the weight."""
        return 2 * weight


def test_what_torch_does_not_pickle_goes_along() -> None:
    """Modules with parametrizations, whose optimizer trains them there; tensors of newer types, as they lie."""
    parametrizations = torch.nn.utils.parametrizations
    layers = [
        parametrizations.weight_norm(torch.nn.Linear(3, 3)),
        parametrizations.spectral_norm(torch.nn.Linear(3, 3)),
    ]
    torch.nn.utils.parametrize.register_parametrization(layers[1], "bias", Doubled())
    model = torch.nn.Sequential(*layers).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    there, trains = sent(model, optimizer)
    data = torch.randn(2, 3)
    assert torch.equal(there(data), model(data))
    assert list(there.state_dict()) == list(model.state_dict())
    assert all(one is other for one, other in zip(trains.param_groups[0]["params"], there.parameters(), strict=True))
    with torch.nn.utils.parametrize.cached():
        assert there[1].bias is there[1].bias

    whole = torch.arange(24, dtype=torch.uint8).view(torch.float8_e4m3fn).view(4, 6)
    for each in (whole, whole.T, whole[1:, 2:], whole[0, :1].expand(5), whole[:0], torch.arange(3).to(torch.uint16)):
        (made,) = sent(each)
        assert (made.dtype, made.stride()) == (each.dtype, each.stride())
        assert made.tolist() == each.tolist()


def test_a_hook_that_cannot_travel_is_named() -> None:
    """It is not left out without a word."""
    model = torch.nn.Linear(2, 1)
    guard = threading.Lock()
    model.weight.register_hook(lambda grad: grad if guard.locked() else None)
    with pytest.raises(UsageError, match=r"^_parameters\.weight \(Parameter\) cannot be sent"):
        sent(model)


@FORKED
def test_what_the_notebook_holds_of_a_gpu_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is measured in tests/simcuda; a few megabytes are not worth a line."""
    monkeypatch.setattr("colabkeep.frameworks.torch.ranks.held", lambda: [300 << 20, 10 << 20])
    assert colabkeep.launch(lambda: 7, devices=2) == 7
    lines = [line for line in capsys.readouterr().out.splitlines() if "itself holds" in line]
    assert len(lines) == 1
    assert lines[0].startswith("This notebook itself holds 300 MiB of GPU 0, which")


class Listening(io.StringIO):
    """Standard output that makes a file when it is told who is waited for."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def write(self, text: str) -> int:
        if "have waited" in text or "no process was seen" in text:
            self._file.touch()
        return super().write(text)


@FORKED
@pytest.mark.parametrize("slow", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_process_that_lets_the_others_wait_is_named_and_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    """One that is loading for long, or hangs: nothing is ended, and the training goes on when it does."""
    told = tmp_path / "told"

    def load_for_long() -> None:
        end = time.monotonic() + 100
        while not told.exists() and time.monotonic() < end:
            time.sleep(0.05)

    def work() -> int:
        with colabkeep.Run("r", model=torch.nn.Linear(2, 1), storage=tmp_path / "runs", progress=False) as run:
            for step in run.steps(3):
                if step == 1 and run.rank == slow:
                    load_for_long()
                run.step(loss=0.5)
        return run.progress.step

    monkeypatch.setattr(sys, "stdout", Listening(told))
    monkeypatch.setattr("colabkeep.session.launch._LONG", 2.0)
    assert colabkeep.launch(work, devices=2) == 3
    lines = [line for line in sys.stdout.getvalue().splitlines() if "have waited" in line]  # type: ignore[attr-defined]
    said = rf"have waited \d+ s for rank {slow}, which is at test_launch\.py, line \d+, in load_for_long\. If"
    assert re.search(said, lines[0])


def steps_of(folder: Path, rank: int, act: Callable[[], object], open_late: bool = False) -> Callable[[], int]:
    """A training of five steps that saves each, in which one process does something in the third."""

    def work() -> int:
        run = colabkeep.Run("r", model=torch.nn.Linear(2, 1), storage=folder, save_every="1 step", progress=False)
        if open_late and run.rank == rank:
            act()
        with run:
            for step in run.steps(5):
                run.step(loss=0.5)
                if step == 2 and run.rank == rank and not open_late:
                    run.save(wait=True) if run.rank == 0 else None
                    act()
        return run.progress.step

    return work


def stop() -> None:
    """By SIGSTOP, as a shell's job control does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def hold() -> None:
    """A call in C that does not let go of the interpreter."""
    ctypes.PyDLL(None).sleep(100)


@FORKED
@pytest.mark.parametrize(
    ("rank", "act", "why"),
    [
        pytest.param(0, stop, ": its process is stopped", marks=pytest.mark.long),
        (1, hold, ", and the others wait for it: its process is stopped, or a call in it holds the interpreter"),
    ],
    ids=["stopped", "holds the interpreter"],
)
def test_a_process_of_which_nothing_is_heard_ends_the_others_with_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, act: Callable[[], object], why: str
) -> None:
    """It says which, since when, and why; what was saved before is there."""
    monkeypatch.setattr("colabkeep.session.launch._SILENT", 5.0)
    with pytest.raises(ProcessFailed, match=rf"of rank {rank} of 2 since \d+:\d+:\d+, for \d+ s{why}") as caught:
        colabkeep.launch(steps_of(tmp_path, rank, act), devices=2)
    assert "resumes from its last checkpoint" in caught.value.remedy
    if rank == 0:  # either would do
        assert colabkeep.launch(steps_of(tmp_path, rank, lambda: None), devices=2) == 5


def sums_by_torch(act: Callable[[], object]) -> Callable[[], int]:
    """A loop of one's own with torch's DistributedDataParallel, in which rank 1 does something in the third forward
    pass, so that rank 0 waits for it in a sum that is torch's."""

    def work() -> int:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with colabkeep.Run("r", model=model, optimizer=optimizer, storage=tempfile.mkdtemp(), progress=False) as run:
            for step in run.steps(5):
                loss = model(torch.ones(4, 2)).sum()
                if step == 2 and run.rank == 1:
                    act()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step(loss)
        return run.progress.step

    return work


@FORKED
def test_a_process_that_is_stopped_while_the_others_wait_in_torch_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch itself would wait for half an hour."""
    monkeypatch.setattr("colabkeep.session.launch._SILENT", 5.0)
    with pytest.raises(
        ProcessFailed, match=r"rank 1 of 2 since .*: its process is stopped \(SIGSTOP\), and the others"
    ):
        colabkeep.launch(sums_by_torch(stop), devices=2)


@FORKED
def test_where_each_process_is_is_told_when_none_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one lets the others wait inside of torch nobody can tell, but whoever wrote the loop. Nothing is ended."""
    told = tmp_path / "told"

    def load_for_long() -> None:
        end = time.monotonic() + 100
        while not told.exists() and time.monotonic() < end:
            time.sleep(0.05)

    monkeypatch.setattr(sys, "stdout", Listening(told))
    monkeypatch.setattr("colabkeep.session.launch._LONG", 3.0)
    assert colabkeep.launch(sums_by_torch(load_for_long), devices=2) == 5
    lines = [line for line in sys.stdout.getvalue().splitlines() if "no process was seen" in line]  # type: ignore[attr-defined]
    said = (
        r"For \d+ s no process was seen .* every 2 s: rank 0 is at .*, in work; rank 1 is at .*, in load_for_long\. If"
    )
    assert re.search(said, lines[0])


class Blocking(io.StringIO):
    """A place for what is printed that takes its time, once."""

    def write(self, text: str) -> int:
        if "this takes long" in text:
            time.sleep(7.0)
        return super().write(text)


@FORKED
def test_a_process_is_not_silent_while_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What shows the lines was slow, or the machine stood still: the others wait for one that is there."""
    monkeypatch.setattr("colabkeep.session.launch._SILENT", 5.0)
    monkeypatch.setattr(sys, "stdout", Blocking())

    def load() -> None:
        time.sleep(3.0)  # the others wait, and have told so
        print("this takes long", flush=True)
        time.sleep(8.0)

    assert colabkeep.launch(steps_of(tmp_path, 1, load), devices=2) == 5


@FORKED
def test_nobody_waits_for_ever_for_a_process_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named with the line where it is. What rank 0 loads at the start may take longer."""

    def load_for_long() -> None:
        time.sleep(200.0)

    monkeypatch.setattr("colabkeep.session.launch._LONGEST", 3.0)
    said = r"waited \d+ s for rank 1 of 2, which is at test_launch\.py, line \d+, in load_for_long\. They do not"
    with pytest.raises(ProcessFailed, match=said):
        colabkeep.launch(steps_of(tmp_path, 1, load_for_long), devices=2)
    opened_late = steps_of(tmp_path, 0, lambda: time.sleep(5.0), open_late=True)
    assert colabkeep.launch(opened_late, devices=2) == 5


def test_processes_that_hand_on_what_rank_0_loads_are_not_ended() -> None:
    """All wait then, too, and a large checkpoint may take longer than a minute."""
    from colabkeep.session import launch

    nothing: Any = None
    now = time.monotonic()
    both = [launch._Process(rank, nothing, nothing, waited=300.0, waits_long=9, heard_at=now) for rank in (0, 1)]
    assert launch._who_hangs(both) is not None
    for each in both:
        each.opens = True
    assert launch._who_hangs(both) is None


@FORKED
def test_processes_that_wait_for_each_other_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sums gradients, another one has ended its epoch, because its data set is shorter."""

    class Stream:
        def __iter__(self) -> Iterator[Any]:
            yield from [(torch.ones(4, 2), torch.ones(4, 1))] * (3 - torch.distributed.get_rank())

    def work() -> None:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        colabkeep.resumable_fit(
            model, Stream(), optimizer=optimizer, loss_fn=torch.nn.MSELoss(), max_epochs=1, run_name="r",
            storage=tmp_path, progress=False,
        )  # fmt: skip

    monkeypatch.setattr("colabkeep.session.launch._LONG", 2.0)
    with pytest.raises(
        ProcessFailed, match=r"have waited for each other .*: rank 0 .*, in work; rank 1 is at"
    ) as caught:
        colabkeep.launch(work, devices=2, progress=False)
    assert "the length of a data set" in caught.value.remedy


@FORKED
@pytest.mark.parametrize(("leaves", "said"), [("batches", "ended its epoch after step 4"), ("epochs", "left its")])
def test_a_loop_that_ends_early_in_one_process_is_named(tmp_path: Path, leaves: str, said: str) -> None:
    """By a number that each has for itself, as early stopping may: nobody waits for ever, nothing wrong is saved."""

    def work() -> None:
        with colabkeep.Run("r", model=torch.nn.Linear(2, 1), storage=tmp_path, progress=False) as run:
            for epoch in run.epochs(3):
                for batch, _ in run.enumerate(list(torch.ones(3, 4, 2))):
                    run.step(loss=0.5)
                    if leaves == "batches" and (run.rank, epoch, batch) == (1, 1, 0):
                        break
                if leaves == "epochs" and (run.rank, epoch) == (1, 1):
                    break

    other = "continues after step 4" if leaves == "batches" else "has ended its epoch after step 6"
    with pytest.raises(UsageError, match=f"same place: rank 0 {other}, rank 1 has {said}") as caught:
        colabkeep.launch(work, devices=2)
    assert "early stopping" in caught.value.remedy


@FORKED
def test_processes_that_colabkeep_leads_talk_less_often_than_they_step(tmp_path: Path) -> None:
    """All at the same steps, and wherever a save is due by the number of steps."""

    def work() -> list[tuple[list[int], list[int]]]:
        from colabkeep.session.ranks import Group

        talks, decide = list[int](), Group.decide

        def noted(self: Group, step: int, **words: Any) -> Any:
            talks.append(step)
            return decide(self, step, **words)

        Group.decide = noted  # type: ignore[method-assign,assignment]
        model = torch.nn.Linear(2, 1)
        saves = list[int]()
        colabkeep.resumable_fit(
            model, list(torch.ones(64, 4, 2)), optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            step_fn=lambda model, batch: model(batch).mean(), max_epochs=1, run_name="r", storage=tmp_path,
            save_every="7 steps", progress=False,
            callbacks=[lambda event: saves.append(event.step) if type(event).__name__ == "SaveStarted" else None],
        )  # fmt: skip
        of_all: list[Any] = [None, None]
        torch.distributed.all_gather_object(of_all, (talks, saves))
        return of_all

    (talks, saves), (theirs, _) = colabkeep.launch(work, devices=2, progress=False)
    assert talks == theirs
    assert set(range(7, 64, 7)) <= set(talks)
    assert talks[-1] == 64
    assert len(talks) < 48
    assert all(step % 7 == 0 or step == 64 for step in saves)


@FORKED
def test_the_same_cell_again_in_the_same_kernel_knows_what_the_training_moved(tmp_path: Path) -> None:
    """The rate that a schedule came to is not one that somebody has written. A generator is as theirs, too."""
    model = torch.nn.Linear(2, 1)
    generator = torch.Generator().manual_seed(5)
    drawn = [generator.get_state()]

    def loss_of(output: Any, target: Any) -> Any:
        return torch.nn.functional.mse_loss(output + torch.rand(1, generator=generator), target)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    words: dict[str, Any] = {
        "optimizer": optimizer,
        "scheduler": scheduler,
        "loss_fn": loss_of,
        "state": {"generator": generator},
        "run_name": "r",
        "storage": tmp_path,
        "on_bad_gpu": "ignore",
        "progress": False,
    }
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1)), batch_size=4
    )
    assert colabkeep.resumable_fit(model, loader, **words, max_epochs=2, devices=2).steps == 4
    assert optimizer.param_groups[0]["lr"] == 0.025
    drawn.append(generator.get_state())
    assert colabkeep.resumable_fit(model, loader, **words, max_epochs=3).steps == 6
    drawn.append(generator.get_state())
    assert colabkeep.resumable_fit(model, loader, **words, max_epochs=4, devices=2).steps == 8
    assert optimizer.param_groups[0]["lr"] == 0.1 / 16
    drawn.append(generator.get_state())
    assert len({bytes(each.tolist()) for each in drawn}) == 4


def restless() -> Any:
    """A model of a class that travels with it."""

    class Restless(torch.nn.Module):
        """What a training moves beside weights and an optimizer's state."""

        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(2, 2))
            self.last = torch.nn.Linear(2, 1)
            self.calls = 0
            self.register_buffer("seen", torch.zeros(2), persistent=False)
            self.register_buffer("one", torch.ones(1).expand(3))
            self.register_buffer("eight", torch.ones(3).to(torch.float8_e4m3fn))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Freezes its first layer after three calls."""
            self.calls += 1
            self.seen += x.detach().mean(0)
            self.eight = (self.eight.float() * 2).to(torch.float8_e4m3fn)
            if self.calls == 3:
                self.first.bias.requires_grad_(False)
            return self.last(self.first(x)) * self.one[0]

        def told(self) -> list[object]:
            """All of it."""
            buffers = {name: each.float().tolist() for name, each in self.named_buffers()}
            weights = {name: (each.tolist(), each.requires_grad) for name, each in self.named_parameters()}
            return [self.calls, self.training, buffers, weights]

    return Restless()


@FORKED
def test_the_model_here_is_as_theirs_in_all_that_training_moves(tmp_path: Path) -> None:
    """It is the one that a resumed training would have: also buffers that no `state_dict` tells, and attributes."""

    def fit(devices: int) -> Any:
        torch.manual_seed(0)
        model = restless()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.ones(16, 2), torch.zeros(16, 1))
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        words: dict[str, Any] = {"run_name": "r", "storage": tmp_path, "on_bad_gpu": "ignore", "progress": False}
        loss = torch.nn.functional.mse_loss
        result = colabkeep.resumable_fit(
            model, loader, optimizer=optimizer, loss_fn=loss, max_epochs=2, devices=devices, **words
        )
        assert result.steps == 8
        assert model.calls == 8
        return model

    there = fit(2)
    assert not there.first.bias.requires_grad
    assert there.seen.tolist() == [8.0, 8.0]
    assert there.eight.float().tolist() == [256.0] * 3
    assert fit(1).told() == there.told()


class Failing(torch.nn.Module):
    """A part that cannot tell its state any more."""

    broken = False

    def state_dict(self, *words: Any, **more: Any) -> Any:
        if self.broken:
            raise RuntimeError("no answer")
        return super().state_dict(*words, **more)


@FORKED
def test_a_state_that_cannot_come_back_is_told_and_hides_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a GPU that answers no more: the error that ended the training is the one that is raised."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3])  # from where this file is imported there, too
    words = words_of(tmp_path)
    odd = Failing()

    def step_fn(model: Any, batch: Any) -> Any:
        odd.broken = True
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        colabkeep.resumable_fit(**words | {"step_fn": step_fn, "state": {"odd": odd}}, devices=2)
    assert "as they were before this call (RuntimeError: no answer)" in capsys.readouterr().out


@FORKED
@pytest.mark.long
@pytest.mark.parametrize("how", ["error", "stop"])
def test_the_model_here_is_as_theirs_when_the_training_is_stopped_or_fails(tmp_path: Path, how: str) -> None:
    """As with one process: the newest weights are here, and the optimizer and objects that go with them."""
    words = words_of(tmp_path)
    model, loss_of, calls = words["model"], words["step_fn"], torch.zeros(1, dtype=torch.int64)

    def step_fn(model: Any, batch: Any) -> Any:
        calls.add_(1)
        if calls == 3 and how == "error" and os.environ["RANK"] == "1":
            raise ValueError("on purpose")
        if calls == 3 and how == "stop" and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGINT)
        return loss_of(model, batch)

    before = model.weight.clone()
    scheduler = torch.optim.lr_scheduler.StepLR(words["optimizer"], 1, 0.5)
    words |= {"step_fn": step_fn, "scheduler": scheduler, "scheduler_interval": "step", "save_every": "1 step"}
    with pytest.raises(ValueError if how == "error" else KeyboardInterrupt, match=r"on purpose|stopped at step 3"):
        colabkeep.resumable_fit(**words, devices=2)
    assert not torch.equal(model.weight, before)
    steps = 2 if how == "error" else 3
    assert scheduler.last_epoch == steps
    assert words["optimizer"].param_groups[0]["lr"] == 0.1 / 2**steps
    kept = colabkeep.load_weights("r", storage=tmp_path / "runs")
    assert torch.equal(model.weight, kept["weight"])
    assert colabkeep.resumable_fit(**{**words, "step_fn": loss_of}, on_change="apply").steps == 4


@FORKED
def test_a_training_that_diverges_tells_the_checkpoint_to_go_back_to(tmp_path: Path) -> None:
    """Rank 0 waits for what it is saving; the others, which stop before it has done that, know of no checkpoint."""
    words = words_of(tmp_path)
    loss_of, calls = words["step_fn"], torch.zeros(1, dtype=torch.int64)

    def step_fn(model: Any, batch: Any) -> Any:
        calls.add_(1)
        return loss_of(model, batch) * (float("nan") if calls == 3 else 1.0)

    words |= {"step_fn": step_fn, "on_nan": "stop", "save_every": "1 step"}
    with pytest.raises(TrainingDiverged, match="NaN since step 3") as caught:
        colabkeep.resumable_fit(**words, devices=2)
    first = min((tmp_path / "runs" / "r" / "checkpoints").glob("*.json")).stem
    assert int(first[:12]) == 1  # the loss of step 3 is that of the weights of step 2
    assert f'run the cell again with resume="{first}"' in caught.value.remedy


def test_one_of_several_processes_begins_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun tells by variables: each would begin as many again, and only one of those would have the run."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = words_of(tmp_path)
    for devices in (2, "auto"):
        with pytest.raises(UsageError, match="one of 2 processes already") as raised:
            colabkeep.resumable_fit(**words, devices=devices)  # type: ignore[arg-type]
        assert "leave devices= out" in str(raised.value)
        with pytest.raises(UsageError, match="one of 2 processes already"):
            colabkeep.launch(print, devices=devices)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


@contextmanager
def stopped_as_soon_as_it_begins() -> Iterator[list[int]]:
    """Stop the second process that this one begins. Its pid."""
    found, over = list[int](), threading.Event()
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")

    def watch() -> None:
        while not over.is_set() and not found:
            pids = [int(pid) for pid in children.read_text().split() if b"colabkeep.session.launch" in read(pid)]
            if len(pids) == 2:
                os.kill(pids[1], signal.SIGSTOP)
                found.append(pids[1])

    def read(pid: str) -> bytes:
        with suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        return b""

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def words_of(folder: Path) -> dict[str, Any]:
    """A training of four steps that says where it is."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))

    def loss_of(model: Any, batch: Any) -> Any:
        print("trained in", "one" if os.environ.get("RANK") is None else "several")
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    return {
        "model": model,
        "train_loader": torch.utils.data.DataLoader(data, batch_size=4),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "step_fn": loss_of,
        "max_epochs": 2,
        "run_name": "r",
        "storage": folder / "runs",
        "on_bad_gpu": "ignore",
        "progress": False,
    }


@pytest.mark.parametrize("how", [pytest.param("unreachable", marks=pytest.mark.long), "stopped"])
def test_a_pair_that_cannot_sum_trains_on_one_with_auto_and_is_refused_when_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """A network interface that is not there, and a process that answers no more: nothing was trained before that."""
    monkeypatch.setattr("colabkeep.frameworks.torch.ranks.device_count", lambda: 2)
    monkeypatch.setattr("colabkeep.session.launch._TRIAL", 60.0 if how == "unreachable" else 3.0)
    if how == "unreachable":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    words = words_of(tmp_path)

    def fit(devices: Any) -> tuple[int, list[int]]:
        with stopped_as_soon_as_it_begins() if how == "stopped" else nullcontext([]) as stopped:
            return colabkeep.resumable_fit(**words, devices=devices).steps, stopped

    why = "none0" if how == "unreachable" else "they did not meet within 3 s"
    with pytest.raises(ProcessFailed, match=f"failed: .*{why}.* Nothing was trained") as caught:
        fit(2)
    assert "Write devices=1" in caught.value.remedy
    assert not (tmp_path / "runs").exists()
    assert "trained in" not in capsys.readouterr().out
    steps, stopped = fit("auto")
    assert steps == 4
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if line.startswith("2 GPUs were tried together before the training, and that")]
    assert len(told) == 1
    assert why in told[0]
    assert [line for line in lines if "trained in" in line] == ["trained in one"] * 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in stopped)


@pytest.mark.long
def test_a_loop_of_ones_own_begins_in_one_process_where_the_pair_cannot_sum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`launch` takes all there are by default; a number is a number."""
    monkeypatch.setattr("colabkeep.frameworks.torch.ranks.device_count", lambda: 2)
    monkeypatch.setattr("colabkeep.session.launch._TRIAL", 3.0)
    with stopped_as_soon_as_it_begins():
        assert colabkeep.launch(lambda: os.environ["WORLD_SIZE"]) == "1"
    assert "the training runs on one GPU now" in capsys.readouterr().out
    with stopped_as_soon_as_it_begins(), pytest.raises(ProcessFailed, match="they did not meet within 3 s"):
        colabkeep.launch(lambda: None, devices=2)


@FORKED
def test_what_a_step_spends_on_sums_is_measured_before_the_training(tmp_path: Path) -> None:
    """In each process, of as many bytes as the model's gradients have; of a loop of one's own they are not known."""
    from colabkeep.session.launch import begin_processes

    def told() -> Any:
        from colabkeep.frameworks.torch.ranks import SUMMING, try_out

        tried = [try_out(int(os.environ["RANK"]), 2, size) for size in (0, 4, 32 << 20)]
        of_all: list[Any] = [None, None]
        torch.distributed.all_gather_object(of_all, (SUMMING.get(), tried))
        return of_all

    for began, tried in colabkeep.launch(told, devices=2):
        assert began is tried[0] is None
        assert min(tried[1:]) > 0
    assert all(began > 0 for began, _ in begin_processes(told, devices=2, say=print, summed=33 << 20))


@FORKED
def test_a_wrong_sum_is_no_pair() -> None:
    """Here one process takes itself for another."""

    def work() -> None:
        from colabkeep.frameworks.torch.ranks import try_out

        try_out(1, 2, 0)

    with pytest.raises(RuntimeError, match="the sum over the processes was not that of their numbers"):
        colabkeep.launch(work, devices=2)


@FORKED
def test_a_process_that_has_met_the_others_begins_when_all_have(tmp_path: Path) -> None:
    """One of them may have failed meanwhile, and the training then begins elsewhere."""
    from colabkeep.session import launch

    began = tmp_path / "began"
    payload = launch._payload(began.touch, ())
    processes = [launch._begin(rank, 2, str(tmp_path), payload, 0) for rank in range(2)]
    try:
        launch._attend(processes, (), print, lambda: all(each.met for each in processes))
        until = time.monotonic() + 1
        launch._attend(processes, (), print, lambda: time.monotonic() > until)
        assert all(each.met and each.popen.poll() is None for each in processes)
        assert not began.exists()
        assert launch._try_out(processes, print)
        launch._lead(processes, (), print, launch._Stops())
        assert began.exists()
    finally:
        for each in processes:
            each.popen.kill()
            each.popen.communicate()
            each.answers.close()
