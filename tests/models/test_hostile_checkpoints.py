"""Checkpoints made to harm: one line at once, and nothing taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import CheckpointError, UnmaskError
from unmask.models.checkpoint.folder import fingerprint
from unmask.models.checkpoint.loading import load_model

MakeFolder = Callable[..., Path]
DEEP = "[" * 100_000 + "]" * 100_000


def refusal(folder: Path) -> str:
    with pytest.raises(UnmaskError) as caught:
        load_model(folder, device="cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


def edit_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(values | changes))


@pytest.mark.parametrize(
    "key",
    ["n_layers", "d_model", "n_heads", "n_kv_heads", "mlp_hidden_size", "vocab_size", "embedding_size", "head_dim"],
)
@pytest.mark.parametrize("value", [10**6, 10**9, 2**31 - 2, 2**63, 10**30, -1, -(2**70), 1.5, "32", [32], {"a": 1}])
def test_sizes_that_the_weights_do_not_have_are_refused(llada_folder: Path, key: str, value: Any) -> None:
    edit_json(llada_folder / "config.json", **{key: value})
    if key == "head_dim":  # not a key of this family
        load_model(llada_folder, device="cpu")
    else:
        assert str(llada_folder) in refusal(llada_folder)


def test_sizes_are_refused_before_anything_is_built(llada_folder: Path) -> None:
    load_model(llada_folder, device="cpu")
    edit_json(llada_folder / "config.json", n_layers=10**6)
    tracemalloc.start()
    expected = "it asks for 1000000 layers, but the weights are 21 tensors, and 1000 layers are the most"
    assert refusal(llada_folder) == f"{llada_folder / 'config.json'}: {expected}"
    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"d_model": 10**30}, f"d_model must be a whole number from 1 to 2147483647, got {10**30}"),
        ({"rope_theta": 10**400}, "rope_theta must be a number above 0 and below 1e30, got 1000"),
        ({"mlp_hidden_size": None, "mlp_ratio": 1e29}, "mlp_hidden_size must be a whole number from 1 to 2147483647"),
        ({"n_heads": 2**31 - 1, "d_model": 2**31 - 1}, "4 key heads do not divide 2147483647 query heads"),
        ({"n_heads": 2**30, "n_kv_heads": 2**30, "d_model": 2**31 - 2}, "heads do not divide"),
        ({"n_heads": 1, "n_kv_heads": 1, "d_model": 2**31 - 2}, "its sizes make no model: "),
        ({"block_type": json.loads("[" * 900 + "]" * 900)}, "block_type is [[[[[["),
        ({"model_type": "x" * 10**6}, "model_type 'xxxx"),
    ],
)
def test_the_key_and_its_value_are_named(make_llada: MakeFolder, changes: dict[str, Any], problem: str) -> None:
    folder = make_llada()
    edit_json(folder / "config.json", **changes)
    assert problem in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_deeply_nested_json_is_refused(llada_folder: Path, name: str) -> None:
    (llada_folder / name).write_text(f'{{"a": {DEEP}}}')
    assert refusal(llada_folder) == f"{llada_folder / name}: is not valid JSON: it is nested too deeply"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(llada_folder: Path, name: str, kind: str) -> None:
    path = llada_folder / name
    path.unlink(missing_ok=True)
    {"pipe": os.mkfifo, "device": lambda at: at.symlink_to("/dev/zero"), "folder": os.mkdir}[kind](path)
    assert refusal(llada_folder) == f"{path}: is not a regular file"
    with pytest.raises(CheckpointError, match="is not a regular file"):
        fingerprint(str(llada_folder))


def test_a_text_without_bounds_is_not_read(llada_folder: Path) -> None:
    path = llada_folder / "tokenizer_config.json"
    os.truncate(path, 2**40)  # a sparse file
    assert refusal(llada_folder) == f"{path}: is larger than 64 MiB; only weights are"


@pytest.mark.parametrize("name", ["..", "", "a\0b", "x" * 5000, "\ud800", "config.fifo"])
def test_an_index_names_files_that_can_be_read(make_llada: MakeFolder, name: str) -> None:
    folder = make_llada(shards=2)
    os.mkfifo(folder / "config.fifo")
    edit_json(folder / "model.safetensors.index.json", weight_map={"a": name})
    assert "missing: the download is incomplete" in refusal(folder)


def test_a_header_that_says_it_is_longer_than_any_is_refused(llada_folder: Path) -> None:
    path = llada_folder / "model.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + path.read_bytes()[8:])
    assert "is damaged or not a safetensors file" in refusal(llada_folder)
    assert len(fingerprint(str(llada_folder))) == 24


MAPPING = """
import resource, sys
from unmask.models.checkpoint.loading import load_model
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**32,) * 2)
try:
    load_model(sys.argv[1], device="cpu")
except Exception as error:
    print(type(error).__name__, error)
