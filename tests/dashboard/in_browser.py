"""The dashboard in a real Chromium: `make browser` runs this; `make test` does not, because it needs Debian's packages.

It leaves screenshots in `.browser/screenshots`: 1400 and 400 pixels wide, light and dark.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    NoAlertPresentException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from redis_message_queue.embedded import EmbeddedRedis
from tests.dashboard.pages import MOST_SECONDS
from tests.dashboard.running import Running, dashboard
from tests.dashboard.scenario import HOSTILE, PARTITIONED, QUEUES, fill, fill_partitions, open_queue

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# What a page that is just being replaced answers.
LEAVING = (NoSuchElementException, StaleElementReferenceException)
SCREENSHOTS = Path(__file__).parents[2] / ".browser" / "screenshots"
PAGES = {
    "overview": "/",
    "stuck": "/queue?name=orders",
    "tenants": "/queue?name=thumbnails",
    "spark": "/queue?name=reports",
    "hostile": f"/queue?name={quote(HOSTILE)}",
    "failed": "/messages?name=payments&source=failed",
    "hostile-messages": f"/messages?name={quote(HOSTILE)}&source=failed",
    "schedules": "/schedules?name=reports",
    "delayed": "/messages?name=emails&source=delayed",
    "message": "",  # its id is known later
    "partitions": f"/queue?name={PARTITIONED}",
    "partition": f"/queue?name={PARTITIONED}&partition=0",
    "partitions-pending": f"/messages?name={PARTITIONED}&source=pending",
    "purge": "/change?name=orders&action=purge&source=pending",
    "problem": "/queue?name=a::pending::b",
}


@pytest.fixture(scope="module")
def running(server: EmbeddedRedis) -> Iterator[Running]:
    with server.client() as client:
        client.flushall()
        fill(client)
        fill_partitions(client)
        (shipment,) = open_queue(client, "shipments").records("failed")
    PAGES["message"] = f"/message?name=shipments&source=failed&id={shipment.id}"
    with dashboard(*QUEUES, "--allow-changes", url=server.url) as started:
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[webdriver.Chrome]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert binary, "chromium is missing: `make browser` installs it"
    assert driver, "chromedriver is missing: `make browser` installs it"
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        started = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield started
        finally:
            started.quit()


@pytest.fixture
def page(chromium, running) -> "Page":
    return Page(chromium, running.url)


class Page:
    """A tab."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self.look(1400, "light")

    def open(self, path: str = "/") -> None:
        self.driver.get(self.url + path)

    def look(self, width: int, scheme: str, height: int = 900) -> None:
        """Be a screen of this width, in a light or dark room."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def run(self, script: str):
        return self.driver.execute_script(f"return {script}")

    def press(self, keys: str) -> None:
        """Type, as soon as the page has loaded: before that, nobody listens to the keys."""
        self.wait(lambda: self.run("document.readyState") == "complete")
        ActionChains(self.driver).send_keys(keys).perform()

    def click(self, selector: str) -> None:
        self.wait(lambda: self.one(selector).click() is None)

    def one(self, selector: str):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    @property
    def text(self) -> str:
        return self.one("body").text

    @property
    def focused(self) -> str:
        return str(self.run("document.activeElement.textContent || document.activeElement.id"))

    def wait(self, condition) -> None:
        WebDriverWait(self.driver, MOST_SECONDS, 0.1, ignored_exceptions=LEAVING).until(lambda _: condition())

    def complaints(self) -> list[str]:
        """What the browser has to say: blocked scripts and styles, errors, missing files."""
        return [one["message"] for one in self.driver.get_log("browser") if "favicon.ico" not in one["message"]]


def test_every_page_fits_every_screen_and_the_browser_has_no_complaint(page):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.complaints()
    for name, path in PAGES.items():
        for width in (1400, 400):
            page.look(width, "light")
            page.open(path)
            for scheme in ("light", "dark"):
                page.look(width, scheme)
                assert page.run("document.documentElement.scrollWidth") <= width, (name, width)
                height = min(2_400, page.run("document.documentElement.scrollHeight"))
                page.look(width, scheme, height)
                page.driver.save_screenshot(str(SCREENSHOTS / f"{name}-{width}-{scheme}.png"))
    assert [one for one in page.complaints() if "400 (Bad Request)" not in one] == []


def test_dark_mode_is_dark(page):
    page.open()
    colours = {}
    for scheme in ("light", "dark"):
        page.look(1400, scheme)
        colours[scheme] = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert min(colours["light"]) > 200
    assert max(colours["dark"]) < 50


def test_text_can_be_read_in_both_schemes(page):
    """The contrast of every text and its background is 4.5 or more, as the guidelines for accessible pages want."""
    for scheme in ("light", "dark"):
        page.look(1400, scheme)
        for path in (
            PAGES[name] for name in ("overview", "tenants", "partitions", "failed", "message", "schedules", "purge")
        ):
            page.open(path)
            assert page.run(f"({LOW_CONTRAST})()") == [], (scheme, path)


LOW_CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = channels(colour).map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("main *, header *")) {
    const text = [...element.childNodes].some((one) => one.nodeType === 3 && one.nodeValue.trim());
    if (!text || !element.checkVisibility() || ["METER", "OPTION"].includes(element.nodeName)) continue;
    const pair = [light(getComputedStyle(element).color), light(background(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) found.push([element.nodeName, contrast.toFixed(1), element.textContent.trim().slice(0, 30)]);
  }
  return found;
}"""


