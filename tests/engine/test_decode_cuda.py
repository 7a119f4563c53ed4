"""Decoding on a CUDA device: kernels, graphs and reused storage give the tokens of plain PyTorch on a CPU.

Needs nothing but the package and pytest: `pytest -m gpu tests/engine/test_decode_cuda.py`.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from doubles import continuing, events_of, requests_of

from unmask import policies
from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.storage import KVCache, StoragePool
from unmask.engine.commit import FLAGS, PARTS
from unmask.engine.runner import runner_for
from unmask.models.random_weights import random_model
from unmask.settings import Settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LLADA = {
    "model_type": "llada",
    "d_model": 256,
    "n_heads": 4,
    "n_kv_heads": 4,
    "n_layers": 3,
    "mlp_hidden_size": 384,
    "vocab_size": 600,
    "max_sequence_length": 512,
    "rope_theta": 10000.0,
    "mask_token_id": 599,
    "eos_token_id": 598,
}
DREAM = {
    "model_type": "Dream",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 384,
    "vocab_size": 600,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "mask_token_id": 599,
    "eos_token_id": 598,
}
PROMPTS = [
    torch.randint(0, 590, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    for length in (5, 40, 23, 31, 12)
]


def twins(config, dtype=torch.float32):
    """The same weights on the CPU in float32 and on the device."""
    here = random_model(config, std=0.08, seed=1)
    there = random_model(config, std=0.08, seed=1, device=torch.device("cuda"), dtype=dtype)
    there.load_state_dict(here.state_dict())
    return here, there


def canvases_of(model, prompts=PROMPTS):
    return [continuing(list(prompt), 48, mask_id=model.spec.mask_id, block_size=16) for prompt in prompts]


def events(model, canvases, policy, settings, pool=None, **options):
    """By the runner that the model's device deserves."""
    requests = requests_of(model, canvases, policy, settings)
    return list(events_of(requests, runner_for(model, pool or StoragePool()), **options))


def run(model, settings, policy="mean_field", *, prompts=PROMPTS, pool=None):
    canvases = canvases_of(model, prompts)
    events(model, canvases, policy, settings, pool)
    return [(canvas.tokens, canvas.step_map) for canvas in canvases]


def captured(model, cache=None):
    """The keys of the passes that are captured, over whole canvases and over parts of them."""
    graphs = model.fast["passes"]
    found = [graphs.uncached] if cache is None else list(graphs.cached.values())
    return [key for one in found for kind in (one.whole, one.part) for key in kind.captured]


def spans(model, *rows):
    """A plan: from where to where each row is computed, and how many keys it sees."""
    return PassPlan(tuple(RowPlan(span=(start, end), visible=seen) for start, end, seen in rows), model.device)


@pytest.mark.parametrize("policy", ["fixed", "mean_field", "threshold"])
@pytest.mark.parametrize("refresh", ["block", "blocks:2", "drift:0.05"])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_every_cache_gives_the_tokens_of_the_cpu(config, cache, refresh, policy, monkeypatch):
    here, there = twins(config)
    settings, pool = Settings(cache=cache, refresh=refresh), StoragePool()
    expected = run(here, settings, policy)
    for _ in range(3):  # first without graphs, then while they are captured, then with all of them
        assert run(there, settings, policy, pool=pool) == expected
    assert captured(there, None if cache == "none" else cache)
    monkeypatch.setenv("UNMASK_KERNELS", "0")
    assert run(there, settings, policy) == expected


