"""Text to ids and back: round trips, special tokens, and Dream's files against transformers' Qwen2 tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors

from unmask.errors import CheckpointError, UnmaskError
from unmask.models.checkpoint.tokenizer import TextCodec

TEXTS = [
    "",
    "the mean field of the masked mask",
    "  two  blanks\n\n\tand a tab \r\n",
    "naïve café Straße Ωmega привет 你好 ❤️‍🔥 👩‍👩‍👧 \u200b\ufeff",
    "e\u0301 is not é until it is composed",
    "I'll say it's 1234567 I'LL IT'S",
    "x=1;y==2 !!! ... (a[b]{c}) #tag @user\n  indented\n",
    "<|im_start|>user\nhi<|im_end|> <|endoftext|><|mask|>",
]


@pytest.fixture
def llada(llada_folder: Path) -> TextCodec:
    return TextCodec.from_folder(llada_folder)


@pytest.fixture
def dream(dream_folder: Path) -> TextCodec:
    return TextCodec.from_folder(dream_folder)


@pytest.fixture
def qwen2(dream_folder: Path) -> Any:
    """transformers' tokenizer on the same files."""
    from transformers import Qwen2Tokenizer

    return Qwen2Tokenizer.from_pretrained(dream_folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_survives_the_round_trip(llada: TextCodec, text: str) -> None:
    assert llada.decode(llada.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_dream_ids_equal_those_of_the_qwen2_tokenizer(qwen2: Any, dream: TextCodec, text: str) -> None:
    ids = dream.encode(text)
    assert ids == qwen2.encode(text)
    assert dream.decode(ids) == qwen2.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_dream_words_end_where_qwen2_ends_them(qwen2: Any, dream: TextCodec, text: str) -> None:
    assert dream.encode(text) == qwen2.encode(text)


def test_special_tokens_in_a_text_are_recognised(llada: TextCodec) -> None:
    ids = llada.encode("a<|eot_id|>b")
    assert ids == [*llada.encode("a"), llada.token_id("<|eot_id|>"), *llada.encode("b")]


def test_special_tokens_are_left_out_of_decoded_text(llada: TextCodec) -> None:
    assert llada.decode(llada.encode("a<|eot_id|> b<|endoftext|>")) == "a b"


def test_blanks_before_signs_are_not_tidied_up(llada: TextCodec) -> None:
    assert llada.decode(llada.encode("do n't , stop ! 's")) == "do n't , stop ! 's"


def test_the_tokenizers_own_additions_can_be_left_out(llada_folder: Path) -> None:
    path = llada_folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    begin = tokenizer.token_to_id("<|startoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|startoftext|> $A", special_tokens=[("<|startoftext|>", begin)]
    )
    tokenizer.save(str(path))
    codec = TextCodec.from_folder(llada_folder)
    assert codec.encode("mask") == [begin, *codec.encode("mask", special=False)]


def test_lengths_fixed_in_the_file_change_no_prompt(llada_folder: Path) -> None:
    path = llada_folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(max_length=3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(path))
    codec = TextCodec.from_folder(llada_folder)
    assert codec.decode(codec.encode("a long line of text")) == "a long line of text"


def test_a_token_is_shown_as_its_text(llada: TextCodec) -> None:
    assert llada.token_text(llada.encode(" the")[0]) == " the"
    eos = llada.token_id("<|endoftext|>")
    assert eos is not None
    assert llada.token_text(eos) == "<|endoftext|>"
    assert llada.token_text(9999) == "<9999>"


def test_unknown_tokens_have_no_id(llada: TextCodec) -> None:
    assert llada.token_id("<|nowhere|>") is None
    assert llada.named_id("pad_token") is None


def test_roles_are_read_from_texts_and_from_objects(llada_folder: Path) -> None:
    written = {"pad_token": {"content": "<|eot_id|>", "lstrip": False}, "unk_token": None, "eos_token": "overruled"}
    (llada_folder / "special_tokens_map.json").write_text(json.dumps(written))
    assert TextCodec.from_folder(llada_folder).special_tokens == {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|eot_id|>",
    }


def test_added_tokens_keep_their_ids_across_gaps(dream_folder: Path) -> None:
    path = dream_folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["added_tokens_decoder"]["279"] = {"content": "<|late|>", "special": False}
    path.write_text(json.dumps(config))
    codec = TextCodec.from_folder(dream_folder)
    assert codec.encode("a<|late|>") == [*codec.encode("a"), 279]
    assert codec.decode([279]) == "<|late|>"
    assert codec.highest_id == 279


def test_older_folders_name_added_tokens_only_in_added_tokens_json(dream_folder: Path) -> None:
    path = dream_folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["added_tokens_decoder"]
    path.write_text(json.dumps(config))
    codec = TextCodec.from_folder(dream_folder)
    assert codec.encode("<|mask|>") == [276]
    assert codec.decode([276]) == ""


def test_a_chat_is_the_template_with_its_special_tokens(llada: TextCodec) -> None:
    header, end = llada.token_id("<|start_header_id|>"), llada.token_id("<|end_header_id|>")
    ids = llada.chat([{"role": "user", "content": " hi "}])
    expected = [
        *[llada.token_id("<|startoftext|>"), header, *llada.encode("user"), end, *llada.encode("\n\nhi")],
        *[llada.token_id("<|eot_id|>"), header, *llada.encode("assistant"), end, *llada.encode("\n\n")],
    ]
    assert ids == expected
    without = llada.chat([{"role": "user", "content": " hi "}], add_generation_prompt=False)
    assert without == expected[: len(without)]
    assert without[-1] == llada.token_id("<|eot_id|>")


def test_a_chat_equals_that_of_transformers(qwen2: Any, dream: TextCodec) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "what is <|im_end|> in\n a mask?"},
    ]
    expected = qwen2.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert dream.chat(messages) == qwen2.encode(expected, add_special_tokens=False)