def test_hostile_content_runs_nothing(page):
    page.complaints()
    paths = ["/", PAGES["hostile"], *(f"/messages?name={quote(HOSTILE)}&source={one}" for one in ("failed", "pending"))]
    for path in paths:
        page.open(path)
        with contextlib.suppress(NoAlertPresentException):
            pytest.fail(page.driver.switch_to.alert.text)
        assert page.run("document.querySelectorAll('main img, main script').length") == 0
        assert page.run("document.querySelectorAll('script').length") == 1
    page.open(paths[2])
    page.click("tbody th a")
    assert "<script>alert(1)</script>" in page.one("pre").text
    assert page.complaints() == []


def test_nothing_is_fetched_from_elsewhere(page):
    page.open("/queue?name=orders")
    page.wait(lambda: "live" in page.one("#mode").text)
    fetched = page.run("performance.getEntriesByType('resource').map((one) => one.name)")
    assert len(fetched) >= 2
    assert [one for one in fetched if not one.startswith(page.url)] == []


def test_counts_change_without_a_reload_and_the_focus_stays(page, server):
    page.open("/queue?name=invoices")
    page.run("window.marker = 1")
    page.run("document.querySelector('.places a').focus()")
    with server.client() as client:
        open_queue(client, "invoices").publish_many(["one", "two"])
    page.wait(lambda: page.one(".places b").text == "2")
    assert page.run("window.marker") == 1
    assert "waiting" in page.focused
    assert "live" in page.one("#mode").text


def test_rows_change_places_without_a_reload(page, server):
    page.open("/")
    page.run("window.marker = document.querySelector('[data-row=thumbnails]')")
    page.run("window.marker.querySelector('a').focus()")
    first = page.run("[...document.querySelectorAll('[data-row]')].map((one) => one.dataset.row)")
    with server.client() as client:
        client.zadd("thumbnails::leases", {b"x" * 36: 1.0})
    page.wait(lambda: page.run("window.marker.className") == "stuck")
    rows = page.run("[...document.querySelectorAll('[data-row]')].map((one) => one.dataset.row)")
    assert rows != first
    assert sorted(rows) == sorted(first)
    assert page.run("window.marker.isConnected")
    assert page.focused == "thumbnails"
    with server.client() as client:
        client.zrem("thumbnails::leases", b"x" * 36)


def test_everything_can_be_reached_with_the_keyboard(page):
    page.open("/")
    page.press("j")
    first = page.focused
    page.press("j")
    assert page.focused != first
    page.press("k")
    assert page.focused == first
    page.press(Keys.ENTER)
    page.wait(lambda: "/queue?" in page.driver.current_url)
    page.press("u")
    page.wait(lambda: page.driver.current_url == f"{page.url}/")
    page.press("/")
    assert page.run("document.activeElement.id") == "q"
    page.press("emails" + Keys.ENTER)
    page.wait(lambda: "q=emails" in page.driver.current_url)
    assert len(page.driver.find_elements(By.CSS_SELECTOR, "[data-row]")) == 1
    page.press("?")
    assert page.run("document.getElementById('help').open")
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.run("document.getElementById('help').open"))
    page.press("g")
    page.wait(lambda: page.driver.current_url == f"{page.url}/")


def test_a_person_opens_a_partition_and_goes_back(page):
    page.open("/")
    page.run(f"document.querySelector('[data-row={PARTITIONED}] a').focus()")
    page.press(Keys.ENTER)
    page.wait(lambda: f"name={PARTITIONED}" in page.driver.current_url)
    page.run(f"document.querySelector('[data-row=\"{PARTITIONED}, partition 2\"] a').focus()")
    page.press(Keys.ENTER)
    page.wait(lambda: "partition=2" in page.driver.current_url)
    assert page.one(".places b").text == "15"
    page.press("u")
    page.wait(lambda: page.driver.current_url.endswith(f"name={PARTITIONED}"))


def test_a_person_redrives_and_purges(page, server):
    page.open("/messages?name=payments&source=failed")
    page.click("tbody input[type=checkbox]")
    page.click("#chosen button")
    page.wait(lambda: "Publish 1 message from failed of payments again?" in page.text)
    page.click("main button")
    page.wait(lambda: "Published 1 message again." in page.text)
    page.open("/queue?name=payments")
    page.click("summary")
    page.click("details a")
    page.wait(lambda: "Delete 1 message (waiting) of payments for good?" in page.text)
    page.press("payments" + Keys.ENTER)
    page.wait(lambda: "Deleted 1 message." in page.text)
    with server.client() as client:
        assert client.llen("payments::pending") == 0


def test_a_person_logs_in(chromium, server):
    with dashboard("orders", url=server.url, RMQ_DASHBOARD_TOKEN="correct-horse-battery") as guarded:
        page = Page(chromium, guarded.url)
        page.open("/queue?name=orders")
        assert page.driver.current_url.endswith("/login")
        page.press("wrong" + Keys.ENTER)
        page.wait(lambda: "That is not the token." in page.text)
        page.press("correct-horse-battery" + Keys.ENTER)
        page.wait(lambda: "orders" in page.text)
        page.wait(lambda: "live" in page.one("#mode").text)


def test_a_dashboard_that_is_gone_is_told(chromium, server):
    with dashboard("orders", url=server.url) as started:
        page = Page(chromium, started.url)
        page.open("/")
        page.wait(lambda: "live" in page.one("#mode").text)
        started.stop()
        page.wait(lambda: page.one("#mode").text == "not connected")
