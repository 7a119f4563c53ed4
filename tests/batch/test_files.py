"""The files of a batch: what is refused before any work, and runs that were cut short anywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from batch.lines import answers_in, line_of, write

from unmask.batch import Progress, run
from unmask.errors import UnmaskError, WorkFailed

LINES = [line_of(f"r-{number}", {"prompt": f"é {number}"}) for number in range(5)]


def answer(line, *, status=200):
    costs = {"usage": {"completion_tokens": 3}, "decoding": {"forward_passes": 2}}
    body = {"text": line["body"]["prompt"], **costs} if status == 200 else {"error": {}}
    response = {"status_code": status, "request_id": "1", "body": body}
    return {"id": "batch_req_1", "custom_id": line["custom_id"], "response": response, "error": None}


def answering(lines, count: int = 0):
    """Answers all lines, the last one first."""
    return [answer(line) for line in reversed(list(lines))]


def never(lines, count: int = 0):
    pytest.fail("there is nothing to decode")


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "in.jsonl", LINES), tmp_path / "out.jsonl"


def test_answers_are_written_as_they_come_and_a_second_run_has_nothing_to_do(files):
    source, target = files
    sizes = []

    def complete(lines, count: int = 0):
        for line in lines:
            sizes.append(target.stat().st_size)
            yield answer(line)

    done = run(source, target, complete)
    assert sizes == sorted(set(sizes))  # the file had grown before the next line was read
    assert [json.loads(line)["custom_id"] for line in target.read_text().splitlines()] == [f"r-{n}" for n in range(5)]
    assert (done.total, done.before, done.done, done.tokens, done.passes) == (5, 0, 5, 15, 10)
    assert run(source, target, never) == Progress(total=5, before=5)


def test_a_run_cut_short_anywhere_is_taken_up_and_no_answer_is_lost_or_made_again(files):
    source, target = files
    run(source, target, answering)
    whole, expected = target.read_bytes(), answers_in(target)
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in {*range(0, len(whole), 25), *ends, *(at + 1 for at in ends)}:
        target.write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        asked = []

        def complete(lines, count, asked=asked):
            for line in lines:
                asked.append(line["custom_id"])
                yield answer(line)

        done = run(source, target, complete)
        assert answers_in(target) == expected
        assert (done.before, done.done) == (kept, 5 - kept)
        assert asked == [f"r-{n}" for n in range(5 - kept)]  # those of the end were answered first
        assert target.read_bytes().startswith(whole[:cut].rpartition(b"\n")[0])


def test_progress_is_told_at_the_start_and_after_each_answer(files):
    source, target = files
    told: list[Progress] = []
    run(source, target, lambda lines, _: [answer(line, status=500 if n == 1 else 200) for n, line in enumerate(lines)],
        on_progress=told.append)  # fmt: skip
    assert [progress.done for progress in told] == [0, 1, 2, 3, 4, 5]
    assert [progress.failed for progress in told] == [0, 0, 1, 1, 1, 1]
    assert [progress.tokens for progress in told] == [0, 3, 3, 6, 9, 12]


def test_an_answer_that_comes_twice_is_kept_once_and_one_that_never_comes_is_an_error(files):
    source, target = files
    with pytest.raises(WorkFailed, match="1 of 5 requests got no answer; the same command goes on"):
        run(source, target, lambda lines, _: [answer(line) for line in [*lines][:4] for _ in range(2)])
    assert len(answers_in(target)) == 4
    run(source, target, answering)
    assert len(answers_in(target)) == 5


def test_what_was_answered_before_an_error_stays(files):
    source, target = files

    def failing(lines, count: int = 0):
        yield answer(next(lines))
        raise WorkFailed("no device")

    with pytest.raises(WorkFailed, match="no device"):
        run(source, target, failing)
    assert set(answers_in(target)) == {"r-0"}


def test_blank_lines_a_last_line_without_an_end_and_odd_ids_are_taken(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    ids = ["\ud800", "\u2028", "a\nb", "ü" * 100]
    source.write_text("\n\n".join(["", *(json.dumps(line_of(key, {"prompt": key})) for key in ids)]) + "\r\n  ")
    run(source, target, answering)
    assert set(answers_in(target)) == set(ids)
    assert run(source, target, never).before == 4


GOOD = json.dumps(LINES[0])
WRONG = {
    "not JSON": ('{"custom_id": "x"', "is not JSON"),
    "NaN": ('{"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": NaN}', "NaN is no number"),
    "a name twice": ('{"custom_id": "x", "custom_id": "y"}', "has 'custom_id' twice in one object"),
    "not UTF-8": (b'{"custom_id": "\xff"}', "is not UTF-8"),
    "too deep": ("[" * 5000, "nested too deeply"),
    "a list": ("[]", "must be an object with custom_id, method, url and body"),
    "no id": ('{"method": "POST", "url": "/v1/completions", "body": {}}', "must be an object with custom_id"),
    "no body": ('{"custom_id": "x", "method": "POST", "url": "/v1/completions"}', "must be an object with custom_id"),
    "a number as id": (json.dumps({**LINES[0], "custom_id": 5}), "custom_id must be a string that is not empty, got 5"),
    "an empty id": (json.dumps({**LINES[0], "custom_id": ""}), "custom_id must be a string that is not empty, got ''"),
    "an id twice": (GOOD, "custom_id 'r-0' is there a second time"),
    "another method": (json.dumps({**LINES[1], "method": "GET"}), "POST to /v1/completions or /v1/chat/completions"),
    "another url": (json.dumps({**LINES[1], "url": "/v1/embeddings"}), "got 'POST' '/v1/embeddings'"),
    "no url": (json.dumps({**LINES[1], "url": ["/v1/completions"]}), "got 'POST' ['/v1/completions']"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_line_that_is_no_request_stops_the_batch_before_any_work_and_is_named(case, tmp_path):
    line, says = WRONG[case]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\n".join([GOOD.encode(), b"", line if isinstance(line, bytes) else line.encode()]) + b"\n")
    with pytest.raises(UnmaskError) as error:
        run(source, target, never)
    assert str(error.value).startswith(f"{source}, line 3")
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert not target.exists()


OTHERS = {
    "of other requests": json.dumps(answer(line_of("r-9", {"prompt": ""}))),
    "twice": "\n".join([json.dumps(answer(LINES[1]))] * 2),
    "no answers": "some notes",
    "other data": '["r-0"]',
    "an id that is no text": '{"custom_id": ["r-0"]}',
}


@pytest.mark.parametrize("case", OTHERS)
def test_an_output_file_of_other_requests_is_refused_and_left_as_it_is(case, files):
    source, target = files
    before = f"{json.dumps(answer(LINES[0]))}\n{OTHERS[case]}\n" + '{"half'
    target.write_text(before)
    with pytest.raises(UnmaskError, match=r"out.jsonl, line [23] is no answer to a request of .*in.jsonl, or a second"):
        run(source, target, never)
    assert target.read_text() == before


def test_files_that_cannot_be_used_are_refused(files, tmp_path):
    source, target = files
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "link.jsonl").symlink_to(source)
    for given, says in {
        (tmp_path / "none.jsonl", target): "cannot read .*none.jsonl: there is no such file",
        (tmp_path / "folder", target): "cannot read",
        (tmp_path / "empty.jsonl", target): "empty.jsonl has no requests",
        (source, tmp_path / "folder"): "cannot write .*folder: it is there, and it is no file",
        (source, Path(os.devnull)): "cannot write /dev/null: it is there, and it is no file",
        (source, source): "is input and output; choose another output file",
        (source, tmp_path / "link.jsonl"): "is input and output",
    }.items():
        with pytest.raises(UnmaskError, match=says):
            run(*given, never)
    assert not target.exists()
    assert len(source.read_text().splitlines()) == 5


def test_two_runs_do_not_write_one_file(files):
    source, target = files

    def complete(lines, count: int = 0):
        with pytest.raises(WorkFailed, match=r"another process writes .*out.jsonl; wait for it"):
            run(source, target, never)
        return answering(lines)

    run(source, target, complete)
    assert len(answers_in(target)) == 5