@pytest.mark.parametrize("policy", ["fixed", "mean_field"])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_rows_that_join_get_the_tokens_of_the_cpu(config, cache, policy):
    here, there = twins(config)
    settings, pool = Settings(cache=cache), StoragePool()
    alone = [run(here, settings, policy, prompts=[prompt])[0] for prompt in PROMPTS]
    for _ in range(3):
        canvases = canvases_of(there)
        requests = requests_of(there, canvases, policy, settings)
        waiting = requests[2:]

        def late(number, waiting=waiting):
            return [waiting.pop(0)] if waiting and number % 7 == 5 else []

        list(events_of(requests[:2], runner_for(there, pool), rows=3, late=late))
        assert [(canvas.tokens, canvas.step_map) for canvas in canvases] == alone
    canvases = canvases_of(there)
    requests = requests_of(there, canvases, policy, settings)
    for number, _ in enumerate(events_of(requests, runner_for(there, pool))):
        requests[1].abandoned |= number == 17
    others = [row for row in range(len(PROMPTS)) if row != 1]
    assert [(canvases[row].tokens, canvases[row].step_map) for row in others] == [alone[row] for row in others]
    assert canvases[1].passes < canvases[0].passes


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_requests_of_every_kind_together_give_the_tokens_of_the_cpu(config):
    here, there = twins(config)
    kinds = [
        ("fixed", {}),
        ("mean_field", {}),
        ("klass", {}),
        ("threshold", {"cache": "dual"}),
        ("eb", {"cache": "dual"}),
    ]
    kinds += [("dawn", {}), ("fixed", {"cache": "prefix"}), ("margin", {"cache": "dual", "refresh": "drift:0.05"})]
    expected = [
        run(here, Settings(**settings), policy, prompts=[PROMPTS[number % 5]])[0]
        for number, (policy, settings) in enumerate(kinds)
    ]
    pool = StoragePool()
    for rows in (3, 8, 8, 8):
        canvases = canvases_of(there, [PROMPTS[number % 5] for number in range(len(kinds))])
        requests = [
            requests_of(there, [canvas], policy, Settings(**settings))[0]
            for canvas, (policy, settings) in zip(canvases, kinds, strict=True)
        ]
        list(events_of(requests, runner_for(there, pool), rows=rows))
        assert [(canvas.tokens, canvas.step_map) for canvas in canvases] == expected


PURE = [name for name in policies.names() if policies.is_pure(policies.get(name)) and not policies.get(name).needs]


@pytest.mark.parametrize("policy", PURE)
def test_captured_decisions_are_those_of_the_cpu(policy):
    here, there = twins(LLADA)
    pool, decoded = StoragePool(), []
    expected = run(here, Settings(), policy)
    for _ in range(2):
        decoded.append(run(there, Settings(), policy, pool=pool))
    assert decoded == [expected, expected]
    assert any(found.graphs.captured for found in pool.kept.values())


