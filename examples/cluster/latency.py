"""Time short requests to servers that run already, in turns: `python examples/cluster/latency.py URL URL ...`

Each request asks for one token over a connection that stays open. Start the servers first, for example
`unmask serve --model toy --port 8001` and `unmask serve --model toy --port 8002 --backend ray --replicas 1`.
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import time

REQUESTS = 300
BODY = json.dumps({"prompt": "Hi", "max_tokens": 1})


def ask(connection: http.client.HTTPConnection) -> float:
    """Milliseconds from a request to the end of its answer."""
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", BODY, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    return 1000 * (time.perf_counter() - began)


def main(urls: list[str]) -> None:
    connections = [http.client.HTTPConnection(url.removeprefix("http://"), timeout=60) for url in urls]
    times = [[ask(connection) for connection in connections] for _ in range(REQUESTS + 20)][20:]
    for url, own in zip(urls, zip(*times, strict=True), strict=True):
        cuts = statistics.quantiles(own, n=100)
        sys.stdout.write(f"{url}: p50 {cuts[49]:.1f} ms, p95 {cuts[94]:.1f} ms, {REQUESTS} requests\n")


if __name__ == "__main__":
    main(sys.argv[1:])
