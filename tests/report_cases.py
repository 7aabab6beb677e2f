"""What the tests of charts and reports share: evaluations with hostile names in them, and a real browser."""

import functools
import re
import shutil

import numpy as np
import pytest
from conftest import REQUIRE_ALL, needs

import atypicality as aty
from atypicality.datasets import make_world

HOSTILE = "</script><img src=x onerror=alert(1)>"
NAMES = [
    "</script><script>hacked=1</script>",
    HOSTILE,
    "=cmd|' /C calc'!A0",
    "\u202eright to left & \u2028 <!-- <script>",
]
QUADRANTS = ("reliable", "extrapolation", "ambiguous", "untrustworthy")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def needs_chromium(test):
    """Skip by name without Chromium and Playwright; with REQUIRE_ALL=1 they must be there."""
    if CHROMIUM is None and REQUIRE_ALL:
        raise FileNotFoundError("REQUIRE_ALL=1, and chromium is not installed")
    return needs("playwright")(pytest.mark.skipif(CHROMIUM is None, reason="not installed: chromium")(test))


@functools.cache
def world_outputs():
    """One world of 5,000 rows, to be cut into parts: another seed would be another world."""
    world = make_world(5000, 4, temperature=2.0, class_imbalance=8, atypical_noise=0.5)
    rows = np.arange(5000)
    return aty.ModelOutputs(
        world.logits,
        embeddings=world.embeddings,
        labels=world.labels,
        attributes={"side<b>": np.where(rows % 3 == 0, "left", HOSTILE), "length": np.sin(rows)},
        class_names=NAMES,
        ids=[f"{HOSTILE} {row}" for row in rows],
    )


TRAIN, CALIBRATION, TEST = slice(0, 2000), slice(2000, 3500), slice(3500, 5000)


@functools.cache
def evaluation_and_head():
    from atypicality.head import ReliabilityHead

    train, calibration, test = (world_outputs()[part] for part in (TRAIN, CALIBRATION, TEST))
    head = ReliabilityHead().fit(train=train, calibration=calibration)
    scaled = aty.TemperatureScaling().fit(*calibration.need("logits", "labels"))
    methods = {"uncalibrated": "uncalibrated", "one <i>temperature</i>": scaled, "head": head}
    return aty.evaluate(methods, test), head


@functools.cache
def comparison():
    return aty.compare(["uncalibrated", "ts", "aar"], world_outputs()[TEST], train=world_outputs()[TRAIN], n_splits=2)


@functools.lru_cache(maxsize=1)
def shared_page(browser):
    """The page in which files are opened one after the other: a context for each costs more than what is looked at."""
    return browser.new_context().new_page()


WINDOW = {"width": 1280, "height": 720}
left_open = {}
"""The file that tests who share it have left open, by page."""


class Opened:
    """A file in a page of the browser, with what it said and asked for.

    Tests that leave a page as it was, but for a choice of samples, say so by `shared`: those that follow each other
    open it once, and the choice is cleared after each.
    """

    def __init__(self, browser, path, *, shared=False, viewport=WINDOW, permissions=(), **media):
        self.page, self.trouble, self.requests = shared_page(browser), [], []
        self.listeners = {
            "console": lambda message: self.trouble.append(message.text),
            "pageerror": lambda error: self.trouble.append(str(error)),
            "dialog": lambda dialog: (self.trouble.append(dialog.message), dialog.dismiss()),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, listener in self.listeners.items():
            self.page.on(event, listener)
        self.shared, self.changed = shared, bool(media or permissions or viewport != WINDOW)
        if self.changed:
            self._look(viewport, permissions, **media)
        if not shared or left_open.get(self.page) != path:
            self.page.goto(path.as_uri())
        else:
            self.requests.append(path.as_uri())  # when it was opened
        left_open.clear()
        if shared:
            left_open[self.page] = path

    def _look(self, viewport=WINDOW, permissions=(), **media):
        """Change the window, what the page may do and what it is shown on; to what they are usually, by default."""
        self.page.set_viewport_size(viewport)
        self.page.emulate_media(**({"media": "null", "color_scheme": "light"} | media))
        self.page.context.clear_permissions()
        self.page.context.grant_permissions(list(permissions))

    def count(self):
        return int(self.page.get_attribute("#selection-text", "data-count"))

    def of_total(self, table):
        total = self.page.inner_text(f".table:has(#{table}) .controls").partition(" of ")[2]
        return int(re.match(r"[\d,]+", total)[0].replace(",", ""))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.shared and not kind and self.page.locator("#clear").count():
            self.page.click("#clear")
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        if self.changed:
            self._look()
        if kind:
            left_open.clear()
        assert kind or not self.trouble
        assert kind or len(self.requests) == 1  # the file itself
