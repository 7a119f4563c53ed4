"""The viewer, as one file opened from a disk."""

import json
import re

import pytest
from playwright.sync_api import expect
from web.lines import HOSTILE, first_version, three_passes, two_rows

from unmask.web import document, frame


def cells(page) -> list[str]:
    expect(page.locator(".cell")).to_have_count(4)
    return page.locator(".cell").all_inner_texts()


def show(page, number: int) -> None:
    page.get_by_label("Pass", exact=True).fill(str(number))
    expect(page.locator(".count")).to_have_text(re.compile(f"^pass {number} of "))


def test_the_canvas_is_what_it_was_after_each_pass(open_page, exported):
    page = open_page(exported(three_passes()))
    show(page, 0)
    expect(page.locator(".cell.open")).to_have_count(3)
    show(page, 1)
    expect(page.locator(".cell.done.fresh")).to_have_count(2)
    assert cells(page) == ["the", "cat", " sat", " ran"]
    assert page.locator("#cell-0-3").get_attribute("aria-label") == "position 3: open, perhaps ␣ran, 0.400"
    show(page, 2)
    expect(page.locator(".cell.reopened")).to_have_count(1)
    expect(page.locator(".cell.fresh")).to_have_count(0)
    show(page, 3)
    expect(page.locator("#cell-0-2.fresh")).to_have_text(" ran")
    expect(page.locator("#cell-0-3.left")).to_have_attribute("aria-label", "position 3: never decoded")


def test_figures_say_what_it_cost(open_page, exported):
    page = open_page(exported(three_passes()))
    expect(page.locator(".figures dt").first).to_be_visible()
    names, values = (page.locator(f".figures {tag}").all_inner_texts() for tag in ("dt", "dd"))
    figures = dict(zip(names, values, strict=True))
    assert figures["Pass"] == "3 of 3"
    assert figures["Filled"] == "2 of 3"
    assert figures["Tokens per pass"] == "0.67"
    assert "Time" not in figures


def test_a_position_is_explained_by_its_numbers_and_nothing_else(open_page, exported):
    page = open_page(exported(three_passes()))
    show(page, 1)
    page.locator("#cell-0-1").click()
    why = page.locator(".why li")
    expect(why).to_have_text(
        [
            "Committed in pass 1: cat.",
            "Its intensity 0.950 reaches the threshold 0.85.",
            "1st of 3 by score; the pass committed the 2 best.",
            "Overlaps most with position 2 (0.500), position 3 (0.250).",
        ]
    )
    expect(page.locator(".candidates li").first).to_contain_text("0.950")
    page.locator("#cell-0-3").click()
    expect(why.nth(1)).to_have_text("Its intensity 0.400 is below the threshold 0.85.")
    label = "Over passes 1 to 3: best probability from 0.400 to 0.600"
    expect(page.locator(".course svg")).to_have_attribute("aria-label", label)
    page.locator("#cell-0-0").click()
    expect(page.locator(".inspected")).to_contain_text("Part of the prompt: the, token 7.")


def test_a_policy_that_is_not_known_gets_no_reason(open_page, exported):
    lines = three_passes()
    lines[0]["policy"] = {"name": "mine", "threshold": 0.85}
    page = open_page(exported(lines))
    show(page, 1)
    page.locator("#cell-0-1").click()
    expect(page.locator(".why")).not_to_contain_text("threshold")


def test_the_heat_map_names_two_positions_and_their_overlap(open_page, exported):
    page = open_page(exported(three_passes()))
    show(page, 1)
    heat = page.locator(".heat canvas")
    heat.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".readout")).to_have_text("1 cat × 2 ␣sat: 0.500")
    expect(page.locator(".cell.paired")).to_have_count(2)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".readout")).to_have_text("1 cat × 3 ␣ran: 0.250")
    show(page, 2)
    expect(page.locator(".heat .hint")).to_have_text("No matrix was recorded in this pass.")


def test_everything_can_be_done_by_keyboard(open_page, exported):
    page = open_page(exported(three_passes()))
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#cell-0-2")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("heading", name="Position 2")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Position", exact=True)).to_be_visible()
    page.keyboard.press(",")
    expect(page.locator(".count")).to_have_text("pass 2 of 3")
    page.keyboard.press(".")
    expect(page.locator(".count")).to_have_text("pass 3 of 3")
    expect(page.locator("#status")).to_contain_text("Pass 3 of 3")


