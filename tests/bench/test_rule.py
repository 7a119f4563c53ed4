import json

import pytest
import torch

from unmask.bench.rule import bench_rule, example_logits, naive_commit
from unmask.bench.workload import RuleWorkload
from unmask.errors import OutOfMemory, UnmaskError
from unmask.rules import mean_field_commit


def test_every_size_is_measured_and_compared():
    timings = bench_rule(RuleWorkload(positions=(1, 6), vocabularies=(50, 400), batches=(1, 3), repeats=1))
    found = [timing.figures for timing in timings]
    sizes = [(each["vocabulary"], each["batch"], each["positions"]) for each in found[::2]]
    assert sizes == [(v, b, m) for v in (50, 400) for b in (1, 3) for m in (1, 6)]
    for ours, printed in zip(found[::2], found[1::2], strict=True):
        assert (ours["form"], printed["form"], ours["dtype"], ours["copies"]) == ("ours", "as printed", "float32", 1)
        assert ours["ms"] > 0
        assert (ours["times_ours"], printed["times_ours"]) == (1, pytest.approx(printed["ms"] / ours["ms"]))
        assert max(ours["error"], printed["error"]) < 1e-5
        assert printed["same_commits"]


def test_a_timing_is_plain_data():
    timing, _ = bench_rule(RuleWorkload(positions=(3,), vocabularies=(40,), repeats=1, seed=7, dtype="bfloat16"))
    plain = json.loads(json.dumps(timing.figures))
    assert (plain["dtype"], plain["device"], plain["seed"], plain["repeats"]) == ("bfloat16", "cpu", 7, 1)
    assert plain["threads"] == torch.get_num_threads()
    assert plain["ms"] == timing.figures["ms"]


def test_the_printed_formula_is_left_out_on_request():
    (timing,) = bench_rule(RuleWorkload(positions=(3,), vocabularies=(40,), repeats=1, naive=False))
    assert timing.figures["form"] == "ours"
    assert timing.figures["ms"] > 0


def test_a_printed_formula_that_does_not_fit_into_memory_is_named(monkeypatch):
    monkeypatch.setattr("unmask.bench.rule.free_memory", lambda device: 1)
    timings = bench_rule(RuleWorkload(positions=(3,), vocabularies=(40,), repeats=1, policies=("threshold",)))
    assert [timing.figures["form"] for timing in timings] == ["ours", "as printed", "policy threshold"]
    printed, policy = timings[1:]
    assert (printed.figures["ms"], printed.figures["times_ours"], printed.rows[0]["ms"]) == (None, None, "no room")
    assert policy.figures["times_ours"] == policy.figures["ms"] / timings[0].figures["ms"]


def test_memory_of_the_rule_stays_far_below_that_of_the_printed_formula():
    timings = bench_rule(RuleWorkload(positions=(12,), vocabularies=(60_000,), repeats=1))
    ours, printed = (timing.figures["memory_mib"] for timing in timings)
    if ours is None:
        pytest.skip("this system does not tell how much memory was used")
    assert ours < printed / 2


def test_the_yardstick_commits_what_the_rule_commits():
    logits = example_logits(50, 8, 100, seed=1).double()
    masked = torch.ones(50, 8, dtype=torch.bool)
    for threshold, iterations in ((0.85, 2), (0.999, 1)):
        expected = mean_field_commit(logits, masked, threshold=threshold, iterations=iterations).commit
        assert torch.equal(naive_commit(logits, threshold=threshold, iterations=iterations)[0], expected)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"positions": (4, 0)}, "positions must be a whole number of at least 1, got 0"),
        ({"batches": (0,)}, "batches must be a whole number of at least 1, got 0"),
        ({"vocabularies": ()}, "vocabularies must not be empty"),
        ({"repeats": 0}, "repeats must be a whole number of at least 1"),
        ({"dtype": "float23"}, "unknown dtype 'float23'; did you mean 'float32'"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(options, complaint):
    with pytest.raises(UnmaskError, match=complaint) as error:
        bench_rule(RuleWorkload(**options))
    assert "\n" not in str(error.value)


def test_a_size_that_does_not_fit_is_refused_before_anything_is_made(monkeypatch):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr("unmask.bench.rule.example_logits", never)
    for options in ({"positions": (4, 10**7)}, {"positions": (10**7,), "vocabularies": (2,)}, {"batches": (10**8,)}):
        with pytest.raises(OutOfMemory, match=r"needs .* on cpu, but .* use fewer positions") as error:
            bench_rule(RuleWorkload(**options))
        assert "\n" not in str(error.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_is_timed_without_the_host_in_bfloat16_and_beyond_its_cache():
    timings = bench_rule(RuleWorkload(positions=(8,), batches=(1, 2), repeats=2, device="cuda"))
    one, _, several, _ = found = [timing.figures for timing in timings]
    assert (one["dtype"], several["batch"]) == ("bfloat16", 2)
    assert one["copies"] > several["copies"] > 1
    for ours, printed in (found[:2], found[2:]):
        assert 0 < ours["ms"] < printed["ms"]
        assert max(ours["error"], printed["error"]) < 1e-4
        assert printed["same_commits"]
