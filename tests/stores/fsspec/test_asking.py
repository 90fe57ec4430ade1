"""Foreign libraries are asked patiently, one at a time where they need it, and answer in words that help."""

from __future__ import annotations

import threading
import time

import pytest

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.shared.retry import Asking, Patience, Throttled, Words, brief

WORDS = Words(sign_in="sign in there", missing="make it there", install="install it")


def asking(**options):
    return Asking("x://place", WORDS, Patience(first=0.0, longest=0.0), **options)


def raising(error):
    def call():
        raise error

    return call


class Answered(Exception):
    """As clients of HTTP raise it."""

    def __init__(self, status, **headers):
        super().__init__(f"status {status}")
        self.response = type("Response", (), {"status_code": status, "headers": headers})()


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (PermissionError("no"), StoreError, "sign in there"),
        (Answered(401), StoreError, "sign in there"),
        (Answered(403), StoreError, "sign in there"),
        (OSError("Forbidden: b/x\nno rights"), StoreError, "sign in there"),
        (type("UnauthenticatedError", (Exception,), {})("none"), StoreError, "sign in there"),
        (FileNotFoundError("b"), StoreError, "make it there"),
        (Answered(404), StoreError, "make it there"),
        (OSError("The specified bucket does not exist"), StoreError, "make it there"),
        (Answered(507), StoreFull, "room"),
        (OSError(28, "No space left on device"), StoreFull, "room"),
        (Answered(408), StoreUnavailable, "tried again"),
        (Answered(429), StoreUnavailable, "tried again"),
        (Answered(502), StoreUnavailable, "tried again"),
        (ConnectionResetError("reset"), StoreUnavailable, "tried again"),
        (TimeoutError("slow"), StoreUnavailable, "tried again"),
        (type("GenericError", (Exception,), {})("away"), StoreUnavailable, "tried again"),
        (Answered(400), StoreError, "Correct storage"),
        (ValueError("odd"), StoreError, "Correct storage"),
    ],
    ids=repr,
)
def test_each_kind_of_failure_has_its_own_remedy(error, kind, remedy):
    """What may pass is told from what will not, and the cause is kept."""
    with pytest.raises(StoreError) as caught:
        asking()("do it", raising(error))
    assert type(caught.value) is kind
    assert "x://place could not do it" in caught.value.problem
    assert remedy in caught.value.remedy
    assert caught.value.__cause__ is error


def test_a_missing_object_is_told_as_what_was_asked_for():
    """For a reader it is the object that is missing, not the place."""
    with pytest.raises(ObjectNotFound, match="colabkeep show"):
        asking()("read it", raising(FileNotFoundError()), missing=ObjectNotFound)


def test_only_what_may_pass_is_tried_again_and_not_for_ever():
    """Four times in all; a refusal once; and `again=False` once."""
    for error, options, times in (
        (ConnectionError("x"), {}, 4),
        (ConnectionError("x"), {"again": False}, 1),
        (PermissionError("x"), {}, 1),
    ):
        ask, calls = asking(), []

        def call(calls=calls, error=error):
            calls.append(1)
            raise error

        with pytest.raises(StoreError):
            ask("do it", call, **options)
        assert len(calls) == times


def test_an_interrupt_comes_out_as_it_is():
    """It is neither translated nor tried again."""
    calls = []

    def interrupted():
        calls.append(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asking()("do it", interrupted)
    assert len(calls) == 1


def test_pauses_grow_and_the_one_that_is_asked_for_is_kept():
    """1, 2, 4 seconds; or what the service says, up to the longest."""
    for errors, expected in (
        ([StoreUnavailable(problem="a", remedy="b")] * 3, [1.0, 2.0, 4.0]),
        (
            [Throttled(problem="a", remedy="b", seconds=7.0), Throttled(problem="a", remedy="b", seconds=200.0)],
            [7.0, 30.0],
        ),
    ):
        slept, left = [], list(errors)

        def call(left=left):
            if left:
                raise left.pop(0)
            return "done"

        assert Patience(sleep=slept.append)(call) == "done"
        assert slept == expected


def test_a_service_that_wants_to_be_left_alone_for_long_is():
    """It is not asked again within the minute: that may count against us."""
    slept, calls = [], []

    def call():
        calls.append(1)
        raise Throttled(problem="a", remedy="b", seconds=2580.0)

    with pytest.raises(Throttled):
        Patience(sleep=slept.append)(call)
    assert (len(calls), slept) == (1, [])


def test_a_service_s_own_pause_is_read_from_its_answer():
    """The header Retry-After, or what the answer says."""
    with pytest.raises(Throttled) as caught:
        asking()("do it", raising(Answered(429, **{"Retry-After": "12"})))
    assert caught.value.seconds == 12.0
    answer = Answered(429)
    answer.args = ("too many commits (128 per hour). You can retry this action in 43 minutes.",)
    with pytest.raises(Throttled) as caught:
        asking()("do it", raising(answer))
    assert caught.value.seconds == 43 * 60.0


def test_what_cannot_stand_two_threads_gets_one_at_a_time():
    """paramiko mixes up the answers of two listings."""
    ask, inside, most = asking(one_at_a_time=True), [], []

    def call():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()

    threads = [threading.Thread(target=lambda: [ask("do it", call) for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (20, 1)


def test_signatures_are_cut_out_of_messages():
    """The query of a signed address is as good as a key."""
    said = brief(OSError("500 for https://storage/x?X-Amz-Signature=secret&a=b, sorry\nand more"))
    assert said == "OSError: 500 for https://storage/x?… sorry"
