"""What a cluster of many replicas should give: a simulation from the measured time of a pass and the router's rule.

    python examples/cluster_simulation.py
    python examples/cluster_simulation.py --replicas 64 --load 0.8 0.95 --router least two random

Requests arrive at random (open loop: they do not wait for each other) at a share of what the replicas can do. The
router sends each to a replica: `least` takes the least loaded, as `unmask serve --backend ray` does, `two` the less
loaded of two at random, as Ray Serve does by itself, `random` any. A replica decodes up to `--rows` requests together,
each for its own number of passes. A pass over b rows takes first-ms + row-ms * b. A replica with `--queue` requests in
line refuses the next one (429).
"""

from __future__ import annotations

import argparse
import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Replica:
    waiting: deque[int] = field(default_factory=deque)
    rows: dict[int, int] = field(default_factory=dict)  # request -> passes left

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.rows)


def simulate(chosen: argparse.Namespace, replicas: int, load: float, router: str) -> tuple[float, float, float, float]:
    """Finished requests per second, the median and the 99 % quantile of their seconds, and the share refused."""
    random = np.random.default_rng(chosen.seed)
    pass_s = [(chosen.first_ms + chosen.row_ms * rows) / 1000 for rows in range(chosen.rows + 1)]
    capacity = replicas * chosen.rows / (chosen.passes * pass_s[chosen.rows])
    count = chosen.requests * replicas
    arrivals = np.cumsum(random.exponential(1 / (load * capacity), count))
    # Requests differ: the spread of the passes is half their mean.
    passes = np.maximum(1, random.gamma(4, chosen.passes / 4, count)).astype(int)
    ends, there = np.full(count, np.nan), [Replica() for _ in range(replicas)]
    events: list[tuple[float, int]] = []  # (when a pass ends, of which replica)

    def begin(number: int, now: float) -> None:
        replica = there[number]
        while replica.waiting and len(replica.rows) < chosen.rows:
            request = replica.waiting.popleft()
            replica.rows[request] = passes[request]
        if replica.rows:
            heapq.heappush(events, (now + pass_s[len(replica.rows)], number))

    def end_pass(number: int, now: float) -> None:
        replica = there[number]
        for request in list(replica.rows):
            replica.rows[request] -= 1
            if not replica.rows[request]:
                del replica.rows[request]
                ends[request] = now
        begin(number, now)

    refused = 0
    for request, now in enumerate(arrivals):
        while events and events[0][0] <= now:
            then, number = heapq.heappop(events)
            end_pass(number, then)
        number = choose(router, there, random)
        replica = there[number]
        if len(replica.waiting) >= chosen.queue:
            refused += 1
            continue
        replica.waiting.append(request)
        if not replica.rows:
            begin(number, now)
    while events:
        then, number = heapq.heappop(events)
        end_pass(number, then)
    done = ~np.isnan(ends)
    seconds = ends[done] - arrivals[done] + chosen.router_ms / 1000
    begun = arrivals[count // 10]  # without the time in which the cluster fills
    settled = np.count_nonzero((ends >= begun) & (ends <= arrivals[-1]))
    return settled / (arrivals[-1] - begun), *np.quantile(seconds, (0.5, 0.99)), refused / count


def choose(router: str, there: list[Replica], random: np.random.Generator) -> int:
    if router == "least":
        return min(range(len(there)), key=lambda number: there[number].load)
    first, second = random.integers(len(there), size=2)
    return int(first if router == "random" or there[first].load <= there[second].load else second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 0.8, 0.95, 1.2])
    parser.add_argument("--router", nargs="+", default=["least"], choices=["least", "two", "random"])
    parser.add_argument("--rows", type=int, default=8, help="requests that a replica decodes together")
    parser.add_argument("--queue", type=int, default=64, help="requests that may wait at a replica")
    parser.add_argument("--passes", type=float, default=64, help="mean forward passes of a request")
    parser.add_argument("--first-ms", type=float, default=3.82, help="a pass without rows")
    parser.add_argument("--row-ms", type=float, default=1.90, help="each row of a pass")
    parser.add_argument("--router-ms", type=float, default=7.0, help="of a request on the way to a replica and back")
    parser.add_argument("--requests", type=int, default=400, help="arrivals for each replica")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    print("router  replicas  load  requests/s  of capacity  median s  99 % s  refused %")
    for router in chosen.router:
        for replicas in chosen.replicas:
            for load in chosen.load:
                rate, median, high, refused = simulate(chosen, replicas, load, router)
                pass_s = (chosen.first_ms + chosen.row_ms * chosen.rows) / 1000
                capacity = replicas * chosen.rows / (chosen.passes * pass_s)
                print(
                    f"{router:6}  {replicas:8}  {load:4}  {rate:10.1f}  {rate / capacity:11.2f}"
                    f"  {median:8.2f}  {high:6.2f}  {100 * refused:9.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
