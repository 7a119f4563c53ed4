"""`bench step` and `bench generate`, as functions and as commands; that they are fast is for no test to say."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from doubles import Watched, call_of, events_of, tiny_config

import unmask
from unmask.bench import decoding, subject
from unmask.bench.decoding import bench_generate, bench_step
from unmask.bench.measure import Ceilings, ModelCall, floor, measure_ceilings, short
from unmask.bench.subject import loads_of
from unmask.bench.workload import Workload
from unmask.cache.storage import StoragePool
from unmask.cli import run
from unmask.engine.runner import Runner
from unmask.errors import UnmaskError
from unmask.models.random_weights import random_model
from unmask.terminal import show_timings

CEILINGS = Ceilings(bytes_per_s=1e9, flops_per_s=1e10)
WITHOUT_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SMALL = Workload(prompt_tokens=(12, 20), batches=(1, 2), max_tokens=16, block_size=8, repeats=2)


def show(timings):
    show_timings(timings[0].title, [row for timing in timings for row in timing.rows])


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch):
    """Commands measure the device with small copies and products."""
    monkeypatch.setattr(subject, "measure_ceilings", partial(measure_ceilings, copy_bytes=2**16, width=32))


@pytest.fixture(scope="module")
def model():
    return random_model(tiny_config("llada"))


def test_steps_of_every_kind_are_measured_in_the_second_block(model):
    timings = bench_step(model, SMALL, ceilings=CEILINGS)
    kinds = [
        (timing.figures["cache"], timing.figures["kind"], timing.figures["positions"])
        for timing in timings
        if timing.figures["batch"] == 2
    ]
    of_one_prompt = [
        ("none", "whole canvas", 28),
        ("prefix", "refresh", 28),
        ("prefix", "block and suffix", 8),
        ("dual", "refresh", 28),
        ("dual", "block only", 8),
    ]
    assert kinds[:5] == of_one_prompt
    assert [positions for _, _, positions in kinds[5:]] == [36, 36, 8, 36, 8]
    # two passes a block, two runs that count: a refresh in each, and one pass after it
    assert [timing.figures["passes"] for timing in timings[:5]] == [4, 2, 2, 2, 2]
    for timing in timings:
        assert 0 < timing.figures["low_ms"] <= timing.figures["ms"] <= timing.figures["high_ms"]
        assert min(timing.figures["model_ms"], timing.figures["policy_ms"], timing.figures["rest_ms"]) > 0
        call = call_of(
            rows=timing.figures["batch"],
            positions=timing.figures["positions"],
            keys=timing.figures["prompt_tokens"] + 16,
            predicted=8,
        )
        assert timing.figures["floor_ms"] == pytest.approx(1000 * floor(model.shape, [call], 4, CEILINGS).seconds)
        assert timing.figures["ratio"] == pytest.approx(timing.figures["ms"] / timing.figures["floor_ms"])
        assert (timing.figures["lasting_floor_ms"], timing.figures["lasting_ratio"]) == (None, None)


@pytest.mark.parametrize(
    ("device", "runs"),
    [
        ("cpu", [True, True]),
        pytest.param("cuda", [False, False, True, True], marks=[pytest.mark.gpu, WITHOUT_CUDA]),
    ],
)
def test_no_clock_interrupts_the_passes_that_are_timed_whole_on_a_gpu(device, runs, monkeypatch):
    looked, real = [], decoding.run_passes
    model = random_model(tiny_config("llada"), device=torch.device(device))

    def watch(*options, timed):
        looked.append(timed)
        return real(*options, timed=timed)

    monkeypatch.setattr(decoding, "run_passes", watch)
    bench_step(model, replace(SMALL, prompt_tokens=(12,), batches=(1,), caches=("none",)), ceilings=CEILINGS)
    assert looked == [False, *runs]  # the first is not counted


def test_passes_are_also_compared_with_the_rate_that_a_device_keeps_up(model, capsys):
    lasting = replace(CEILINGS, lasting_flops_per_s=CEILINGS.flops_per_s / 4)
    workload = replace(SMALL, prompt_tokens=(12,), batches=(1,), caches=("none",), repeats=1)
    (timing,) = bench_step(model, workload, ceilings=lasting)
    call = call_of(rows=1, positions=28, keys=28, predicted=8)
    slower = replace(CEILINGS, flops_per_s=CEILINGS.flops_per_s / 4)
    assert timing.figures["lasting_floor_ms"] == pytest.approx(1000 * floor(model.shape, [call], 4, slower).seconds)
    assert timing.figures["lasting_floor_ms"] > timing.figures["floor_ms"]
    assert timing.figures["lasting_ratio"] == timing.figures["ms"] / timing.figures["lasting_floor_ms"]
    show([timing])
    out = capsys.readouterr().out
    assert "multiplies 0.010 TFLOP/s (0.003 without a pause)" in out
    assert short(timing.figures["lasting_ratio"]) in out


def test_the_floor_of_a_request_is_the_sum_of_the_floors_of_its_passes(model):
    workload = Workload(prompt_tokens=(12,), batches=(2,), caches=("dual",), max_tokens=24, block_size=8, repeats=1)
    (timing,) = bench_generate(model, workload, ceilings=CEILINGS)
    refresh, block, two = (call_of(rows=2, positions=positions, keys=36, predicted=8) for positions in (36, 8, 16))
    assert timing.figures["forward_passes"] == 6
    assert timing.figures["floor_s"] == pytest.approx(floor(model.shape, [refresh, block] * 3, 4, CEILINGS).seconds)
    (fewer,) = bench_generate(model, replace(workload, refreshes=("blocks:3",)), ceilings=CEILINGS)
    assert fewer.figures["floor_s"] == pytest.approx(
        floor(model.shape, [refresh, block, *[two, block] * 2], 4, CEILINGS).seconds
    )


def test_tokens_before_the_end_of_each_text_are_counted_and_the_slowest_run_told(capsys):
    model = random_model(tiny_config("llada"))
    workload = Workload(prompt_tokens=(12,), batches=(2,), caches=("none",), max_tokens=16, block_size=8, repeats=3)
    (load,) = loads_of(workload, model)
    requests = load.requests()
    list(events_of(requests, Runner(model, StoragePool())))
    rows = [request.canvas for request in requests]
    end = rows[0].filled[5]
    model.spec = replace(model.spec, end_ids=frozenset({end}))
    (timing,) = bench_generate(model, workload, ceilings=CEILINGS)
    kept = sum(row.filled.index(end) if end in row.filled else 16 for row in rows)
    assert timing.figures["kept_tokens"] == kept < 32
    told = timing.figures
    assert told["kept_tokens_per_s"] == kept / timing.figures["seconds"]
    assert (told["p50_s"], told["p99_s"]) == (told["seconds"], told["slowest_s"])
    show([timing])
    assert " kept/s " in capsys.readouterr().out


def test_prompts_of_a_batch_may_be_of_different_lengths(model, capsys):
    workload = Workload(
        prompt_tokens=(12,), shortest_prompt=3, batches=(4,), caches=("dual",), max_tokens=8, block_size=8, repeats=1
    )
    (load,) = loads_of(workload, model)
    assert [request.canvas.length - 8 for request in load.requests()] == [12, 9, 6, 3]
    (timing,) = bench_generate(model, workload, ceilings=CEILINGS)
    lengths = (20, 17, 14, 11)
    refresh, block = (ModelCall(positions=positions, keys=lengths, predicted=8) for positions in (lengths, (8,) * 4))
    assert timing.figures["forward_passes"] == 2
    assert timing.figures["floor_s"] == pytest.approx(floor(model.shape, [refresh, block], 4, CEILINGS).seconds)
    assert timing.figures["shortest_prompt"] == 3
    show([timing])
    assert "3-12" in capsys.readouterr().out
    with pytest.raises(UnmaskError, match=r"shortest_prompt must be a whole number in \[1, 12\], got 13"):
        replace(workload, shortest_prompt=13)


def test_every_refresh_is_measured_with_every_other_size(model):
    workload = replace(
        SMALL, prompt_tokens=(12,), caches=("prefix", "dual"), refreshes=("block", "blocks:2"), repeats=1
    )
    seen = []
    timings = bench_generate(model, workload, ceilings=CEILINGS, on_progress=seen.append)
    found = [(timing.figures["batch"], timing.figures["cache"], timing.figures["refresh"]) for timing in timings]
    of_one_batch = [("prefix", "block"), ("prefix", "blocks:2"), ("dual", "block"), ("dual", "blocks:2")]
    assert found == [(batch, *rest) for batch in (1, 2) for rest in of_one_batch]
    assert all(timings[at].figures["floor_s"] < timings[at - 1].figures["floor_s"] for at in (1, 3, 5, 7))
    assert seen[0] == "measuring 1 of 8: prompt 12, batch 1, cache prefix"
    assert seen[1] == "measuring 2 of 8: prompt 12, batch 1, cache prefix, refresh blocks:2"


def test_single_steps_are_measured_with_one_refresh_only(model):
    workload = replace(SMALL, refreshes=("block", "drift:0.1"))
    with pytest.raises(UnmaskError, match=r"steps are measured with refresh='block', got 'drift:0\.1'"):
        bench_step(model, workload, ceilings=CEILINGS)


@pytest.mark.parametrize("quantize", ["int8", "fp8"])
def test_a_quantised_model_says_so_and_has_a_lower_floor(model, quantize):
    quantised = random_model(tiny_config("llada"), quantize=quantize)
    workload = replace(SMALL, prompt_tokens=(12,), batches=(1,), caches=("none",), repeats=1)
    (plain,) = bench_generate(model, workload, ceilings=CEILINGS)
    (whole,) = bench_generate(quantised, workload, ceilings=CEILINGS)
    (single,) = bench_step(quantised, workload, ceilings=CEILINGS)
    assert (plain.figures["quantized"], whole.figures["quantized"], single.figures["quantized"]) == (
        None,
        quantize,
        quantize,
    )
    call = call_of(rows=1, positions=28, keys=28, predicted=8)
    least = floor(model.shape, [call], 4, CEILINGS, quantized=True).seconds
    assert whole.figures["floor_s"] == pytest.approx(4 * least)
    assert single.figures["floor_ms"] == pytest.approx(1000 * least)
    assert whole.figures["floor_s"] < plain.figures["floor_s"]


def test_speed_of_requests_counts_everything_decoded(model):
    timings = bench_generate(model, SMALL, ceilings=CEILINGS)
    assert len(timings) == 12
    for timing in timings:
        assert timing.figures["forward_passes"] == 4
        assert timing.figures["fastest_s"] <= timing.figures["seconds"] <= timing.figures["slowest_s"]
        assert timing.figures["tokens_per_s"] == pytest.approx(timing.figures["batch"] * 16 / timing.figures["seconds"])
        told = timing.figures
        assert (told["tokens_per_pass"], told["ms_per_pass"]) == (
            4,
            pytest.approx(1000 * timing.figures["seconds"] / 4),
        )
        assert 0 < timing.figures["first_prefix_ms"] <= 1000 * timing.figures["slowest_s"]
        assert min(timing.figures["model_s"], timing.figures["policy_s"], timing.figures["rest_s"]) > 0


def test_a_model_of_unknown_sizes_has_times_but_no_floor(capsys):
    toy = unmask.load("toy").model
    workload = Workload(caches=("dual",), max_tokens=16, block_size=8, repeats=1)
    steps = bench_step(toy, workload, ceilings=CEILINGS)
    assert [(timing.figures["floor_ms"], timing.figures["ratio"]) for timing in steps] == [(None, None)] * 2
    (timing,) = bench_generate(toy, workload, ceilings=CEILINGS)
    for timings in (steps, [timing]):
        show(timings)
        heading, _, *rows = [line for line in capsys.readouterr().out.splitlines() if line.strip()][1:]
        assert heading.endswith("floor ms ")
        assert all(row.endswith("unknown ") for row in rows)
    assert timing.figures["floor_s"] is timing.figures["ratio"] is None
    assert json.dumps(timing.figures)


def test_progress_is_told(model):
    seen = []
    bench_generate(model, SMALL, ceilings=CEILINGS, on_progress=seen.append)
    assert seen[0] == "measuring 1 of 12: prompt 12, batch 1, cache none"
    assert len(seen) == 12


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--shape", "llada-8b"], "add --random-weights"),
        (["--shape", "llada-9b", "--random-weights"], "unknown shape 'llada-9b'; did you mean 'llada-8b'?"),
        (["--shape", "foo"], "unknown shape 'foo'; known: dream-7b, llada-8b, sdar-8b, tiny"),
        (["tiny", "--shape", "tiny"], "give a model or a shape, not both"),
        (["toy", "--random-weights"], "--random-weights needs --shape or a folder with a config.json, got 'toy'"),
        (["toy", "--cache", "duel"], "unknown cache 'duel'; did you mean 'dual'?"),
        (["toy", "--policy", "fixd"], "unknown policy 'fixd'; did you mean 'fixed'?"),
        (["toy", "--policy", "dapd", "--cache", "dual"], "cannot run with --cache dual"),
        (["toy", "--set", "passes=0"], "passes must be a whole number of at least 1"),
        (["toy", "--prompt-tokens", "4096"], "are more than the 4096 positions of toy"),
        (["toy", "--batch", "0"], "--batch must be a whole number of at least 1, got 0"),
        (["toy", "--batch", "1,8"], "got '1,8'; the flag may be repeated"),
        (["toy", "--repeats", "1,8"], "got '1,8'\n"),
    ],
)
@pytest.mark.parametrize("command", ["step", "generate"])
def test_a_wrong_command_is_one_line(command, arguments, complaint, capsys):
    assert run(["bench", command, *arguments, "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err
    assert len(captured.err.splitlines()) == 1


def test_steps_need_two_blocks(capsys):
    assert run(["bench", "step", "toy", "--max-tokens", "40"]) == 2
    assert "--max-tokens 40 is less than two blocks of 32" in capsys.readouterr().err


@pytest.mark.slow
def test_the_step_command_prints_a_table_and_json(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("llada")))
    arguments = ["bench", "step", str(tmp_path), "--random-weights", "--device", "cpu", "--prompt-tokens", "16"]
    arguments += ["--max-tokens", "16", "--block-size", "8", "--repeats", "1"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path.name} with random weights" in out
    assert "GB/s" in out
    assert "TFLOP/s" in out
    assert "…" not in out
    assert "weights, " not in out
    assert [word in out for word in ("whole canvas", "refresh", "block and suffix", "block only")] == [True] * 4
    assert run([*arguments, "--json", "--cache", "dual", "--set", "passes=4"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["refresh", "block only"]
    assert lines[1]["passes"] == 3
    assert lines[1]["policy"] == {"name": "fixed", "tokens_per_pass": 1, "passes": 4, "schedule": "even"}
    assert lines[1]["ratio"] == pytest.approx(lines[1]["ms"] / lines[1]["floor_ms"])
    assert {"model", "device", "device_name", "dtype", "threads", "copy_gb_per_s", "torch", "seed"} <= set(lines[0])
    assert lines[0]["quantized"] is None
    assert run([*arguments, "--cache", "dual", "--quantize", "fp8"]) == 0
    assert "float32, fp8 weights, " in capsys.readouterr().out
    assert run([*arguments, "--cache", "dual", "--quantize", "fp8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["quantized"] == "fp8"


def test_a_policy_that_no_cache_can_serve_is_measured_without_one(capsys):
    arguments = ["toy", "--device", "cpu", "--prompt-tokens", "8", "--max-tokens", "16", "--block-size", "8"]
    for command in ("step", "generate"):
        assert run(["bench", command, *arguments, "--policy", "dapd", "--repeats", "1", "--json"]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(line["cache"], line["policy"]["name"]) for line in told] == [("none", "dapd")]


def test_a_kind_of_pass_that_did_not_occur_is_named(capsys):
    arguments = ["bench", "step", "toy", "--device", "cpu", "--prompt-tokens", "8", "--max-tokens", "16"]
    arguments += ["--block-size", "8", "--repeats", "1", "--cache", "none", "--cache", "dual", "--json"]
    assert run([*arguments, "--set", "passes=1"]) == 0
    captured = capsys.readouterr()
    assert [json.loads(line)["kind"] for line in captured.out.splitlines()] == ["whole canvas", "refresh"]
    missing = "prompt 8, batch 1, cache dual: no pass of the kind 'block only' occurred in the second block"
    assert captured.err == f"unmask: {missing}\n"
    assert run(arguments) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("timed", [False, True])
def test_a_kind_of_pass_that_only_one_sort_of_run_had_is_named(timed, model, monkeypatch):
    workload = replace(SMALL, prompt_tokens=(12,), batches=(1,), refreshes=("block",), caches=("dual",), repeats=1)
    loads, run_passes, missing = loads_of(workload, model), decoding.run_passes, []

    def without_some(model, *arguments, **how):
        for found in run_passes(model.model, *arguments, **how):
            if found.kind == "refresh" or how["timed"] is timed:
                yield found

    elsewhere = Watched(model)
    elsewhere.device = torch.device("mps")  # where whole passes are timed in runs of their own
    monkeypatch.setattr(decoding, "run_passes", without_some)
    monkeypatch.setattr(decoding, "loads_of", lambda *given: loads)
    timings = bench_step(elsewhere, workload, ceilings=CEILINGS, on_missing=missing.append)
    assert [timing.figures["kind"] for timing in timings] == ["refresh"]
    assert ["'block only'" in line for line in missing] == [True]


def test_both_tables_tell_times_in_milliseconds(model, capsys):
    workload = replace(SMALL, prompt_tokens=(12,), batches=(1,), refreshes=("block",), repeats=1)
    parts = ["model ms", "policy ms", "rest ms", "floor ms"]
    timings = bench_generate(model, workload, ceilings=CEILINGS)
    show(timings)
    heading, _, row, *_ = [line for line in capsys.readouterr().out.splitlines() if line.strip()][1:]
    speed = ["ms", "p99 ms", "tokens/s", "kept/s", "ms/pass", "first ms"]
    headings = ["prompt", "batch", "cache", "passes", *speed, *parts, "ms / floor"]
    assert re.split(r"\s{2,}", heading.strip()) == headings
    shown = dict(zip(headings, row.split(), strict=True))
    assert float(shown["ms"]) == pytest.approx(1000 * timings[0].figures["seconds"], rel=0.01)
    assert float(shown["floor ms"]) == pytest.approx(1000 * timings[0].figures["floor_s"], rel=0.01)
    show(bench_step(model, workload, ceilings=CEILINGS))
    heading = [line for line in capsys.readouterr().out.splitlines() if line.strip()][1]
    assert re.split(r"\s{2,}", heading.strip())[4:] == ["ms", "10-90 % ms", *parts, "bound by", "ms / floor"]


def test_a_row_without_a_cache_has_no_refresh(model, capsys):
    workload = replace(SMALL, prompt_tokens=(12,), batches=(1,), caches=("none", "dual"), refreshes=("blocks:2",))
    timings = bench_generate(model, replace(workload, repeats=1), ceilings=CEILINGS)
    assert [timing.figures["refresh"] for timing in timings] == ["block", "blocks:2"]
    show(timings)
    *_, without, cached = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert (without[2:4], cached[2:4]) == (["none", "4"], ["dual", "blocks:2"])


@pytest.mark.slow
def test_the_generate_command_takes_rows_of_different_lengths(capsys):
    arguments = ["bench", "generate", "toy", "--device", "cpu", "--prompt-tokens", "8", "--max-tokens", "16", "--json"]
    arguments += ["--block-size", "8", "--batch", "3", "--repeats", "1", "--cache", "none", "--shortest-prompt", "2"]
    assert run(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    two = {"name": "fixed", "tokens_per_pass": 1, "passes": 2, "schedule": "even"}
    assert (told["shortest_prompt"], told["policy"]) == (2, two)


@pytest.mark.slow
def test_the_generate_command_prints_a_table_and_json(capsys):
    arguments = ["bench", "generate", "toy", "--device", "cpu", "--prompt-tokens", "8", "--prompt-tokens", "9"]
    arguments += ["--max-tokens", "16", "--block-size", "8", "--repeats", "1", "--cache", "dual"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "toy: " in out
    assert "tokens/s" in out
    assert "refresh" not in out
    for refreshes in (["blocks:2"], ["block", "blocks:2"]):
        assert run([*arguments, *(word for refresh in refreshes for word in ("--refresh", refresh))]) == 0
        heading, _, *rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()][1:]
        assert heading[:5] == ["prompt", "batch", "cache", "refresh", "passes"]
        sizes = [(prompt, "1", "dual", refresh) for prompt in ("8", "9") for refresh in refreshes]
        assert [tuple(row[:4]) for row in rows] == sizes
    assert run([*arguments, "--json", "--batch", "2", "--policy", "mean_field", "--refresh", "blocks:2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt_tokens"] for line in lines] == [8, 9]
    assert all(line["batch"] == 2 and line["refresh"] == "blocks:2" for line in lines)
    assert all(line["policy"]["name"] == "mean_field" for line in lines)
    assert all(line["tokens_per_s"] == pytest.approx(32 / line["seconds"]) for line in lines)
