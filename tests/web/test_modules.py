"""The parts of the page that compute, called in a browser."""

import json

import pytest
from web.lines import first_version, three_passes

MODULES = ["run", "sse", "board", "chart", "words", "save"]


@pytest.fixture
def call(open_page, toy_served):
    """Calls an exported function, with plain data."""
    page = open_page(toy_served.url)

    def call_(expression: str, *given):
        load = "await Promise.all(names.map((name) => import(`/assets/${name}.js`)))"
        code = f"async ([names, given]) => ({expression})(Object.assign({{}}, ...{load}), ...given)"
        return page.evaluate(code, [MODULES, list(given)])

    return call_


READ = """({ eventReader }, pieces) => {
  const heard = [];
  const read = eventReader((name, data) => heard.push([name, data]));
  pieces.forEach(read);
  return heard;
}"""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_read_wherever_the_stream_is_cut(end, call):
    lines = [
        "event: pass",
        'data: {"a": "é"}',
        "",
        ": still here",
        "",
        "data: one",
        "data: two",
        "",
        "data: [DONE]",
        "",
        "x",
    ]
    stream = end.join(lines)
    expected = [["pass", '{"a": "é"}'], ["message", "one\ntwo"], ["message", "[DONE]"]]
    for cut in range(len(stream)):
        assert call(READ, [stream[:cut], stream[cut:]]) == expected
    assert call(READ, list(stream)) == expected


STATES = """({ runsOf }, lines) => {
  const [run] = runsOf(lines);
  const shown = (cell) => cell.kind === "open" ? `(${cell.guess})` : cell.text;
  return [0, 1, 2, 3].map((pass) => run.cells(pass).map(shown));
}"""


def test_the_canvas_after_each_pass(call):
    assert call(STATES, three_passes()) == [
        ["the", "(null)", "(null)", "(null)"],
        ["the", "cat", " sat", "( ran)"],
        ["the", "cat", "( sat)", "( ran)"],
        ["the", "cat", " ran", "(.)"],
    ]


def test_an_older_trace_gives_the_same_canvas_with_ids_for_missing_texts(call):
    assert call(STATES, first_version())[3] == ["the", "cat", " ran", "(#1)"]


def test_a_saved_run_has_the_lines_that_it_was_read_from(call):
    lines = three_passes()
    assert call("({ runsOf, linesOf }, lines) => linesOf(runsOf(lines)[0])", lines) == lines


def test_an_infilled_text_of_an_older_trace_has_its_holes_where_tokens_came(call):
    lines = first_version()
    lines[0]["prompts"] = [{"text": "the [M] [M] end", "token_ids": [7, 0, 0, 4]}]
    for line in lines[1:-1]:
        line["open"] = [one for one in line["open"] if one["position"] < 3]
    holes = call("({ runsOf }, lines) => runsOf(lines)[0].holes", lines)
    assert holes == [1, 2]


def test_a_digit_twice_in_a_row_a_column_or_a_box_is_a_clash(call):
    clash = "({ clashes }, digits, side) => [...clashes(digits, side)].sort((a, b) => a - b)"
    empty = [None] * 16
    row, column, box, apart = list(empty), list(empty), list(empty), list(empty)
    row[0] = row[3] = "1"
    column[1] = column[13] = "2"
    box[0] = box[5] = "3"
    apart[0] = apart[6] = "3"
    assert [call(clash, board, 4) for board in (row, column, box, apart)] == [[0, 3], [1, 13], [0, 5], []]


def test_ticks_are_round_and_within(call):
    assert call("({ ticks }) => ticks([0, 82])") == [0, 20, 40, 60, 80]
    assert call("({ ticks }) => ticks([0, 1])") == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert call("({ ticks }) => ticks([0, 2], true)") == [0, 1, 2]
    assert call("({ ticks }) => ticks([3, 3])") == [3]


def test_numbers_read_as_they_are(call):
    texts = call("({ number }, values) => values.map(number)", [0.5, 0, 1, 12.34, 123.4, 0.00001, None, -0.25])
    assert texts == ["0.500", "0", "1.000", "12.3", "123", "1.0e-5", "–", "-0.250"]


def test_a_request_reads_as_python(call):
    body = {"prompt": 'a"b\n', "stream": True, "decoding": {"passes": None, "stop": ["x"]}}
    code = call("({ asPython }, body) => asPython('http://h/v1', body, false, false)", body)
    found: dict = {}
    line = next(one for one in code.splitlines() if "extra_body" in one)
    exec(line.strip().rstrip(","), found)
    assert found["extra_body"] == {"decoding": body["decoding"]}
    assert f"prompt={json.dumps(body['prompt'])}" in code
