"""Requests share passes: each gets what it would get alone, joins when a row is free, and waits for no other kind."""

import gc

import pytest
from doubles import Watched, continuing, events_of, requests_of, tiny_config

import unmask
from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.engine.decode import decode
from unmask.engine.runner import Runner
from unmask.engine.scheduler import Request, Scheduler
from unmask.models.random_weights import random_model
from unmask.models.toy import SENTENCE
from unmask.settings import Settings

PROMPTS = [[3, 1, 4], [1] * 30, [5, 9, 2, 6, 5, 3] * 2, [7], [8, 2] * 9]


@pytest.fixture(scope="module")
def toy():
    return unmask.load("toy")


def runner_of(model, early, pool=None):
    if not early:
        return Runner(model, pool or StoragePool())
    from early import Early

    return Early(model, pool)


def canvases_of(model, prompts):
    sizes = {"mask_id": model.spec.mask_id, "block_size": 4}
    return [continuing(list(p), 9 + n, **sizes) for n, p in enumerate(prompts)]


@pytest.mark.parametrize(("temperature", "guidance"), [(0.0, 0.0), (0.7, 0.5)])
@pytest.mark.parametrize(
    ("cache", "refresh"), [("none", "block"), ("prefix", "block"), ("dual", "block"), ("dual", "drift:0.1")]
)
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("early", [False, True])
def test_a_row_that_joins_is_decoded_as_if_alone(early, family, cache, refresh, temperature, guidance):
    model, policy = random_model(tiny_config(family), std=1.0), policies.get("threshold", threshold=0.9)
    settings = Settings(cache=cache, refresh=refresh, temperature=temperature, cfg_scale=guidance)
    made = canvases_of(model, PROMPTS[1:])

    def request(number, canvas):
        return requests_of(model, [canvas], policy, settings.with_(seed=number))[0]

    requests = [request(number, canvas) for number, canvas in enumerate(made)]
    waiting = requests[2:]

    def late(number):
        return [waiting.pop(0)] if waiting and number % 4 == 1 else []

    events = list(events_of(requests[:2], runner_of(model, early), rows=3, late=late))
    assert not waiting
    for number, canvas in enumerate(made):
        (alone,) = canvases_of(model, PROMPTS[1:])[number : number + 1]
        own = list(events_of([request(number, alone)], runner_of(model, early)))
        assert canvas.tokens == alone.tokens
        assert canvas.step_map == alone.step_map
        assert [event.step for event in events if event.row == number] == [event.step for event in own]
    last = max(index for index, event in enumerate(events) if event.row == 0)
    assert {event.row for event in events[:last]} > {0, 1}, "no row joined while the first was there"


def test_a_row_takes_the_slot_of_one_that_has_left_and_the_storage_stays_as_it_is():
    model, pool = random_model(tiny_config("llada"), std=0.4), StoragePool()
    first = [continuing([3] * 9, 8 + 8 * n, mask_id=model.spec.mask_id, block_size=4) for n in range(2)]
    others = [continuing([5], 4 + 4 * n, mask_id=model.spec.mask_id, block_size=4) for n in range(5)]
    requests = requests_of(model, [*first, *others], "fixed", Settings(cache="dual"))
    list(decode(Scheduler(requests, rows=2), Runner(model, pool)))
    storage = pool.borrow(1, 1)
    assert (storage.rows, storage.length) == (2, 256)
    assert not pool.borrow(1, 1).layers, "another storage was lent meanwhile"


MIXED = [
    ("fixed", {}),
    ("mean_field", {}),
    ("threshold", {"temperature": 0.7, "seed": 3}),
    ("klass", {}),
    ("entropy", {"reference_dtype": True}),
    ("dawn", {}),
    ("eb", {"cache": "dual"}),
    ("threshold", {"cache": "dual", "refresh": "blocks:2"}),
    ("fixed", {"cache": "prefix"}),
    ("margin", {"cache": "dual", "refresh": "drift:0.1"}),
    ("local_leap", {"cfg_scale": 1.0}),
    ("random", {"confidence_eos_eot_inf": True}),
    ("klass", {"logits_eos_inf": True}),
    ("factor", {"suppress_mask_token": False}),
]


