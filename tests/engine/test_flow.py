"""Requests that join a batch under way get what they would get alone, in their turn."""

import gc
import itertools
from collections import deque

import pytest
import torch
from doubles import Scripted, Watched, tiny_config

import unmask
from unmask import policies
from unmask.cache.kv import StoragePool
from unmask.engine.canvas import Canvas
from unmask.engine.decode import decode
from unmask.engine.flow import Request, flow
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.random_weights import random_model
from unmask.models.toy import SENTENCE
from unmask.settings import Settings

PROMPTS = [[3, 1, 4], [1] * 30, [5, 9, 2, 6, 5, 3] * 2, [7], [8, 2] * 9]


@pytest.fixture(scope="module")
def toy():
    return unmask.load("toy")


def filled(model, prompts, settings, policy, *, rows, late=()):
    """The canvases decoded, of which the late ones come one by one, each some passes after the one before it."""
    sizes = {"mask_id": model.spec.mask_id, "block_size": 5}
    made = [Canvas.continuing(list(p), 10 + n, seed=n, **sizes) for n, p in enumerate([*prompts, *late])]
    waiting, asked = deque(made[len(prompts) :]), itertools.count()

    def arrivals(room, longest):
        assert room > 0
        fits = waiting and (longest is None or len(waiting[0].tokens) <= longest)
        return [waiting.popleft()] if fits and next(asked) % 2 else []

    events = list(decode(model, made[: len(prompts)], policy, settings, arrivals=arrivals, rows=rows))
    assert not waiting
    return made, events


@pytest.mark.parametrize(("temperature", "guidance"), [(0.0, 0.0), (0.7, 0.5)])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("kind", [lambda model: model, Watched], ids=["packs", "does not pack"])
def test_a_row_that_joins_is_decoded_as_if_alone(kind, family, cache, temperature, guidance, monkeypatch):
    # As on a device that works on its own: where nobody joins, the next pass has begun before the last one is read.
    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: kind is Watched)
    model, policy = kind(random_model(tiny_config(family), std=1.0)), policies.get("threshold", threshold=0.9)
    settings = Settings(cache=cache, temperature=temperature, cfg_scale=guidance)
    made, events = filled(model, PROMPTS[1:3], settings, policy, rows=3, late=PROMPTS[3:])
    for number, canvas in enumerate(made):
        sizes = {"mask_id": canvas.mask_id, "block_size": 5, "seed": number}
        alone = Canvas.continuing(canvas.tokens[: canvas.holes[0]], 10 + number, **sizes)
        own = list(decode(model, [alone], policy, settings))
        assert canvas.tokens == alone.tokens
        assert canvas.step_map == alone.step_map
        assert [event.step for event in events if event.row == number] == [event.step for event in own]
    last = max(index for index, event in enumerate(events) if event.row == 0)
    assert {event.row for event in events[:last]} > {0, 1}, "nobody joined while the first row was there"


def test_a_row_takes_the_place_of_one_that_has_left_and_the_storage_stays_as_it_is():
    model, pool = random_model(tiny_config("llada"), std=0.4), StoragePool()
    waiting = [Canvas.continuing([5], 4 + 4 * n, mask_id=model.spec.mask_id, block_size=4) for n in range(5)]
    first = [Canvas.continuing([3] * 9, 8 + 8 * n, mask_id=model.spec.mask_id, block_size=4) for n in range(2)]
    settings, fewest = Settings(cache="dual"), []

    def arrivals(room, longest):
        fewest.append(longest)
        found, waiting[:] = waiting[:room], waiting[room:]
        return found

    list(decode(model, first, policies.get("fixed"), settings, pool=pool, arrivals=arrivals, rows=2))
    storage = pool.borrow(1, 1)
    assert (storage.rows, storage.length) == (2, 256)
    assert set(fewest) == {256}


def test_nobody_joins_a_policy_that_remembers_nor_rows_whose_drift_is_told():
    model = random_model(tiny_config("llada"), std=0.4)

    def never(room, longest):
        raise AssertionError("asked for newcomers")

    def rows():
        return [Canvas.continuing([5], 8, mask_id=model.spec.mask_id, block_size=4)]

    remembers, settings = policies.get("klass"), Settings(cache="dual", refresh="drift:0.1")
    list(decode(model, rows(), remembers, Settings(), arrivals=never, rows=4))
    list(decode(model, rows(), policies.get("fixed"), settings, arrivals=never, rows=4))
    with pytest.raises(AssertionError, match="asked"):
        list(decode(model, rows(), policies.get("fixed"), Settings(cache="dual"), arrivals=never, rows=4))


