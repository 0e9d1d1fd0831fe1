"""The page and the notebook's view hold the run, no script of somebody else's, and nothing from elsewhere."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import accumulate

import pytest
from harness import POLICIES, request, simulated

import minillm.report.page
from minillm.records import Recording
from minillm.report.page import page, run_data
from minillm.report.view import TimelineView

VLLM = {"num_blocks": 6, "block_size": 4, "watermark": 1}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>&amp;\"$title]]>\u2028"


def record(*names):
    entries = [(name, 7, 6) for name in names or ("A", "B", "C")]
    engine = simulated(POLICIES["vllm"](**VLLM), [request(*entry) for entry in entries])
    engine.run()
    return replace(engine.recording("vllm"), capacity=24)


class Tags(HTMLParser):
    """Counts what a browser would see as elements, and keeps the embedded data."""

    def __init__(self, document):
        super().__init__()
        self.found, self.data, self._in_data = [], "", False
        self.feed(document)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self._in_data = dict(attributes).get("id") == "data"

    def handle_data(self, text):
        if self._in_data:
            self.data += text

    def handle_endtag(self, tag):
        self._in_data = False


def data_of(document):
    return json.loads(Tags(document).data)


def test_the_page_holds_a_run_per_policy():
    runs = data_of(page([record(), replace(record(), policy="again")]))["runs"]
    assert [run["policy"] for run in runs] == ["vllm", "again"]


def test_columns_are_stored_as_differences_and_zeros_as_nothing():
    recording = record()
    counts = run_data(recording)["counts"]
    assert list(accumulate(counts["waiting"])) == [step.waiting for step in recording.steps]
    assert list(accumulate(counts["filled_tokens"])) == [step.filled_tokens for step in recording.steps]
    assert counts["swapped_out"] == []


def test_stretches_cover_every_token():
    recording = record()
    numbers = run_data(recording)["stretches"]
    stretches = [numbers[place : place + 7] for place in range(0, len(numbers), 7)]
    assert sum(passes * tokens for _, _, passes, _, _, tokens, _ in stretches) == sum(
        step.useful_tokens for step in recording.steps
    )


def test_many_sequences_are_thinned():
    data = run_data(record(), max_rows=2)
    assert [row[0] for row in data["rows"]] == ["A", "C"]
    assert data["sequences"] == 3


def test_nothing_comes_from_elsewhere():
    tags = Tags(page([record()])).found
    addresses = [value for _, attributes in tags for key, value in attributes.items() if key in ("src", "href")]
    assert addresses == ["data:,"]
    assert "@import" not in page([record()])
    assert set(re.findall(r"https?://[^\"' )]+", page([record()]))) == {"http://www.w3.org/2000/svg"}


def test_hostile_names_stay_names():
    recording = replace(record(HOSTILE, "B"), policy=HOSTILE)
    document, harmless = page([recording], title=HOSTILE), page([record("A", "B")])
    assert [tag for tag, _ in Tags(document).found] == [tag for tag, _ in Tags(harmless).found]
    assert "<" not in Tags(document).data
    assert data_of(document)["runs"][0]["rows"][0][0] == HOSTILE


def test_hostile_names_stay_names_in_notebooks():
    view = TimelineView(replace(record(HOSTILE, "B"), policy=HOSTILE))
    assert "<script" not in view.svg()
    assert "<img" not in view.svg()
    harmless = TimelineView(record("A", "B"))
    assert [tag for tag, _ in Tags(view._repr_html_()).found] == [tag for tag, _ in Tags(harmless._repr_html_()).found]


def test_a_page_over_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(minillm.report.page, "MAX_BYTES", 20_000)
    with pytest.raises(ValueError, match=r"its limit is 0.02 MB; compare fewer policies"):
        page([record()])


def test_thousands_of_passes_fit():
    recording = record()
    many = tuple(replace(step, index=step.index + 9 * lap) for lap in range(500) for step in recording.steps)
    long = replace(recording, steps=tuple(replace(step, finished=(), events=()) for step in many))
    assert len(json.dumps(run_data(long), separators=(",", ":"))) < 100 * len(many)


def test_there_must_be_something_to_draw():
    empty = Recording("none", 8, (), ())
    with pytest.raises(ValueError, match="no run has a pass"):
        page([empty])
    with pytest.raises(ValueError, match="none has no passes to draw"):
        TimelineView(empty)


def test_the_same_runs_give_the_same_page_and_the_same_view():
    assert page([record()]) == page([record()])
    assert TimelineView(record())._repr_html_() == TimelineView(record())._repr_html_()
    assert repr(TimelineView(record())).startswith("TimelineView(vllm, ")


def test_a_view_is_an_image_until_its_script_runs():
    tags = Tags(TimelineView(record())._repr_html_()).found
    [image] = [attributes for tag, attributes in tags if tag == "img"]
    assert image["src"].startswith("data:image/svg+xml,%3Csvg")
    assert image["alt"].startswith("vllm: what each of ")
    [bar] = [attributes for tag, attributes in tags if tag == "div" and "display:none" in attributes.get("style", "")]
    assert bar
