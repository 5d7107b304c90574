"""A real browser without a window: Debian's Chromium, driven by selenium."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementNotInteractableException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import until

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
SIZE = (1360, 1000)
PAGE_WITHIN_S = 110  # below the limit of selenium for each of its own requests
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in CI
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--window-size={},{}".format(*SIZE),
    "--lang=en-GB",
)


class Browser:
    """One page, and short ways to ask what is on it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def reset(self) -> None:
        """Leave the page, and undo what was emulated."""
        self.open("about:blank")
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.driver.set_window_size(*SIZE)
        self.complaints()

    def open(self, url: str) -> None:
        self.driver.get(url)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements of a selector, shown or hidden."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.driver.execute_script(script, selector)

    def text(self, selector: str) -> str:
        return " ".join(self.texts(selector))

    def shown(self, selector: str) -> bool:
        try:
            return self.one(selector).is_displayed()
        except StaleElementReferenceException:
            return False

    def press(self, selector: str, *keys: str) -> None:
        self._until_taken(selector, lambda element: element.send_keys(*keys))

    def click(self, selector: str) -> None:
        self._until_taken(selector, WebElement.click)

    def _until_taken(self, selector: str, act: Callable[[WebElement], None]) -> None:
        def taken() -> bool:
            try:
                act(self.one(selector))
            except (StaleElementReferenceException, ElementNotInteractableException):
                return False  # drawn anew in between; no key and no click was sent
            return True

        until(taken, f"{selector} takes keys or a click")

    def click_text(self, selector: str, text: str) -> None:
        """Click the element with this text."""
        script = "[...document.querySelectorAll(arguments[0])].find((e) => e.textContent === arguments[1]).click()"
        self.driver.execute_script(script, selector, text)

    def run(self, script: str) -> object:
        return self.driver.execute_script(script)

    def dark(self) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def picture(self, path: Path) -> None:
        assert self.driver.save_screenshot(str(path))

    def complaints(self) -> list[str]:
        """Return the new lines of the page's console, without those about requests that got no answer."""
        messages = [entry["message"] for entry in self.driver.get_log("browser")]
        return [line for line in messages if "Failed to load resource" not in line]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium; without it the test is skipped, and fails in CI."""
    for program in (CHROMIUM, DRIVER):
        if not program.exists():
            words = f"{program} is missing; Debian's packages are chromium and chromium-driver"
            if os.environ.get("CI") == "true":
                pytest.fail(words)
            pytest.skip(words)
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for option in OPTIONS:
        options.add_argument(option)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        driver.set_page_load_timeout(PAGE_WITHIN_S)
        yield Browser(driver)
    finally:
        driver.quit()