def test_requests_are_answered_as_generate_answers_them(toy):
    prompts = [f"Hello {n}" * (n + 1) for n in range(7)]
    waiting = deque(toy.request(p, max_tokens=40 + n, seed=n) for n, p in enumerate(prompts))
    requests, texts = list(waiting), {}
    for request, event in toy.flow(waiting, rows=3):
        texts.setdefault(request, []).append(event.text_delta)
        if event.output is not None:
            number = requests.index(request)
            assert event.output == toy.generate(prompts[number], max_tokens=40 + number, seed=number)
            assert "".join(texts[request]) == event.output.text
            requests[number] = None
    assert requests == [None] * 7


def test_no_more_than_the_rows_are_decoded_at_a_time_and_the_first_to_come_are_the_first_served(toy):
    waiting = deque(toy.request("x", policy="fixed", max_tokens=4 + 2 * (n % 3)) for n in range(6))
    requests, began, live = list(waiting), [], set()
    for request, event in toy.flow(waiting, rows=2):
        if request not in live:
            began.append(requests.index(request))
        live.add(request)
        assert len(live) <= 2
        if event.output:
            live.remove(request)
    assert began == list(range(6))


def test_a_request_may_come_while_others_are_decoded(toy):
    waiting = deque([toy.request("x", policy="fixed", max_tokens=12)])
    late, order = toy.request("y", policy="fixed", max_tokens=2), []
    for request, event in toy.flow(waiting, rows=2):
        if len(order) == 3:
            waiting.append(late)
        order.append(request is late)
        if request is late and event.output:
            assert event.output.text == SENTENCE[:2]
    assert order.count(True) == 2
    assert order.index(True) < len(order) - 3, "it waited until the other was done"


@pytest.mark.parametrize("change", [{"policy": "threshold"}, {"temperature": 0.5}, {"block_size": 7}])
def test_another_kind_of_request_waits_and_those_behind_it_too(toy, change):
    options = {"policy": "fixed", "max_tokens": 6}
    kinds = [options, options | change, options]
    waiting = deque(toy.request("x", **kind) for kind in kinds)
    requests = list(waiting)
    order = [requests.index(request) for request, _ in toy.flow(waiting, rows=4)]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2}


def test_seeds_lengths_and_stops_are_no_hindrance(toy):
    own = [{"seed": 3}, {"max_tokens": 5}, {"stop": ["x"]}, {"stop_token_ids": [1]}]
    first = toy.request("x", max_tokens=9)
    assert all(toy.request("x", **({"max_tokens": 9} | options)).joins(first) for options in own)


def test_a_canvas_longer_than_the_storage_waits_for_the_next_batch(make_llada):
    llm = unmask.load(str(make_llada(max_sequence_length=1024)))
    options = {"policy": "fixed", "max_tokens": 4, "block_size": 4, "cache": "dual"}
    waiting = deque([llm.request([1] * 8, **options), llm.request([1] * 10, **options)])
    long, short, order = llm.request([1] * 300, **options), llm.request([2], **options), []
    for request, event in llm.flow(waiting, rows=3):
        if not order:
            waiting.extend([long, short])
        order.append(request)
        if event.output and request is long:
            assert event.output == llm.generate([1] * 300, **options)
    places = [order.index(request) for request in (long, short)]
    assert min(places) >= 8, "it joined where there was no room for it"
    assert len(order) == 16


@pytest.mark.parametrize("when", range(4))
@pytest.mark.parametrize("name", ["fixed", "threshold"])
@pytest.mark.parametrize("cache", ["none", "dual"])
def test_who_leaves_changes_nothing_for_the_others_though_the_next_pass_may_have_begun(cache, name, when, monkeypatch):
    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: True)
    model, settings = random_model(tiny_config("llada"), std=0.4), Settings(cache=cache)
    sizes = {"mask_id": model.spec.mask_id, "block_size": 5}
    rows, alone = ([Canvas.continuing([n, 3], 10, **sizes) for n in range(3)] for _ in range(2))
    passes = 0
    for number, event in enumerate(decode(model, rows, policies.get(name), settings)):
        if number // 3 == when and event.row == 0:
            rows[1].abandoned = True
        passes += event.row == 1
    assert passes in (when + 1, when + 2)
    for row in (0, 2):
        list(decode(model, [alone[row]], policies.get(name), settings))
        assert (rows[row].tokens, rows[row].step_map) == (alone[row].tokens, alone[row].step_map)


