"""The pictures of the report on the front page and in README: `python docs/report_picture.py` draws them anew.

They are of the page that `atypicality report` writes. It needs Chromium and Playwright, as the tests of the report do.
"""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import atypicality as aty
from atypicality.datasets import load_fashion_mnist_lt

IMAGES = Path(__file__).parent / "images"
WIDTH, LISTED, COLOURS = 1200, 200, 128


def main() -> None:
    """Fit the head of the quickstart, write its report, and photograph the summary in light and dark."""
    train, calibration, test = load_fashion_mnist_lt()
    head = aty.ReliabilityHead().fit(train=train, calibration=calibration)
    evaluation = aty.evaluate({"model": "uncalibrated", "head": head}, test, suspects=LISTED)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        page_file = Path(folder, "report.html")
        stated = {"model": "a small network", "data": "the bundled test rows", "purpose": "an example"}
        evaluation.report(page_file, head=head, title="Fashion-MNIST, long-tailed", about=stated)
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, name in (("light", "report.png"), ("dark", "report-dark.png")):
            page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            end = page.locator("#summary").bounding_box()
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": end["y"] + end["height"] + 4}
            shot = Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=True)))
            shot.convert("RGB").quantize(COLOURS).save(IMAGES / name, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
