"""What is decoded for the goldens: families x policies x caches x refresh x guidance x temperature x joins.

A case is plain data, so that the same list can be decoded by any version of the engine.
"""

from __future__ import annotations

from typing import Any

PROMPTS = [[30, 41, 59, 26, 53, 58, 97], [93, 23], [84, 62, 64, 33, 83, 27, 95, 2, 88, 41, 97, 16]]
LENGTHS = {"max_tokens": 14, "block_size": 5}
SEQUENCE = ("klass", "dawn", "dapd", "wino")  # policies that no cache serves
POLICIES = ("mean_field", "fixed", "random", "entropy", "margin", "threshold", "factor", "eb", "local_leap", *SEQUENCE)
VARIANTS: dict[str, dict[str, Any]] = {
    "mean_field": {"threshold": 0.6, "iterations": 1, "fallback": "confidence"},
    "fixed": {"passes": 2},
    "entropy": {"schedule": "dream"},
    "eb": {"gamma": 3.0, "order": "margin"},
    "klass": {"confidence": 0.02, "kl": 2.0, "history": 1},
    "threshold": {"threshold": 0.05},
    "factor": {"factor": 3.0, "reference_quirks": True},
    "dapd": {"variant": "direct", "tau_max": 0.9},
    "wino": {"draft_threshold": 0.02, "verify_threshold": 0.3},
}


def cases() -> dict[str, dict[str, Any]]:
    """Name -> family, policy, parameters, settings, and what is unusual about it."""
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, family: str, policy: str, parameters: dict[str, Any] | None = None, **rest: Any) -> None:
        settings = LENGTHS | rest.pop("settings", {})
        found[f"{family} {policy} {name}".strip()] = {
            "family": family,
            "policy": policy,
            "parameters": parameters or {},
            "settings": settings,
            **rest,
        }

    for family in ("llada", "dream"):
        for policy in POLICIES:
            if (family, policy) != ("dream", "wino"):
                add("", family, policy)
                if policy in VARIANTS:
                    add("varied", family, policy, VARIANTS[policy])
        for policy in ("mean_field", "fixed", "threshold", "eb"):
            for cache in ("prefix", "dual"):
                for refresh in ("block", "blocks:2", "drift:0.05", "drift:0.5"):
                    setting = {"cache": cache, "refresh": refresh}
                    add(f"{cache} {refresh}", family, policy, VARIANTS.get(policy), settings=setting)
        for cache in ("none", "prefix", "dual"):
            cached = {"cache": cache}
            drawn = {"temperature": 0.8, "top_p": 0.9, "top_k": 30, "seed": 5}
            add(f"guided {cache}", family, "mean_field", settings={"cfg_scale": 1.5, **cached})
            add(f"drawn {cache}", family, "threshold", {"threshold": 0.2}, settings=drawn | cached)
            add(f"joins {cache}", family, "mean_field", VARIANTS["mean_field"], settings=cached, rows=2)
            add(f"joins drawn {cache}", family, "random", settings=drawn | cached, rows=2)
            add(f"holes {cache}", family, "fixed", settings=cached, holes=True)
            add(f"ends {cache}", family, "threshold", {"threshold": 0.05}, settings=cached, stops=True)
        add("guided drift", family, "fixed", settings={"cfg_scale": 0.7, "cache": "dual", "refresh": "drift:0.1"})
        add("mask allowed", family, "fixed", settings={"suppress_mask_token": False})
        add("mask allowed dual", family, "fixed", settings={"suppress_mask_token": False, "cache": "dual"})
        add("no end", family, "fixed", settings={"logits_eos_inf": True})
        add("end last", family, "mean_field", settings={"confidence_eos_eot_inf": True})
        add("exact dtype", family, "threshold", settings={"reference_dtype": True})
        add("traced", family, "mean_field", traced=True)
        add("traced dual", family, "threshold", settings={"cache": "dual"}, traced=True)
    return found
