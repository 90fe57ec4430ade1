"""Which verdict on which facts: the rules by themselves. The whole way from the machine is in test_verdicts.py."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colabkeep.core.system import Environment
from colabkeep.hardware.base import Accelerator, Build, Hidden, Trouble
from colabkeep.hardware.catalogue import cards
from colabkeep.hardware.probe import ProbeResult
from colabkeep.platforms.base import DefaultStorage, Menus
from colabkeep.platforms.lifetime import SessionTime
from colabkeep.ui.check.advice import advise
from colabkeep.ui.check.facts import Facts, Place, best_gpu, device, prove
from colabkeep.ui.check.verdict import judge, speed_text

from .conftest import K80, MENUS, P100, T4, build, gpu

OLD = build("2.0.1+cu118", ("sm_37", "sm_60", "sm_75"))
UNKNOWN = build("2.5.0a0+cu124", None)


@pytest.fixture
def tried(monkeypatch):
    """Facts with the result of a trial."""

    def tried(facts, result):
        monkeypatch.setattr("colabkeep.ui.check.facts.probe", lambda *_, **__: result)
        return prove(facts, Environment.here())

    return tried


def test_a_trial_goes_before_the_drivers_number(session, tried):
    """CUDA's compatibility package runs newer builds on an old driver: what computes is kept, what finds nothing is
    still told by the driver's number."""
    facts = session("script", gpu(driver="550.54.15"), torch=build("2.12.1+cu130", ("sm_75",)))
    assert (judge(facts).code, judge(facts).word) == ("driver-too-old", "unusable")
    works = tried(facts, ProbeResult(works=True, detail="It computes."))
    assert judge(works).code == "good-card"
    blind = tried(facts, ProbeResult(works=False, detail="It sees no GPU.", cause="no-device"))
    assert judge(blind).code == "driver-too-old"


# -- drawing again -------------------------------------------------------------------------------------


def test_a_poor_card_drawn_by_chance_is_given_back(session):
    """A K80 on Colab: what to click, what a better card would bring, that the disk goes with it, and when to stop."""
    verdict = judge(session("colab", K80, torch=OLD))
    assert (verdict.word, verdict.code) == ("reconnect", "poor-draw")
    assert "Click delete." in verdict.action
    assert "Save first" in verdict.action
    assert "stop trying" in verdict.action
    times = re.search(r"about (\d\.\d) times as fast", verdict.reason)
    assert times is not None
    assert float(times[1]) == pytest.approx(1 / verdict.speeds["transformer"], abs=0.06)


@pytest.mark.parametrize("name", ["Tesla K80", "K80", "NVIDIA Tesla K80"])
def test_the_same_card_twice_in_a_row_ends_the_trying(session, name):
    """Who drew a K80 before and draws one again is told to stop, and to train on it if it can be used."""
    verdict = judge(session("colab", K80, torch=OLD, previous=("Tesla T4", name), menus=MENUS["script"]))
    assert verdict.word == "keep"
    verdict = judge(session("colab", K80, torch=OLD, previous=("Tesla T4", name)))
    assert (verdict.word, verdict.action) == ("switch", "Click switch.")
    assert "stop trying" in verdict.reason


@pytest.mark.parametrize("previous", [(), ("Tesla P4",), ("Tesla K80", "Tesla T4")])
def test_another_card_before_does_not_end_the_trying(session, previous):
    """Only the latest card counts: a K80 after a P4 may be given back once more."""
    assert judge(session("colab", K80, torch=OLD, previous=previous)).word == "reconnect"


def test_a_platform_that_draws_may_draw_again_whatever_its_name(session):
    """Where the platform says that cards come by chance, any card of tier D is given back."""
    menus = Menus(reconnect="Click again.", draws=True)
    assert judge(session("script", gpu("GeForce GTX 1050 Ti", (6, 1)), torch=OLD, menus=menus)).word == "reconnect"
    assert judge(session("script", T4, torch=OLD, menus=menus)).word == "keep"


# -- cards that the build cannot use -------------------------------------------------------------------


def test_a_card_dropped_by_the_build_is_changed_in_the_settings(session):
    """Kaggle's P100: the T4 x2 is chosen in the settings, since restarting gives the same card."""
    verdict = judge(session("kaggle", P100))
    assert (verdict.word, verdict.action) == ("switch", "Choose T4 x2.")
    assert "gives you the same card" in verdict.reason
    assert "6.0" in verdict.reason
    assert "cu126" in verdict.reason


