"""The pages in a real browser: the walk of an investigator, by mouse, by keyboard, without script.

Debian's Chromium through playwright; where there is none, these tests say so
and are skipped. The server is a process of ``inspect-db serve``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import index_help as help_
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")
#: Without these it looks for hosts of its maker at every start.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
REFUSED = "offset-goes-backwards"
SIZES = {"wide": (1280, 900), "narrow": (360, 740)}
MAX_TABS = 150


def serve(name: str) -> Iterator[str]:
    """Address of the page of a fixture, served by the command as people start it."""
    command = [sys.executable, "-m", "inspect_db", "serve", str(help_.built(name))]
    command += ["--evidence", str(help_.log_dir(name)), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            match = re.search(r"at (http://127\.0\.0\.1:\d+/-/cursus)", line)
            assert match, line
            yield f"{match[1]}/index/"
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def refused() -> Iterator[str]:
    yield from serve(REFUSED)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Visitor:
    """A page in the browser that notes everything the browser complains about."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("requestfailed", lambda request: self.complaints.append(request.url))
        self.page.on(
            "response",
            lambda response: (
                self.complaints.append(f"{response.status} {response.url}")
                if response.status >= 400
                else None
            ),
        )

    def _console(self, message: object) -> None:
        kind, text = getattr(message, "type", ""), getattr(message, "text", "")
        if kind in {"error", "warning"}:
            self.complaints.append(f"{kind}: {text}")

    def click(self, text: str, within: str = "body") -> None:
        self.page.locator(within).get_by_role("link", name=text).first.click()

    def tab_to(self, text: str, within: str = "body") -> None:
        """Reach a link by the keyboard alone, and follow it."""
        wanted = self.page.locator(within).get_by_role("link", name=text).first.element_handle()
        for _ in range(MAX_TABS):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("link => document.activeElement === link", wanted):
                outline = self.page.evaluate(
                    "getComputedStyle(document.activeElement).outlineStyle"
                )
                assert outline != "none", "what has the focus can be seen"
                with self.page.expect_navigation():
                    self.page.keyboard.press("Enter")
                return
        raise AssertionError(f"no way to {text!r} by the keyboard")

    def heading(self) -> str:
        return " ".join(self.page.locator("h1").first.inner_text().split())


@pytest.fixture(params=["mouse", "keyboard", "without script"])
def walker(request: pytest.FixtureRequest, chromium: Browser) -> Iterator[tuple[Visitor, str]]:
    context = chromium.new_context(
        viewport={"width": 1280, "height": 900},
        java_script_enabled=request.param != "without script",
    )
    yield Visitor(context), request.param
    context.close()


def test_the_walk_of_an_investigator(walker: tuple[Visitor, str], refused: str) -> None:
    """Verdict, first finding, its bytes, its group, a named query with a parameter, and back."""
    visitor, how = walker
    page = visitor.page
    follow = visitor.tab_to if how == "keyboard" else visitor.click
    page.goto(refused)
    assert visitor.heading() == "REFUSES"
    assert page.locator("ol.steps > li.refuses").count() == 1

    follow("snapshot_offset_regression", ".cause")
    assert "/index/findings/1" in page.url
    assert "offset regression during replay" in page.locator("body").inner_text()
    follow("1126")
    assert visitor.heading() == "Record 3 of __consumer_offsets / 1"
    fields = page.locator("table.fields")
    assert fields.locator("tr", has_text="magic").inner_text().split() == [
        *("4–7", "magic", "43", "44", "4d", "32", "CDM2"),
    ]
    assert '"revision": 3' in page.locator("pre").inner_text()

    follow("dispatch")
    assert visitor.heading() == "Group dispatch"
    refused_row = page.locator("tr.refused")
    assert "-40" in refused_row.inner_text()
    follow("History of its offsets")
    assert page.locator("input[name=group]").input_value() == "dispatch"
    assert "52" in page.locator("table").inner_text()
    ask(visitor, how, "partition", "1")
    rows = page.locator("table tbody tr")
    assert rows.count() == 4
    assert all("shipments" in text for text in rows.all_inner_texts())

    for _ in range(5):
        page.go_back()
    assert page.url == refused
    assert visitor.heading() == "REFUSES"
    assert visitor.complaints == []


def ask(visitor: Visitor, how: str, name: str, value: str) -> None:
    """Give a parameter of a named query and ask."""
    page = visitor.page
    field = page.locator(f"input[name={name}]")
    if how != "keyboard":
        field.fill(value)
        page.locator("form.sql input[type=submit]").first.click()
        page.wait_for_url(f"**{name}={value}**")
        return
    for _ in range(MAX_TABS):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == name:
            break
    page.keyboard.type(value)
    with page.expect_navigation():
        page.keyboard.press("Enter")


PATHS = {
    "verdict": "",
    "group": "group/dispatch",
    "topic": "topic/shipments",
    "partition": "topic/shipments/1",
    "record": "record/{record}",
    "list": "..",
    "absent": "group/nobody",
}


def path_of(name: str) -> str:
    ((file_id,),) = help_.rows(
        help_.built(REFUSED),
        "select file_id from findings where code = 'snapshot_offset_regression'",
    )
    return PATHS[name].format(record=f"{file_id}/1126")


@pytest.mark.parametrize(("size", "scheme"), [("wide", "light"), ("narrow", "dark")])
def test_pages_are_accessible_and_fit(
    chromium: Browser, refused: str, size: str, scheme: str
) -> None:
    """axe-core finds nothing serious, and nothing is wider than the window."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    width, height = SIZES[size]
    context = chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    visitor = Visitor(context)
    for name in PATHS:
        visitor.page.goto(refused + path_of(name))
        found = axe.run(visitor.page).response["violations"]
        serious = [
            (item["id"], [node["html"] for node in item["nodes"]][:3])
            for item in found
            if item["impact"] in {"serious", "critical"}
        ]
        assert serious == [], name
        wide = visitor.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, name
    assert [text for text in visitor.complaints if "nobody" not in text and "404" not in text] == []
    context.close()


def test_the_first_key_leads_past_the_header(chromium: Browser, refused: str) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(refused)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
    context.close()


def test_a_server_that_cannot_listen_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "inspect_db", "serve", str(help_.built(REFUSED))]
    result = subprocess.run(
        [*command, "--host", "192.0.2.1"], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: cannot listen on 192.0.2.1 port 8001: ")
    missing = subprocess.run(
        [*command[:-1], str(tmp_path / "none.db")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "no such file" in missing.stderr
