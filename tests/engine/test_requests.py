"""A request from its making to its end: refused, abandoned, failed alone, ended by its own text."""

import pytest
import torch
from doubles import Scripted

import unmask
from unmask.engine.scheduler import Scheduler
from unmask.errors import UnmaskError
from unmask.models.base import LoadedModel
from unmask.models.toy import SENTENCE


@pytest.fixture(scope="module")
def toy():
    return unmask.load("toy")


def test_a_request_abandoned_while_it_waits_is_told_of_before_the_batch_is_done(toy):
    scheduler = Scheduler((toy.request("x", policy="fixed", max_tokens=20) for _ in range(2)), rows=3)
    late = toy.request("y", policy="fixed", max_tokens=2)
    late.abandon()
    order = []
    for request, _ in toy.decode(scheduler):
        if len(order) == 4:
            scheduler.line.append(late)
        order.append(request is late)
    assert order.count(True) == 1
    assert order.index(True) < 10


def test_an_abandoned_request_leaves_after_the_pass_under_way(toy):
    one, two, three = requests = [toy.request("x", policy="fixed", max_tokens=20) for _ in range(3)]
    three.abandon()
    passes, scheduler = {one: 0, two: 0}, Scheduler(requests, rows=2)
    for request, event in toy.decode(scheduler):
        if request is three:
            assert event.output is None
            assert event.step is None
            continue
        passes[request] += 1
        if request is two and passes[two] == 5:
            two.abandon()
            assert two.abandoned
    assert passes[one] == 20
    assert passes[two] == 6
    assert not scheduler.line


def test_only_the_abandoned_is_no_work(toy):
    waiting = toy.request("x")
    waiting.abandon()
    ((request, event),) = toy.decode(Scheduler([waiting]))
    assert request.abandoned
    assert event.output is None


@pytest.mark.parametrize("early_stop", [False, True])
def test_a_text_ends_at_its_own_stop_string(toy, early_stop):
    stops = [SENTENCE[5:8], SENTENCE[40:44]]
    options = {"max_tokens": 100, "block_size": 10, "early_stop": early_stop, "policy": "fixed"}
    requests = [toy.request("x", stop=[stop], **options) for stop in stops]
    for request, event in toy.decode(Scheduler(requests, rows=2)):
        if event.output:
            stop = stops[requests.index(request)]
            assert event.output == toy.generate("x", stop=[stop], **options)
            assert event.output.text == SENTENCE[: SENTENCE.index(stop)]


def test_a_suffix_stays_where_it_is_and_the_text_before_it_is_asked_for(make_llada):
    llm = unmask.load(str(make_llada()))
    request = llm.request([3, 1, 4], suffix=[1, 5], max_tokens=6, block_size=4)
    assert request.canvas.tokens == [3, 1, 4, *[llm.spec.mask_id] * 6, 1, 5]
    *_, (_, event) = llm.decode(Scheduler([request]))
    whole = llm.infill([3, 1, 4, *[llm.spec.mask_id] * 6, 1, 5], block_size=4)
    assert event.output.canvas_ids == whole.token_ids[3:9]
    assert event.output.usage.prompt_tokens == 5


def test_only_what_begins_a_canvas_has_the_token_of_a_beginning(make_dream):
    llm = unmask.load(str(make_dream()))
    request = llm.request("the", suffix="end", max_tokens=3)
    before, after = (llm.codec.encode(text, special=False) for text in ("the", "end"))
    assert llm.spec.add_bos
    assert request.canvas.tokens == [llm.spec.bos_id, *before, *[llm.spec.mask_id] * 3, *after]


def test_a_request_that_is_wrong_is_refused_before_anything_is_decoded(toy):
    with pytest.raises(UnmaskError, match="more than the"):
        toy.request("x", max_tokens=10**6)
    with pytest.raises(UnmaskError, match="contains the mask token"):
        toy.request("x", suffix=[toy.spec.mask_id])
    with pytest.raises(UnmaskError, match="unknown policy"):
        toy.request("x", policy="meanfield")
    with pytest.raises(UnmaskError, match="rows must be at least 1"):
        Scheduler(rows=0)


def test_a_request_is_decoded_once_and_by_the_generator_that_made_it(toy):
    with pytest.raises(UnmaskError, match="by another generator"):
        list(toy.decode(Scheduler([unmask.load("toy").request("x")])))
    request = toy.request("x", max_tokens=2)
    with pytest.raises(UnmaskError, match="is or was decoded"):
        list(toy.decode(Scheduler([request, request])))
    again = toy.request("x", max_tokens=2)
    list(toy.decode(Scheduler([again])))
    with pytest.raises(UnmaskError, match="is or was decoded"):
        list(toy.decode(Scheduler([again])))
    scheduler = Scheduler()
    scheduler.line.append("x")
    with pytest.raises(UnmaskError, match="must be made by `request`"):
        list(toy.decode(scheduler))


def test_requests_that_fail_alone_say_so_and_the_line_goes_on(toy):
    broken = Scripted(torch.full((64, toy.spec.vocab_size), torch.nan), mask_id=toy.spec.mask_id)
    llm = unmask.Generator(LoadedModel(model=broken, codec=toy.codec))
    requests = [llm.request("x", max_tokens=4) for _ in range(3)]
    events = list(llm.decode(Scheduler(requests, rows=2)))
    assert [request for request, _ in events] == requests
    assert all("no usable logits" in str(event.step.error) and event.output is None for _, event in events)


class Lost(Scripted):
    capabilities = Scripted.capabilities

    def predict(self, tokens, **options):
        raise RuntimeError("the device is lost")


def test_an_error_of_the_model_ends_all_and_leaves_the_line_as_it_is(toy):
    lost = Lost(torch.zeros(64, toy.spec.vocab_size), mask_id=toy.spec.mask_id)
    llm = unmask.Generator(LoadedModel(model=lost, codec=toy.codec))
    requests = [llm.request("x", max_tokens=4) for _ in range(3)]
    scheduler = Scheduler(requests, rows=2)
    with pytest.raises(RuntimeError, match="the device is lost"):
        list(llm.decode(scheduler))
    assert list(scheduler.line) == requests[2:]
