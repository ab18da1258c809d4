"""What the browser tests share: a headless browser, and the book that `make book` made.

    page = open_page("chapters/fwd02_warp_per_row/kernel.html")     at 1400 pixels, from file://

Whatever a page prints on the console and whatever it asks of the network is kept, and a test fails where a page has
printed an error or asked for more than files.
"""

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parents[3]
BOOK = ROOT / "build/book"
BROWSERS = ("chromium", "google-chrome", "chromium-browser")
WIDE, NARROW = 1400, 360  # pixels
LOCAL = ("file:", "data:", "blob:", "about:", "chrome:", "chrome-extension:")
AXE = Path(importlib.util.find_spec("axe_core_python").origin).with_name("axe.min.js")


def find_driver():
    given = Path(os.environ.get("CHROMEWEBDRIVER", "/nowhere")) / "chromedriver"
    return shutil.which("chromedriver") or (str(given) if given.exists() else None)


def start():
    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)), "")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--force-color-profile=srgb"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(find_driver()))


class Page:
    """A browser at a page."""

    def __init__(self, driver):
        self.driver = driver

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def click(self, selector):
        """Clicks as a reader does, once the element has been scrolled to."""
        element = self.one(selector)
        self.script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", element)
        element.click()

    def resize(self, width, height=1000):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def media(self, **features):
        """page.media(prefers_reduced_motion="reduce"); media="print" for paper."""
        medium = features.pop("media", "")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()]})

    def theme(self, name):
        self.script("document.body.dataset.theme = arguments[0]", name)

    def settle(self):
        """Waits for the mathematics and for two frames."""
        self.driver.execute_async_script("""
            const done = arguments[arguments.length - 1];
            const ready = window.MathJax && MathJax.startup ? MathJax.startup.promise : Promise.resolve();
            ready.then(() => requestAnimationFrame(() => requestAnimationFrame(done)));""")

    def wait(self, script):
        """What a script returns as soon as that is not empty."""
        return WebDriverWait(self.driver, 10, 0.1).until(lambda _: self.script(script))

    def hidden_width(self):
        """How many pixels of the page stand out of the window sideways."""
        return self.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def errors(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def asked_of_the_network(self):
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(LOCAL)]

    def axe(self, every=False):
        """The serious faults that axe-core finds, or every one, a line each."""
        self.script(AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run().then(done, e => done(String(e)))")["violations"]
        return [f"{fault['id']}: {fault['help']}: {node['html'][:160]}" for fault in found
                if every or fault["impact"] in ("serious", "critical") for node in fault["nodes"]]


@pytest.fixture(scope="session")
def browser():
    if not find_driver():
        pytest.skip("no chromedriver here; `bash common/setup/setup.sh cpu --with-browser` installs it")
    running = start()
    yield running
    running.quit()


@pytest.fixture(scope="session")
def book():
    if not (BOOK / "index.html").exists():
        pytest.fail("build/book/index.html is not there; `make book` makes it", pytrace=False)
    return BOOK


@pytest.fixture
def page(browser):
    """A browser without a page yet; at the end, whether one has printed errors or asked of the network."""
    page = Page(browser)
    page.media()
    page.resize(WIDE)
    page.errors()
    page.asked_of_the_network()
    yield page
    page.media()
    assert page.errors() == []
    assert page.asked_of_the_network() == []


@pytest.fixture
def open_page(page, book):
    def open_it(path, width=WIDE):
        page.resize(width)
        file, rest = re.fullmatch(r"([^?#]*)(.*)", path).groups()  # a query, an anchor
        page.driver.get("about:blank")
        page.driver.get((book / file).as_uri() + rest)
        page.settle()
        return page
    return open_it
