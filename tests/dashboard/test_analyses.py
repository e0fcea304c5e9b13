"""The page of analyses without a browser: what is asked, when, what is shown of it, and what the address keeps."""

import threading
from types import SimpleNamespace
from urllib.parse import parse_qs, urlparse

import pytest
from two_lanes import two_lanes

from mkviz.dashboard import analyses as module
from mkviz.dashboard import leads
from mkviz.dashboard.analyses import Analyses
from mkviz.dashboard.analyses_ask import DEFAULTS, fields, settle
from mkviz.dashboard.analyses_link import AnalysesLink
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.worker import Worker
from mkviz.findings import ANALYSES


class Jobs(list):
    """A worker that works when it is told to."""

    put = list.append

    def work(self):
        while self:
            self.pop(0)()


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.setattr(module, "worker", Jobs())
    return module.worker


class Growing:
    """A source of the one step, whose version moves when told to."""

    def __init__(self, closed=False):
        self.taken, self.closed = two_lanes().snapshot, closed
        self.label, self.kind, self.version, self.words = "simulated", "simulated", 1, ""

    def snapshot(self):
        from dataclasses import replace

        return replace(self.taken, closed=self.closed, version=self.version)


@pytest.fixture
def source():
    return Growing()


@pytest.fixture
def analyses(source, jobs):
    hub = Hub(openers={})
    hub.add_source("two", source)
    return Analyses(hub)


def show(analyses, jobs):
    """Until nothing is due."""
    for _ in range(40):
        jobs.work()
        analyses.tick()
        if not analyses._due:
            return


def words(analyses, name):
    return analyses.panels[name].words.object.replace("&nbsp;", " ")


def test_every_panel_is_computed_by_the_worker_and_shown_one_a_tick(analyses, jobs):
    analyses.restore({"source": "two"})
    analyses.ask()
    assert len(jobs) == 1 and all("computing …" in words(analyses, name) for name in ANALYSES)
    jobs.work()
    analyses.tick()
    assert analyses.reading.words == "step 7, the only one" and len(jobs) == len(ANALYSES)
    jobs.work()
    assert all(panel.finding is None for panel in analyses.panels.values())  # nothing but ticks touches the page
    analyses.tick()
    assert sum(panel.finding is not None for panel in analyses.panels.values()) == 1
    show(analyses, jobs)
    shown = [name for name, panel in analyses.panels.items() if panel.finding is not None]
    # there is one step only, its replay is off by more than 5 %, and its machine was not measured
    assert set(ANALYSES) - set(shown) == {"diff", "whatif", "waterfall"}
    assert "This cannot be told: there is only one step" in words(analyses, "diff")
    assert "Step 7 takes 1.00 µs; 75.0 % of it is compute" in words(analyses, "blame")
    assert all("computing" not in words(analyses, name) for name in ANALYSES)
    assert analyses.panels["blame"].source == "two"


def test_without_a_source_the_page_says_what_to_do(jobs):
    analyses = Analyses(Hub(openers={}))
    analyses.restore({})
    analyses.ask()
    assert all("Nothing to analyse yet: choose a source above" in words(analyses, name) for name in ANALYSES) and not jobs


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"source": "gone"}, "there is no source &#x27;gone&#x27; any more"),
        ({"source": "two", "steps": "x"}, "a step like 12, the first and last one like 10-20"),
        ({"source": "two", "steps": "9"}, "there is no step 9; one from 7 to 7"),
    ],
)
def test_what_is_wrong_is_said_in_words(analyses, jobs, query, said):
    analyses.restore(query)
    analyses.ask()
    show(analyses, jobs)
    assert said in words(analyses, "tails") and analyses.bar.wrong
    assert analyses.panels["tails"].facts.object == "" and not analyses.panels["tails"].figures.objects


def test_a_source_that_is_busy_says_with_what(analyses, jobs, source):
    from mkviz.store import LiveStore

    source.taken, source.words = LiveStore().snapshot(), "simulating step 3 …"
    analyses.restore({"source": "two"})
    analyses.ask()
    show(analyses, jobs)
    assert "simulating step 3 …" in words(analyses, "blame")


def test_a_bug_in_one_analysis_is_told_and_ends_no_other(analyses, jobs, monkeypatch):
    from dataclasses import replace

    def broken(reading):
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(ANALYSES, "tails", replace(ANALYSES["tails"], find=broken))
    analyses.restore({"source": "two"})
    analyses.ask()
    show(analyses, jobs)
    assert "a bug of mkviz: ZeroDivisionError: by zero" in words(analyses, "tails")
    assert analyses.panels["waits"].finding is not None


def test_an_answer_to_an_earlier_question_is_dropped(analyses, jobs):
    analyses.restore({"source": "two", "panel": "accounting"})
    analyses.ask()
    jobs.work()
    analyses.tick()
    analyses.ask_with("accounting", {"by": "layer"})
    assert len(jobs) == 2
    jobs.work()
    analyses.ask_with("accounting", {"by": "sm"})  # the answer by layer is there and not taken yet
    analyses.tick()
    assert analyses.panels["accounting"].finding is None
    analyses.ask_with("accounting", {"by": "layer"})
    show(analyses, jobs)
    assert "by layer" in analyses.panels["accounting"].finding.tables
    analyses.controlled("steps", "9")
    analyses.controlled("steps", "7")
    show(analyses, jobs)
    assert analyses.reading.words == "step 7" and not analyses.bar.wrong