def test_a_card_newer_than_the_build_asks_for_a_newer_build(session):
    """A Blackwell card with an old build is worth keeping: upgrading torch is the way, also where there are menus."""
    new = gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0))
    verdict = judge(session("kaggle", new, torch=build("2.9.1+cu126", ("sm_50", "sm_90"))))
    assert verdict.word == "unusable"
    assert "--force-reinstall" in verdict.action
    assert "may no longer fit" in verdict.action


def test_a_trial_that_failed_is_told(session, tried):
    """What was proven is said to be proven."""
    verdict = judge(tried(session("script", P100), ProbeResult(works=False, detail="No kernel image, it said.")))
    assert "A trial on the card failed: No kernel image, it said." in verdict.reason
    assert verdict.code == "no-kernels"


@pytest.mark.parametrize(
    "proof",
    [
        ProbeResult(works=False, detail="A wrong result."),
        ProbeResult(works=False, detail="It sees no GPU.", cause="no-device"),
    ],
    ids=["device", "none seen"],
)
def test_a_trial_that_failed_for_another_reason_is_no_lack_of_kernels(session, proof, tried):
    """Its own words are told, with the driver, and nobody is sent to install another build."""
    facts = tried(session("colab", gpu(driver="535.104.05"), torch=UNKNOWN), proof)
    verdict = judge(facts)
    assert (verdict.word, verdict.code) == ("unusable", "trial-failed")
    assert proof.detail in verdict.reason
    assert "535.104.05" in verdict.reason
    assert "kernels" not in verdict.reason
    assert "pip install" not in f"{verdict.action}"
    assert "Click switch." in verdict.action
    assert best_gpu(facts).tier == "D"


def test_a_card_that_lacks_kernels_has_twins_that_lack_them_too(session, tried):
    """Two P100: the trial ended on the first, and says the same of the second."""
    proof = ProbeResult(works=False, detail="No.", cause="no-kernels")
    facts = tried(session("kaggle", P100, P100, torch=UNKNOWN), proof)
    assert [(one.works, one.supported) for one in facts.devices] == [(False, False)] * 2
    assert (judge(facts).word, judge(facts).code) == ("switch", "no-kernels")


def test_one_broken_card_of_two_does_not_speak_against_the_other(session, tried):
    """One of two T4 fails for a reason of its own: the other is trained on."""
    proof = ProbeResult(works=False, detail="It is lost.")
    facts = tried(session("kaggle", T4, T4, torch=UNKNOWN), proof)
    assert [(one.works, one.supported) for one in facts.devices] == [(False, None), (None, None)]
    assert judge(facts).word == "keep"


def test_a_slow_card_that_works_is_better_than_a_fast_one_that_does_not(session, tried):
    """An A100 that fails beside a T4: the T4 is judged, and kept."""
    a100 = gpu("NVIDIA A100-SXM4-40GB", (8, 0))
    proof = ProbeResult(works=False, detail="It is lost.")
    facts = tried(session("script", a100, T4, torch=UNKNOWN), proof)
    assert (best_gpu(facts).accelerator, judge(facts).word) == (T4, "keep")


def test_a_framework_that_sees_no_gpu_speaks_of_all_of_them(session, tried):
    """Neither of two T4 is kept for the other's sake; an accelerator of another kind is not spoken of."""
    proof = ProbeResult(works=False, detail="It sees no GPU.", cause="no-device")
    facts = tried(session("kaggle", T4, T4, Accelerator(kind="xpu", name="Kunlun XPU"), torch=UNKNOWN), proof)
    assert [one.works for one in facts.devices] == [False, False, None]
    assert judge(facts).code == "trial-failed"


def test_a_card_that_computes_is_proven(session, tried):
    """Whatever is known of the build."""
    facts = tried(session("script", P100), ProbeResult(works=True, detail="Fine."))
    assert (best_gpu(facts).supported, judge(facts).word) == (True, "keep")


