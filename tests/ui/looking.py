"""What can be seen of a page: texts that are cut, texts that are too faint, and pixels of a colour."""

from __future__ import annotations

import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest

__all__ = ["FAINT", "HIDDEN", "pixels", "seen"]

HIDDEN = """root => {
  const edge = root.getBoundingClientRect().right + 1;
  return [...root.querySelectorAll('div, table, img, progress')].filter(element =>
    element.scrollHeight > element.clientHeight + 2 && element.tagName === 'DIV'
    || element.getBoundingClientRect().right > edge && getComputedStyle(element.parentElement).overflowX !== 'auto'
  ).map(element => element.innerText || element.outerHTML.slice(0, 80));
}"""
"""JavaScript: the texts below an element that have less room than they need, or leave it to the right; not what can be
scrolled by itself."""

FAINT = """root => {
  const shine = text => {
    const [red, green, blue] = text.match(/[0-9.]+/g).slice(0, 3).map(Number).map(part => part / 255).map(
      part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = element => {
    const own = element ? getComputedStyle(element).backgroundColor : 'rgb(255, 255, 255)';
    const behind = element?.tagName === 'CAPTION' ? element.parentElement : element;  // a table is not painted below it
    return own === 'rgba(0, 0, 0, 0)' ? paper(behind.parentElement) : own;
  };
  const texts = [...root.querySelectorAll('*')].filter(element => element.offsetParent !== null &&
    [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()));
  const contrast = element => {
    const [dark, light] = [getComputedStyle(element).color, paper(element)].map(shine).sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  return texts.filter(element => contrast(element) < 7).map(element => [contrast(element), element.innerText]);
}"""
"""JavaScript: the texts below an element whose contrast to what is behind them is below 7 (WCAG 2.2), as shown."""


def pixels(element: Any, colour: str) -> int:
    """How many pixels of an element, as it is shown now, have this colour."""
    image = pytest.importorskip("PIL.Image")
    wanted = tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
    with image.open(BytesIO(element.screenshot())) as picture:
        counted = picture.convert("RGB").getcolors(picture.width * picture.height)
    return sum(count for count, found in counted if found == wanted)


def seen(condition: Callable[[], bool], what: str) -> None:
    """Wait until it is true; a minute at most."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"not seen: {what}"
        time.sleep(0.2)
