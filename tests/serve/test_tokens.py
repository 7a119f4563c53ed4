"""Between text and token ids over HTTP, through the official client."""

import pytest
from serve.servers import running

import unmask

MESSAGES = [{"role": "user", "content": "Hi"}]


def ask(found, path: str, **body):
    """What the official client gets at a route that it has no method for."""
    return found.client().with_options(base_url=found.url).post(path, body=body, cast_to=object)


def test_a_prompt_has_the_tokens_that_a_completion_counts(toy_served):
    answer = ask(toy_served, "/tokenize", prompt="Hi")
    assert answer["tokens"] == toy_served.llm.codec.encode("Hi")
    assert answer["token_texts"][:2] == ["H", "i"]
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_texts"])
    assert answer["max_model_len"] == 4096
    usage = toy_served.client().completions.create(model="toy", prompt="Hi", max_tokens=1).usage
    assert usage.prompt_tokens == answer["count"]
    bare = ask(toy_served, "/tokenize", prompt="Hi", add_special_tokens=False)
    assert bare["token_texts"] == ["H", "i"]


def test_a_conversation_has_the_tokens_of_its_template(toy_served):
    answer = ask(toy_served, "/tokenize", messages=MESSAGES, zeta=1)
    assert answer["tokens"] == toy_served.llm.codec.chat(MESSAGES)
    assert answer["ignored"] == ["zeta"]


def test_the_beginning_of_a_family_counts_as_special(make_dream):
    llm = unmask.load(str(make_dream()), device="cpu")
    with running(llm, settings=unmask.Settings(max_tokens=8)) as found:
        assert ask(found, "/tokenize", prompt="the")["tokens"][0] == llm.spec.bos_id
        assert llm.spec.bos_id not in ask(found, "/tokenize", prompt="the", add_special_tokens=False)["tokens"]


def test_token_ids_have_their_text_back(toy_served):
    ids = ask(toy_served, "/tokenize", prompt="a[MASK]\N{SNOWMAN}", add_special_tokens=False)["tokens"]
    assert ask(toy_served, "/detokenize", tokens=ids)["prompt"] == "a[MASK]\N{SNOWMAN}"
    assert ask(toy_served, "/detokenize", tokens=[])["prompt"] == ""


WRONG = {
    "neither": ("/tokenize", {}, "prompt", "either prompt or messages"),
    "both": ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt", "either prompt or messages"),
    "half a character": ("/tokenize", {"prompt": "\ud800"}, "prompt", "surrogate"),
    "a number": ("/tokenize", {"prompt": 5}, "prompt", "prompt must be"),
    "an empty conversation": ("/tokenize", {"messages": []}, "messages", "messages"),
    "ids beyond the vocabulary": ("/detokenize", {"tokens": [10**30]}, "tokens", "token ids in [0,"),
    "ids below 0": ("/detokenize", {"tokens": [-1]}, "tokens", "token ids in [0,"),
    "no ids": ("/detokenize", {}, "tokens", "missing"),
    "another model": ("/detokenize", {"tokens": [1], "model": "gpt"}, "model", "does not exist here"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_has_no_tokens_is_refused_and_named(case, toy_served):
    path, body, param, says = WRONG[case]
    status, answer = toy_served.post(body, path)
    assert status == (404 if param == "model" else 400)
    assert answer["error"]["param"] == param
    assert says in answer["error"]["message"]
