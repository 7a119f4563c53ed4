"""Train `tiny`, the embedded masked diffusion model, on the tiny suite: `python training/train.py --out runs/tiny`.

Everything it needs is made on the fly; nothing is downloaded. It writes a log of losses, a checkpoint to resume from,
and after every evaluation a usable model in LLaDA's format. About 20 minutes on one H200; a CPU is enough for
`--try-out`.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import tokenizer as tokenizers_of_tiny
import torch
import yaml
from data import PackedBatches
from evaluate import quick_look
from export import export
from network import Network, attend_packed
from optimizer import optimizers
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Run:
    """The state of a training run and the one step that changes it."""

    def __init__(self, settings: dict[str, Any], device: torch.device) -> None:
        torch.manual_seed(settings["seed"])
        self.settings = settings
        self.device = device
        self.network = Network(settings["model"]).to(device)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizers = optimizers(self.network, settings["optimizer"])
        self.step, self.seconds = 0, 0.0
        self.losses = torch.zeros(len(settings["tasks"]), device=device)
        self.seen = 0
        self.loss = torch.compile(self._loss, dynamic=False, disable=device.type != "cuda")

    def _loss(self, tokens: Tensor, positions: Tensor, bounds: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        attend = attend_packed(bounds, self.settings["batch"]["longest"])
        logits = self.network(tokens, positions, attend, places)
        return F.cross_entropy(logits.float(), targets, reduction="none")

    def train_on(self, batch: dict[str, Tensor]) -> None:
        batch = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        inputs = [batch[name] for name in ("tokens", "positions", "bounds", "places", "targets")]
        with self.autocast():
            weighted = self.loss(*inputs) * batch["weights"]
        weighted.sum().backward()
        clip = self.settings["optimizer"]["clip"]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), clip, foreach=True)
        rate = self.rate()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        decay = min(self.settings["ema"], (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), 1 - decay)
        self.losses.index_add_(0, batch["owners"], weighted.detach())
        self.seen += 1
        self.step += 1

    def rate(self) -> float:
        """The learning rate as a share of the full one: warm-up, constant, cosine to zero, all by the clock."""
        rules = self.settings["optimizer"]
        done = self.seconds / (60 * self.settings["minutes"])
        if self.seconds < rules["warmup_s"]:
            return (self.seconds + 0.1) / (rules["warmup_s"] + 0.1)
        if done < rules["decay_from"]:
            return 1.0
        left = (1 - min(done, 1.0)) / (1 - rules["decay_from"])
        return 0.5 - 0.5 * math.cos(math.pi * left)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def report(self) -> dict[str, Any]:
        """Mean losses since the last report, one for each entry of the mixture."""
        names = [entry["task"] + str(entry.get("params", {}).get("numbers", "")) for entry in self.settings["tasks"]]
        means = (self.losses / max(self.seen, 1)).tolist()
        shares = [entry["loss"] for entry in self.settings["tasks"]]
        per_task = {name: round(mean / share, 4) for name, mean, share in zip(names, means, shares, strict=True)}
        self.losses.zero_()
        self.seen = 0
        return {"step": self.step, "seconds": round(self.seconds, 1), "rate": round(self.rate(), 4), **per_task}

    def save(self, path: Path) -> None:
        state = {"network": self.network.state_dict(), "average": self.average.state_dict()}
        state |= {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}
        torch.save(state | {"step": self.step, "seconds": self.seconds}, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def resume(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]


def train(run: Run, out: Path, tokenizer: Tokenizer) -> None:
    """Steps until the time is up; evaluations do not count as training time."""
    settings = run.settings
    workers = settings["workers"]
    data = PackedBatches(settings, out / "tokenizer.json", start=run.step)
    loader = DataLoader(
        data,
        batch_size=None,
        num_workers=workers,
        pin_memory=run.device.type == "cuda",
        prefetch_factor=4 if workers else None,
    )
    logged = evaluated = run.seconds
    clock = None
    with (out / "log.jsonl").open("a") as log:
        for batch in loader:
            run.train_on(batch)
            now = time.monotonic()
            # The first step compiles for a minute or so, which is not training time.
            run.seconds += 0.0 if clock is None else now - clock
            clock = now
            finished = run.seconds >= 60 * settings["minutes"]
            if finished or run.seconds - logged >= settings["log_every_s"]:
                logged = run.seconds
                write(log, run.report())
            if finished or run.seconds - evaluated >= settings["evaluate_every_s"]:
                evaluated = run.seconds
                run.save(out / "state.pt")
                export(run.average, settings["model"], tokenizer, out / "tiny")
                write(log, {"step": run.step, "accuracy": quick_look(out / "tiny", run.device)})
                clock = time.monotonic()
            if finished:
                return


def write(log: Any, record: dict[str, Any]) -> None:
    line = json.dumps(record)
    log.write(line + "\n")
    log.flush()
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=Path, default=Path(__file__).parent / "settings.yaml")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help="instead of what the settings say")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), help="instead of what the settings say")
    parser.add_argument(
        "--try-out", action="store_true", help="a minute model in small batches, to see that it all works"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    args = parser.parse_args()
    settings = yaml.safe_load(args.settings.read_text())
    if args.try_out:
        settings["model"] |= {"d_model": 32, "n_heads": 2, "n_layers": 2, "mlp_hidden_size": 64}
        settings["batch"] |= {"tokens": 2048, "predicted": 1024, "sequences": 128}
        settings |= {"workers": 0, "evaluate_every_s": 1e9}
    settings["minutes"] = args.minutes or settings["minutes"]
    settings["optimizer"]["name"] = args.optimizer or settings["optimizer"]["name"]

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the data processes are the parallelism
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers_of_tiny.learn(settings["model"]["vocab_size"])
    tokenizers_of_tiny.save(tokenizer, args.out)
    run = Run(settings, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if args.resume:
        run.resume(args.out / "state.pt")
    train(run, args.out, tokenizer)


if __name__ == "__main__":
    main()
