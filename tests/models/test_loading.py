"""Folders in, models out; everything that can be wrong with a folder is one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask.errors import CheckpointError, UnknownName, UnmaskError
from unmask.models.checkpoint import folder
from unmask.models.checkpoint.loading import load_model
from unmask.models.checkpoint.weights import Weights
from unmask.models.transformer import Transformer

MakeFolder = Callable[..., Path]


def refusal(folder: Path | str, **options: Any) -> str:
    """The message of the error that loading raises: one line, and of our own kind."""
    with pytest.raises(UnmaskError) as caught:
        load_model(folder, device="cpu", **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(values | changes))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_pointer_in_place_of_a_file_is_named(llada_folder: Path, name: str) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 16060522904\n"
    (llada_folder / name).write_text(pointer)
    message = refusal(llada_folder)
    assert f"{name}: is a Git LFS pointer" in message
    assert "git lfs pull" in message


@pytest.mark.parametrize(
    ("address", "way"),
    [
        ("https://huggingface.co/GSAI-ML/LLaDA-8B-Instruct", "the name on the hub, GSAI-ML/LLaDA-8B-Instruct"),
        ("https://hf.co/org/name/tree/main", "org/name and the revision main"),
        ("https://example.com/org/name", "the name on the hub, OWNER/NAME"),
    ],
)
def test_an_address_is_answered_with_the_name_to_give(address: str, way: str) -> None:
    assert refusal(address).startswith(f"{address}: is an address; give ")
    assert refusal(address).endswith(way)


def test_a_llada_folder_tells_the_engine_what_it_needs(llada_folder: Path) -> None:
    loaded = load_model(str(llada_folder), device="cpu")
    spec = loaded.model.spec
    assert (spec.name, spec.family, spec.convention) == (str(llada_folder), "llada", "llada")
    assert (spec.vocab_size, spec.n_layers, spec.max_length) == (280, 2, 128)
    assert spec.mask_id == loaded.codec.token_id("<|mdm_mask|>")
    assert spec.eos_id == loaded.codec.token_id("<|endoftext|>")
    assert spec.end_ids == {spec.eos_id, loaded.codec.token_id("<|eot_id|>")}
    assert (spec.bos_id, spec.add_bos, spec.shifted) == (loaded.codec.token_id("<|startoftext|>"), False, False)
    assert (spec.max_tokens, spec.block_size) == (None, None)


def test_a_dream_folder_takes_its_first_token_from_the_tokenizer(dream_folder: Path) -> None:
    loaded = load_model(dream_folder, device="cpu")
    spec, codec = loaded.model.spec, loaded.codec
    assert (spec.family, spec.convention, spec.shifted, spec.add_bos) == ("dream", "dream", True, True)
    assert spec.bos_id == codec.token_id("<|beginoftext|>")
    assert spec.bos_id != json.loads((dream_folder / "config.json").read_text())["bos_token_id"]
    assert (spec.mask_id, spec.eos_id) == (codec.token_id("<|mask|>"), codec.token_id("<|endoftext|>"))
    assert spec.end_ids == {spec.eos_id, codec.token_id("<|im_end|>")}
    assert spec.max_length == 128


def test_the_model_type_may_be_in_any_case(make_dream: MakeFolder, make_llada: MakeFolder) -> None:
    assert load_model(make_dream(model_type="dream"), device="cpu").model.spec.family == "dream"
    assert load_model(make_llada(model_type="LLaDA"), device="cpu").model.spec.family == "llada"


def test_several_end_tokens_all_end_the_text(make_llada: MakeFolder) -> None:
    spec = load_model(make_llada(eos_token_id=[273, 3]), device="cpu").model.spec
    assert spec.eos_id == 273
    assert spec.end_ids == {273, 3, 277}


def test_the_end_token_may_come_from_the_tokenizer(make_llada: MakeFolder) -> None:
    loaded = load_model(make_llada(eos_token_id=None), device="cpu")
    assert loaded.model.spec.eos_id == loaded.codec.token_id("<|endoftext|>")


def test_a_padded_embedding_widens_the_vocabulary(make_llada: MakeFolder) -> None:
    model = load_model(make_llada(embedding_size=300), device="cpu").model
    assert model.spec.vocab_size == 300
    assert model.predict(torch.tensor([[1, 2]])).logits.shape == (1, 2, 300)


def test_shards_load_like_one_file(make_llada: MakeFolder) -> None:
    tokens = torch.arange(9)[None]
    one, three = (load_model(make_llada(shards=shards), device="cpu").model for shards in (1, 3))
    assert torch.equal(one.predict(tokens).logits, three.predict(tokens).logits)


def test_the_dtype_of_the_weights_is_that_of_most_numbers(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"large": torch.zeros(5), "a": torch.zeros(4).half(), "b": torch.zeros(4).half()}, path)
    assert Weights(tmp_path, lambda done, total: None).dtype() == torch.float16
    save_file({}, path)
    assert Weights(tmp_path, lambda done, total: None).dtype() == torch.float32


def test_weights_without_tensors_are_refused(llada_folder: Path) -> None:
    save_file({}, llada_folder / "model.safetensors")
    assert "it asks for 2 layers, but the weights are 0 tensors" in refusal(llada_folder)


def test_a_file_that_is_gone_before_it_is_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(3)}, path)
    weights = Weights(tmp_path, lambda done, total: None)
    path.unlink()
    with pytest.raises(CheckpointError, match="is damaged or not a safetensors file"):
        weights.fill({"a": torch.zeros(3)})


def test_weights_are_converted_to_the_dtype_asked_for(llada_folder: Path) -> None:
    stored = load_file(llada_folder / "model.safetensors")["model.transformer.wte.weight"]
    for dtype in (torch.bfloat16, "torch.bfloat16", "bfloat16"):
        model = load_model(llada_folder, device="cpu", dtype=dtype).model
        assert isinstance(model, Transformer)
        assert model.dtype == torch.bfloat16
        assert torch.equal(model.embedding.weight, stored.bfloat16())


def test_the_cpu_gets_float32_whatever_the_checkpoint_has(llada_folder: Path) -> None:
    model = load_model(llada_folder, device="cpu").model
    assert model.dtype == torch.float32
    assert model.device == torch.device("cpu")


def test_a_loaded_model_asks_for_no_gradients(llada_folder: Path) -> None:
    model = load_model(llada_folder, device="cpu").model
    assert isinstance(model, Transformer)
    assert not model.training
    assert not model.predict(torch.tensor([[1, 2]])).logits.requires_grad


def test_generation_defaults_are_read(llada_folder: Path) -> None:
    edit_json(llada_folder / "generation_config.json", max_new_tokens=64, block_length=16, temperature=0.7)
    spec = load_model(llada_folder, device="cpu").model.spec
    assert (spec.max_tokens, spec.block_size) == (64, 16)


@pytest.mark.parametrize("value", [0, "64", 1.5, True])
def test_a_bad_generation_default_is_refused(llada_folder: Path, value: Any) -> None:
    path = llada_folder / "generation_config.json"
    edit_json(path, block_length=value)
    assert refusal(llada_folder) == f"{path}: block_length must be a whole number from 1 to 2147483647, got {value!r}"


def test_toy_needs_no_folder() -> None:
    assert load_model("toy", device="cpu").model.spec.name == "toy"


def test_tiny_loads_like_any_folder(monkeypatch: pytest.MonkeyPatch, llada_folder: Path) -> None:
    monkeypatch.setattr(folder, "TINY", llada_folder)
    assert load_model("tiny", device="cpu").model.spec.name == "tiny"


def test_tiny_missing_from_an_installation_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(folder, "TINY", tmp_path)
    assert refusal("tiny") == "the embedded model 'tiny' is not part of this installation; use 'toy' or a checkpoint"


def test_a_home_folder_may_be_abbreviated(monkeypatch: pytest.MonkeyPatch, llada_folder: Path) -> None:
    monkeypatch.setenv("HOME", str(llada_folder.parent))
    assert load_model(f"~/{llada_folder.name}", device="cpu").model.spec.family == "llada"


def test_a_revision_of_a_folder_is_refused(llada_folder: Path) -> None:
    expected = f"revision='main' applies to names on the hub, but '{llada_folder}' is a folder here"
    assert refusal(llada_folder, revision="main") == expected
    assert refusal("toy", revision="main") == "revision='main' applies to checkpoints, and 'toy' is none; leave it out"


def test_a_missing_folder_is_not_looked_for_on_the_hub() -> None:
    assert refusal("/no/such/folder") == "/no/such/folder: there is no such folder"
    assert refusal("./folder") == "./folder: there is no such folder"


def test_a_misspelt_built_in_name_gets_a_hint() -> None:
    with pytest.raises(UnknownName, match=r"^unknown model 'toyy'; did you mean 'toy'\?"):
        load_model("toyy")


def test_a_file_in_place_of_a_folder_is_refused(llada_folder: Path) -> None:
    path = llada_folder / "model.safetensors"
    assert refusal(path) == f"{path}: is a file; give the folder that holds it, with config.json beside it"


def test_a_folder_without_config_is_refused(llada_folder: Path) -> None:
    (llada_folder / "config.json").unlink()
    assert refusal(llada_folder) == f"{llada_folder}: there is no config.json, so this is not a checkpoint"


def test_a_config_that_is_not_json_is_refused(llada_folder: Path) -> None:
    path = llada_folder / "config.json"
    path.write_text("{'d_model': 32}")
    assert refusal(llada_folder).startswith(f"{path}: is not valid JSON: ")


def test_a_config_that_is_not_an_object_is_refused(llada_folder: Path) -> None:
    path = llada_folder / "config.json"
    path.write_text("[]")
    assert refusal(llada_folder) == f"{path}: must hold a JSON object, not a list"


def test_a_quantised_config_is_refused(make_llada: MakeFolder) -> None:
    folder = make_llada(quantization_config={"bits": 4})
    expected = f"{folder / 'config.json'}: quantised checkpoints are not supported (quantization_config)"
    assert refusal(folder) == expected


def test_a_tokenizer_larger_than_the_embedding_is_refused(make_llada: MakeFolder) -> None:
    folder = make_llada(vocab_size=275, embedding_size=275)
    expected = f"{folder / 'config.json'}: the tokenizer has ids up to 277, but the vocabulary ends at 275"
    assert refusal(folder) == expected


def test_a_missing_weight_file_is_said(llada_folder: Path) -> None:
    (llada_folder / "model.safetensors").unlink()
    expected = f"{llada_folder}: there is no model.safetensors and no model.safetensors.index.json"
    assert refusal(llada_folder) == expected


def test_a_pickle_is_refused_with_the_way_to_convert_it(llada_folder: Path) -> None:
    (llada_folder / "model.safetensors").unlink()
    (llada_folder / "pytorch_model.bin").write_bytes(b"not read")
    assert refusal(llada_folder) == (
        f"{llada_folder}: pytorch_model.bin is a pickle, and reading one can run any code; "
        "convert it where you trust it: "
        "safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')"
    )


@pytest.mark.parametrize("keep", [4, 100, 5000])
def test_a_truncated_weight_file_is_refused(llada_folder: Path, keep: int) -> None:
    path = llada_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert refusal(llada_folder).startswith(f"{path}: is damaged or not a safetensors file: ")


def test_a_missing_shard_is_named(make_llada: MakeFolder) -> None:
    folder = make_llada(shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    expected = f"{folder}: file model-00002-of-00003.safetensors is missing: the download is incomplete"
    assert refusal(folder) == expected


def test_shards_without_an_index_are_refused(make_llada: MakeFolder) -> None:
    folder = make_llada(shards=2)
    (folder / "model.safetensors.index.json").unlink()
    assert refusal(folder) == (
        f"{folder}: there are 2 safetensors files but no model.safetensors.index.json to say how they belong together"
    )


def test_a_single_weight_file_may_have_any_name(llada_folder: Path) -> None:
    (llada_folder / "model.safetensors").rename(llada_folder / "weights.safetensors")
    assert load_model(llada_folder, device="cpu").model.spec.family == "llada"


@pytest.mark.parametrize("weight_map", [None, {}, ["a"], {"a": 1}])
def test_a_malformed_index_is_refused(make_llada: MakeFolder, weight_map: Any) -> None:
    folder = make_llada(shards=2)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": weight_map}))
    assert refusal(folder) == f"{path}: weight_map must say for each tensor which file holds it"


def test_an_index_cannot_point_out_of_its_folder(make_llada: MakeFolder) -> None:
    folder = make_llada(shards=2)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    assert refusal(folder) == f"{path}: '../other.safetensors' is not the name of a file in this folder"


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_missing_tensor_is_named(llada_folder: Path) -> None:
    change_weights(llada_folder, lambda tensors: tensors.pop("model.transformer.blocks.1.up_proj.weight"))
    expected = f"{llada_folder}: tensor model.transformer.blocks.1.up_proj.weight is missing from the checkpoint"
    assert refusal(llada_folder) == expected


def test_several_missing_tensors_are_counted(make_llada: MakeFolder) -> None:
    folder = make_llada()
    edit_json(folder / "config.json", n_layers=3)
    expected = (
        f"{folder}: tensors model.transformer.blocks.2.attn_norm.weight and 8 more are missing from the checkpoint"
    )
    assert refusal(folder) == expected


def test_an_unexpected_tensor_is_named(llada_folder: Path) -> None:
    change_weights(llada_folder, lambda tensors: tensors.update({"extra.weight": torch.zeros(1)}))
    assert refusal(llada_folder) == f"{llada_folder}: tensor extra.weight is not part of this model"


def test_a_head_beside_tied_weights_is_not_ignored(llada_folder: Path) -> None:
    edit_json(llada_folder / "config.json", weight_tying=True)
    assert refusal(llada_folder) == f"{llada_folder}: tensor model.transformer.ff_out.weight is not part of this model"


def test_a_wrongly_shaped_tensor_is_named(llada_folder: Path) -> None:
    name = "model.transformer.blocks.0.ff_proj.weight"
    change_weights(llada_folder, lambda tensors: tensors.update({name: torch.zeros(32, 48)}))
    assert refusal(llada_folder) == f"{llada_folder}: tensor {name} has shape (32, 48), the config asks for (48, 32)"


def test_integer_weights_are_refused(llada_folder: Path) -> None:
    name = "model.transformer.blocks.0.ff_proj.weight"
    change_weights(llada_folder, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    path = llada_folder / "model.safetensors"
    assert refusal(llada_folder) == f"{path}: tensor {name} is I8; quantised checkpoints are not supported"


def test_an_unknown_dtype_gets_a_near_match(llada_folder: Path) -> None:
    expected = "unknown dtype 'bfloat61'; did you mean 'bfloat16'? known: bfloat16, float16, float32"
    assert refusal(llada_folder, dtype="bfloat61") == expected
    assert refusal(llada_folder, dtype=torch.int8).startswith("unknown dtype 'int8'")


def test_loading_changes_nothing_in_the_folder(llada_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(llada_folder, tmp_path / "copy")
    load_model(llada_folder, device="cpu")
    assert {path.name: path.read_bytes() for path in llada_folder.iterdir()} == {
        path.name: path.read_bytes() for path in copy.iterdir()
    }


def test_every_refusal_is_a_value_error_for_callers_that_know_no_better(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json") as caught:
        load_model(tmp_path, device="cpu")
    assert isinstance(caught.value, CheckpointError)


NAMES = {
    "LLaDA-8B-Instruct": True,
    "LLaDA-8B-Base": False,
    "LLaDA-1.5": True,
    "SDAR-8B-Chat": True,
    "instruct-models/LLaDA-8B-Base": False,
    "models--GSAI-ML--LLaDA-8B-Instruct/snapshots/0123abcd": True,
    "database/mine": False,
    "mine": False,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_that_was_trained_on_conversations_is_known_by_its_name(
    llada_folder: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    shutil.copytree(llada_folder, folder)
    assert load_model(folder, device="cpu").model.spec.converses is NAMES[name]


def test_a_renamed_checkpoint_is_known_by_its_config_or_its_template(
    make_llada: MakeFolder, make_sdar: MakeFolder
) -> None:
    folder = make_llada(_name_or_path="GSAI-ML/LLaDA-8B-Instruct")
    assert load_model(folder, device="cpu").model.spec.converses
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>", "bos_token": "<|startoftext|>"}')
    assert not load_model(folder, device="cpu").model.spec.converses  # there is no template to speak through
    assert load_model(make_sdar(), device="cpu").model.spec.converses  # a turn ends with the token that ends a text
