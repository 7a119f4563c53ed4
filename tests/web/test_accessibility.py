"""What axe finds, in light and in dark."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from web.lines import three_passes

GRAVE = ("serious", "critical")


def findings(page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html']}" for one in found if one["impact"] in GRAVE for node in one["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_playground_has_no_grave_fault(scheme, open_page, toy_served):
    page = open_page(toy_served.url, color_scheme=scheme, bypass_csp=True)
    page.get_by_label("Compare with a second policy").check()
    page.get_by_text("More settings").click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#status")).to_contain_text("Done", timeout=30_000)
    page.get_by_label("Pass", exact=True).fill("1")
    page.locator(".cell.open").first.click()
    expect(page.locator(".candidates li").first).to_be_visible()
    assert findings(page) == []
    page.get_by_role("button", name="As code…").click()
    assert findings(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_viewer_has_no_grave_fault(scheme, open_page, exported):
    page = open_page(exported(three_passes(), three_passes("dog")), color_scheme=scheme, bypass_csp=True)
    page.get_by_label("Pass", exact=True).fill("2")
    page.locator("#cell-0-2").click()
    assert findings(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_routes_names_them_and_has_no_grave_fault(scheme, open_page, toy_served):
    page = open_page(f"{toy_served.url}/docs", color_scheme=scheme, bypass_csp=True)
    expect(page.get_by_text("/v1/chat/completions").first).to_be_visible()
    expect(page.get_by_text("/tokenize").first).to_be_visible()
    assert findings(page) == []


def test_the_page_of_routes_keeps_to_the_policy_and_fits_a_phone(open_page, toy_served):
    page = open_page(f"{toy_served.url}/docs", width=360)
    expect(page.get_by_text("/detokenize").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
