import asyncio
import json
import math
from pathlib import Path

import pytest

import unmask
from unmask.engine.scheduler import Scheduler
from unmask.errors import UnmaskError
from unmask.trace.record import SCHEMA, Trace, pass_line
from unmask.types import Commit, Open, StepEvent


def toy_text(token: int) -> str:
    return unmask.load("toy").codec.token_text(token)


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
    assert header["schema"] == SCHEMA == "unmask.trace/2"
    assert {"model", "mask_id", "policy", "settings", "prompts"} <= set(header)
    [prompt] = header["prompts"]
    assert set(prompt) == {"text", "token_ids", "tokens", "holes"}
    assert prompt["text"] == "Hello<|answer|>"
    assert prompt["tokens"] == [*"Hello", "<|answer|>"]
    assert len(prompt["token_ids"]) == 6
    assert prompt["holes"] == list(range(6, 6 + 45))
    assert len(steps) == out.usage.forward_passes
    assert [line["step"] for line in steps] == list(range(len(steps)))
    assert set(steps[0]) == {"row", "step", "block", "committed", "remasked", "refreshed", "open", "overlap"}
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
        assert item["texts"] == [toy_text(token) for token, _ in item["candidates"]]
    size = len(line["open"])
    assert [len(row) for row in line["overlap"]] == [size] * size
    assert all(line["overlap"][i][i] == 0.0 for i in range(size))


def test_an_open_position_has_the_score_margin_and_intensity_of_its_best_token(out):
    for line in out.trace.steps:
        scores = {item["position"]: item for item in line["open"]}
        for commit in line["committed"]:
            found = scores[commit["position"]]
            assert (found["margin"], found["intensity"]) == (commit["margin"], commit["intensity"])
            assert found["candidates"][0][0] == commit["token_id"]
        assert all(math.isfinite(item["score"]) for item in line["open"])


def test_numbers_that_are_not_finite_are_null_because_json_has_no_infinity():
    inf = float("inf")
    commit = Commit(position=0, token_id=1, probability=1.0, margin=inf)
    opened = Open(position=0, candidates=((1, 1.0),), score=-inf, margin=inf)
    event = StepEvent(row=3, step=0, block=(0, 1), committed=(commit,), open=(opened,), overlap=[[float("nan")]])
    assert pass_line(0, event, str) == {
        "row": 0,
        "step": 0,
        "block": [0, 1],
        "committed": [
            {"position": 0, "token_id": 1, "text": "1", "probability": 1.0, "margin": None, "intensity": None}
        ],
        "remasked": [],
        "refreshed": False,
        "open": [
            {
                "position": 0,
                "score": None,
                "margin": None,
                "intensity": None,
                "candidates": [[1, 1.0]],
                "texts": ["1"],
            }
        ],
        "overlap": [[None]],
    }


def test_without_detail_a_line_has_no_open_positions():
    events = []
    unmask.load("toy").generate("Hello", max_tokens=4, on_step=events.append)
    line = pass_line(0, events[0], str)
    assert line["open"] == []
    assert line["committed"][0]["probability"] is None
    assert "overlap" not in line


def test_a_streamed_output_has_the_trace_of_a_whole_one():
    toy = unmask.load("toy")
    detail = unmask.Detail(candidates=2, overlap=True)
    events = list(toy.stream("Hello", max_tokens=30, trace=detail))
    whole = toy.generate("Hello", max_tokens=30, trace=detail)
    assert events[-1].output == whole
    assert [len(event.step.open) for event in events] == [len(line["open"]) for line in whole.trace.steps]

    async def last():
        return [event async for event in toy.astream("Hello", max_tokens=30, trace=detail)][-1]

    assert asyncio.run(last()).output.trace == whole.trace


def test_commits_have_their_texts_without_a_trace():
    toy = unmask.load("toy")
    events = []
    out = toy.generate("Hello", max_tokens=20, on_step=events.append)
    texts = {commit.position: commit.text for event in events for commit in event.committed}
    assert "".join(texts[position] for position in sorted(texts)) == out.text
    streamed = {c.position: c.text for event in toy.stream("Hello", max_tokens=20) for c in event.step.committed}
    assert streamed == texts


class Wrong(unmask.policies.Threshold):
    """Fails on a text whose first block is open after two passes."""

    name = "wrong"

    def select(self, view, state=None):
        if int(view.step.max()) > 1:
            raise UnmaskError("the second pass was\none too many")
        return super().select(view, state)


def test_the_result_line_of_a_row_that_failed_says_why():
    toy = unmask.load("toy")
    request = toy.request("Hello", policy=Wrong(threshold=1.0), max_tokens=9, trace=True)
    events = [event for _, event in toy.decode(Scheduler([request]))]
    assert events[-1].output is None
    assert request.trace.results == [{"row": 0, "error": "the second pass was one too many"}]
    assert len(request.trace.steps) == 3


def test_a_repr_is_one_short_line(out):
    event = StepEvent(row=0, step=3, block=(10, 42), committed=(Commit(position=1, token_id=2, text="x" * 999),) * 5)
    assert repr(event) == "StepEvent(row=0, step=3, block=(10, 42), committed=5)"
    last = list(unmask.load("toy").stream("Hello", max_tokens=20, trace=True, policy="fixed"))[-1]
    assert "open=1, finished=True" in repr(last)
    failed = StepEvent(row=0, step=0, block=(0, 1), committed=(), error=UnmaskError("no " * 500))
    for shown in (last, out.trace, event.committed[0], failed):
        assert len(repr(shown)) < 200
        assert "\n" not in repr(shown)


def test_a_file_of_the_first_version_is_still_read(tmp_path):
    path = Path(__file__).with_name("schema1.jsonl")
    trace = Trace.load(path)
    assert trace.header["schema"] == "unmask.trace/1"
    assert trace.header["prompts"][1] == {"text": "Bye<|answer|>", "token_ids": [33, 88, 68, 259]}
    assert [line["usage"]["forward_passes"] for line in trace.results] == [2, 2]
    assert set(trace.steps[0]["open"][0]) == {"position", "candidates"}
    trace.save(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


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
    [prompt] = out.trace.header["prompts"]
    assert prompt["text"].count("[MASK]") == 2
    masks = [position for position, token in enumerate(prompt["tokens"]) if token == "[MASK]"]
    assert prompt["holes"] == masks == [4, 11]
    behind = toy.infill("<|answer|>Every mas[MASK]", trace=True).trace.header["prompts"][0]
    assert behind["holes"] == [len(behind["tokens"]) - 1]


def test_the_gap_before_a_suffix_is_part_of_the_canvas():
    toy = unmask.load("toy")
    request = toy.request("Every ", suffix="ask", max_tokens=2, trace=True)
    [prompt] = request.trace.header["prompts"]
    assert prompt["tokens"] == [*"Every ", "<|answer|>", "[MASK]", "[MASK]", *"ask"]
    assert prompt["holes"] == [7, 8]


@pytest.mark.parametrize("content", ["", "{}\n", "not json\n", "7\n", '{"schema": "unmask.trace/99"}\n'])
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