def test_a_template_file_wins_over_the_config(llada_folder: Path) -> None:
    (llada_folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")
    codec = TextCodec.from_folder(llada_folder)
    assert codec.decode(codec.chat([{"role": "user", "content": "hi"}])) == "hi!"


def with_template(folder: Path, template: Any) -> TextCodec:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return TextCodec.from_folder(folder)


def test_of_several_named_templates_the_default_is_used(llada_folder: Path) -> None:
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    codec = with_template(llada_folder, named)
    assert codec.decode(codec.chat([{"role": "user", "content": "hi"}])) == "yes"


def test_a_template_of_another_type_is_refused(llada_folder: Path) -> None:
    with pytest.raises(CheckpointError, match="chat_template must be a text or a list of named texts"):
        with_template(llada_folder, 5)


def test_a_checkpoint_without_template_cannot_chat(llada_folder: Path) -> None:
    codec = with_template(llada_folder, None)
    with pytest.raises(UnmaskError) as caught:
        codec.chat([{"role": "user", "content": "hi"}])
    assert str(caught.value).startswith("the checkpoint has no chat template: give the whole prompt to generate(), ")


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(UnmaskError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_half_a_surrogate_pair_is_refused(llada: TextCodec) -> None:
    assert refusal(lambda: llada.encode("a\ud800")) == "the text holds half a surrogate pair: 'a\\ud800'"


@pytest.mark.parametrize("special", [False, True])
def test_a_long_text_is_encoded_like_a_short_one(llada: TextCodec, special: bool) -> None:
    text = "the <|eot_id|> end\n" * 1000
    assert len(text) > 10_000
    piece = llada.encode("the <|eot_id|> end\n", special=False)
    found = llada.encode(text, special=special)
    assert found[-1000 * len(piece) :] == piece * 1000
    assert len(found) - 1000 * len(piece) == len(llada.encode("", special=special))
    assert refusal(lambda: llada.encode("a" * 20_000 + "\ud800")).startswith(
        "the text holds half a surrogate pair: 'aaa"
    )


def test_a_folder_without_tokenizer_is_refused(llada_folder: Path) -> None:
    (llada_folder / "tokenizer.json").unlink()
    expected = f"{llada_folder}: there is no tokenizer.json, nor vocab.json with merges.txt"
    assert refusal(lambda: TextCodec.from_folder(llada_folder)) == expected


def test_a_damaged_tokenizer_is_refused(llada_folder: Path) -> None:
    path = llada_folder / "tokenizer.json"
    path.write_text('{"version": "1.0"}')
    assert refusal(lambda: TextCodec.from_folder(llada_folder)).startswith(f"{path}: is not a tokenizer: ")


def test_merges_that_do_not_fit_the_vocabulary_are_refused(dream_folder: Path) -> None:
    (dream_folder / "merges.txt").write_text("#version: 0.2\nqq zz\n")
    message = refusal(lambda: TextCodec.from_folder(dream_folder))
    assert message.startswith(f"{dream_folder}: vocab.json and merges.txt make no tokenizer: ")


@pytest.mark.parametrize("entry", ["<|x|>", {"special": True}])
def test_a_malformed_added_token_is_refused(dream_folder: Path, entry: Any) -> None:
    path = dream_folder / "tokenizer_config.json"
    path.write_text(json.dumps({"added_tokens_decoder": {"277": entry}}))
    expected = f"{path}: added_tokens_decoder has a malformed entry '277': {entry!r}"
    assert refusal(lambda: TextCodec.from_folder(dream_folder)) == expected


def test_a_codec_can_be_built_around_any_tokenizer(byte_tokenizer: Tokenizer) -> None:
    tokenizer = Tokenizer.from_str(byte_tokenizer.to_str())
    tokenizer.add_special_tokens([AddedToken("[E]", special=True)])
    codec = TextCodec(tokenizer, special_tokens={"eos_token": "[E]"})
    assert codec.highest_id == 272
    assert codec.named_id("eos_token") == 272