@pytest.mark.parametrize("torch", [build("2.11.0+cpu"), build("2.11.0+cu128")], ids=["cpu", "cuda"])
def test_a_card_of_amd_under_a_build_without_rocm_stays_idle(session, torch, monkeypatch):
    """Neither a build for the CPU nor one for CUDA computes on it, and no trial is needed to say so."""
    amd = Accelerator(kind="rocm", name="AMD Instinct MI210")
    monkeypatch.setattr("colabkeep.ui.check.facts.probe", lambda *_, **__: 1 // 0)
    verdict = judge(prove(session("script", amd, torch=torch), Environment.here()))
    assert (verdict.word, verdict.code) == ("unusable", "cpu-build")
    assert "without ROCm" in verdict.reason
    rocm = dataclasses.replace(torch, version="2.9.1+rocm6.3", cuda=None, hip="6.3")
    assert judge(session("script", amd, torch=rocm)).word == "keep"


# -- no GPU, and other accelerators --------------------------------------------------------------------


def test_gpus_hidden_by_the_user_are_not_enabled_in_a_menu(session):
    """The variable is the cause then, and is named with its value, which may be anything."""
    value = "5\x1b[31m" + "9" * 5000
    verdict = judge(session("colab", hidden=Hidden(variable="CUDA_VISIBLE_DEVICES", value=value, count=2)))
    assert (verdict.word, verdict.code) == ("keep", "gpus-hidden")
    assert "CUDA_VISIBLE_DEVICES='5\\x1b" in verdict.reason
    assert ("all 2 accelerators" in verdict.reason, len(verdict.reason) < 250) == (True, True)
    assert "unset CUDA_VISIBLE_DEVICES" in verdict.action


def test_a_tpu_under_torch_is_no_gpu(session):
    """A torch training would run on the CPU beside a TPU: choose a GPU; for JAX the TPU is fine."""
    tpu = Accelerator(kind="tpu", name="TPU v5e")
    assert (judge(session("kaggle", tpu)).word, judge(session("kaggle", tpu)).action) == ("switch", "Choose T4 x2.")
    assert judge(session("script", tpu)).word == "unusable"
    assert judge(session("kaggle", tpu, torch=None)).word == "keep"


def test_what_could_not_be_told_speaks_against_nothing(session):
    """A driver that hangs is no reason to stop a training; the next step is said."""
    untold = dataclasses.replace(session("colab"), devices=None)
    verdict = judge(untold)
    assert (verdict.word, verdict.code) == ("keep", "accelerator-not-told")
    assert "nvidia-smi" in verdict.action
    verdict = judge(dataclasses.replace(untold, unanswered=("the accelerators (ZeroDivisionError: by zero)",)))
    assert ("ZeroDivisionError" in verdict.reason, "in time" in verdict.reason) == (True, False)
    verdict = judge(dataclasses.replace(untold, trouble=Trouble(problem="It hung", remedy="Do that.")))
    assert ("It hung" in verdict.reason, verdict.action) == (True, "Do that.")


def test_the_number_is_said_with_its_uncertainty():
    """One digit, and how sure it is; workloads are told apart only where they differ."""
    assert speed_text({"cnn": 1.0, "transformer": 1.0, "rnn": 1.0}) == "1.0 times as fast as a T4, give or take 30%"
    assert speed_text({"cnn": 0.66, "transformer": 0.66, "rnn": 0.96}) == (
        "speed relative to a T4: CNN 0.7, Transformer 0.7, RNN 1.0, give or take 30%"
    )


# -- for all facts -------------------------------------------------------------------------------------

texts = st.text(max_size=30)
maybe_texts = st.none() | st.text(st.characters(min_codepoint=33), min_size=1, max_size=30)
capabilities = st.none() | st.tuples(st.integers(0, 20), st.integers(0, 9))
names = st.sampled_from([name for card in cards() for name in card.names]) | texts
accelerators = st.builds(
    Accelerator,
    kind=st.sampled_from(["cuda", "rocm", "tpu", "xpu", "npu", "mps"]),
    name=names,
    memory_bytes=st.none() | st.integers(0, 2**40),
    used_bytes=st.none() | st.integers(0, 2**40),
    capability=capabilities,
)
codes = st.sampled_from(["sm_37", "sm_60", "sm_75", "sm_90a", "sm_100f", "compute_120", "sm_120", "gfx90a", ""])
builds = st.builds(
    Build,
    framework=st.sampled_from(["torch", "paddle"]),
    version=st.sampled_from(["2.11.0+cu128", "2.13.0+cpu", "3.3.1", "unknown", ""]),
    cuda=st.sampled_from([None, "11.8", "12.8", "13.0", "x"]),
    architectures=st.none() | st.lists(codes, max_size=4).map(tuple),
    known_from=st.sampled_from(["loaded", "table", "unknown"]),
)
troubles = st.builds(
    Trouble, problem=texts, remedy=st.text(min_size=1).filter(str.strip), usable=st.sampled_from([None, False])
)
menus = st.builds(
    Menus, enable=maybe_texts, reconnect=maybe_texts, switch=maybe_texts, offered=texts, draws=st.booleans()
)
homes = st.builds(
    DefaultStorage,
    storage=texts,
    folder=texts,
    persists=st.sampled_from([True, False, None]),
    reason=texts,
    remedy=texts,
)
seconds = st.none() | st.floats(-1e9, 1e9)
times = st.builds(
    SessionTime,
    used_seconds=seconds,
    limit_seconds=seconds,
    left_seconds=seconds,
    confidence=st.sampled_from(["high", "medium", "low"]),
    source=texts,
)


@st.composite
def any_facts(draw: st.DrawFn) -> Facts:
    found = draw(st.none() | st.lists(accelerators, max_size=3))
    torch = draw(st.none() | builds)
    place = st.builds(Place, name=st.sampled_from(["colab", "kaggle", "script"]), title=texts, kind=texts, menus=menus)
    return Facts(
        place=draw(place),
        devices=None if found is None else tuple(device(one, torch) for one in found),
        builds=() if torch is None else (torch,),
        build=torch,
        home=draw(st.none() | homes),
        free_bytes=draw(st.none() | st.integers(0, 2**50)),
        session=draw(st.none() | times),
        cpus=draw(st.none() | st.integers(1, 500)),
        workers=draw(st.none() | st.integers(0, 8)),
        probe=draw(st.none() | st.builds(ProbeResult, works=st.none() | st.booleans(), detail=texts)),
        hidden=draw(st.none() | st.builds(Hidden, variable=texts, value=texts, count=st.integers(1, 8))),
        trouble=draw(st.none() | troubles),
        in_use=draw(st.booleans()),
        previous=tuple(draw(st.lists(names, max_size=3))),
        unanswered=tuple(draw(st.lists(texts, max_size=2))),
    )


@settings(deadline=None)
@given(facts=any_facts())
def test_whatever_is_found_is_judged_and_advised_on(facts):
    """It never fails. A verdict that asks for a click gives the path that this platform has; each code of the advice is
    there at most once, and reads like precision-fp16."""
    verdict, offered = judge(facts), facts.place.menus
    paths = {"reconnect": [offered.reconnect], "switch": [offered.switch, offered.enable], "enable": [offered.enable]}
    for path in paths.get(verdict.word, []):
        if path is not None and path.strip().rstrip(".") in verdict.action:
            break
    else:
        assert verdict.word in ("keep", "unusable")
    assert verdict.reason.strip()
    assert verdict.word == "keep" or verdict.action.strip()
    advice = advise(facts)
    listed = [line.code for line in advice]
    assert len(set(listed)) == len(listed)
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", code) for code in listed)
    assert all(line.text.strip() for line in advice if not line.code.startswith("storage-"))


@pytest.mark.parametrize(
    "accelerator", [K80, P100, gpu("Tesla P4", (6, 1)), Accelerator(kind="tpu", name="TPU v5 lite")]
)
@pytest.mark.parametrize("torch", [build(), OLD, None])
def test_what_is_said_of_an_old_card_on_colab_is_what_the_docs_say(session, accelerator, torch):
    """Such cards are not handed out any more, so none is promised or called usual; a TPU trains nothing here, whatever
    is installed."""
    verdict = judge(session("colab", accelerator, torch=torch))
    if accelerator.kind == "tpu":
        assert "CPUs and GPUs only" in " ".join(verdict.reason.split())
        assert "You can start" not in verdict.reason
    if verdict.word == "reconnect":
        assert "should not get one any more" in verdict.reason
        assert "is drawn by chance" not in verdict.reason


def test_a_t4_is_not_compared_with_itself(session):
    """It is what the others are measured by; half of one is not."""
    assert "times as fast as a T4" not in judge(session("colab", T4)).reason
    assert "0.5 times as fast as a T4" in judge(session("script", gpu("GRID T4-8Q", memory_bytes=8 << 30))).reason
