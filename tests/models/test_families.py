"""Config keys: what each family reads, what it refuses, and which families run elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import CheckpointError
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.loading import load_model
from unmask.models.families import family_of
from unmask.models.families.dream import Dream
from unmask.models.families.llada import LLaDA

MakeFolder = Callable[..., Path]
LLADA = {"d_model": 32, "n_heads": 4, "n_layers": 1, "mlp_hidden_size": 48, "vocab_size": 64}
DREAM = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
    "vocab_size": 64,
    "rope_theta": 1000000.0,
}


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("key", "value", "supported"),
    [
        ("alibi", True, "false"),
        ("block_type", "sequential", '"llama"'),
        ("block_group_size", 2, "1"),
        ("layer_norm_type", "default", '"rms"'),
        ("layer_norm_with_affine", False, "true"),
        ("bias_for_layer_norm", True, "false"),
        ("attention_layer_norm", True, "false"),
        ("input_emb_norm", True, "false"),
        ("activation_type", "gelu", '"silu" or "swiglu"'),
        ("include_bias", True, "false"),
        ("rope", False, "true"),
        ("rope_full_precision", False, "true"),
        ("clip_qkv", 8.0, "null"),
        ("scale_logits", True, "false"),
    ],
)
def test_llada_options_that_are_not_implemented_are_refused(key: str, value: Any, supported: str) -> None:
    config = Config(LLADA | {key: value}, "config.json")
    shown = {True: "true", False: "false"}.get(value, f'"{value}"' if isinstance(value, str) else value)
    assert refusal(lambda: LLaDA().shape(config)) == f"config.json: {key} is {shown}, but only {supported} is supported"


@pytest.mark.parametrize(
    ("key", "value", "supported"),
    [
        ("hidden_act", "gelu", '"silu"'),
        ("use_sliding_window", True, "false"),
        ("use_mrope", True, "false"),
        ("rope_scaling", "yarn", "null"),
        ("block_size", 32, "null"),
    ],
)
def test_dream_options_that_are_not_implemented_are_refused(key: str, value: Any, supported: str) -> None:
    config = Config(DREAM | {key: value}, "config.json")
    shown = {True: "true"}.get(value, f'"{value}"' if isinstance(value, str) else value)
    assert refusal(lambda: Dream().shape(config)) == f"config.json: {key} is {shown}, but only {supported} is supported"


@pytest.mark.parametrize(
    ("changes", "heads"),
    [
        ({}, 4),
        ({"n_kv_heads": None}, 4),
        ({"n_kv_heads": 2}, 2),
        ({"multi_query_attention": True}, 1),
        ({"multi_query_attention": False, "n_kv_heads": 2}, 2),
    ],
)
def test_llada_key_heads_follow_the_config(changes: dict[str, Any], heads: int) -> None:
    assert LLaDA().shape(Config(LLADA | changes, "config.json")).n_kv_heads == heads


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"multi_query_attention": True, "n_kv_heads": 2}, "multi_query_attention is true, but n_kv_heads is 2"),
        ({"n_heads": 5}, "5 heads do not divide a width of 32"),
        ({"n_kv_heads": 3}, "3 key heads do not divide 4 query heads"),
        ({"d_model": 12, "n_heads": 4}, "rotary positions need an even head width, got 3"),
        ({"d_model": None}, "the key 'd_model' is missing"),
        ({"n_layers": "2"}, "n_layers must be a whole number from 1 to 2147483647, got '2'"),
        ({"rope_theta": -1}, "rope_theta must be a number above 0 and below 1e30, got -1"),
        ({"weight_tying": "yes"}, "weight_tying must be true or false, got 'yes'"),
        ({"embedding_size": 60}, "embedding_size must be a whole number from 64 to 2147483647, got 60"),
    ],
)
def test_impossible_llada_sizes_are_refused(changes: dict[str, Any], problem: str) -> None:
    config = Config(LLADA | changes, "config.json")
    assert refusal(lambda: LLaDA().shape(config)) == f"config.json: {problem}"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mask_token_id": 999}, "mask_token_id 999 is outside the vocabulary of 280"),
        ({"mask_token_id": None}, "mask_token_id 126336 is outside the vocabulary of 280"),
        ({"eos_token_id": 999}, "eos_token_id 999 is outside the vocabulary of 280"),
        ({"eos_token_id": "273"}, "eos_token_id must be a token id or a list of them, got '273'"),
        ({"max_sequence_length": None}, "the key 'max_sequence_length' is missing"),
    ],
)
def test_special_tokens_must_be_in_the_vocabulary(
    make_llada: MakeFolder, changes: dict[str, Any], problem: str
) -> None:
    folder = make_llada(**changes)
    assert refusal(lambda: load_model(folder, device="cpu")) == f"{folder / 'config.json'}: {problem}"


def test_the_mlp_width_may_be_given_as_a_ratio() -> None:
    config = Config({**LLADA, "mlp_hidden_size": None, "mlp_ratio": 3}, "config.json")
    assert LLaDA().shape(config).hidden == 96


def test_biases_of_queries_keys_and_values_are_supported() -> None:
    assert LLaDA().shape(Config(LLADA | {"include_qkv_bias": True}, "config.json")).qkv_bias


def test_dream_reads_the_rotary_base_from_either_place() -> None:
    assert Dream().shape(Config(DREAM, "config.json")).rope_theta == 1000000.0
    newer = DREAM | {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    assert Dream().shape(Config(newer, "config.json")).rope_theta == 5000.0


def test_dream_layers_must_all_see_everything() -> None:
    layers = ["full_attention", "sliding_attention"]
    config = Config(DREAM | {"layer_types": layers}, "config.json")
    expected = "config.json: layer_types holds 'sliding_attention', but only 'full_attention' is supported"
    assert refusal(lambda: Dream().shape(config)) == expected
    assert Dream().shape(Config(DREAM | {"layer_types": layers[:1]}, "config.json")).n_layers == 1


def test_dreams_mask_token_may_come_from_the_tokenizer(make_dream: MakeFolder) -> None:
    loaded = load_model(make_dream(mask_token_id=None), device="cpu")
    assert loaded.model.spec.mask_id == loaded.codec.token_id("<|mask|>")


def test_scaled_rotary_positions_are_refused_in_the_newer_form_too() -> None:
    config = Config(DREAM | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "config.json")
    expected = 'config.json: rope_parameters: rope_type is "yarn", but only "default" is supported'
    assert refusal(lambda: Dream().shape(config)) == expected


def test_rotary_parameters_must_be_an_object() -> None:
    config = Config(DREAM | {"rope_parameters": [1]}, "config.json")
    assert refusal(lambda: Dream().shape(config)) == "config.json: rope_parameters must be an object, got [1]"


SGLANG = "SGLang runs it"
DINFER = "dInfer runs it"
CAUSAL = "an autoregressive model: this project decodes masked diffusion models only"
UNKNOWN = "no masked diffusion family that is known here: dream, llada, sdar; a plug-in may add it"


@pytest.mark.parametrize(
    ("config", "about"),
    [
        ({"model_type": "llada_moe"}, f"LLaDA-MoE, a mixture of experts: {DINFER}"),
        ({"model_type": "llada", "num_experts": 64}, f"LLaDA-MoE, a mixture of experts: {DINFER}"),
        (
            {"model_type": "llada2_moe"},
            f"LLaDA2.x, a block diffusion mixture of experts: {SGLANG}; dInfer runs LLaDA2.0",
        ),
        ({"model_type": "sdar_moe"}, f"SDAR-MoE, a mixture of experts: {SGLANG}"),
        (
            {"model_type": "diffusion_gemma", "vision_config": {}},
            "DiffusionGemma, which does not fill masks: SGLang runs it, with an algorithm of its own",
        ),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, CAUSAL),
        ({"model_type": "gpt2"}, CAUSAL),
        ({"model_type": "newcomer", "architectures": ["NewcomerForCausalLM"]}, CAUSAL),
        ({"model_type": "newcomer", "architectures": ["NewcomerForCausalLM"], "mask_token_id": 3}, UNKNOWN),
        ({"model_type": "newcomer", "architectures": None}, UNKNOWN),
        (
            {"model_type": "llava_llada", "mm_vision_tower": "siglip"},
            "a multi-modal model: this project runs text models only",
        ),
        (
            {"model_type": "llada", "mm_vision_tower": "siglip"},
            "a multi-modal model: this project runs text models only",
        ),
        ({"model_type": "mmada"}, UNKNOWN),
    ],
)
def test_a_family_that_runs_elsewhere_is_sent_there(config: dict[str, Any], about: str) -> None:
    kind = config["model_type"]
    assert refusal(lambda: family_of(Config(config, "config.json"))) == f"config.json: model_type {kind!r} is {about}"


def test_a_config_without_model_type_is_refused() -> None:
    expected = "config.json: model_type must name a model family, got None"
    assert refusal(lambda: family_of(Config({}, "config.json"))) == expected


@pytest.mark.parametrize(("kind", "family"), [("llada", "LLaDA"), ("Dream", "Dream"), ("sdar", "SDAR")])
def test_our_families_are_found_by_the_type_of_the_model(kind: str, family: str) -> None:
    assert type(family_of(Config({"model_type": kind}, "config.json"))).__name__ == family


MODULE = """
from unmask.models.families.llada import LLaDA


