"""Tiny random checkpoints in the formats of the public ones, written without any code of ours.

`make_llada`, `make_dream` and `make_sdar` write a folder. Keyword arguments change keys of its config.json, and None
removes one.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import Tensor

# Read by huggingface_hub when it is imported: no test may reach for the network.
os.environ["HF_HUB_OFFLINE"] = "1"
# Read by Ray when it is imported: no token in the home folder, no report to another site.
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
# Threads of several test workers that wait for each other make small tensors a hundred times slower.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
# A shell has its background jobs ignore Ctrl-C, and so do the commands that a test starts there, unless this is undone.
signal.signal(signal.SIGINT, signal.default_int_handler)
if os.environ.get("JAXTYPING_DISABLE") != "1":  # where beartype is not installed, say so
    import checking

    checking.install()

PLAIN_WORDS = 272  # byte letters and merges below the special tokens
LLADA_SPECIAL = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
DREAM_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"]
LLADA_TEMPLATE = (
    "{% for message in messages %}"
    "{{ (bos_token if loop.first else '') + '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
DREAM_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLADA_CONFIG = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "d_model": 32,
    "n_heads": 4,
    "n_kv_heads": 4,
    "n_layers": 2,
    "mlp_hidden_size": 48,
    "vocab_size": 280,
    "embedding_size": 280,
    "max_sequence_length": 128,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "weight_tying": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "mask_token_id": PLAIN_WORDS + LLADA_SPECIAL.index("<|mdm_mask|>"),
    "eos_token_id": PLAIN_WORDS + LLADA_SPECIAL.index("<|endoftext|>"),
    "torch_dtype": "bfloat16",
}
DREAM_CONFIG = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "hidden_act": "silu",
    "vocab_size": 280,
    "max_position_embeddings": 128,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "mask_token_id": PLAIN_WORDS + DREAM_SPECIAL.index("<|mask|>"),
    "bos_token_id": PLAIN_WORDS,
    "eos_token_id": PLAIN_WORDS,
    "pad_token_id": PLAIN_WORDS,
    "torch_dtype": "bfloat16",
}

SDAR_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"]
SDAR_CONFIG = {
    "model_type": "sdar",
    "architectures": ["SDARForCausalLM"],
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "hidden_act": "silu",
    "attention_bias": False,
    "vocab_size": 280,
    "max_position_embeddings": 128,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "block_size": 4,
    "mask_token_id": PLAIN_WORDS + SDAR_SPECIAL.index("<|MASK|>"),
    "eos_token_id": [PLAIN_WORDS + SDAR_SPECIAL.index("<|im_end|>"), PLAIN_WORDS],
    "pad_token_id": PLAIN_WORDS,
    "torch_dtype": "bfloat16",
}

MakeFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE with a few merges, without special tokens."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=PLAIN_WORDS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["the mask of the mean field is the mean of the masked field " * 4], trainer)
    assert tokenizer.get_vocab_size() == PLAIN_WORDS
    return tokenizer


def _save_tokenizer(folder: Path, plain: Tokenizer, special: list[str], roles: dict[str, str]) -> None:
    tokenizer = Tokenizer.from_str(plain.to_str())
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", roles)


@pytest.fixture(scope="session")
def make_llada(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Tokenizer) -> MakeFolder:
    """Writes LLaDA-format folders."""

    def make(*, seed: int = 0, shards: int = 1, **changes: Any) -> Path:
        config = _changed(LLADA_CONFIG, changes)
        folder = tmp_path_factory.mktemp("llada")
        _write_json(folder / "config.json", config)
        save_weights(folder, llada_tensors(config, seed), shards)
        roles = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "chat_template": LLADA_TEMPLATE}
        _save_tokenizer(folder, byte_tokenizer, LLADA_SPECIAL, roles)
        return folder

    return make


@pytest.fixture(scope="session")
def make_dream(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Tokenizer) -> MakeFolder:
    """Writes Dream-format folders: no tokenizer.json, as with the public ones."""

    def make(*, seed: int = 0, shards: int = 1, **changes: Any) -> Path:
        config = _changed(DREAM_CONFIG, changes)
        folder = tmp_path_factory.mktemp("dream")
        _write_json(folder / "config.json", config)
        save_weights(folder, dream_tensors(config, seed), shards)
        byte_tokenizer.model.save(str(folder))
        ids = {text: PLAIN_WORDS + number for number, text in enumerate(DREAM_SPECIAL)}
        _write_json(folder / "added_tokens.json", ids)
        roles = {
            "bos_token": "<|beginoftext|>",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "mask_token": "<|mask|>",
            "chat_template": DREAM_TEMPLATE,
            "added_tokens_decoder": {
                str(number): {"content": text, "special": True, "normalized": False} for text, number in ids.items()
            },
        }
        _write_json(folder / "tokenizer_config.json", roles)
        return folder

    return make


@pytest.fixture(scope="session")
def make_sdar(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Tokenizer) -> MakeFolder:
    """Writes SDAR-format folders."""

    def make(*, seed: int = 0, shards: int = 1, **changes: Any) -> Path:
        config = _changed(SDAR_CONFIG, changes)
        folder = tmp_path_factory.mktemp("sdar")
        _write_json(folder / "config.json", config)
        save_weights(folder, sdar_tensors(config, seed), shards)
        roles = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": DREAM_TEMPLATE}
        _save_tokenizer(folder, byte_tokenizer, SDAR_SPECIAL, roles)
        return folder

    return make


@pytest.fixture
def llada_folder(make_llada: MakeFolder) -> Path:
    return make_llada()


@pytest.fixture
def dream_folder(make_dream: MakeFolder) -> Path:
    return make_dream()


def llada_tensors(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    width, hidden, vocab = (
        config["d_model"],
        config["mlp_hidden_size"],
        config.get("embedding_size", config["vocab_size"]),
    )
    keys = (config.get("n_kv_heads") or config["n_heads"]) * width // config["n_heads"]
    shapes = {"wte": (vocab, width), "ln_f": (width,)}
    if not config["weight_tying"]:
        shapes["ff_out"] = (vocab, width)
    for layer in range(config["n_layers"]):
        shapes |= {
            f"blocks.{layer}.attn_norm": (width,),
            f"blocks.{layer}.q_proj": (width, width),
            f"blocks.{layer}.k_proj": (keys, width),
            f"blocks.{layer}.v_proj": (keys, width),
            f"blocks.{layer}.attn_out": (width, width),
            f"blocks.{layer}.ff_norm": (width,),
            f"blocks.{layer}.ff_proj": (hidden, width),
            f"blocks.{layer}.up_proj": (hidden, width),
            f"blocks.{layer}.ff_out": (width, hidden),
        }
    return _draw({f"model.transformer.{name}.weight": shape for name, shape in shapes.items()}, seed)


def dream_tensors(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    width, hidden, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = config["num_key_value_heads"] * width // config["num_attention_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, width)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm.weight": (width,),
                "self_attn.q_proj.weight": (width, width),
                "self_attn.q_proj.bias": (width,),
                "self_attn.k_proj.weight": (keys, width),
                "self_attn.k_proj.bias": (keys,),
                "self_attn.v_proj.weight": (keys, width),
                "self_attn.v_proj.bias": (keys,),
                "self_attn.o_proj.weight": (width, width),
                "post_attention_layernorm.weight": (width,),
                "mlp.gate_proj.weight": (hidden, width),
                "mlp.up_proj.weight": (hidden, width),
                "mlp.down_proj.weight": (width, hidden),
            }.items()
        }
    return _draw(shapes, seed)


def sdar_tensors(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """Qwen3's names: no biases, and norms of queries and keys, head by head."""
    width, hidden, vocab, head = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size", "head_dim"))
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, width)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (width,),
                "self_attn.q_proj": (queries, width),
                "self_attn.k_proj": (keys, width),
                "self_attn.v_proj": (keys, width),
                "self_attn.q_norm": (head,),
                "self_attn.k_norm": (head,),
                "self_attn.o_proj": (width, queries),
                "post_attention_layernorm": (width,),
                "mlp.gate_proj": (hidden, width),
                "mlp.up_proj": (hidden, width),
                "mlp.down_proj": (width, hidden),
            }.items()
        }
    return _draw(shapes, seed)


def save_weights(folder: Path, tensors: dict[str, Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = [f"model-{number + 1:05d}-of-{shards:05d}.safetensors" for number in range(shards)]
    index = {tensor: names[number % shards] for number, tensor in enumerate(tensors)}
    for name in names:
        save_file({tensor: tensors[tensor] for tensor, file in index.items() if file == name}, folder / name)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})


def _draw(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Weights large enough that attention is far from even and positions matter."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    return {name: 1 + tensor if "norm" in name or "ln_f" in name else tensor for name, tensor in tensors.items()}


def _changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (config | changes).items() if value is not None}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def needs_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Triton is not installed, so the kernels cannot be checked")
        pytest.skip("needs Triton: pip install 'unmask[dev]'")


@pytest.fixture(scope="session")
def interpreted(needs_triton: None) -> Iterator[Callable[..., Any]]:
    """Calls a function in a process in which Triton interprets its kernels.

    Triton decides that when it is imported, and a run of tests may have imported it already.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            yield lambda function, *given, **options: process.submit(function, *given, **options).result()


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: leave them out of every garbage collection."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--remake-goldens", action="store_true", help="Write what the present code decodes as golden.")
