"""Random damage to checkpoints and random chat templates: they work, or fail in one line; see fuzzing.py."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import cases, check_one_line, fuzz, tell
from hypothesis import given
from hypothesis import strategies as st

import unmask
from unmask.errors import UnmaskError
from unmask.models.checkpoint.chat_template import CHARACTERS, render
from unmask.models.checkpoint.loading import load_model

FEW = 200

HOSTILE: list[Any] = [
    *(0, -1, 1, 2, 7, 280, 10**6, 10**9, 2**31, 2**63, 10**30, 1e-300, 1e300, 0.5),
    *(float("nan"), float("inf"), None, True, False, "", "x", "\0", "\ud800", "é" * 1000, "<|mdm_mask|>"),
    *([], {}, [[]], [1], ["a"], {"a": 1}, {"content": 5}, [{"name": [], "template": 1}]),
    json.loads("[" * 800 + "]" * 800),
    *({"type": "Replace", "pattern": {"Regex": ""}, "content": "aa"}, {"type": "FixedLength", "length": 0}),
    *({"type": "Sequence", "normalizers": []}, {"type": "ByteLevel"}, {"String": ""}, {"Regex": "(a+a+)+b"}),
]  # fmt: skip
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
nested = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
values = st.sampled_from(HOSTILE) | nested
FILES = [
    *("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json"),
    *("generation_config.json", "special_tokens_map.json", "model.safetensors.index.json", "chat_template.jinja"),
    "model.safetensors",
]
KEYS = ["max_new_tokens", "block_length", "weight_map", "eos_token", "rope_parameters", "layer_types", "head_dim", "a"]

damages = st.one_of(
    st.tuples(st.just("value"), st.sampled_from([*FILES[:6], *FILES[:3] * 3]), st.lists(st.integers(0, 999)), values),
    st.tuples(st.just("key"), st.sampled_from(FILES[:9]), st.sampled_from(KEYS), values),
    st.tuples(st.just("bytes"), st.sampled_from(FILES), st.integers(0, 3000), st.binary(min_size=1, max_size=12)),
    st.tuples(st.just("cut"), st.sampled_from(FILES), st.integers(0, 3000), st.none()),
    st.tuples(st.just("whole"), st.sampled_from(FILES), st.none(), st.binary(max_size=20)),
    st.tuples(st.just("header"), st.just("model.safetensors"), st.lists(st.integers(0, 999), max_size=4), values),
)


def change_at(found: Any, path: list[int], value: Any) -> Any:
    """The data with the value at a place; each number of the path chooses a child."""
    children = list(found) if isinstance(found, dict) else list(range(len(found))) if isinstance(found, list) else []
    if not path or not children:
        return value
    child = children[path[0] % len(children)]
    found[child] = change_at(found[child], path[1:], value)
    return found


def damage(folder: Path, kind: str, name: str, where: Any, what: Any) -> None:
    path = folder / name
    before = path.read_bytes() if path.exists() else b""
    if kind == "bytes":
        path.write_bytes(before[:where] + what + before[where + len(what) :])
    elif kind == "cut":
        path.write_bytes(before[:where])
    elif kind == "whole":
        path.write_bytes(what)
    elif kind == "header":
        size = int.from_bytes(before[:8], "little")
        try:
            header = json.dumps(change_at(json.loads(before[8 : 8 + size]), where, what)).encode()
        except ValueError:
            return
        path.write_bytes(len(header).to_bytes(8, "little") + header + before[8 + size :])
    else:
        try:
            data = json.loads(before or b"{}")
        except ValueError:
            return
        if kind == "value":
            data = change_at(data, where or [0], what)
        elif isinstance(data, dict):
            data[where] = what
        path.write_text(json.dumps(data))


@pytest.mark.slow
def test_a_damaged_checkpoint_decodes_or_is_refused_in_one_line(
    make_llada: Callable[..., Path], make_dream: Callable[..., Path], make_sdar: Callable[..., Path], tmp_path: Path
) -> None:
    originals, ends = [make_llada(), make_dream(), make_sdar()], Counter[str]()

    @fuzz(FEW)
    @given(st.sampled_from(originals), st.lists(damages, min_size=1, max_size=3))
    def one(original: Path, done: list[tuple[str, str, Any, Any]]) -> None:
        shutil.rmtree(tmp_path, ignore_errors=True)
        shutil.copytree(original, tmp_path)
        try:
            for each in done:
                damage(tmp_path, *each)
            end = "refused"
            loaded = load_model(tmp_path, device="cpu")
            end = "failed later"
            llm = unmask.Generator(loaded)
            llm.generate("hello mask", max_tokens=4, block_size=4)
            if llm.codec.chat_template is not None:
                llm.codec.chat([{"role": "user", "content": "hello"}])
            end = "decoded"
        except UnmaskError as error:
            check_one_line(error)
        ends[end] += 1

    one()
    assert min(ends["refused"], ends["decoded"]) > cases(FEW) // 20, ends
    tell(ends)


PIECES = [
    *("{{ messages }}", "{{ messages[0].content }}", "text", "{{ bos_token }}", "{% set x = [1] * 3000 %}"),
    *("{{ 'a' * 10 ** 9 }}", "{{ 'a' * 10 ** 12 }}", "{{ 10 ** 10 ** 9 }}", "{{ '%999999999d' % 1 }}", "{{ 1 / 0 }}"),
    *("{{ range(10 ** 9) | list }}", "{{ lipsum(n=99999) }}", "{{ 'a'.ljust(10 ** 10) }}", "{{ self.__init__ }}"),
    *("{% include 'x' %}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ x.y.z }}", "{% break %}"),
    *("{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "{%"),
    *("{{", "}}", "{{ raise_exception(1) }}"),
    *("{{ strftime_now('%Y' * 99) }}", "{{ messages | tojson(indent=10 ** 9) }}", "{{ cycler('a').next() }}", "{#"),
]  # fmt: skip
AROUND = [
    "{% for a in range(99999) %}[]{% endfor %}",
    "{% for m in messages %}[]{% endfor %}",
    "{% if messages %}[]{% endif %}",
    "{% generation %}[]{% endgeneration %}",
    "{% macro g(n) %}[]{% endmacro %}{{ g(1) }}",
    "{% set s %}[]{% endset %}{{ s * 99999 }}",
    "{% filter upper %}[]{% endfilter %}",
]
templates = st.recursive(
    st.sampled_from(PIECES) | st.text(max_size=5),
    lambda inner: (
        st.builds(lambda around, text: around.replace("[]", text), st.sampled_from(AROUND), inner)
        | st.lists(inner, max_size=3).map("".join)
    ),
    max_leaves=8,
)


@pytest.mark.slow
def test_a_random_template_renders_or_is_refused_in_one_line() -> None:
    ends = Counter[str]()

    @fuzz(FEW)
    @given(templates)
    def one(template: str) -> None:
        try:
            text = render(template, [{"role": "user", "content": "hi"}], {"bos_token": "<s>"}, True, seconds=0.2)
            assert len(text) <= CHARACTERS
            ends["rendered"] += 1
        except UnmaskError as error:
            check_one_line(error)
            ends["took too long" if "took more than" in str(error) else "refused"] += 1

    one()
    assert min(ends.values()) > 0, ends
    assert len(ends) == 3, ends
    tell(ends)
