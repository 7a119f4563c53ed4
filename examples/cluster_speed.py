"""Prompts per second with one replica, two, and so on, of a model on a Ray cluster; by default one on this machine.

    python examples/cluster_speed.py --replicas 1 2
    python examples/cluster_speed.py --replicas 1 2 4 --gpus-per-replica 0.25 --prompts 2048 --batch-size 64

The prompts are decoded twice, and the second time counts. Efficiency is the speed divided by that of the first row's
replicas times their number.
"""

from __future__ import annotations

import argparse
import os
import time

import unmask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--address")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cpus-per-replica", type=float, default=1.0)
    parser.add_argument("--gpus-per-replica", type=float)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    chosen = parser.parse_args()
    prompts = [item.prompt for item in unmask.tasks.get("countdown").generate(0, chosen.prompts)]
    print("replicas  start s  prompts/s  tokens/s  efficiency")
    first = None
    for replicas in chosen.replicas:
        began = time.perf_counter()
        shares = {"cpus_per_replica": chosen.cpus_per_replica, "gpus_per_replica": chosen.gpus_per_replica}
        with unmask.remote.pool(chosen.model, address=chosen.address, replicas=replicas, **shares) as llm:
            ready = f"{replicas} of {replicas} replicas"
            while llm.replicas.status != ready:
                list(llm.generate(prompts[: chosen.batch_size], max_tokens=48, batch_size=chosen.batch_size))
            list(llm.generate(prompts, max_tokens=48, batch_size=chosen.batch_size))  # all that a replica compiles once
            start, began = time.perf_counter() - began, time.perf_counter()
            outputs = list(llm.generate(prompts, max_tokens=48, batch_size=chosen.batch_size))
            seconds = time.perf_counter() - began
        speed = len(prompts) / seconds
        first = first or speed / replicas
        tokens = sum(output.usage.completion_tokens for output in outputs) / seconds
        print(f"{replicas:8}  {start:7.1f}  {speed:9.1f}  {tokens:8.0f}  {speed / replicas / first:10.2f}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
