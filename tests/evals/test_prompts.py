"""Prompts as each family's public wrapper builds them, and answers as it cuts and counts them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import unmask
from unmask.errors import UnmaskError
from unmask.evals.executor import read_answer
from unmask.evals.harness import fitted_prompt, template_of
from unmask.models.base import ModelSpec
from unmask.models.checkpoint.tokenizer import TextCodec

TOY = unmask.load("toy")  # one token a letter: lengths can be read off the text
CODEC, LLADA = TOY.codec, TOY.spec
DREAM = replace(LLADA, convention="dream")
STOPS = ("Question:", "</s>")


@dataclass
class Texts:
    """A model as far as texts go."""

    spec: ModelSpec
    codec: TextCodec = CODEC


def ids(text: str) -> list[int]:
    return CODEC.encode(text, special=False)


def fit(room: int, shots: list[str], question: str, template: str = "none", codec=CODEC) -> tuple[str, bool]:
    """The prompt's text, and whether it is truncated."""
    model = Texts(replace(LLADA, max_length=room + 10), codec)
    fitted, truncated = fitted_prompt(model, shots=shots, question=question, template=template, new_tokens=10)
    assert len(fitted) <= room
    return codec.decode(fitted, special=True), truncated


@pytest.mark.parametrize(
    ("family", "model", "template"),
    [
        ("llada", "GSAI-ML/LLaDA-8B-Instruct", "chat"),
        ("llada", "GSAI-ML/LLaDA-1.5", "none"),
        ("llada", "GSAI-ML/LLaDA-8B-Base", "none"),
        ("dream", "Dream-org/Dream-v0-Instruct-7B", "none"),
        ("dream", "Dream-org/Dream-v0-Base-7B", "none"),
    ],
)
def test_only_llada_instruct_is_asked_through_its_chat_template(family: str, model: str, template: str):
    assert template_of(family, model) == template


def test_dream_gets_raw_text_behind_its_first_token(dream_folder: Path):
    llm = unmask.load(str(dream_folder))
    prompt = fitted_prompt(llm, shots=[], question="the mask", template="none", new_tokens=8)
    assert prompt == ([llm.spec.bos_id, *llm.codec.encode("the mask", special=False)], False)


def test_the_whole_context_is_one_user_message_in_a_chat(llada_folder: Path):
    llm = unmask.load(str(llada_folder))
    prompt, truncated = fitted_prompt(llm, shots=["Q: 1\n\n"], question="Q: 2", template="chat", new_tokens=8)
    assert llm.codec.decode(prompt, special=True) == (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nQ: 1\n\nQ: 2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert not truncated


def test_a_prompt_that_just_fits_is_left_alone():
    # Eight letters and the toy's separator.
    assert fit(9, ["one ", "two "], "") == ("one two <|answer|>", False)


def test_shots_are_dropped_from_the_front_before_any_text_is_cut():
    assert fit(12, ["one ", "two ", "six "], "ask") == ("two six ask<|answer|>", True)
    assert fit(11, ["one ", "two ", "six "], "ask") == ("six ask<|answer|>", True)


def test_text_is_cut_from_the_left_when_no_shot_is_left():
    assert fit(5, ["one "], "question") == ("tion<|answer|>", True)


def test_the_template_stays_whole_when_the_text_inside_it_is_cut():
    assert fit(11, ["one "], "question", template="chat") == ("user: ion\n<|answer|>", True)


def test_no_room_for_any_prompt_is_one_clear_line():
    with pytest.raises(UnmaskError, match="10 new tokens leave no room for a prompt in the 11 positions of toy"):
        fit(1, [], "question")


def test_llada_cuts_at_each_stop_string_in_turn_and_counts_the_rest_without_end_of_text():
    decoded = ids("so 4</s>...<|endoftext|>Question: more")
    text, reference, tokens = read_answer(Texts(LLADA), decoded, until=STOPS)
    assert text == "so 4"
    assert reference == tokens == len("so 4")


def test_llada_keeps_text_behind_end_of_text_and_counts_end_of_turn():
    decoded = ids("4<|eot_id|><|endoftext|>and 5<|endoftext|>")
    text, reference, tokens = read_answer(Texts(LLADA), decoded, until=STOPS)
    assert text == "4and 5"
    assert reference == len("4") + 1 + len("and 5")
    assert tokens == len("4")


def test_llada_counts_text_tokenized_anew(llada_folder: Path):
    llm = unmask.load(str(llada_folder))
    letters = [llm.codec.token_id(letter) for letter in "mask"]
    assert len(llm.codec.encode("mask", special=False)) < 4
    text, reference, tokens = read_answer(llm, letters, until=())
    assert text == "mask"
    assert reference == len(llm.codec.encode("mask", special=False))
    assert tokens == 4


def test_a_later_stop_string_is_looked_for_in_what_the_first_has_left():
    assert read_answer(Texts(LLADA), ids("1</s>2Question:3"), until=STOPS)[0] == "1"
    assert read_answer(Texts(LLADA), ids("1Question:2</s>3"), until=STOPS)[0] == "1"


def test_whole_answers_of_llada_are_not_cut_and_count_all_but_end_of_text():
    decoded = ids("a\ndef b<|eot_id|><|endoftext|>c<|endoftext|>")
    text, reference, tokens = read_answer(Texts(LLADA), decoded, until=(), whole=True)
    assert text == "a\ndef bc"
    assert reference == len("a\ndef b") + 1 + len("c")
    assert tokens == len("a\ndef b")


def test_dream_cuts_at_end_of_text_then_at_stop_strings_but_counts_what_runs_on():
    decoded = ids("so 4Question: 5<|endoftext|>rest<|endoftext|>")
    text, reference, tokens = read_answer(Texts(DREAM), decoded, until=STOPS)
    assert text == "so 4"
    assert reference == len("so 4Question: 5rest")
    assert tokens == len("so 4")


def test_dream_keeps_special_tokens_that_are_not_the_end_of_text():
    text, reference, tokens = read_answer(Texts(DREAM), ids("4<|eot_id|>x<|endoftext|>y"), until=())
    assert text == "4<|eot_id|>x"
    assert (reference, tokens) == (4, 1)


@pytest.mark.parametrize("spec", [LLADA, DREAM])
def test_masks_left_open_by_an_early_stop_are_neither_text_nor_tokens(spec):
    text, reference, tokens = read_answer(Texts(spec), [*ids("4"), spec.eos_id, *[spec.mask_id] * 5], until=STOPS)
    assert (text, reference, tokens) == ("4", 1, 1)


class Counting(TextCodec):
    """Counts the texts that it encodes."""

    def __init__(self) -> None:
        super().__init__(CODEC._tokenizer)
        self.texts = 0

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        self.texts += 1
        return super().encode(text, special=special)


def test_a_thousand_shots_are_fitted_without_trying_each():
    codec = Counting()
    text, truncated = fit(room=100, shots=[f"{number:04}." for number in range(1000)], question="q", codec=codec)
    assert truncated
    assert text == "".join(f"{number:04}." for number in range(981, 1000)) + "q<|answer|>"
    assert codec.texts < 20
