import re

import pytest

from unmask.tasks.word_problems import STORIES, WordProblems, final_number, parse


@pytest.fixture(scope="module")
def items():
    return WordProblems().generate(0, 1500)


def test_there_are_forty_stories_and_more_of_two_to_six_steps():
    assert len(STORIES) >= 40
    assert len({story.name for story in STORIES}) == len(STORIES)
    assert {len(story.steps) for story in STORIES} == {2, 3, 4, 5, 6}
    assert all(len(wordings) >= 2 for story in STORIES for wordings in story.told)


def test_every_story_is_told(items):
    assert {item.kind for item in items} == {story.name for story in STORIES}


def test_every_equation_of_a_worked_answer_holds(items):
    for item in items:
        equations = re.findall(r"([0-9*/+-]+)=([0-9]+)", item.answer)
        assert 2 <= len(equations) <= 6
        for formula, result in equations:
            assert eval(formula) == int(result), item
        assert final_number(item.answer) == int(equations[-1][1])


def test_no_slot_is_left_unfilled(items):
    assert not any("{" in item.prompt + item.answer for item in items)


def test_numbers_come_as_digits_words_and_with_separators(items):
    prompts = " ".join(item.prompt for item in items)
    assert re.search(r"\b(three|seven|a dozen)\b", prompts)
    assert re.search(r"\b[1-9],[0-9]{3}\b", prompts)
    assert "$" in prompts
    assert "%" in prompts


@pytest.mark.parametrize(
    ("text", "number"),
    [("so\n#### 42", 42), ("#### 1,250.", 1250), ("#### $7", 7), ("#### 42.00", 42), ("####42 #### 7", 42)],
)
def test_the_final_number_is_read_in_its_usual_forms(text, number):
    assert final_number(text) == number


@pytest.mark.parametrize("text", ["42", "#### many", "#### x #### 42", "#### 4.5", "", "####", "####" * 3000])
def test_without_a_final_number_there_is_none(text):
    assert final_number(text) is None


def test_only_the_result_decides(items):
    item = items[0]
    result = final_number(item.answer)
    assert WordProblems().check(item, f"No steps at all. #### {result}")
    assert not WordProblems().check(item, item.answer.replace(f"#### {result}", f"#### {result + 1}"))


ROPE = """
rope: l=3..25, c=5..60 by 5, a=l*4+c
  from {a} meters of rope {A} uses {c}.
  | {A} has {a} meters of rope and cuts off {c}.
  the rest is cut into pieces of {l} meters. | {he} makes pieces of {l} meters.
  ? How many pieces are there? | How many pieces does {he} get?
  > {p=a-c} meters are left.
  > that makes {r=p/l} pieces.
"""


def test_a_story_is_read_from_its_notation():
    (rope,) = parse(ROPE)
    assert rope.numbers == {"l": range(3, 26), "c": range(5, 61, 5), "a": "l*4+c"}
    assert rope.told[0] == ["from {a} meters of rope {A} uses {c}.", "{A} has {a} meters of rope and cuts off {c}."]
    assert rope.asked == ["How many pieces are there?", "How many pieces does {he} get?"]
    assert rope.steps == [("p", "a-c", "{} meters are left."), ("r", "p/l", "that makes {} pieces.")]


WORDS = {"A", "B", "goods", "other", "food", "fruit", "he", "his", "him"}
# Products first: computed from left to right, a formula has its usual value.
FORMULA = re.compile(r"[a-z]([*/]([a-z]|[0-9]+))*([-+]([a-z]|[0-9]+))*")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_story_uses_what_it_gives_and_has_no_stray_mark(story):
    given = set()
    for name, rule in [*story.numbers.items(), *((name, formula) for name, formula, _ in story.steps)]:
        assert name not in given
        assert rule
        if isinstance(rule, str):
            assert FORMULA.fullmatch(rule)
            assert set(re.findall("[a-z]", rule)) <= given
        given.add(name)
    told = [(text, WORDS | story.numbers.keys()) for wordings in (*story.told, story.asked) for text in wordings]
    worked = [(sentence.replace("{}", "", 1), WORDS) for _, _, sentence in story.steps]
    for text, known in told + worked:
        assert set(re.findall(r"\{(\w+)\}", text)) <= known
        assert re.fullmatch(r" ?([^{}|>\n]|\{\w+\})+[.?]", text)
