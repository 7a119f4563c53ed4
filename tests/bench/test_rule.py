import json

import pytest
import torch

from unmask.bench.rule import bench_rule, example_logits, naive_commit
from unmask.bench.workload import RuleWorkload
from unmask.errors import OutOfMemory, UnmaskError
from unmask.rules import mean_field_commit


def test_every_size_is_measured_and_compared():
    timings = bench_rule(RuleWorkload(positions=(1, 6), vocabularies=(50, 400), batches=(1, 3), repeats=1))
    sizes = [(timing.figures["vocabulary"], timing.figures["batch"], timing.figures["positions"]) for timing in timings]
    assert sizes == [(v, b, m) for v in (50, 400) for b in (1, 3) for m in (1, 6)]
    for timing in timings:
        assert timing.figures["ours_ms"] > 0
        assert (timing.figures["dtype"], timing.figures["copies"]) == ("float32", 1)
        assert timing.figures["speedup"] == pytest.approx(timing.figures["naive_ms"] / timing.figures["ours_ms"])
        assert max(timing.figures["ours_error"], timing.figures["naive_error"], timing.figures["difference"]) < 1e-5
        assert timing.figures["same_commits"]


def test_a_timing_is_plain_data():
    (timing,) = bench_rule(RuleWorkload(positions=(3,), vocabularies=(40,), repeats=1, seed=7, dtype="bfloat16"))
    plain = json.loads(json.dumps(timing.figures))
    assert (plain["dtype"], plain["device"], plain["seed"], plain["repeats"]) == ("bfloat16", "cpu", 7, 1)
    assert plain["threads"] == torch.get_num_threads()
    assert plain["speedup"] == timing.figures["speedup"]


def test_the_printed_formula_is_left_out_on_request():
    (timing,) = bench_rule(RuleWorkload(positions=(3,), vocabularies=(40,), repeats=1, naive=False))
    assert timing.figures["ours_ms"] > 0
    assert (
        timing.figures["naive_ms"]
        is timing.figures["naive_memory_mib"]
        is timing.figures["speedup"]
        is timing.figures["same_commits"]
        is None
    )
    assert [row["form"] for row in timing.rows] == ["ours"]


def test_a_printed_formula_that_does_not_fit_into_memory_is_named(monkeypatch):
    monkeypatch.setattr("unmask.bench.rule.free_memory", lambda device: 1)
    (timing,) = bench_rule(RuleWorkload(positions=(3,), vocabularies=(40,), repeats=1, policies=("threshold",)))
    assert timing.figures["naive_ms"] is None
    ours, printed, policy = timing.rows
    assert (ours["form"], ours["speed-up"], policy["form"]) == ("ours", "", "policy threshold")
    assert (printed["form"], printed["ms"], printed["MiB"]) == ("as printed", "not measured", "no room")


def test_memory_of_the_rule_stays_far_below_that_of_the_printed_formula():
    (timing,) = bench_rule(RuleWorkload(positions=(12,), vocabularies=(60_000,), repeats=1))
    if timing.figures["ours_memory_mib"] is None:
        pytest.skip("this system does not tell how much memory was used")
    assert timing.figures["ours_memory_mib"] < timing.figures["naive_memory_mib"] / 2


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
    one, several = bench_rule(RuleWorkload(positions=(8,), batches=(1, 2), repeats=2, device="cuda"))
    assert (one.figures["dtype"], several.figures["batch"]) == ("bfloat16", 2)
    assert one.figures["copies"] > several.figures["copies"] > 1
    for timing in (one, several):
        assert 0 < timing.figures["ours_ms"] < timing.figures["naive_ms"]
        assert max(timing.figures["ours_error"], timing.figures["naive_error"]) < 1e-4
        assert timing.figures["same_commits"]
