"""Model families: config keys, tensor names, special tokens and quirks, one file each; and the family of a config.

A refusal names the family and a program that runs it, since the user's next question is where to go.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from unmask.errors import CheckpointError
from unmask.models.checkpoint.config import Config, shown
from unmask.models.families.base import Family, families

# What model_type begins with, without punctuation, and how the refusal goes on.
_ELSEWHERE = {
    "lladamoe": "LLaDA-MoE, a mixture of experts: dInfer runs it",
    "llada2": "LLaDA2.x, a block diffusion mixture of experts: SGLang runs it; dInfer runs LLaDA2.0",
    "sdarmoe": "SDAR-MoE, a mixture of experts: SGLang runs it",
    "diffusiongemma": "DiffusionGemma, which does not fill masks: SGLang runs it, with an algorithm of its own",
}
_MULTI_MODAL = {"vision_config", "vision_tower", "mm_vision_tower", "audio_config"}
# How an autoregressive model shows: by its model_type or by its class, and it has no mask token.
_CAUSAL = ("llama", "qwen", "mistral", "mixtral", "gemma", "phi", "gpt", "olmo", "falcon", "deepseek", "opt", "bloom")
_CAUSAL_CLASSES = ("ForCausalLM", "LMHeadModel")


def family_of(config: Config) -> Family:
    """The family that reads this config; a refusal in one line if there is none."""
    for module in iter_modules(__path__, f"{__name__}."):
        import_module(module.name)  # registers the family that the file describes
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise config.error(f"model_type must name a model family, got {shown(kind)}")
    name = kind.lower()
    if name == "llada" and "num_experts" in config.values:  # LLaDA-MoE has the model_type of the dense LLaDA
        name = "llada_moe"
    if (reason := _reason_to_refuse(name, config)) is not None:
        raise config.error(f"model_type {shown(kind)} is {reason}")
    family = families.find(name)()
    if not isinstance(family, Family):
        raise CheckpointError(f"the plug-in for model family {name!r} lacks spec, build or slots")
    return family


def _reason_to_refuse(name: str, config: Config) -> str | None:
    known, letters = name in families.names(), "".join(filter(str.isalnum, name))
    elsewhere = [reason for beginning, reason in _ELSEWHERE.items() if letters.startswith(beginning)]
    if elsewhere and not known:
        return elsewhere[0]
    if _MULTI_MODAL & config.values.keys():
        return "a multi-modal model: this project runs text models only"
    if known:
        return None
    classes = str(config.get("architectures"))
    causal = letters.startswith(_CAUSAL) or any(ending in classes for ending in _CAUSAL_CLASSES)
    if causal and "mask_token_id" not in config.values:
        return "an autoregressive model: this project decodes masked diffusion models only"
    return f"no masked diffusion family that is known here: {', '.join(families.names())}; a plug-in may add it"