def test_passes_go_by_when_it_plays(open_page, exported):
    page = open_page(exported(three_passes()), reduced_motion="no-preference")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    expect(page.locator(".count")).to_have_text("pass 3 of 3")
    page.get_by_role("button", name="To the start").click()
    expect(page.locator(".count")).to_have_text("pass 0 of 3")
    page.get_by_role("button", name="One pass forward").click()
    expect(page.locator(".count")).to_have_text("pass 1 of 3")


def test_rows_and_traces_are_chosen_and_stand_side_by_side(open_page, exported):
    page = open_page(exported(three_passes(), two_rows()))
    expect(page.locator(".panel")).to_have_count(2)
    assert page.get_by_label("Show").locator("option").all_inner_texts() == [
        "trace-0",
        "trace-1, row 0",
        "trace-1, row 1",
    ]
    page.get_by_label("Beside").select_option("nothing")
    expect(page.locator(".panel")).to_have_count(1)
    page.get_by_label("Show").select_option("trace-1, row 1")
    expect(page.locator(".panel .about")).to_contain_text("trace-1, row 1")


def test_a_trace_of_the_first_version_is_shown_with_ids_where_texts_are_missing(open_page, exported):
    page = open_page(exported(first_version()))
    show(page, 1)
    assert cells(page) == ["the", "cat", " sat", " ran"]
    page.locator("#cell-0-3").click()
    expect(page.locator(".candidates code")).to_have_text(["␣ran", "␣sat"])
    show(page, 3)
    page.locator("#cell-0-3").click()
    expect(page.locator(".candidates code")).to_have_text(["#1"])


@pytest.mark.parametrize("place", ["text", "name", "policy", "model", "error"])
def test_hostile_texts_are_shown_as_texts(place, open_page, exported):
    lines = three_passes(HOSTILE if place == "text" else "cat")
    if place == "policy":
        lines[0]["policy"] = {"name": HOSTILE, "threshold": HOSTILE}
    if place == "model":
        lines[0]["model"] = HOSTILE
    if place == "error":
        lines[-1] = {"row": 0, "error": HOSTILE}
    page = open_page(exported(lines))
    expect(page.locator(".cell")).to_have_count(4)
    assert page.evaluate("window.broken") is None
    assert page.locator("img, main script").count() == 0
    if place != "name":
        assert HOSTILE in page.locator("body").inner_text()


def test_a_trace_with_a_damaged_line_is_told(open_page, exported):
    head, first, *_ = three_passes()
    del first["committed"]
    page = open_page(exported([head, first]))
    expect(page.get_by_role("alert")).to_contain_text("This trace cannot be shown")


def test_a_trace_that_was_interrupted_is_shown_as_far_as_it_goes(open_page, exported):
    page = open_page(exported(three_passes()[:3]))
    expect(page.locator(".count")).to_have_text("pass 2 of 2")
    assert cells(page) == ["the", "cat", " sat", " ran"]


def test_control_characters_are_shown_as_signs(open_page, exported):
    page = open_page(exported(three_passes("a\x1b\u202eb\tc")))
    assert cells(page)[1] == "a␦␦b⇥c"


def test_a_notebook_shows_it_in_a_frame_that_sees_nothing_else(open_page, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><p>notebook</p>{frame([('run', three_passes(HOSTILE))])}")
    page = open_page(path.as_uri())
    inside = page.frame_locator("iframe")
    expect(inside.locator(".cell")).to_have_count(4)
    inside.locator("#theme").click()
    expect(inside.locator("#theme")).to_have_text("Theme: light")
    reach = "() => { try { return Boolean(parent.document.body); } catch { return false; } }"
    assert page.frames[1].evaluate(reach) is False


def test_no_text_ends_the_element_that_holds_the_traces():
    page = document([(HOSTILE, three_passes(HOSTILE))])
    data = page.split('id="traces">')[1].split("</script>")[0]
    assert json.loads(data)[0]["lines"] == three_passes(HOSTILE)


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_nothing_is_wider_than_the_screen(width, open_page, exported):
    lines = three_passes("a very long token without any end at all, which no line of a phone can hold")
    page = open_page(exported(lines, two_rows()), width=width)
    page.locator("#cell-0-1").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_theme_is_chosen_and_kept(open_page, exported):
    page = open_page(exported(three_passes()), color_scheme="light")
    button = page.locator("#theme")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    button.click()
    button.click()
    expect(button).to_have_text("Theme: dark")
    assert page.evaluate(ground) != light
    page.reload()
    expect(page.locator("#theme")).to_have_text("Theme: dark")
