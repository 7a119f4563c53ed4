"""Policies whose answers are no decisions, or lead nowhere: one line that names the policy."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import unmask
from unmask import policies
from unmask.engine.scheduler import Scheduler
from unmask.errors import UnmaskError, WorkFailed
from unmask.types import Decision, StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """Answers as it is told to."""

    answer: Callable[[StepView], object]
    needs: frozenset[str] = frozenset()

    def select(self, view, state=None):
        return self.answer(view)


@dataclass(frozen=True)
class Kept:
    """A state."""

    numbers: torch.Tensor


def decision_of(view, **parts):
    """Unchecked, as outside of tests."""
    decision = Decision(commit=view.masked, score=view.masked.float())
    for name, value in parts.items():
        object.__setattr__(decision, name, value)
    return decision


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda view: decision_of(view), r"Odd must answer \(Decision, state\), got Decision"),
        (lambda view: None, r"Odd must answer \(Decision, state\), got NoneType"),
        (lambda view: (view.masked, None), r"Odd must answer \(Decision, state\), got tuple"),
        (lambda view: (decision_of(view, commit=view.masked.float()), None), "gave torch.float32 for commit"),
        (
            lambda view: (decision_of(view, commit=view.masked[:, :1]), None),
            r"gave \(1, 1\) for commit, not a tensor of",
        ),
        (lambda view: (decision_of(view, score=None), None), "gave NoneType for score"),
        (lambda view: (decision_of(view, wait=view.masked), None), r"for wait, not a tensor of shape \(1,\)"),
        (lambda view: (decision_of(view, tokens=[1, 2]), None), "gave list for tokens"),
        (
            lambda view: (decision_of(view, tokens=view.masked.float()), None),
            "gave torch.float32 for tokens, not torch.",
        ),
        (lambda view: (decision_of(view, tokens=view.masked), None), "gave torch.bool for tokens, not torch.int64"),
        (
            lambda view: (decision_of(view, score=view.masked.float().to(torch.float8_e4m3fn)), None),
            "gave torch.float8_e4m3fn for score, not torch.float32",
        ),
        (
            lambda view: (decision_of(view, score=view.masked.to(torch.complex64)), None),
            "torch.complex64 for score",
        ),
        (lambda view: (decision_of(view, overlap=view.masked.float()), None), r"gave \(1, 8\) for overlap"),
        (
            lambda view: (decision_of(view, wait=torch.ones(1, device="meta").bool()), None),
            "on meta for wait, not on",
        ),
        (
            lambda view: (decision_of(view, tokens=view.proposed + 10**6), None),
            "Odd gave a token outside the voc",
        ),
        (lambda view: (decision_of(view, tokens=-view.proposed - 1), None), "Odd gave a token outside the voc"),
        (lambda view: (decision_of(view), view.masked), "Odd gave Tensor for its state, not a dataclass of tensors"),
        (lambda view: (decision_of(view), Kept), "Odd gave type for its state, not a dataclass"),
        (
            lambda view: (decision_of(view), Kept(torch.zeros(3))),
            r"Odd keeps a tensor of shape \(3,\) on cpu as n",
        ),
        (
            lambda view: (decision_of(view), Kept(torch.tensor(1))),
            r"Odd keeps a tensor of shape \(\) on cpu as n",
        ),
        (
            lambda view: (decision_of(view), Kept(torch.zeros(1, device="meta"))),
            "on meta as numbers, not one",
        ),
    ],
)
def test_what_is_no_answer_is_said_by_name(answer, why):
    toy = unmask.load("toy")
    with pytest.raises(WorkFailed, match=why):
        toy.generate("x", policy=Odd(answer=answer), max_tokens=8)


def failing(error):
    def answer(view):
        raise error

    return Odd(answer=answer)


def mask_tokens(view):
    return decision_of(view, tokens=torch.full_like(view.proposed, unmask.load("toy").spec.mask_id)), None


def waiting(view):
    return decision_of(view, commit=view.masked & False, wait=view.masked.any(-1)), None


def in_turn(view):
    """One position is committed, then taken back, for ever."""
    back = view.decoded & (view.step % 2 == 1)[:, None]
    first = view.masked & (torch.arange(view.masked.shape[1]) == 0)
    return decision_of(view, commit=first, remask=back, wait=back.any(-1)), None


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "why"), [(waiting, "waits"), (mask_tokens, "commits no"), (in_turn, "takes back")])
def test_a_policy_without_end_is_ended_by_name(answer, why):
    with pytest.raises(WorkFailed, match=rf"^a row has made no progress in \d+ passes: the policy Odd {why}"):
        unmask.load("toy").generate("x", policy=Odd(answer=answer), max_tokens=4)


def test_a_row_whose_policy_gives_foreign_tokens_fails_alone():
    def odd(view):
        outside = (view.start > 5)[:, None] & view.masked
        return decision_of(view, tokens=torch.where(outside, 10**9, view.proposed)), None

    toy = unmask.load("toy")
    requests = [toy.request(prompt, policy=Odd(answer=odd), max_tokens=8) for prompt in ("x" * 9, "x" * 3)]
    events = [event for _, event in toy.decode(Scheduler(requests, rows=2))]
    failed = [event.step.error for event in events if event.step is not None and event.step.error is not None]
    assert [str(error) for error in failed] == [
        f"the policy Odd gave a token outside the vocabulary of {toy.spec.vocab_size}"
    ]
    assert sum(event.output is not None for event in events) == 1


def test_a_policy_that_fails_to_say_how_much_it_commits_is_named():
    @dataclass(frozen=True)
    class Mute(policies.Fixed):
        def most_commits(self, open_now, step):
            return "many"

        def select(self, view, state=None):
            return super().select(view, state)

    with pytest.raises(WorkFailed, match=r"^the policy Mute failed in most_commits: invalid literal"):
        unmask.load("toy").generate("x", policy=Mute(), max_tokens=8)


def test_an_error_of_a_policy_names_the_policy_and_keeps_its_cause():
    cause = ZeroDivisionError("division by zero")
    with pytest.raises(WorkFailed, match="the policy Odd failed: division by zero") as error:
        unmask.load("toy").generate("x", policy=failing(cause), max_tokens=8)
    assert error.value.__cause__ is cause


@pytest.mark.parametrize("error", [UnmaskError("out of range"), torch.OutOfMemoryError(), MemoryError()])
def test_an_error_of_ours_and_one_of_memory_pass_through_a_decision_as_they_are(error):
    view = StepView(logits=torch.zeros(1, 2, 3), masked=torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(type(error)) as raised:
        policies.decide(failing(error), view, None)
    assert raised.value is error


def test_what_a_policy_cannot_have_or_be_called_is_refused():
    toy = unmask.load("toy")
    with pytest.raises(UnmaskError, match="unknown need of a policy 'atention'; did you mean 'attention'"):
        toy.generate("x", policy=Odd(answer=print, needs=frozenset({"atention"})), max_tokens=8)

    @dataclass(frozen=True)
    class Greedy(policies.Fixed):
        max_tokens: int = 3

    with pytest.raises(UnmaskError, match="Greedy has a parameter 'max_tokens', which is the name of a setting"):
        toy.generate("x", policy=Greedy(), max_tokens=8)


def test_a_policy_that_says_nothing_about_itself_needs_nothing():
    class Silent:
        def select(self, view, state=None):
            raise NotImplementedError

    assert policies.needs_of(Silent()) == frozenset()
    assert policies.remasks(Silent()) is False
    assert not policies.is_pure(Silent())
