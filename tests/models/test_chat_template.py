"""Templates are other people's programs: what they may use, and what becomes of their failures."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.errors import CheckpointError, UnmaskError
from unmask.models.checkpoint.chat_template import render

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def rendered(template: str, **special_tokens: str) -> str:
    return render(template, HELLO, special_tokens, add_generation_prompt=True)


def refusal(template: str, messages: Any = HELLO) -> str:
    with pytest.raises(UnmaskError) as caught:
        render(template, messages, {}, add_generation_prompt=True)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_block_lines_leave_no_blank_lines() -> None:
    template = (
        "{% for message in messages %}\n    {% if true %}\n{{ message.content }}\n    {% endif %}\n{% endfor %}\n"
    )
    assert rendered(template) == "hello\n"


def test_special_tokens_are_variables() -> None:
    assert (
        rendered("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", bos_token="<s>", eos_token="</s>")
        == "<s>hello</s>"
    )


def test_json_is_written_without_html_escapes() -> None:
    assert rendered("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'


def test_absent_tools_and_documents_are_none() -> None:
    assert rendered("{{ tools is none and documents is none }}") == "True"


def test_loops_may_be_left_early() -> None:
    assert rendered("{% for n in range(5) %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}") == "01"


def test_generation_marks_are_transparent() -> None:
    assert rendered("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c") == "abuserc"


def test_the_date_is_available() -> None:
    assert len(rendered("{{ strftime_now('%Y-%m-%d') }}")) == len("2000-01-01")


def test_a_template_may_refuse_the_messages() -> None:
    expected = "the chat template refused the messages: roles must alternate"
    assert refusal("{{ raise_exception('roles must\nalternate') }}") == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ '%s' | attr('__class__') | attr('mro') }}{{ ''['__class__'].mro() }}",
    ],
)
def test_a_template_cannot_reach_python(template: str) -> None:
    assert refusal(template).startswith("the chat template refused the messages: ")
    assert HELLO == [{"role": "user", "content": "hello"}]


def test_a_template_that_fails_is_one_line() -> None:
    assert refusal("{{ 1 / 0 }}") == "the chat template refused the messages: division by zero"


def test_a_template_that_is_not_jinja_is_said() -> None:
    with pytest.raises(CheckpointError, match=r"^the chat template is not valid: "):
        rendered("{% for %}")


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "messages must be a list of at least one message, got []"),
        ([{"role": "user"}], "message 0 must have a content that is a string, got None"),
        ([{"content": "x"}], "message 0 must have a role that is a string, got None"),
        ([*HELLO, {"role": "user", "content": ["x"]}], "message 1 must have a content that is a string, got ['x']"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, problem: str) -> None:
    assert refusal("{{ messages }}", messages) == problem
