"""Which family a config belongs to, and what to say about those that we do not run.

A refusal names the family and a program that runs it, since the user's next question is where to go.
"""

from __future__ import annotations

from unmask.errors import CheckpointError
from unmask.models.checkpoint.config import Config
from unmask.models.families import dream, llada, sdar  # noqa: F401  (importing them registers them)
from unmask.models.families.base import Family, families

_SGLANG = "SGLang runs it"
_DINFER = "dInfer runs it"

# How model_type begins, without punctuation: what it is, and who runs it.
_ELSEWHERE = {
    "lladamoe": ("LLaDA-MoE, a mixture of experts", _DINFER),
    "llada2": ("LLaDA2.x, a block diffusion mixture of experts", f"{_SGLANG}; dInfer runs LLaDA2.0"),
    "sdarmoe": ("SDAR-MoE, a mixture of experts", _SGLANG),
    "diffusiongemma": ("DiffusionGemma, which does not fill masks", "SGLang runs it, with an algorithm of its own"),
}
_MULTI_MODAL = ("vision_config", "vision_tower", "mm_vision_tower", "audio_config")
_CAUSAL = ("llama", "qwen", "mistral", "mixtral", "gemma", "phi", "gpt", "olmo", "falcon", "deepseek", "opt", "bloom")


def family_of(config: Config) -> Family:
    """The family that reads this config; a refusal in one line if there is none."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise config.error(f"model_type must name a model family, got {kind!r}")
    # LLaDA-MoE has the same model_type as the dense LLaDA.
    experts = kind.lower() == "llada" and "num_experts" in config.values
    name = "lladamoe" if experts else "".join(letter for letter in kind.lower() if letter.isalnum())
    ours = kind.lower() in families.names() and not experts
    for beginning, (what, where) in _ELSEWHERE.items():
        if name.startswith(beginning) and not ours:
            raise _refusal(config, kind, what, where)
    if any(key in config.values for key in _MULTI_MODAL):
        raise _refusal(config, kind, "a multi-modal model", "this project runs text models only")
    if ours:
        return _instance(kind.lower())
    if _is_causal(name, config):
        raise _refusal(config, kind, "an autoregressive model", "this project decodes masked diffusion models only")
    known = ", ".join(families.names())
    raise _refusal(config, kind, "a family that is not known here", f"known: {known}; a plug-in may add it")


def _instance(name: str) -> Family:
    family = families.find(name)()
    if not isinstance(family, Family):
        raise CheckpointError(f"the plug-in for model family {name!r} lacks spec, build or slots")
    return family


def _refusal(config: Config, kind: str, what: str, where: str) -> CheckpointError:
    return config.error(f"model_type {kind!r} is {what}: {where}")


def _is_causal(name: str, config: Config) -> bool:
    classes = config.get("architectures", [])
    named_so = isinstance(classes, list) and any(str(item).endswith(("ForCausalLM", "LMHeadModel")) for item in classes)
    return "mask_token_id" not in config.values and (named_so or name.startswith(_CAUSAL))
