"""The console's files: none asks for anything from elsewhere."""

from __future__ import annotations

import re

from server.console.app import STATIC

FILES = sorted(STATIC.iterdir())


def test_no_file_names_another_place() -> None:
    """But for the name of SVG, which nobody fetches."""
    for path in FILES:
        found = [url for url in re.findall(r"(?:https?:)?//[\w.]+\.\w+", path.read_text()) if "www.w3.org" not in url]
        assert found == [], path.name


def test_no_text_is_read_as_html() -> None:
    ways = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc")
    assert [path.name for path in FILES if ways.search(path.read_text())] == []


def test_no_script_or_style_is_inline() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page) == []