@pytest.mark.parametrize("rows", [3, pytest.param(14, marks=pytest.mark.slow)])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_requests_of_every_kind_together_give_what_each_gives_alone(family, early, rows):
    model = random_model(tiny_config(family), std=0.6)
    kinds = [*MIXED, *([("wino", {})] if family == "llada" else [])]
    found = []
    for together in (True, False):
        canvases = [
            continuing([n + 1] * (1 + 7 * n % 11), 7 + n % 4, mask_id=60, block_size=3 + n % 3)
            for n in range(len(kinds))
        ]
        requests = [
            requests_of(model, [canvas], policy, Settings(**{"seed": n} | settings))[0]
            for n, (canvas, (policy, settings)) in enumerate(zip(canvases, kinds, strict=True))
        ]
        for batch in [requests] if together else [[request] for request in requests]:
            list(events_of(batch, runner_of(model, early), rows=rows))
        found.append([(canvas.tokens, canvas.step_map) for canvas in canvases])
    assert found[0] == found[1]


def test_policies_and_settings_that_need_only_logits_share_one_model_call():
    model = Watched(random_model(tiny_config("llada"), std=0.6))
    canvases = [continuing([5] * n, 8, mask_id=60, block_size=4) for n in (2, 9, 4, 7)]
    kinds = [("fixed", {}), ("mean_field", {"seed": 2}), ("eb", {"temperature": 0.5}), ("klass", {})]
    requests = [
        requests_of(model, [canvas], policy, Settings(**settings))[0]
        for canvas, (policy, settings) in zip(canvases, kinds, strict=True)
    ]
    events = list(events_of(requests[:3], Runner(model, StoragePool())))
    assert len(model.computed) == 1 + max(event.step for event in events)
    model.computed.clear()
    again = [continuing([5] * n, 4, mask_id=60, block_size=4) for n in (2, 9)]
    both = [requests_of(model, [again[0]], "fixed")[0], requests_of(model, [again[1]], "klass")[0]]
    list(events_of(both, Runner(model, StoragePool())))
    assert model.computed[:2] == [(1, 6), (1, 13)]  # whole-sequence logits are another call


def passes_of_latecomers(toy, policies_of):
    """From its arrival to its end, how many passes each short request takes that joins one long `fixed` request."""
    long = toy.request("x", policy="fixed", max_tokens=120)
    short = [toy.request("y" * (n % 5), policy=policies_of[n % 4], max_tokens=6, block_size=6) for n in range(20)]
    scheduler, passes, arrived, ended = Scheduler([long], rows=21), 0, {}, {}
    for request, event in toy.decode(scheduler):
        if request is long:
            passes += 1
            if passes % 3 == 0 and len(arrived) < 20:
                scheduler.line.append(short[len(arrived)])
                arrived[short[len(arrived)]] = passes
        elif event.output is not None:
            ended[request] = passes
    assert long.canvas.passes == passes == 120
    return [ended[request] - arrived[request] for request in short], short


def test_short_requests_with_other_policies_do_not_wait_for_a_long_one(toy):
    same, own = passes_of_latecomers(toy, ["fixed"] * 4)
    mixed, short = passes_of_latecomers(toy, ["mean_field", "threshold", "eb", "entropy"])
    waited = [passes - request.canvas.passes for passes, request in zip(mixed, short, strict=True)]
    assert waited == [passes - request.canvas.passes for passes, request in zip(same, own, strict=True)]
    assert set(waited) <= {0, 1}
    for number, request in enumerate(short):
        policy = ["mean_field", "threshold", "eb", "entropy"][number % 4]
        alone = toy.generate("y" * (number % 5), policy=policy, max_tokens=6, block_size=6)
        assert request.output() == alone


def test_a_newcomer_does_not_share_the_memory_of_a_policy_that_keeps_state():
    model = random_model(tiny_config("llada"), std=0.6)
    canvases = canvases_of(model, PROMPTS[:2])
    one, two = requests_of(model, canvases, policies.get("klass", confidence=0.05, kl=3.0, history=1))
    list(events_of([one], Runner(model, StoragePool()), rows=2, late=lambda number: [two] if number == 2 else []))
    for canvas, alone in zip(canvases, canvases_of(model, PROMPTS[:2]), strict=True):
        (request,) = requests_of(model, [alone], policies.get("klass", confidence=0.05, kl=3.0, history=1))
        list(events_of([request], Runner(model, StoragePool())))
        assert (canvas.tokens, canvas.step_map) == (alone.tokens, alone.step_map)


def test_requests_are_answered_as_generate_answers_them(toy):
    prompts = [f"Hello {n}" * (n + 1) for n in range(7)]
    requests = [toy.request(p, max_tokens=40 + n, seed=n) for n, p in enumerate(prompts)]
    texts = {}
    for request, event in toy.decode(Scheduler(requests, rows=3)):
        texts.setdefault(request, []).append(event.text_delta)
        if event.output is not None:
            number = requests.index(request)
            assert event.output == toy.generate(prompts[number], max_tokens=40 + number, seed=number)
            assert "".join(texts[request]) == event.output.text
            requests[number] = None
    assert requests == [None] * 7


