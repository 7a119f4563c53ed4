import json

import pytest

import unmask
from unmask.errors import UnmaskError
from unmask.trace.record import SCHEMA, Trace
from unmask.types import Commit, StepEvent


@pytest.fixture(scope="module")
def out():
    toy = unmask.load("toy")
    return toy.generate("Hello", max_tokens=45, trace=unmask.Detail(candidates=3, overlap=True))


def test_a_saved_trace_reads_back_equal(out, tmp_path):
    out.trace.save(tmp_path / "run.jsonl")
    assert Trace.load(tmp_path / "run.jsonl") == out.trace


def test_lines_come_in_the_documented_order_with_the_documented_keys(out):
    lines = [json.loads(line) for line in out.trace.lines()]
    header, *steps, last = lines
    assert header["schema"] == SCHEMA == "unmask.trace/1"
    assert {"model", "policy", "settings", "prompts"} <= set(header)
    assert header["prompts"] == [{"text": "Hello<|answer|>", "token_ids": header["prompts"][0]["token_ids"]}]
    assert len(steps) == out.usage.forward_passes
    assert [line["step"] for line in steps] == list(range(len(steps)))
    assert set(steps[0]) == {"row", "step", "block", "committed", "remasked", "open", "overlap"}
    assert set(last) == {"row", "text", "finish_reason", "usage"}
    assert last["text"] == out.text


def test_the_trace_tells_how_every_token_came_to_be(out):
    commits = {c["position"]: (line["step"], c) for line in out.trace.steps for c in line["committed"]}
    first = len(out.trace.header["prompts"][0]["token_ids"])
    for offset, (token, step) in enumerate(zip(out.canvas_ids, out.step_map, strict=True)):
        found_step, commit = commits[first + offset]
        assert (found_step, commit["token_id"]) == (step, token)
        assert 0.0 < commit["probability"] <= 1.0
        assert commit["margin"] >= 0.0
        assert 0.0 < commit["intensity"] <= 1.0


def test_open_positions_list_their_likeliest_tokens_and_the_overlap_covers_them(out):
    line = out.trace.steps[0]
    assert [item["position"] for item in line["open"]] == list(range(*line["block"]))
    for item in line["open"]:
        probabilities = [p for _, p in item["candidates"]]
        assert len(probabilities) == 3
        assert probabilities == sorted(probabilities, reverse=True)
    size = len(line["open"])
    assert [len(row) for row in line["overlap"]] == [size] * size
    assert all(line["overlap"][i][i] == 0.0 for i in range(size))


def test_an_infinite_margin_is_null_because_json_has_no_infinity():
    trace = Trace(header={"schema": SCHEMA, "prompts": [{}]})
    commit = Commit(position=0, token_id=1, probability=1.0, margin=float("inf"))
    trace.add(StepEvent(row=0, step=0, block=(0, 1), committed=(commit,)), token_text=str)
    assert json.loads(trace.lines()[1])["committed"][0] == {
        "position": 0,
        "token_id": 1,
        "text": "1",
        "probability": 1.0,
        "margin": None,
        "intensity": None,
    }


def test_remasked_positions_are_recorded():
    toy = unmask.load("toy")
    out = toy.generate("Hello", policy=unmask.policies.Wino(draft_threshold=0.2, verify_threshold=0.99), trace=True)
    assert any(line["remasked"] for line in out.trace.steps)


def test_traces_of_a_batch_join_with_their_rows_numbered():
    toy = unmask.load("toy")
    outs = toy.generate(["Hello", "Bye"], max_tokens=10, trace=True)
    joined = Trace.join([out.trace for out in outs])
    assert [prompt["text"] for prompt in joined.header["prompts"]] == ["Hello<|answer|>", "Bye<|answer|>"]
    assert [line["row"] for line in joined.results] == [0, 1]
    assert {line["row"] for line in joined.steps} == {0, 1}


def test_the_prompt_of_an_infilled_text_keeps_its_masks():
    toy = unmask.load("toy")
    out = toy.infill("<|answer|>Eve[MASK]y mask[MASK]", trace=True)
    assert out.trace.header["prompts"][0]["text"].count("[MASK]") == 2


@pytest.mark.parametrize("content", ["", "{}\n", "not json\n", '{"schema": "unmask.trace/99"}\n'])
def test_a_file_that_is_not_a_trace_is_refused_in_one_line(content, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(UnmaskError, match="is not a trace") as error:
        Trace.load(path)
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_reported(out, tmp_path):
    with pytest.raises(UnmaskError, match="cannot write"):
        out.trace.save(tmp_path / "none" / "run.jsonl")
    with pytest.raises(UnmaskError, match="cannot read"):
        Trace.load(tmp_path / "none.jsonl")


def test_any_character_survives_a_trace(tmp_path):
    toy = unmask.load("toy")
    prompt = "caf\u00e9 \u2028 \u0085 \U0001f600"
    out = toy.generate(prompt, max_tokens=3, trace=True)
    out.trace.save(tmp_path / "run.jsonl")
    assert Trace.load(tmp_path / "run.jsonl").header["prompts"][0]["text"] == prompt + "<|answer|>"
