"""The playground in a browser, against a real server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect
from serve.servers import Held, running
from web.lines import HOSTILE

import unmask
from unmask import policies, tasks
from unmask.engine.generator import Generator
from unmask.models.base import LoadedModel

DONE_MS = 30_000


def opened(open_page, url: str, **options):
    """The page, when its form is there."""
    page = open_page(url, **options)
    expect(page.locator("form.ask")).to_be_visible()
    return page


def start(page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()


def finish(page) -> None:
    start(page)
    expect(page.locator("#status")).to_contain_text("Done", timeout=DONE_MS)


def sent(page) -> list[dict]:
    """The bodies of requests to decode, as they are sent from now on."""
    bodies: list[dict] = []
    page.on("request", lambda asked: bodies.append(json.loads(asked.post_data)) if asked.method == "POST" else None)
    return bodies


def test_masks_fill_and_the_text_is_that_of_the_same_request_elsewhere(open_page, toy_served):
    page = opened(open_page, toy_served.url)
    page.get_by_label("Prompt", exact=True).fill("Hello")
    finish(page)
    page.get_by_role("button", name="To the end").click()
    _, answer = toy_served.post({"prompt": "Hello"})
    end = page.locator(".cell.done:not(.end)")
    expect(end.first).to_be_visible()
    text = "".join(page.locator(".cell.done:not(.end)").all_text_contents())
    assert text.startswith(answer["choices"][0]["text"])
    passes = answer["decoding"]["forward_passes"]
    expect(page.locator(".count")).to_have_text(f"pass {passes} of {passes}")
    expect(page.locator(".figures")).to_contain_text("Time")


def test_passes_are_shown_as_they_come(open_page, toy):
    held = Generator(LoadedModel(model=Held(toy.model), codec=toy.codec))
    with running(held, settings=unmask.Settings(max_tokens=8)) as found:
        page = opened(open_page, found.url, reduced_motion="no-preference")
        start(page)
        expect(page.locator(".cell.open")).not_to_have_count(0)
        expect(page.locator(".count")).to_have_text("pass 0 of 0…")
        expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
        held.model.gate.set()
        expect(page.locator("#status")).to_contain_text("Done", timeout=DONE_MS)
        expect(page.locator(".cell.open")).to_have_count(0)


def test_stop_ends_the_request_on_the_server_too(open_page, toy):
    held = Generator(LoadedModel(model=Held(toy.model), codec=toy.codec))
    with running(held, settings=unmask.Settings(max_tokens=8)) as found:
        page = opened(open_page, found.url)
        start(page)
        expect(page.locator(".cell.open")).not_to_have_count(0)
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#status")).to_have_text("Stopped")
        expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()
        held.model.gate.set()
        expect(page.locator(".error:visible")).to_have_count(0)


def test_the_form_has_every_policy_parameter_and_setting_of_the_server(open_page, toy_served):
    page = opened(open_page, toy_served.url)
    select = page.locator("fieldset select").first
    assert sorted(select.locator("option").all_inner_texts()) == sorted(policies.names())
    for name in policies.names():
        select.select_option(name)
        labels = page.locator("fieldset").first.locator(".pair label").all_inner_texts()
        assert labels == [key for key in policies.describe(policies.preset(name, "toy")) if key != "name"]
    every = set(page.locator("form label").all_text_contents())
    assert set(unmask.Settings().to_dict()) <= every
    words = page.get_by_label("cache").locator("option").all_inner_texts()
    assert words == ["default", "none", "prefix", "dual", "exact"]


def test_only_what_was_changed_is_sent(open_page, toy_served):
    page = opened(open_page, toy_served.url)
    bodies = sent(page)
    finish(page)
    recorded = {"events": {"candidates": 5, "overlap": True}}
    assert bodies[-1]["decoding"] == recorded
    page.locator("fieldset select").first.select_option("klass")
    page.get_by_label("confidence", exact=True).fill("0.7")
    page.get_by_label("max_tokens").fill("10")
    page.get_by_text("More settings").click()
    page.get_by_label("early_stop").uncheck()
    page.get_by_label("stop", exact=True).fill("a\nb c")
    finish(page)
    changed = {"policy": "klass", "confidence": 0.7, "max_tokens": 10, "early_stop": False, "stop": ["a", "b c"]}
    assert bodies[-1]["decoding"] == changed | recorded


def test_a_conversation_goes_through_the_template(open_page, toy_served):
    page = opened(open_page, toy_served.url)
    bodies = sent(page)
    page.get_by_text("Chat", exact=True).click()
    page.get_by_label("Prompt", exact=True).fill("Hi")
    finish(page)
    assert bodies[-1]["messages"] == [{"role": "user", "content": "Hi"}]


def test_two_policies_run_at_once_and_stand_side_by_side(open_page, toy_served):
    page = opened(open_page, toy_served.url)
    page.get_by_label("Compare with a second policy").check()
    finish(page)
    expect(page.locator(".panel h2")).to_have_text(["mean_field", "threshold"])
    left, right = (page.locator(".panel").nth(at).bounding_box() for at in (0, 1))
    assert left["y"] == right["y"]
    expect(page.locator(".legend .key")).to_have_text(["mean_field", "threshold"])


def test_an_error_is_one_line_beside_the_form(open_page, toy_served):
    page = opened(open_page, toy_served.url, expected=("400",))
    field = page.get_by_label("threshold", exact=True).first
    field.fill("2")
    start(page)
    expect(page.locator("form .error")).to_have_text("threshold must be a number in (0, 1], got 2")
    field.fill("much")
    start(page)
    expect(page.locator("form .error")).to_contain_text("got 'much'")


def test_a_server_that_is_gone_is_told(open_page, toy):
    with running(toy) as found:
        page = opened(open_page, found.url, expected=("ERR_CONNECTION",))
        expect(page.locator("form.ask")).to_be_visible()
    start(page)
    expect(page.locator("form .error")).to_contain_text("cannot be reached")


def test_the_page_asks_for_the_key_and_keeps_it_for_the_session(open_page, toy):
    with running(toy, api_keys=("secret",), settings=unmask.Settings(max_tokens=8)) as found:
        page = open_page(found.url, expected=("401",))
        page.get_by_label("API key").locator("visible=true").last.fill("wrong")
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_text("does not know this key")).to_be_visible()
        page.get_by_role("dialog").locator("input").fill("secret")
        page.keyboard.press("Enter")
        finish(page)
        page.reload()
        expect(page.locator("form.ask")).to_be_visible()
        page.get_by_role("button", name="As code…").click()
        expect(page.get_by_role("dialog")).to_contain_text("$UNMASK_API_KEY")
        assert "secret" not in page.locator("body").inner_text()


def test_the_code_that_it_gives_runs(open_page, toy_served, capsys):
    page = opened(open_page, toy_served.url)
    page.get_by_label("Prompt", exact=True).fill('it\'s "quoted"')
    page.get_by_label("max_tokens").fill("6")
    page.get_by_role("button", name="As code…").click()
    curl, python = page.locator("dialog pre").all_inner_texts()
    names: dict = {}
    exec(compile(python, "snippet", "exec"), names)
    names["client"].close()
    _, answer = toy_served.post({"prompt": 'it\'s "quoted"', "max_tokens": 6})
    assert capsys.readouterr().out == answer["choices"][0]["text"]
    assert f"curl -N {toy_served.url}/v1/completions" in curl
    assert "it'\\''s" in curl
    page.get_by_role("button", name="Close").click()
    expect(page.locator("dialog")).to_have_count(0)


def test_a_run_is_saved_as_a_trace_that_the_viewer_reads(open_page, toy_served, tmp_path):
    page = opened(open_page, toy_served.url)
    finish(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save trace").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    trace = unmask.Trace.load(path)
    assert len(trace.steps) == trace.results[0]["usage"]["forward_passes"]
    assert set(trace.header) >= {"model", "policy", "settings", "prompts"}
    assert not {"choices", "object"} & {key for line in trace.steps for key in line}


def test_hostile_prompts_are_shown_as_texts(open_page, toy_served):
    page = opened(open_page, toy_served.url)
    page.get_by_label("Prompt", exact=True).fill(HOSTILE)
    finish(page)
    assert page.evaluate("window.broken") is None
    assert page.locator("main img, main script").count() == 0
    assert "onerror" in page.locator(".tokens").inner_text()


@pytest.mark.parametrize("width", [360, 800])
def test_nothing_is_wider_than_the_screen(width, open_page, toy_served):
    page = opened(open_page, toy_served.url, width=width)
    page.get_by_label("Compare with a second policy").check()
    page.get_by_text("More settings").click()
    finish(page)
    page.locator(".cell.done").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_sudoku_is_shown_as_its_board(open_page, tiny):
    with running(tiny) as found:
        page = opened(open_page, found.url)
        page.get_by_role("button", name="Countdown").click()
        assert page.get_by_label("Prompt", exact=True).input_value().startswith("Countdown: ")
        page.get_by_role("button", name="Sudoku").click()
        finish(page)
        page.get_by_role("button", name="To the end").click()
        expect(page.locator(".board")).to_have_attribute("aria-label", "Sudoku board: 81 of 81 cells filled")
        board = "".join(page.locator(".square").all_inner_texts())
        task = tasks.get("sudoku")
        item = tasks.Item(prompt=page.get_by_label("Prompt", exact=True).input_value(), answer="")
        assert task.check(item, board)
        page.locator(".square").nth(40).click()
        expect(page.locator('.cell[aria-selected="true"]')).to_have_text(board[40])


@pytest.mark.slow
def test_the_pictures_of_the_documents_can_be_taken_again(tmp_path):
    images = Path(__file__).parents[2] / "docs" / "images"
    subprocess.run([sys.executable, str(images / "screenshots.py"), str(tmp_path)], check=True, timeout=240)
    for name in ("playground.png", "inspector.png", "compare.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
        assert 0.5 < (tmp_path / name).stat().st_size / (images / name).stat().st_size < 2.0
