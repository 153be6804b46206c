"""A page with plots, as tests read it."""

import json
import re
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest


class Page(HTMLParser):
    """What a page shows and loads."""

    def __init__(self, path):
        super().__init__()
        self.loads = []
        self.shown = ""
        self.scripts = [""]
        self._inside = None
        self.feed(path.read_text(encoding="utf-8"))
        self.figures = json.loads(self._figures, parse_constant=lambda name: pytest.fail(f"{name} is no number"))
        for figure in self.figures:
            go.Figure(figure)  # raises for what plotly.js does not know

    def handle_starttag(self, tag, attrs):
        self._inside = (tag, dict(attrs).get("id"))
        self.loads += [value for name, value in attrs if name in ("src", "href", "data")]
        self.loads += [tag] if tag in ("link", "iframe", "object", "embed") else []

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside == ("script", "figures"):
            self._figures = data
        elif self._inside and self._inside[0] not in ("script", "style"):
            self.shown += data + "\n"

    def fact(self, name):
        found = re.search(rf"^{re.escape(name)}\n+(.+)$", self.shown, re.MULTILINE)
        return found and found[1]

    def trace(self, number, name):
        """The data of one trace of a figure; None if it is not there."""
        return next((trace for trace in self.figures[number]["data"] if trace.get("name") == name), None)
