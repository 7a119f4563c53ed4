"""Benchmark files that are not what they should be: one line, which names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.evals.lm_tasks import loaders


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("test.jsonl", b"", r"test\.jsonl has no records"),
        ("test.jsonl", b"\xff\xfe\n", r"test\.jsonl cannot be read: .*utf-8"),
        ("test.jsonl", b'{"question": "1 + 1?"}\n', r"test\.jsonl, line 1: has no answer"),
        ("test.jsonl", b'\n{"question": "1 + 1?",\n', r"test\.jsonl, line 2: is not JSON"),
        ("test.jsonl", b"[1]\n", r"test\.jsonl, line 1: has no question, answer"),
        ("test.jsonl.gz", b"not packed", r"test\.jsonl\.gz cannot be read: Not a gzipped file"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / name).write_bytes(content)
    with pytest.raises(UnmaskError, match=complaint):
        loaders.records("gsm8k", str(tmp_path))