def test_a_graph_captured_while_decoding_serves_a_plain_prediction():
    _, there = twins(LLADA)
    tokens, pool = run(there, Settings(), "fixed", prompts=PROMPTS[:1])[0][0], StoragePool()
    run(there, Settings(), "fixed", prompts=PROMPTS[:1], pool=pool)
    tokens, at = torch.tensor([tokens], device="cuda"), torch.arange(16, device="cuda")[None]
    known = captured(there)
    assert known
    with torch.no_grad():
        replayed = there.predict(tokens, at=at).logits
        assert captured(there) == known
        there.fast.clear()
        assert torch.equal(replayed, there.predict(tokens, at=at).logits)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_batch_gives_what_its_rows_give_alone(cache):
    _, there = twins(LLADA)
    settings, pool = Settings(cache=cache), StoragePool()
    together = run(there, settings, pool=pool)
    assert together == [run(there, settings, prompts=[prompt], pool=pool)[0] for prompt in PROMPTS]


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
def test_a_replayed_graph_gives_the_logits_of_the_pass_it_captured(config):
    _, there = twins(config, torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(0)
    cache, lengths = KVCache.new(5, 100, "cuda"), (100, 60, 99, 80, 71)
    whole = PassPlan.whole(list(lengths), there.device)
    part = spans(there, *((30, 50, length) for length in lengths))
    with torch.inference_mode():
        for _ in range(4):
            tokens = torch.randint(0, 600, (5, 100), generator=generator, device="cuda")
            there.predict(tokens, plan=whole, cache=cache)
            replayed = there.predict(tokens, plan=part, cache=cache).logits.clone()
            there.fast.clear()
            first = there.predict(tokens, plan=part, cache=cache).logits.clone()
            assert torch.equal(replayed, first)
            for _ in range(2):  # captured for five rows padded to eight
                there.predict(tokens, plan=part, cache=cache)


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
@pytest.mark.parametrize("options", [{"at": True}, {"states": True}], ids=["chosen", "states"])
def test_rows_without_their_padding_share_a_graph_with_others_of_about_as_many_positions(config, options):
    _, there = twins(config)
    cache, at = KVCache.new(3, 200, "cuda"), torch.arange(4, 9, device="cuda").expand(3, -1)
    options = {"at": at} if "at" in options else options
    generator = torch.Generator("cuda").manual_seed(0)
    with torch.inference_mode():
        for sizes in ([200, 30, 60], [200, 60, 30], [190, 9, 70], [199, 12, 50], [200, 30, 60]):
            tokens = torch.randint(0, 590, (3, 200), generator=generator, device="cuda")
            found = there.predict(tokens, plan=PassPlan.whole(sizes, there.device), cache=cache, **options)
            for row, size in enumerate(sizes):
                filled = KVCache.new(1, 256, "cuda")
                given = options | ({"at": at[:1]} if "at" in options else {})
                alone = there.predict(tokens[row : row + 1, :size], cache=filled, **given)
                logits = found.logits[row] if "at" in options else found.logits[row, :size]
                torch.testing.assert_close(logits, alone.logits[0], rtol=0.0, atol=2e-3)
                for mine, expected in zip(cache.storage.layers, filled.storage.layers, strict=True):
                    for kind in (0, 1):
                        close = {"rtol": 0.0, "atol": 1e-3}
                        torch.testing.assert_close(mine[kind][row, :, :size], expected[kind][0, :, :size], **close)
    packed = [key for key in captured(there, cache) if "packed" in key[0]]
    assert len(packed) == 1


@pytest.mark.parametrize("config", [LLADA, DREAM], ids=["llada", "dream"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_as_close_to_float32_as_plain_pytorch_does(config, dtype, monkeypatch):
    here, there = twins(config, dtype)
    tokens = torch.randint(0, 600, (3, 64), generator=torch.Generator().manual_seed(0))
    lengths, at = [64, 40, 51], torch.arange(20, 36).expand(3, -1)

    def passes(model, device):
        options = {"cache": KVCache.new(3, 64, device), "at": at.to(device)}
        plans = PassPlan.whole(lengths, model.device), spans(model, *((20, 36, length) for length in lengths))
        with torch.inference_mode():
            whole = model.predict(tokens.to(device), plan=plans[0], **options).logits
            part = model.predict(tokens.to(device) // 2, plan=plans[1], **options).logits
        return torch.stack([whole.float().cpu(), part.float().cpu()])

    exact = passes(here, "cpu")
    fast = (passes(there, "cuda") - exact).abs()
    monkeypatch.setenv("UNMASK_KERNELS", "0")
    plain = (passes(there, "cuda") - exact).abs()
    assert fast.mean() < 1.2 * plain.mean()
    assert fast.max() < 2.0 * plain.max()


def test_a_pass_reads_from_the_device_once():
    _, there = twins(LLADA, torch.bfloat16)
    reads = []
    original = torch.Tensor.tolist
    settings, pool = Settings(cache="dual"), StoragePool()
    run(there, settings, "fixed", pool=pool)
    canvases = canvases_of(there, PROMPTS[:1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "tolist", lambda self: reads.append(tuple(self.shape)) or original(self))
        patch.setattr(torch.Tensor, "item", lambda self: pytest.fail("a host read"))
        patch.setattr(torch.Tensor, "__bool__", lambda self: pytest.fail("a host read"))
        found = events(there, canvases, "fixed", settings, pool)
    assert len(reads) == len(found)
    assert max(count for (count,) in reads) <= PARTS * 16 + len(FLAGS)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_generations_of_several_threads_do_not_disturb_each_other(cache):
    _, there = twins(LLADA)
    settings, pool = Settings(cache=cache), StoragePool()
    alone = [run(there, settings, policy, prompts=PROMPTS[:2], pool=pool) for policy in PURE]
    for _ in range(2):  # while graphs are captured, and with all of them
        with ThreadPoolExecutor(len(PURE)) as threads:
            found = threads.map(lambda policy: run(there, settings, policy, prompts=PROMPTS[:2], pool=pool), PURE)
            assert list(found) == alone
