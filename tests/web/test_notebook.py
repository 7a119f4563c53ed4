"""What outputs and batches look like in a notebook."""

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    "import unmask\nllm = unmask.load('toy', device='cpu')",
    "outs = llm.generate(['a', 'b', 'c'], max_tokens=4, trace=True)",
    "llm.generate('a', max_tokens=4)",
    "outs[0]",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own packages
def test_a_batch_shows_its_progress_and_an_output_itself():
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    updates: list[str] = []

    class Client(NotebookClient):
        def process_message(self, msg, cell, cell_index):
            if msg["msg_type"] == "update_display_data":
                updates.append(msg["content"]["data"]["text/html"])
            return super().process_message(msg, cell, cell_index)

    Client(book, timeout=120, kernel_name="python3").execute()
    assert "1 of 3 prompts" in updates[0]
    assert "3 of 3 prompts" in updates[-2]
    assert updates[-1] == ""
    plain, framed = (cell.outputs[-1]["data"]["text/html"] for cell in book.cells[2:])
    assert plain.startswith("<pre>")
    assert framed.startswith("<iframe")