def test_no_more_than_the_rows_are_decoded_at_a_time_and_the_first_to_come_are_the_first_served(toy):
    requests = [toy.request("x", policy="fixed", max_tokens=4 + 2 * (n % 3)) for n in range(6)]
    began, live = [], set()
    for request, event in toy.decode(Scheduler(requests, rows=2)):
        if request not in live:
            began.append(requests.index(request))
        live.add(request)
        assert len(live) <= 2
        if event.output:
            live.remove(request)
    assert began == list(range(6))


def test_a_request_may_come_while_others_are_decoded(toy):
    scheduler = Scheduler([toy.request("x", policy="fixed", max_tokens=12)], rows=2)
    late, order = toy.request("y", policy="fixed", max_tokens=2), []
    for request, event in toy.decode(scheduler):
        if len(order) == 3:
            scheduler.line.append(late)
        order.append(request is late)
        if request is late and event.output:
            assert event.output.text == SENTENCE[:2]
    assert order.count(True) == 2
    assert order.index(True) < len(order) - 3, "it waited until the other was done"


def test_a_canvas_longer_than_the_storage_has_another_one_beside_it(make_llada):
    llm = unmask.load(str(make_llada(max_sequence_length=2048)))
    options = {"policy": "fixed", "max_tokens": 4, "block_size": 4, "cache": "dual"}
    scheduler = Scheduler([llm.request([1] * 8, **options), llm.request([1] * 10, **options)], rows=4)
    long, longer, order = llm.request([1] * 300, **options), llm.request([1] * 700, **options), []
    for request, event in llm.decode(scheduler):
        order.append(request)
        if len(order) in (1, 4):
            scheduler.line.append(long if len(order) == 1 else longer)
        if event.output and request in (long, longer):
            assert event.output == llm.generate(request.canvas.tokens[:-4], **options)
    assert order.index(long) == 6, "it waited though it may have a storage of its own"
    assert order.index(longer) == 11, "a third storage was taken while the first two were in use"
    assert len(order) == 16


@pytest.mark.parametrize("when", range(4))
@pytest.mark.parametrize("name", ["fixed", "threshold"])
@pytest.mark.parametrize("cache", ["none", "dual"])
def test_a_row_that_leaves_changes_nothing_for_the_others_though_the_next_pass_may_have_begun(cache, name, when):
    model, settings = random_model(tiny_config("llada"), std=0.4), Settings(cache=cache)
    sizes = {"mask_id": model.spec.mask_id, "block_size": 5}
    rows, alone = ([continuing([n, 3], 10, **sizes) for n in range(3)] for _ in range(2))
    requests, passes = requests_of(model, rows, name, settings), 0
    for number, event in enumerate(events_of(requests, runner_of(model, True))):
        if number // 3 == when and event.row == 0:
            requests[1].abandon()
        passes += event.row == 1
    assert passes in (when + 1, when + 2)
    for row in (0, 2):
        list(events_of(requests_of(model, [alone[row]], name, settings), runner_of(model, False)))
        assert (rows[row].tokens, rows[row].step_map) == (alone[row].tokens, alone[row].step_map)


def test_a_row_that_gets_free_is_taken_in_the_next_pass():
    model = Watched(random_model(tiny_config("llada"), std=0.4))
    canvases = [continuing([5], 3, mask_id=60, block_size=3) for _ in range(3)]
    events = list(decode(Scheduler(requests_of(model, canvases, "fixed"), rows=1), Runner(model, StoragePool())))
    assert [(event.row, event.step) for event in events] == [(row, step) for row in range(3) for step in range(3)]
    assert len(model.computed) == 9


def test_generate_refills_rows_as_they_get_free(toy):
    seen = []
    outputs = toy.generate(["x"] * 6, policy="fixed", max_tokens=3, batch_size=2, on_step=lambda e: seen.append(e.row))
    assert [output.text for output in outputs] == [SENTENCE[:3]] * 6
    assert seen == [0, 1] * 3 + [2, 3] * 3 + [4, 5] * 3


def test_nothing_is_kept_of_requests_that_are_done(toy):
    scheduler = Scheduler((toy.request("x", policy="fixed", max_tokens=2) for _ in range(30)), rows=2)
    events = toy.decode(scheduler)
    next(events)
    gc.collect()
    assert sum(type(found) is Request for found in gc.get_objects()) >= 30
    while scheduler.line:
        next(events)
    gc.collect()
    assert sum(type(found) is Request for found in gc.get_objects()) <= 5
