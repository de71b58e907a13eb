"""The page in a real browser: figures, picture, chat, key, phone width, dark mode, and no complaint in its console.

Needs selenium, and Debian's chromium and chromium-driver.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from statemark.server.state import Settings
from tests.server.live_server import Running, running
from tests.server.scripted_model import ScriptedModel

webdriver = pytest.importorskip("selenium.webdriver")
if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
    pytest.skip("could not import 'chromium': chromium and chromedriver aren't on the path", allow_module_level=True)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))
    yield found
    found.quit()


class Page:
    """The page, as somebody uses it."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser = browser
        browser.get(url)

    def one(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def until(self, condition: Any) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 60, poll_frequency=0.05).until(lambda _: condition())

    def say(self, text: str) -> None:
        self.one("#message").send_keys(text)
        self.one("#send").click()
        self.until(lambda: self.one("#send").is_enabled())

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, value: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture
def page(chromium: Any, server: Running) -> Iterator[Page]:
    chromium.get_log("browser")
    found = Page(chromium, server.url)
    found.size(1200, 1400)
    yield found
    # Whatever the policy blocks, and every mistake of the script, is told there.
    assert [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_figures_and_picture(page: Page) -> None:
    page.until(lambda: "ready" in page.one("#status").text)
    page.until(lambda: page.one("#lost").text == "6")
    assert page.one("#model").text.startswith("scripted")
    assert page.one("#running").text == "0"
    assert page.one("#pages-text").text.startswith("pages")
    assert page.one("#marks-text").text.startswith("4 marks on 2 ways, the longest 90 tokens")
    marks = page.all("#marks path.mark")
    assert len(marks) == 4
    # Kinds differ in shape, not in colour alone, and each says in words what it is.
    assert len({mark.get_attribute("d") for mark in marks}) == 3
    assert [title.get_attribute("textContent") for title in page.all("#marks title")] == [
        "16 tokens: end of tools and system, 2 branched off",
        "40 tokens: end of a message, its conversation went further",
        "64 tokens: end of an answer",
        "90 tokens: end of an answer",
    ]
    rows = [row.get_attribute("textContent") for row in page.all("#marks-rows tr")]
    assert rows == ["16systemstart2kept", "40turn160superseded", "64end400kept", "90end160kept"]


def test_a_chat_shows_what_was_reused_and_what_was_computed(page: Page, script: ScriptedModel) -> None:
    script.scripts = ["<think>hm</think>First <b>answer</b>.", "Second."]
    page.say("one")
    page.say("two")
    assert [text.text for text in page.all(".turn.user .text")] == ["one", "two"]
    assert [text.text for text in page.all(".turn.assistant .text")] == ["First <b>answer</b>.", "Second."]
    assert page.one(".turn.assistant .thoughts").get_attribute("textContent") == "hm"
    first, second = (note.text for note in page.all(".turn.assistant .note"))
    assert first.startswith("prompt of 8 tokens: 0 reused, 8 computed · 38 written · first after")
    assert "reused" in second
    assert [m["content"] for m in script.rendered[0]] == ["one", "First <b>answer</b>.", "two"]
    assert script.rendered[0][1]["reasoning_content"] == "hm"
    page.one("#again").click()
    assert page.all(".turn") == []


def test_latencies_are_percentiles(page: Page, script: ScriptedModel) -> None:
    page.until(lambda: page.one("#first-note").text == "none in the last two minutes" or page.one("#first").text != "–")
    script.scripts = ["answer"]
    page.say("hello")
    for name in ("first", "gap"):
        page.until(lambda name=name: "P99" in page.one(f"#{name}-note").text)
        assert page.one(f"#{name}").text != "–"
        assert page.one(f"#{name}-unit").text in ("ms P50", "s P50")
    counts = "[[0.1, 0], [0.2, 50], [0.4, 90], [null, 100]]"
    for share, seconds in ((0.5, 0.2), (0.7, 0.3), (0.9, 0.4), (0.99, 0.4)):
        assert page.browser.execute_script(f"return quantile({counts}, {share})") == pytest.approx(seconds)
    assert page.browser.execute_script("return quantile([[0.1, 0], [null, 0]], 0.5)") is None


def test_rates_are_over_a_second_at_least(page: Page) -> None:
    """A turned screen or an answer's end asks for figures out of turn; a rate over a moment is noise."""
    page.until(lambda: page.browser.execute_script("return samples.length") == 2)
    page.browser.execute_async_script("const done = arguments[0]; refresh().then(refresh).then(refresh).then(done)")
    page.until(lambda: page.browser.execute_script("return samples.length") > 2)
    gaps = page.browser.execute_script("return samples.slice(1).map((s, i) => s.at - samples[i].at)")
    assert min(gaps) >= 1


def test_a_refused_message_is_told_and_not_kept(page: Page, script: ScriptedModel) -> None:
    page.one("#message").send_keys("x")
    page.browser.execute_script("document.getElementById('message').value = 'x'.repeat(9000)")
    page.one("#send").click()
    page.until(lambda: page.one("#send").is_enabled() and page.all(".turn .note.bad"))
    assert "4095 maximum" in page.one(".turn .note.bad").text
    script.scripts = ["fine"]
    page.say("short")
    assert [m["content"] for m in script.rendered[0]] == ["short"]
    page.browser.get_log("browser")  # the browser tells of the status 400 itself


def test_an_answer_can_be_stopped(page: Page, script: ScriptedModel) -> None:
    script.scripts = ["endless"]
    script.gate.clear()
    page.one("#message").send_keys("go")
    page.one("#send").click()
    page.until(lambda: page.one("#stop").is_displayed())
    page.one("#stop").click()
    page.until(lambda: page.one("#send").is_enabled())
    script.gate.set()
    assert page.all(".turn .note")[-1].text == "stopped"
    page.until(lambda: not script.requests)
    script.scripts.clear()


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_screens_need_no_sideways_scrolling(page: Page, width: int) -> None:
    page.size(width, 800)
    page.until(lambda: page.all("#marks path.mark"))
    assert page.browser.execute_script("return document.documentElement.scrollWidth") <= width
    for control in page.all("button, textarea"):
        if control.is_displayed():
            assert control.size["height"] >= 40


CONTRAST = """
const light = (c) => { const v = c.match(/[0-9.]+/g).slice(0, 3).map((x) => { x /= 255;
  return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
const ground = (e) => { for (; e; e = e.parentElement) { const b = getComputedStyle(e).backgroundColor;
  if (!b.endsWith(", 0)")) return b; } return "rgb(255, 255, 255)"; };
return [...document.querySelectorAll("h1, h2, p, dt, span, li, label, button, summary, footer, .text, th, td")]
  .filter((e) => e.textContent.trim() && e.offsetParent && !e.disabled)
  .map((e) => { const a = light(getComputedStyle(e).color), b = light(ground(e));
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 80)]; })
  .filter(([ratio]) => ratio < 4.5);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(page: Page, script: ScriptedModel, scheme: str) -> None:
    """Contrast of at least 4.5 to 1, as WCAG 2.2 (1.4.3) asks."""
    page.scheme(scheme)
    script.scripts = ["answer"]
    page.say("hello")
    page.until(lambda: page.all("#marks path.mark"))
    ground = page.browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (int(ground.strip("rgb()").split(",")[0]) < 128) == (scheme == "dark")
    assert page.browser.execute_script(CONTRAST) == []


def test_everything_that_can_be_used_has_a_name_and_takes_the_keyboard(page: Page) -> None:
    page.until(lambda: page.all("#marks path.mark"))
    for element in page.all("button, textarea, [role=img], [role=region], [role=log], section"):
        if element.is_displayed():
            assert element.accessible_name, element.get_attribute("outerHTML")[:100]
    page.one("#message").send_keys("\ue004")  # Tab
    assert page.browser.switch_to.active_element.get_attribute("id") == "send"


def test_a_key_is_asked_for_once(chromium: Any, script: ScriptedModel) -> None:
    with running(lambda: script, settings=Settings(port=0, api_key="s3cret")) as locked:
        page = Page(chromium, locked.url)
        page.until(lambda: page.one("#locked").is_displayed())
        assert "key needed" in page.one("#status").text
        page.one("#key").send_keys("s3cret")
        page.one("#key-form button").click()
        page.until(lambda: "ready" in page.one("#status").text and not page.one("#locked").is_displayed())
        script.scripts = ["hello"]
        page.say("hi")
        assert page.one(".turn.assistant .text").text == "hello"
        page.browser.refresh()
        page.until(lambda: "ready" in page.one("#status").text)
    page.until(lambda: "no connection" in page.one("#status").text)