"""


def write_sparse(path: Path, gib: int) -> None:
    """A file with one tensor of that size, which takes no room on the disk."""
    count = gib * 2**28
    header = json.dumps({path.stem: {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + 4 * count)


def loaded_in_4_gib(folder: Path) -> str:
    """The refusal where a process can map 4 GiB."""
    return subprocess.run(
        [sys.executable, "-c", MAPPING, str(folder)], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("gib", [128, 3])  # beyond the limit, and beyond it once torch maps the file again
def test_a_file_that_cannot_be_mapped_is_one_line(llada_folder: Path, gib: int) -> None:
    path = llada_folder / "model.safetensors"
    write_sparse(path, gib)
    expected = f"{path}: {gib}.00 GiB cannot be mapped into memory; use a checkpoint in smaller files"
    assert loaded_in_4_gib(llada_folder) == f"OutOfMemory {expected}\n"


def test_files_are_mapped_one_at_a_time(llada_folder: Path) -> None:
    names = [f"part{number}" for number in range(8)]
    for name in names:
        write_sparse(llada_folder / f"{name}.safetensors", 1)
    index = {"weight_map": {name: f"{name}.safetensors" for name in names}}
    (llada_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "and 20 more are missing from the checkpoint" in loaded_in_4_gib(llada_folder)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("added_tokens.json", {"<|x|>": "3"}),
        ("added_tokens.json", {"<|x|>": -1}),
        ("added_tokens.json", {"<|x|>": 2**70}),
        ("added_tokens.json", {"<|x|>": [1]}),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"a": {}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": "x"}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": {"content": 5}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": {"content": "x", "special": "yes"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {str(2**40): {"content": "x"}}}),
        ("tokenizer_config.json", {"chat_template": {"a": 1}}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": 5}]}),
        ("vocab.json", {"a": "b"}),
    ],
)
def test_tokenizer_files_of_wrong_types_are_refused(make_dream: MakeFolder, name: str, changes: dict[str, Any]) -> None:
    folder = make_dream()
    edit_json(folder / name, **changes)
    assert str(folder) in refusal(folder)


@pytest.mark.parametrize(
    "changes", [{"eos_token": {"text": "x"}}, {"eos_token": 5}, {"chat_template": [{"name": ["default"]}, 5]}]
)
def test_roles_and_templates_that_say_nothing_count_as_absent(make_dream: MakeFolder, changes: dict[str, Any]) -> None:
    folder = make_dream()
    edit_json(folder / "tokenizer_config.json", **changes)
    load_model(folder, device="cpu")


def test_a_template_that_is_not_text_is_refused(llada_folder: Path) -> None:
    (llada_folder / "chat_template.jinja").write_bytes(b"\xff")
    assert "chat_template.jinja: is not UTF-8 text" in refusal(llada_folder)


def replace_steps(pattern: dict[str, str], content: str, count: int) -> list[dict[str, Any]]:
    return [{"type": "Replace", "pattern": pattern, "content": content}] * count


ONE_AFTER_ANOTHER = {"id": "A", "type_id": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Sequence", "normalizers": replace_steps({"String": "a"}, "aa", 60)}},
        {"normalizer": {"type": "Sequence", "normalizers": replace_steps({"Regex": "(?=a)"}, "a", 60)}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 2**25}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"} | dict.fromkeys(
            ("add_prefix_space", "trim_offsets", "use_regex"), False)] * 60}},
        {"decoder": {"type": "Sequence", "decoders": replace_steps({"String": "a"}, "aa", 60)}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": ONE_AFTER_ANOTHER}] * 10**5 + [{"SpecialToken": {"id": "x", "type_id": 0}}],
                "pair": [{"Sequence": ONE_AFTER_ANOTHER}],
                "special_tokens": {"x": {"id": "x", "ids": [1] * 10**5, "tokens": ["x"] * 10**5}},
            }
        },
    ],
    ids=["doubled", "between letters", "one long", "bytes of bytes", "decoded", "around"],
)  # fmt: skip
def test_a_tokenizer_that_multiplies_a_text_is_bounded(llada_folder: Path, changes: dict[str, Any]) -> None:
    edit_json(llada_folder / "tokenizer.json", **changes)
    codec = load_model(llada_folder, device="cpu").codec
    for work in (lambda: codec.encode("banana"), lambda: codec.decode([1, 2, 3]), lambda: codec.token_text(70)):
        with pytest.raises(UnmaskError, match=r"^the text is too long for the checkpoint's tokenizer, by which "):
            work()


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(b+b+)+y"}, "behavior": "Isolated", "invert": False}},
    ],
)
def test_a_tokenizer_that_panics_is_one_line(llada_folder: Path, changes: dict[str, Any]) -> None:
    edit_json(llada_folder / "tokenizer.json", **changes)
    with pytest.raises(CheckpointError, match=r"is not a tokenizer|its files make no working tokenizer") as caught:
        load_model(llada_folder, device="cpu").codec.encode("b" * 200)
    assert "\n" not in str(caught.value)


def test_a_token_as_long_as_a_book_is_bounded_when_it_is_decoded(make_dream: MakeFolder) -> None:
    folder = make_dream()
    edit_json(folder / "vocab.json", **{"x" * 2**20: 279})
    codec = load_model(folder, device="cpu").codec
    with pytest.raises(UnmaskError, match="too long for the checkpoint's tokenizer"):
        codec.decode([279] * 100)


def test_ordinary_prompts_are_far_from_the_bound(llada_folder: Path, dream_folder: Path) -> None:
    for folder in (llada_folder, dream_folder):
        codec = load_model(folder, device="cpu").codec
        assert codec.decode(codec.encode("the mask " * 200_000)) == "the mask " * 200_000
