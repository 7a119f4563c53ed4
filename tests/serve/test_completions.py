"""Answers through the official client, beside what Python gives for the same settings."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import AsyncOpenAI
from serve.servers import running

import unmask
from unmask import policies
from unmask.models.toy import SENTENCE
from unmask.serve import schema
from unmask.serve.config import ServerConfig
from unmask.serve.served import Served
from unmask.serve.translate import translate

PROMPT = "Countdown: 86,28,13,31,96"
TEXTS = ["Hi", "Hello"]
SETTINGS = unmask.Settings(max_tokens=48, early_stop=True)


def test_a_completion_is_what_python_gives(served):
    out = served.llm.generate(PROMPT, settings=SETTINGS)
    answer = served.client().completions.create(model="tiny", prompt=PROMPT, max_tokens=48)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [(0, out.text, out.finish_reason)]
    assert answer.usage.prompt_tokens == out.usage.prompt_tokens
    assert answer.usage.completion_tokens == out.usage.completion_tokens
    assert answer.usage.total_tokens == out.usage.prompt_tokens + out.usage.completion_tokens
    passes = out.usage.forward_passes
    assert answer.decoding == {
        "policy": "mean_field",
        "seed": 0,
        "forward_passes": passes,
        "tokens_per_pass": out.usage.completion_tokens / passes,
        "ignored": [],
    }


def test_a_conversation_goes_through_the_chat_template(served):
    messages = [{"role": "user", "content": PROMPT}]
    out = served.llm.chat(messages, settings=SETTINGS)
    answer = served.client().chat.completions.create(model="tiny", messages=messages, max_completion_tokens=48)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == out.text
    assert answer.usage.prompt_tokens == out.usage.prompt_tokens


def test_messages_come_in_parts_and_from_developers(toy_served):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    answer = toy_served.client().chat.completions.create(model="toy", messages=messages, max_tokens=5)
    plain = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}]
    assert answer.usage.prompt_tokens == len(toy_served.llm.codec.chat(plain))
    assert answer.choices[0].message.content == SENTENCE[:5]
    assert answer.choices[0].finish_reason == "length"


def test_the_async_client_gets_the_same(served):
    async def ask():
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            return await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=48)

    answer = asyncio.run(ask())
    assert answer.choices[0].text == served.llm.generate(PROMPT, settings=SETTINGS).text


def test_choices_count_up_the_seed_and_a_prompt_counts_once(toy_served):
    hot = SETTINGS.with_(temperature=1.0)
    alone = [toy_served.llm.generate("Hi", settings=hot.with_(seed=seed)) for seed in (7, 8, 9)]
    asked = {"model": "toy", "prompt": "Hi", "max_tokens": 48, "temperature": 1.0, "seed": 7, "n": 3}
    answer = toy_served.client().completions.create(**asked)
    assert [choice.text for choice in answer.choices] == [out.text for out in alone]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({out.text for out in alone}) > 1
    assert answer.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert answer.usage.completion_tokens == sum(out.usage.completion_tokens for out in alone)
    assert answer.decoding["forward_passes"] == sum(out.usage.forward_passes for out in alone)


def test_several_prompts_come_back_in_order_with_their_choices(toy_served):
    hot = SETTINGS.with_(temperature=1.0)
    alone = [toy_served.llm.generate(p, settings=hot.with_(seed=s)) for p in TEXTS for s in (0, 1)]
    asked = {"model": "toy", "prompt": TEXTS, "max_tokens": 48, "temperature": 1.0, "seed": 0, "n": 2}
    answer = toy_served.client().completions.create(**asked)
    assert [choice.text for choice in answer.choices] == [out.text for out in alone]
    assert len({out.text for out in alone}) == 4
    assert answer.usage.prompt_tokens == sum(out.usage.prompt_tokens for out in alone[::2])


def test_draws_without_a_seed_have_another_each_time_which_the_answer_states(toy_served):
    body = {"prompt": "Hi", "max_tokens": 48, "temperature": 1.0}
    first, second = (toy_served.post(body)[1] for _ in range(2))
    assert first["decoding"]["seed"] != second["decoding"]["seed"]
    again = toy_served.post({**body, "seed": first["decoding"]["seed"]})[1]
    assert again["choices"] == first["choices"] != second["choices"]
    assert toy_served.post({**body, "decoding": {"seed": 7}})[1]["decoding"]["seed"] == 7
    assert toy_served.post({**body, "temperature": 0})[1]["decoding"]["seed"] == 0


def test_a_seed_of_the_server_holds_for_all_requests_also_if_it_is_0(toy):
    with running(toy, settings=SETTINGS.with_(temperature=1.0), seed=0) as found:
        answers = [found.post({"prompt": "Hi"})[1] for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["decoding"]["seed"] == 0


def test_token_ids_are_taken_as_they_are(toy_served):
    ids = [toy_served.llm.codec.encode(prompt) for prompt in TEXTS]
    texts = [out.text for out in toy_served.llm.generate(TEXTS, settings=SETTINGS)]
    one = toy_served.client().completions.create(model="toy", prompt=ids[0], max_tokens=48)
    two = toy_served.client().completions.create(model="toy", prompt=ids, max_tokens=48)
    assert [choice.text for choice in one.choices] == texts[:1]
    assert [choice.text for choice in two.choices] == texts
    assert two.usage.prompt_tokens == len(ids[0]) + len(ids[1])


def test_a_suffix_asks_for_what_lies_between(toy_served):
    prompt, wanted, suffix = SENTENCE[:6], SENTENCE[6:12], SENTENCE[12:20]
    # The toy recites from the start of the canvas when it sees no separator, as token ids bring none.
    ids = toy_served.llm.codec.encode(prompt, special=False)
    answer = toy_served.client().completions.create(model="toy", prompt=ids, suffix=suffix, max_tokens=6)
    assert answer.choices[0].text == wanted
    assert answer.usage.prompt_tokens == len(prompt) + len(suffix)
    assert answer.usage.completion_tokens == 6


def test_stop_strings_end_the_text(toy_served):
    asked = {"model": "toy", "prompt": "Hi", "max_tokens": 40}
    for stop in ("letter", ["nowhere", "letter"]):
        answer = toy_served.client().completions.create(**asked, stop=stop)
        assert answer.choices[0].text == SENTENCE[: SENTENCE.index("letter")]
        assert answer.choices[0].finish_reason == "stop"


def test_max_tokens_and_other_settings_default_to_the_servers(toy):
    settings = unmask.Settings(max_tokens=9, block_size=4)
    with running(toy, policy="fixed", settings=settings, served_model_name="parrot") as found:
        assert [model.id for model in found.client().models.list().data] == ["parrot"]
        assert found.client().models.retrieve("parrot").id == "parrot"
        answer = found.client().completions.create(model="parrot", prompt="Hi")
        assert answer.choices[0].text == SENTENCE[:9]
        assert answer.decoding["policy"] == "fixed"
        assert answer.decoding["forward_passes"] == 9
        faster = found.client().completions.create(
            model="parrot", prompt="Hi", extra_body={"decoding": {"tokens_per_pass": 3}}
        )
        assert faster.decoding["forward_passes"] == len([4, 4, 1]) + len([4, 4])  # two passes a block of four


def test_decoding_names_a_policy_its_parameters_and_any_setting(toy_served):
    policy = unmask.policies.get("threshold", threshold=0.7)
    out = toy_served.llm.generate("Hi", policy=policy, settings=SETTINGS.with_(block_size=16, cache="prefix"))
    decoding = {"policy": "threshold", "threshold": 0.7, "block_size": 16, "cache": "prefix", "step_map": True}
    asked = {"model": "toy", "prompt": "Hi", "max_tokens": 48, "extra_body": {"decoding": decoding}}
    answer = toy_served.client().completions.create(**asked)
    assert answer.choices[0].text == out.text
    assert answer.decoding["policy"] == "threshold"
    assert answer.decoding["forward_passes"] == out.usage.forward_passes
    assert answer.decoding["step_map"] == out.step_map
    two = toy_served.client().completions.create(**asked, n=2)
    assert two.decoding["step_map"] == [out.step_map, out.step_map]


@pytest.mark.parametrize("name", ["klass", "wino"])
def test_policies_that_remember_or_remask_give_what_python_gives(name, served):
    prompts = [PROMPT, "Countdown: 3,4,5,12"]
    settings = SETTINGS.with_(max_tokens=24)
    outs = [served.llm.generate(prompt, policy=name, settings=settings) for prompt in prompts]
    extra = {"extra_body": {"decoding": {"policy": name}}}
    answer = served.client().completions.create(model="tiny", prompt=prompts, max_tokens=24, **extra)
    assert [choice.text for choice in answer.choices] == [out.text for out in outs]
    assert answer.decoding["forward_passes"] == sum(out.usage.forward_passes for out in outs)


def test_a_policy_named_has_the_preset_of_the_family_whatever_the_server_has(make_dream):
    llm = unmask.load(str(make_dream()), device="cpu")
    server = policies.get("mean_field", threshold=0.3, iterations=1)
    served = Served(llm, ServerConfig(), policy=server, settings=SETTINGS)

    def chosen(decoding):
        return translate(schema.CompletionRequest(prompt="x", decoding=decoding), served).requests[0].plan.policy

    assert chosen(None) == server
    assert chosen({"threshold": 0.4}) == policies.get("mean_field", threshold=0.4, iterations=1)
    assert chosen({"policy": "mean_field"}) == policies.preset("mean_field", "dream") != policies.get("mean_field")
    assert chosen({"policy": "mean_field", "iterations": 3}) == policies.get("mean_field", threshold=0.95, iterations=3)
    assert chosen({"policy": "entropy"}) == policies.preset("entropy", "dream")


def test_the_same_setting_may_be_given_twice_with_one_value(toy_served):
    status, answer = toy_served.post(
        {"prompt": "Hi", "max_tokens": 4, "stop": "x", "decoding": {"max_tokens": 4, "stop": ["x"]}}
    )
    assert status == 200
    assert answer["choices"][0]["text"] == SENTENCE[:4]


def test_a_setting_that_is_null_is_left_out(toy):
    with running(toy, settings=unmask.Settings(max_tokens=9, temperature=1.0), seed=3) as found:
        plain = found.post({"prompt": "Hi"})[1]
        null = {"max_tokens": None, "temperature": None, "seed": None, "stop": None}
        for body in (null, {"decoding": {**null, "cache": None, "block_size": None, "policy": None, "step_map": None}}):
            assert found.post({"prompt": "Hi", **body})[1]["choices"] == plain["choices"]
        assert plain["usage"]["completion_tokens"] == 9


def test_unknown_fields_are_listed_and_neutral_ones_are_not(toy_served):
    unknown = {"zeta": 1, "alpha": None, "store": True, "user": "me"}
    neutral = {"logprobs": None, "echo": False, "presence_penalty": 0, "logit_bias": {}, "best_of": 1, "tools": []}
    neutral |= {"top_k": -1, "min_p": 0.0, "min_tokens": 0, "ignore_eos": False, "length_penalty": 1.0}
    neutral |= {"bad_words": [], "allowed_token_ids": None, "stop_token_ids": [], "use_beam_search": False}
    status, answer = toy_served.post({"prompt": "Hi", "max_tokens": 4, **unknown, **neutral})
    assert status == 200
    assert answer["decoding"]["ignored"] == ["alpha", "store", "zeta"]
    inside = {"messages": [{"role": "user", "content": "Hi", "name": "me"}], "max_tokens": 4, "stream": True}
    inside["stream_options"] = {"include_obfuscation": False}
    _, _, text = toy_served.send("POST", "/v1/chat/completions", inside)
    assert '"ignored": ["messages[0].name", "stream_options.include_obfuscation"]' in text


def test_fields_of_the_other_route_are_unknown_ones(toy_served):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    plain = toy_served.post(body, "/v1/chat/completions")[1]
    given = toy_served.post({**body, "suffix": "x", "prompt": "y"}, "/v1/chat/completions")[1]
    assert given["decoding"]["ignored"] == ["prompt", "suffix"]
    assert given["usage"] == plain["usage"]


def test_eight_at_once_give_what_one_after_the_other_gives(served):
    prompts = [f"Countdown: {a},{b},{a + b}" for a in (3, 11, 25, 40) for b in (2, 9)]
    asked = [
        {"model": "tiny", "prompt": prompt, "max_tokens": 12 + 3 * number, "temperature": 0.5 * (number % 2), "seed": 3}
        for number, prompt in enumerate(prompts)
    ]
    client = served.client()

    def ask(given):
        return client.completions.create(**given).choices[0].text

    alone = [ask(given) for given in asked]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, asked))
    assert together == alone
    assert len(set(alone)) > 4


@pytest.mark.parametrize("chat", [False, True])
def test_answers_are_as_the_openapi_document_says(toy_served, chat):
    body = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    status, answer = toy_served.post({**body, "n": 2, "max_tokens": 4, "decoding": {"step_map": True}}, path)
    assert status == 200
    kind = schema.ChatCompletion if chat else schema.Completion
    assert kind.model_validate(answer).model_dump(exclude_unset=True) == answer
