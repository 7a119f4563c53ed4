"""`unmask batch --backend ray` on a cluster of two nodes, one of which is killed; and `unmask.remote.pool`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import unmask
from unmask import cli

pytestmark = pytest.mark.slow


def lines_of(count: int) -> list[dict[str, Any]]:
    bodies = [{"prompt": f"the mask {number}", "max_tokens": 24, "seed": number} for number in range(count)]
    head = {"method": "POST", "url": "/v1/completions"}
    return [{"custom_id": f"r-{number}", **head, "body": body} for number, body in enumerate(bodies)]


def command(source: Path, target: Path, *flags: str) -> subprocess.Popen[str]:
    whole = [sys.executable, "-m", "unmask", "batch", str(source), str(target), "--model", "toy", *flags]
    return subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def texts_of(target: Path) -> dict[str, str]:
    found = [json.loads(line) for line in target.read_text().splitlines()]
    texts = {result["custom_id"]: result["response"]["body"]["choices"][0]["text"] for result in found}
    assert len(texts) == len(found)
    return texts


def test_a_batch_on_two_nodes_equals_a_local_one_though_a_node_is_lost(cluster: Any, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines_of(300)))
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    process = command(source, there, "--batch-size", "2", "--backend", "ray", "--address", cluster.address)
    while process.poll() is None and not (there.exists() and there.stat().st_size):
        time.sleep(0.02)
    cluster.remove_node(cluster.others[0], allow_graceful=False)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert printed == ""  # Ray's pages about the lost node are not on stdout
    assert "300 requests, 0 of them failed" in said
    assert cli.run(["batch", str(source), str(here), "--model", "toy", "--batch-size", "8"]) == 0
    assert texts_of(there) == texts_of(here)
    assert len(texts_of(here)) == 300


def test_a_pool_of_a_notebook_gives_outputs_in_order_and_leaves_nothing_behind() -> None:
    llm, prompts = unmask.load("toy"), [f"the mask {number}" for number in range(40)]
    with unmask.remote.pool("toy", replicas=2, cpus_per_replica=0.5, device="cpu") as pool:
        head = pool.replicas.cluster.head
        outputs = list(pool.generate(prompts, batch_size=3, max_tokens=12))
        talks = list(pool.chat([[{"role": "user", "content": "the mask"}]], max_tokens=12))
        with pytest.raises(unmask.UnmaskError, match="max_tokens must be"):
            list(pool.generate(prompts, max_tokens=-1))
        for wrong in ({"prompts": "one prompt"}, {"prompts": prompts, "batch_size": 0}):
            with pytest.raises(unmask.UnmaskError, match=r"a list of them|at least 1"):
                list(pool.generate(**wrong))
        first, second = pool.generate(prompts, batch_size=3, max_tokens=12), pool.generate(prompts, max_tokens=12)
        next(first)
        with pytest.raises(unmask.UnmaskError, match="one thing at a time"):
            next(second)
        first.close()
        with pytest.raises(unmask.UnmaskError, match="cannot be sent"):
            list(pool.generate(prompts, on_step=threading.Lock()))
        assert len(list(pool.generate(prompts[:1], max_tokens=12))) == 1
    with pytest.raises(unmask.UnmaskError, match="the pool is closed"):
        list(pool.generate(prompts))
    assert [output.canvas_ids for output in outputs] == [
        output.canvas_ids for output in llm.generate(prompts, max_tokens=12)
    ]
    assert talks[0].text == llm.chat([{"role": "user", "content": "the mask"}], max_tokens=12).text
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert head not in listed  # the address of the cluster, which each of its processes is told
