"""Photographs docs/demo.html for docs/figures/page.png: `python docs/make_page_figure.py`.

Needs Chromium, chromedriver and selenium. The demo is the page of `transformer-jax serve` itself,
so its picture is one of the page.
"""

import shutil
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

DOCS = Path(__file__).parent
SENTENCE = "The door that our brother opened is expensive."
WORD = "aufgemacht"
WIDTH, HEIGHT = 900, 640


def main() -> None:
    """Opens the demo with a sentence, points at a word, and writes what is seen."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("headless=new", "no-sandbox", "hide-scrollbars", "force-device-scale-factor=1.5"):
        options.add_argument(f"--{flag}")
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as driver:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1.5, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        light = [{"name": "prefers-color-scheme", "value": "light"}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": light})
        driver.get(f"{(DOCS / 'demo.html').as_uri()}#text={quote(SENTENCE)}")
        words = f"//button[@class='word' and contains(., '{WORD}')]"
        word = WebDriverWait(driver, 30).until(lambda _: driver.find_element("xpath", words))
        driver.execute_script("document.getElementById('recording').remove()")
        webdriver.ActionChains(driver).move_to_element(word).perform()
        WebDriverWait(driver, 30).until(lambda _: driver.find_elements("css selector", "mark"))
        path = DOCS / "figures" / "page.png"
        driver.save_screenshot(str(path))
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    main()
