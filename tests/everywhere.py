"""One policy, eight ways to decode with it. Run as a program: FOLDER of a small SDAR checkpoint, POLICY, a WORK folder.

Prints JSON: the tokens that each way gives, or the text where a way gives no tokens.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "HF_HUB_OFFLINE": "1"}

import sglang_host
import torch
from diffusers import LLaDA2Pipeline
from safetensors.torch import load_file
from serve.servers import running
from transformers import Qwen3Config, Qwen3ForCausalLM

import unmask
from unmask import cli, policies, tasks
from unmask.evals.store import cells_of
from unmask.integrations.diffusers import BlockCausal, UnmaskScheduler

SIZE, BLOCKS = 4, 3
PARAMETERS = {"errors": 1.7}  # so much that a model with random weights commits several positions in a pass


def said(*command: str) -> str:
    """What a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.run(list(command)) == 0
    return out.getvalue()


def in_sglang(llm: unmask.Generator, policy: str, prompt: list[int], length: int) -> list[int]:
    with sglang_host.imported() as host:
        host.ours.register()
        options = {
            "algorithm_config": PARAMETERS,
            "block_size": SIZE,
            "mask_id": llm.spec.mask_id,
            "max_running_requests": 1,
        }
        name = "Unmask" + policy.title().replace("_", "")
        config = host.config.DllmConfig(algorithm=name, first_done_first_out_mode=True, **options)
        request = sglang_host.Request(prompt, length)
        sglang_host.serve(host.algorithm.get_algorithm(config), llm.model, [request])
        return request.output


def in_diffusers(folder: Path, policy: str, prompt: list[int], length: int, mask_id: int) -> list[int]:
    values = json.loads((folder / "config.json").read_text())
    config = Qwen3Config(**{key: value for key, value in values.items() if key not in ("model_type", "architectures")})
    qwen3 = Qwen3ForCausalLM(config).eval()
    qwen3.load_state_dict(load_file(folder / "model.safetensors"))
    scheduler = UnmaskScheduler(policy=policy, parameters=PARAMETERS, block_length=SIZE)
    pipe = LLaDA2Pipeline(model=BlockCausal(qwen3, SIZE), scheduler=scheduler)
    pipe.set_progress_bar_config(disable=True)
    how: dict[str, Any] = {"mask_token_id": mask_id, "eos_early_stop": False, "output_type": "seq"}
    found = pipe(input_ids=torch.tensor([prompt]), gen_length=length, num_inference_steps=SIZE, **how)
    return found.sequences[0].tolist()


def main(folder: Path, policy: str, work: Path) -> None:
    prompt = tasks.get("countdown", numbers=3).generate(0, 1)[0].prompt
    llm = unmask.load(str(folder), device="cpu")
    ids = llm.codec.encode(prompt)
    length = BLOCKS * SIZE - len(ids) % SIZE  # whole blocks, as other engines decode them
    sizes = {"max_tokens": length, "block_size": SIZE}
    chosen = policies.get(policy, **PARAMETERS)
    own = llm.generate(prompt, policy=chosen, **sizes)
    found: dict[str, Any] = {"python": own.canvas_ids, "text": own.text, "passes": own.usage.forward_passes}

    flags = ["--model", str(folder), "--policy", policy, "--set", f"errors={PARAMETERS['errors']}", "--device", "cpu"]
    shape = ["--max-tokens", str(length), "--block-size", str(SIZE)]
    found["command line"] = json.loads(said("generate", prompt, *flags, *shape, "--json=full"))["canvas_ids"]

    body = {"prompt": prompt, "max_tokens": length, "decoding": {"policy": policy, "block_size": SIZE, **PARAMETERS}}
    with running(llm, settings=unmask.Settings(max_tokens=length)) as server:
        found["server"] = server.post(body)[1]["choices"][0]["text"]

    recipe = {"model": str(folder), "policies": [{"name": policy, **PARAMETERS}], "tasks": ["countdown-3"], "limit": 1}
    (work / "one.yaml").write_text(json.dumps(recipe | {"settings": sizes, "device": "cpu"}))
    said("eval", str(work / "one.yaml"), "--out", str(work / "run"))
    found["evaluation"] = cells_of(work / "run")[0].generations[0].token_ids

    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (work / "in.jsonl").write_text(json.dumps(line) + "\n")
    said("batch", str(work / "in.jsonl"), str(work / "out.jsonl"), "--model", str(folder), "--device", "cpu", *shape)
    answer = json.loads((work / "out.jsonl").read_text())["response"]["body"]
    found["batch file"] = answer["choices"][0]["text"]

    with unmask.remote.pool(str(folder), replicas=1, device="cpu") as pool:
        found["Ray"] = next(pool.generate([prompt], policy=chosen, **sizes)).canvas_ids

    found["SGLang"] = in_sglang(llm, policy, ids, length)
    found["diffusers"] = in_diffusers(folder, policy, ids, length, llm.spec.mask_id)
    found["home"] = type(chosen).__module__
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