class Relative(LLaDA):
    'Adds a family of its own to the same architecture.'
"""
FILE = """
from unmask.models.families.base import families
from unmask.models.families.qwen import QwenFamily


@families.register("newcomer")
class Newcomer(QwenFamily):
    family = "newcomer"
    implemented = {}
"""
POINTS = """
[unmask.models]
relative = somewhere:Relative
llada_moe = somewhere:Relative
hollow = builtins:dict
"""
SCRIPT = """
import json, sys, torch
from unmask.models import families
families.__path__.append(sys.argv.pop(1))
from unmask.errors import CheckpointError
from unmask.models.checkpoint.config import Config
from unmask.models.families import family_of
from unmask.models.checkpoint.loading import load_model

relative, ours = (load_model(folder, device="cpu").model.predict(torch.arange(5)[None]) for folder in sys.argv[1:])
try:
    family_of(Config({"model_type": "hollow"}, "config.json"))
except CheckpointError as error:
    refused = str(error)
moe, file = (type(family_of(Config({"model_type": kind}, "c"))).__name__ for kind in ("llada_moe", "newcomer"))
same = torch.equal(relative.logits, ours.logits)
print(json.dumps({"same": same, "moe": moe, "file": file, "refused": refused}))
"""


@pytest.fixture(scope="module")
def with_plug_ins(tmp_path_factory: pytest.TempPathFactory, make_llada: MakeFolder) -> dict[str, Any]:
    """What comes of plug-ins, and of one more file among the families, in a process of its own."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "somewhere.py").write_text(MODULE)
    metadata = folder / "somewhere-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: somewhere\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(POINTS)
    (folder / "more").mkdir()
    (folder / "more/newcomer.py").write_text(FILE)
    folders = folder / "more", make_llada(model_type="Relative"), make_llada()
    command = [sys.executable, "-c", SCRIPT, *map(str, folders)]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), *sys.path]))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_plug_in_family_loads_like_ours(with_plug_ins: dict[str, Any]) -> None:
    assert with_plug_ins["same"]


def test_a_file_among_the_families_is_enough(with_plug_ins: dict[str, Any]) -> None:
    assert with_plug_ins["file"] == "Newcomer"


def test_a_plug_in_may_run_what_we_send_elsewhere(with_plug_ins: dict[str, Any]) -> None:
    assert with_plug_ins["moe"] == "Relative"


def test_a_plug_in_that_is_no_family_is_said(with_plug_ins: dict[str, Any]) -> None:
    assert with_plug_ins["refused"] == "the plug-in for model family 'hollow' lacks spec, build or slots"
