"""What is of no type that a call takes: said in one line, where nothing checks types before us."""

import json
import subprocess
import sys

PROGRAM = """
import json, torch, unmask
from unmask.engine.scheduler import Scheduler

toy = unmask.load("toy")
message = {"role": "user", "content": "x"}
calls = {
    "stream(5)": lambda: toy.stream(5),
    "stream(None)": lambda: toy.stream(None),
    "stream(floats)": lambda: toy.stream([1.5]),
    "stream(ids)": lambda: toy.stream([10**9]),
    "stream(message)": lambda: toy.stream(message),
    "generate(mixed)": lambda: toy.generate(["a", 3]),
    "loglikelihood": lambda: toy.loglikelihood("a", [10**9]),
    "chat(text)": lambda: toy.chat("x"),
    "chat(message)": lambda: toy.chat(message),
    "trace": lambda: toy.stream("x", trace="run.jsonl"),
    "timed": lambda: toy.stream("x", timed=True),
    "detail": lambda: unmask.Detail(candidates=-1),
    "forward(None)": lambda: toy.forward(None),
    "forward(floats)": lambda: toy.forward(torch.zeros(2, 2)),
    "forward(complex)": lambda: toy.forward(torch.zeros(2, 2, dtype=torch.complex64)),
    "forward(cube)": lambda: toy.forward([[[1]]]),
    "forward(nothing)": lambda: toy.forward([]),
    "forward(large)": lambda: toy.forward([1, 10**6]),
    "forward(negative)": lambda: toy.forward([-1]),
    "decode(text)": lambda: list(toy.decode(Scheduler(["x"]))),
}
said = {}
for name, call in calls.items():
    try:
        call()
    except unmask.UnmaskError as error:
        said[name] = str(error)
print(json.dumps(said))
"""

PROMPT, MESSAGES = "a prompt is a text, or a list of token ids in", "messages must be a list such as"
ROWS = "token_ids must be a list of ids, or rows (b, n) of equal length"
EXPECTED = {
    **dict.fromkeys(["stream(5)", "stream(None)", "stream(floats)", "stream(ids)", "stream(message)"], PROMPT),
    **dict.fromkeys(["generate(mixed)", "loglikelihood"], PROMPT),
    **dict.fromkeys(["chat(text)", "chat(message)"], MESSAGES),
    "trace": "trace must be true, false or a Detail, got 'run.jsonl'",
    "timed": "timed is for generate, chat and infill only",
    "detail": "candidates must be a whole number of at least 0, got -1",
    "forward(None)": ROWS,
    "forward(floats)": f"{ROWS}, got torch.float32 of the shape (2, 2)",
    "forward(complex)": f"{ROWS}, got torch.complex64 of the shape (2, 2)",
    "forward(cube)": f"{ROWS}, got torch.int64 of the shape (1, 1, 1)",
    "forward(nothing)": f"{ROWS}, got torch.float32 of the shape (0,)",
    **dict.fromkeys(["forward(large)", "forward(negative)"], "token ids must be in [0, "),
    "decode(text)": "what waits must be made by `request`, got str",
}


def test_every_wrong_argument_is_answered_in_one_line():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said.keys() == EXPECTED.keys()
    for name, beginning in EXPECTED.items():
        assert said[name].startswith(beginning), name
        assert "\n" not in said[name]
