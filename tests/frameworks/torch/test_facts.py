"""What bits depend on is read fact by fact, and "exact" is said where nothing here prevents it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses import FakeTensorMode

from colabkeep.frameworks.shared.describe import read_facts
from colabkeep.frameworks.torch.facts import exactness, fingerprint
from tests.programs import run

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Settings of the process are put back."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark


@pytest.fixture
def on_a_gpu() -> list[torch.Tensor]:
    """A tensor that says it is on a GPU: what is asked of the settings needs no more."""
    with FakeTensorMode():
        return [torch.empty(2, device="cuda")]


def torch_runs(code: str) -> str:
    """What a process of its own prints: some settings of torch cannot be taken back."""
    done = run(code, strict=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


NEWER = """
import torch
from torch._subclasses import FakeTensorMode
from colabkeep.frameworks.torch.facts import exactness, fingerprint
with FakeTensorMode():
    tensors = [torch.empty(1), torch.empty(1, device="cuda")]
if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
facts = fingerprint(tensors)
for name in ("matmul", "convolution", "rnn"):
    print(facts.get(f"{name} fp32_precision", "older"))
print(facts["float32 matmul precision"].partition(":")[0], facts["tf32 matmul"].partition(":")[0])
print([note for note in exactness(tensors).notes if "precision" in note or "tf32" in note])
"""


def test_the_newer_settings_of_precision_end_no_training() -> None:
    """Once they are used, torch raises at each look at the older names: those are called unreadable, these are read."""
    matmul, convolution, rnn, older, notes = torch_runs(NEWER).splitlines()
    if matmul == "older":  # before torch 2.9
        assert older == "highest False"
    else:
        assert (matmul, convolution, rnn) == ("tf32", "ieee", "tf32")
        assert older == "unreadable unreadable"
    assert notes == "[]", "what the newer names tell is not said to be unknown"


MIXED = """
import torch, colabkeep, tempfile
torch.backends.cuda.matmul.fp32_precision = "tf32"
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with colabkeep.Run("r", model=model, optimizer=optimizer, storage=tempfile.mkdtemp(), progress=False) as run:
    for epoch in run.epochs(1):
        for x in run.batches([torch.ones(1, 2)] * 3):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
print(run.stopped)
"""


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch has no such setting")
def test_a_training_starts_whatever_was_set() -> None:
    """`torch.backends.cuda.matmul.fp32_precision = "tf32"` stands in many notebooks."""
    assert torch_runs(MIXED).splitlines()[-1] == "finished"


def broken() -> str:
    raise RuntimeError("no longer\nand more")


def missing() -> str:
    raise AttributeError("no such setting")


def test_a_fact_that_cannot_be_read_says_why_and_hides_no_other() -> None:
    """What a version does not have is no fact; the rest are read."""
    facts = read_facts({"a": lambda: 1, "b": broken, "c": missing, "d": lambda: True})
    assert facts == {"a": "1", "b": "unreadable: RuntimeError: no longer", "d": "True"}


def test_what_could_not_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of it would not be noticed."""
    monkeypatch.setattr(torch, "get_num_threads", broken)
    facts, told = fingerprint([torch.ones(1)]), exactness([torch.ones(1)])
    assert facts["threads"] == "unreadable: RuntimeError: no longer"
    assert any("threads" in note for note in told.notes)


def test_on_one_thread_nothing_prevents_the_same_bits() -> None:
    """Nor on several with deterministic algorithms; else the one operation that torch names for the CPU is told."""
    torch.set_num_threads(1)
    alone = exactness([torch.ones(1)])
    torch.set_num_threads(2)
    several = exactness([torch.ones(1)])
    torch.use_deterministic_algorithms(True)
    ordered = exactness([torch.ones(1)])
    assert (alone.obstacles, alone.exceptions) == (ordered.obstacles, ordered.exceptions) == ((), ())
    assert several.obstacles == ()
    (told,) = several.exceptions
    assert "x[index]" in told
    assert "torch.use_deterministic_algorithms(True)" in told


def test_the_recipe_for_a_gpu_is_told_line_by_line(
    on_a_gpu: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting that prevents the same bits, with what mends it; when all are as they should be, none."""
    monkeypatch.delenv(WORKSPACE, raising=False)
    torch.backends.cudnn.benchmark = True
    told = exactness(on_a_gpu).obstacles
    mended = ["use_deterministic_algorithms(True)", f'os.environ["{WORKSPACE}"] = ":4096:8"', "cudnn.benchmark = False"]
    assert len(told) == len(mended)
    assert all(line in sentence for line, sentence in zip(mended, told, strict=True))
    monkeypatch.setenv(WORKSPACE, ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    (half,) = exactness(on_a_gpu).obstacles
    assert "warn_only" in half
    torch.use_deterministic_algorithms(True)
    assert exactness(on_a_gpu).obstacles == ()


def test_each_setting_that_rounds_otherwise_is_a_fact(on_a_gpu: list[torch.Tensor]) -> None:
    """Changed between two sessions, it is seen."""
    switches = {
        "float16 reduced-precision reduction": (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        "bfloat16 reduced-precision reduction": (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
        "cudnn deterministic": (torch.backends.cudnn, "deterministic"),
        "cudnn benchmark": (torch.backends.cudnn, "benchmark"),
    }
    before = fingerprint(on_a_gpu)
    for name, (owner, switch) in switches.items():
        value = getattr(owner, switch)
        setattr(owner, switch, not value)
        try:
            after = fingerprint(on_a_gpu)
        finally:
            setattr(owner, switch, value)
        assert {key for key in before if before[key] != after[key]} == {name}
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert fingerprint(on_a_gpu)["attention by flash"] != before["attention by flash"]
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_variables_that_libraries_read_are_facts(on_a_gpu: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU they mean nothing, and are not asked."""
    monkeypatch.setenv(WORKSPACE, ":16:8")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    facts = fingerprint(on_a_gpu)
    assert (facts["cublas workspace"], facts["NVIDIA_TF32_OVERRIDE"]) == (":16:8", "0")
    assert "cublas workspace" not in fingerprint([torch.ones(1)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, which compiling imports
def test_a_compiler_that_races_kernels_is_told() -> None:
    """Another kernel may win next time; one that does not race prevents nothing."""
    model = torch.nn.Linear(2, 2)
    parameters = list(model.parameters())
    plain = torch.compile(model)
    raced = torch.compile(model, mode="max-autotune")
    assert exactness(parameters, [plain]).obstacles == ()
    (told,) = exactness(parameters, [raced]).obstacles
    assert "max_autotune" in told
    assert fingerprint(parameters, [plain])["compile autotuning"] == "off"
    assert fingerprint(parameters, [raced])["compile autotuning"].startswith("max_autotune")


def test_kernels_of_other_devices_promise_nothing() -> None:
    """ "Exact" is not said of what nobody has proven."""
    (told,) = exactness([torch.empty(1, device="meta")]).obstacles
    assert "meta" in told
