"""Templates are other people's programs: what they may use, and what becomes of their failures."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from unmask.errors import CheckpointError, UnmaskError
from unmask.models.checkpoint import chat_template
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
    assert rendered("{{ {'a': 'é'} | tojson(true) }}") == '{"a": "\\u00e9"}'
    assert rendered("{{ {'a': 'é'} | tojson(false, 2) }}") == '{\n  "a": "é"\n}'
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


def test_a_message_that_is_no_mapping_is_shown() -> None:
    unchecked = inspect.unwrap(chat_template._check)  # without the type checks that only tests have
    with pytest.raises(UnmaskError, match=r"^message 0 must have a role and a content, got 'hi'$"):
        unchecked(["hi"])


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_without_end_is_ended(template: str) -> None:
    with pytest.raises(UnmaskError, match=r"^the chat template took more than 0\.2 s, or brought its process down$"):
        render(template, HELLO, {}, add_generation_prompt=True, seconds=0.2)
    assert rendered("{{ messages[0].content }}") == "hello"


@pytest.mark.parametrize(
    "template",
    ["{{ 'a' * 4000001 }}", "{{ 'a' * 10 ** 10 }}", "{{ '%9999999999d' % 1 }}", "{{ [messages] * 10 ** 9 }}"],
)
def test_a_template_that_makes_too_much_is_refused(template: str) -> None:
    assert refusal(template).startswith("the chat template refused the messages: ")


@pytest.mark.parametrize(
    "template",
    ["{% if 1 %}" * 30_000 + "{% endif %}" * 30_000, "{{ " + "(" * 30_000 + ")" * 30_000 + " }}", "{% if 1 %}" * 99],
    ids=["statements", "expressions", "open"],
)
def test_a_template_nested_too_deeply_is_one_line(template: str) -> None:
    assert refusal(template)


def test_messages_that_are_no_plain_data_are_refused() -> None:
    expected = "messages must be plain data, as JSON has it: Object of type set is not JSON serializable"
    assert refusal("{{ messages }}", [{"role": "user", "content": "x", "more": {1}}]) == expected


def test_conversations_of_many_threads_do_not_mix() -> None:
    def one(number: int) -> str:
        messages = [{"role": "user", "content": str(number)}]
        return render("{{ messages[0].content }}", messages, {}, add_generation_prompt=True)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, range(100))) == [str(number) for number in range(100)]
