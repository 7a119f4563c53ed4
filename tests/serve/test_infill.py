"""Texts with holes over HTTP: masks in a prompt, or parts with lengths."""

import json

import pytest
from serve.servers import running

import unmask
from unmask.models.toy import SENTENCE

HOLED = SENTENCE[:6] + "[MASK]" * 4 + SENTENCE[10:14] + "[MASK]" * 3
PARTS = [{"text": SENTENCE[:6]}, {"mask": 4}, {"text": SENTENCE[10:14]}, {"mask": 3}]


@pytest.mark.parametrize("prompt", [HOLED, PARTS])
def test_every_hole_is_filled_and_the_answer_is_the_whole_text(prompt, toy_served):
    answer = toy_served.client().completions.create(model="toy", prompt=prompt)
    assert answer.choices[0].text == SENTENCE[:17] == toy_served.llm.infill(HOLED).text
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 7)


def test_masks_among_token_ids_are_holes_too(toy_served):
    ids = toy_served.llm.codec.encode(HOLED, special=False)
    assert toy_served.client().completions.create(model="toy", prompt=ids).choices[0].text == SENTENCE[:17]


def test_prompts_with_and_without_masks_may_stand_side_by_side(toy):
    with running(toy, settings=unmask.Settings(max_tokens=5, stop=["nowhere"])) as found:
        choices = found.client().completions.create(model="toy", prompt=["Hi", HOLED], n=2).choices
    assert [choice.text for choice in choices] == [SENTENCE[:5]] * 2 + [SENTENCE[:17]] * 2


@pytest.mark.parametrize("policy", ["fixed", "wino"])
def test_the_pieces_of_a_stream_add_up_to_the_whole_text(policy, toy_served):
    body = {"prompt": PARTS, "stream": True, "decoding": {"policy": policy, "block_size": 2}}
    _, _, text = toy_served.send("POST", "/v1/completions", body)
    pieces = [json.loads(line[6:])["choices"][0]["text"] for line in text.split("\n\n")[:-2]]
    assert "".join(pieces) == SENTENCE[:17]
    assert sum(map(bool, pieces)) > 1


def test_an_end_of_text_inside_does_not_end_the_text(make_llada):
    llm = unmask.load(str(make_llada()), device="cpu")
    eos = llm.codec.token_text(llm.spec.eos_id)
    with running(llm, settings=unmask.Settings(max_tokens=8, early_stop=True)) as found:
        prompt = [{"text": f"the {eos}cat"}, {"mask": 5}, {"text": " sat"}]
        whole = found.post({"prompt": prompt})[1]["choices"][0]["text"]
        _, _, text = found.send("POST", "/v1/completions", {"prompt": prompt, "stream": True})
    assert whole.startswith(f"the {eos}cat")
    assert whole.endswith(" sat")
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in text.split("\n\n")[:-2]) == whole


def test_a_text_with_holes_begins_as_the_family_begins_one(make_dream):
    llm = unmask.load(str(make_dream()), device="cpu")
    with running(llm, settings=unmask.Settings(max_tokens=8)) as found:
        for first in ([], [{"text": "the"}]):
            parts = [*first, {"mask": 3}, {"text": " sat"}]
            text = "".join(part.get("text", llm.codec.token_text(llm.spec.mask_id) * 3) for part in parts)
            answer = found.post({"prompt": parts})[1]
            assert answer["choices"][0]["text"] == llm.infill(text).text
            assert answer["usage"]["prompt_tokens"] == llm.infill(text).usage.prompt_tokens


def test_a_model_that_sees_only_what_lies_before_says_so(make_sdar):
    with running(unmask.load(str(make_sdar()), device="cpu"), settings=unmask.Settings(max_tokens=4)) as found:
        status, answer = found.post({"prompt": [{"mask": 2}, {"text": "end"}]})
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert "cannot fill a hole that text follows" in answer["error"]["message"]
