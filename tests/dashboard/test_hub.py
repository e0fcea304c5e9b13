"""The hub opens a model in the background before anybody asks, and says what it is at."""

import threading
import types

import pytest

from mkviz.dashboard.generation import Generation
from mkviz.dashboard.hub import Hub
from mkviz.errors import MkvizError
from mkviz.protocols import GenerateRequest
from mkviz.store import LiveStore

WAIT = 30  # s; a thread that does not come within it never will


class Opener:
    """``open_generator`` that takes as long as the test wants it to."""

    def __init__(self, *failures):
        self.failures, self.models, self.begun, self.go = list(failures), [], threading.Event(), threading.Event()

    def __call__(self, model=None):
        self.models.append(model)
        self.begun.set()
        assert self.go.wait(WAIT)
        if self.failures:
            raise self.failures.pop(0)
        return types.SimpleNamespace(source=LiveStore(), stream=lambda request: iter(()))


class Saying(Opener):
    def opening(self):
        return "compiling, once …"


class Silent(Opener):
    def opening(self):
        return ""


def settle(hub):
    for thread in [t for t in threading.enumerate() if t.name == "mkviz-open"]:
        thread.join(WAIT)


@pytest.mark.parametrize(
    ("kind", "words"), [(Opener, "loading demo …"), (Silent, "loading demo …"), (Saying, "compiling, once …")]
)
def test_a_warm_hub_has_opened_the_model_once_and_says_so_meanwhile(kind, words):
    opener = kind()
    hub = Hub({"one": opener})
    assert hub.opening == ""
    hub.warm_up()
    assert opener.begun.wait(WAIT)
    hub.warm_up()  # every session of a server may ask
    assert hub.opening == words
    generation = Generation(hub, "demo", GenerateRequest("x"))
    assert generation.words() == words
    opener.go.set()
    assert hub.generator("demo") is hub.generator("demo")
    settle(hub)
    assert opener.models == [None] and hub.opening == ""
    assert hub.sources["live: demo"] is hub.generator("demo").source


def test_what_fails_while_warming_up_is_told_to_who_asks():
    opener = Opener(MkvizError("weights: damaged", "get them again"), MkvizError("weights: damaged", "get them again"))
    opener.go.set()
    hub = Hub({"one": opener})
    hub.warm_up()
    settle(hub)
    assert hub.opening == "" and hub.sources == {}
    with pytest.raises(MkvizError, match="weights: damaged"):
        hub.generator("demo")


def test_a_viewer_without_generators_has_nothing_to_warm_up():
    hub = Hub({})
    hub.warm_up()
    assert hub.opening == "" and hub.sources == {}