def test_a_live_source_is_looked_at_again_when_it_has_grown(analyses, jobs, source, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    analyses.restore({"source": "two", "panel": "steps"})
    analyses.ask()
    show(analyses, jobs)
    asked = analyses.asked[""]
    now[0] += 60
    analyses.tick()
    assert analyses.asked[""] == asked and analyses.bar.is_live  # it has not grown
    source.version = 2
    analyses.controlled("auto", False)
    analyses.tick()
    assert analyses.asked[""] == asked
    analyses.controlled("auto", True)
    analyses.tick()
    assert analyses.asked[""] == asked + 1
    show(analyses, jobs)
    source.version, source.closed = 3, True
    analyses.controlled("refresh", True)
    show(analyses, jobs)
    now[0] += 60
    source.version = 4
    analyses.tick()
    assert not analyses.bar.is_live and analyses.asked[""] == asked + 2


def test_a_closed_page_is_not_computed_for(analyses, jobs):
    analyses.restore({"source": "two"})
    analyses.ask()
    jobs.work()
    analyses.tick()
    analyses.close()
    jobs.work()
    assert analyses._answers.empty()


def test_dark_figures_are_drawn_anew_without_computing(analyses, jobs):
    analyses.restore({"source": "two", "panel": "blame"})
    analyses.ask()
    jobs.work()
    analyses.tick()
    jobs.work()
    analyses.set_dark(True)  # after it was drawn in light, before it is shown
    show(analyses, jobs)
    figure = analyses.panels["blame"].figures.objects[0].object
    assert figure.background_fill_color == "#14181f" and figure.title.text == "what held step 7 · simulated"
    analyses.set_dark(False)
    assert analyses.panels["blame"].figures.objects[0].object.background_fill_color == "#ffffff" and not jobs


def test_the_address_keeps_what_differs(analyses):
    query = {"source": "two", "steps": "worst", "panel": "whatif", "again": "no"}
    query |= {"change": "faster", "value": "qkv=2", "by": "sm", "steps_b": "7"}
    analyses.restore(query)
    assert analyses.state() == query and analyses.shown == ["whatif"]
    analyses.restore({"source": "two", "panel": "none", "by": "nothing", "change": "unknown"})
    assert analyses.values["accounting"] == DEFAULTS["accounting"] and analyses.shown == list(ANALYSES)


def test_forms():
    assert [f["name"] for f in fields("whatif", {"change": "kernel_per_op", "value": ""}, [])] == ["change"]
    assert fields("whatif", {"change": "sms", "value": "64"}, [])[1]["value"] == "64"
    assert fields("tails", {}, []) == []
    asked = fields("whatif", {"change": "rows", "value": "8", "judge": "b"}, ["a", "b"])
    assert [f["name"] for f in asked] == ["change", "value", "judge"] and asked[2]["value"] == "b"
    assert [words for _, words in asked[2]["options"]] == ["this source", "a", "b"]
    assert [words for _, words in fields("diff", DEFAULTS["diff"], ["b"])[0]["options"]] == ["the same source", "b"]
    old = {"change": "faster", "value": "qkv=2"}
    assert settle("whatif", old, {"change": "sms", "value": "qkv=2"}) == {"change": "sms", "value": ""}
    assert settle("whatif", old, {"change": "faster", "value": "up=3 "}) == {"change": "faster", "value": "up=3"}


def test_rows_lead_to_their_tasks_and_steps(analyses, jobs):
    analyses.restore({"source": "two"})
    analyses.ask()
    show(analyses, jobs)
    assert (
        'href="./?source=two&amp;range=' in analyses.panels["blame"].facts.object
        and "pin=7.2" in analyses.panels["blame"].facts.object
    )
    snapshot = two_lanes().snapshot
    query = {k: v[0] for k, v in parse_qs(urlparse(leads.to_task("timeline", "two", snapshot, 7, 2)).query).items()}
    # attention: free since 300, 450 to 900: four of its lengths around it
    assert query == {"source": "two", "range": "-1.500-2.700", "pin": "7.2"}
    whole = {k: v[0] for k, v in parse_qs(urlparse(leads.to_task("./", "two", snapshot, 7, -1)).query).items()}
    assert whole == {"source": "two", "range": "-0.020-1.020"}
    assert leads.to_steps("./", "a b", snapshot, [99]) == "./?source=a+b"


def test_the_timeline_leads_to_the_steps_in_view():
    scene = two_lanes()
    link, session = AnalysesLink(), SimpleNamespace(source_name="two", follow=False, scene=scene, x0=0.0, x1=1000.0)
    link.show(session)
    assert link.address == "analyses?source=two"  # all of them
    from dataclasses import replace

    import numpy as np

    steps = np.concatenate([scene.snapshot.steps, scene.snapshot.steps])
    steps["step"][1], steps["begin"][1], steps["end"][1] = 8, 6000, 7000
    session.scene = SimpleNamespace(snapshot=replace(scene.snapshot, steps=steps))
    link.show(session)
    assert link.address == "analyses?source=two&steps=7"
    session.follow = True
    link.show(session)
    assert link.address == "analyses?source=two"


def test_the_worker_goes_on_after_a_job_that_failed():
    worker, done = Worker(), threading.Event()
    worker.put(lambda: 1 / 0)
    worker.put(done.set)
    assert done.wait(60)
    names = [thread.name for thread in threading.enumerate() if thread.daemon]
    assert "mkviz-analyses" in names