def test_a_row_that_gets_free_is_taken_in_the_next_pass(toy):
    waiting = deque(toy.request("x", policy="fixed", max_tokens=3) for _ in range(3))
    requests, batches = list(waiting), []

    def counted(*given, **options):
        batches.append(given)
        return toy._decode(*given, **options)

    events = [
        (requests.index(request), event.step.step) for request, event in flow(waiting, counted, rows=1, codec=toy.codec)
    ]
    assert events == [(number, step) for number in range(3) for step in range(3)]
    assert len(batches) == 1


def test_a_flow_keeps_nothing_of_those_who_are_done(toy):
    waiting = deque(toy.request("x", policy="fixed", max_tokens=2) for _ in range(30))
    events = toy.flow(waiting, rows=2)
    next(events)
    gc.collect()
    assert sum(type(found) is Request for found in gc.get_objects()) >= 30
    while waiting:
        next(events)
    gc.collect()
    assert sum(type(found) is Request for found in gc.get_objects()) <= 5


def test_who_is_abandoned_while_waiting_hears_of_it_before_the_batch_is_done(toy):
    waiting = deque(toy.request("x", policy="fixed", max_tokens=20) for _ in range(2))
    late = toy.request("y", policy="fixed", max_tokens=2)
    late.abandon()
    order = []
    for request, _ in toy.flow(waiting, rows=3):
        if len(order) == 4:
            waiting.append(late)
        order.append(request is late)
    assert order.count(True) == 1
    assert order.index(True) < 10


def test_who_is_abandoned_leaves_after_the_pass_under_way(toy):
    waiting = deque(toy.request("x", policy="fixed", max_tokens=20) for _ in range(3))
    one, two, three = waiting
    three.abandon()
    passes = {one: 0, two: 0}
    for request, event in toy.flow(waiting, rows=2):
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
    assert not waiting


def test_only_the_abandoned_is_no_work(toy):
    waiting = deque([toy.request("x")])
    waiting[0].abandon()
    ((request, event),) = toy.flow(waiting)
    assert request.abandoned
    assert event.output is None


@pytest.mark.parametrize("early_stop", [False, True])
def test_a_text_ends_at_its_own_stop_string(toy, early_stop):
    stops = [SENTENCE[5:8], SENTENCE[40:44]]
    options = {"max_tokens": 100, "block_size": 10, "early_stop": early_stop, "policy": "fixed"}
    waiting = deque(toy.request("x", stop=[stop], **options) for stop in stops)
    requests = list(waiting)
    for request, event in toy.flow(waiting, rows=2):
        if event.output:
            stop = stops[requests.index(request)]
            assert event.output == toy.generate("x", stop=[stop], **options)
            assert event.output.text == SENTENCE[: SENTENCE.index(stop)]


def test_a_suffix_stays_where_it_is_and_the_text_before_it_is_asked_for(make_llada):
    llm = unmask.load(str(make_llada()))
    request = llm.request([3, 1, 4], suffix=[1, 5], max_tokens=6, block_size=4)
    assert request.canvas.tokens == [3, 1, 4, *[llm.spec.mask_id] * 6, 1, 5]
    *_, (_, event) = llm.flow(deque([request]))
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
        toy.flow(deque(), rows=0)


def test_a_request_is_decoded_once_and_by_who_made_it(toy):
    with pytest.raises(UnmaskError, match="by another generator"):
        list(toy.flow(deque([unmask.load("toy").request("x")])))
    request = toy.request("x", max_tokens=2)
    with pytest.raises(UnmaskError, match="is or was decoded"):
        list(toy.flow(deque([request, request])))
    again = toy.request("x", max_tokens=2)
    list(toy.flow(deque([again])))
    with pytest.raises(UnmaskError, match="is or was decoded"):
        list(toy.flow(deque([again])))


def test_an_error_ends_the_flow_and_leaves_the_line_as_it_is(toy, monkeypatch):
    broken = Scripted(torch.full((64, toy.spec.vocab_size), torch.nan), mask_id=toy.spec.mask_id)
    waiting = deque(toy.request("x", max_tokens=4) for _ in range(3))
    taken = [waiting[0], waiting[1]]
    monkeypatch.setattr(toy, "model", broken)
    with pytest.raises(WorkFailed, match="no usable logits"):
        list(toy.flow(waiting, rows=2))
    assert len(waiting) == 1
    assert waiting[0] not in taken
