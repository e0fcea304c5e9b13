"""The dashboard's live source on a GPU: offered where there may be one, opened by the model's name."""

from types import SimpleNamespace

import pytest

from engine import generator
from mkviz.dashboard.hub import Hub
from mkviz.errors import MkvizError


@pytest.fixture
def opened(monkeypatch):
    """(model, options) of every engine that is opened; it runs nothing."""
    calls = []

    def engine(model, **options):
        calls.append((model, options))
        return SimpleNamespace(device="NVIDIA H200", model="demo", add_sink=lambda sink: None)

    monkeypatch.setattr(generator, "Engine", engine)
    return calls


@pytest.mark.parametrize(
    ("name", "call"),
    [
        (None, (None, {})),
        ("demo", ("demo", {})),
        ("demo on cuda", ("demo", {"backend": "cuda"})),
        ("/models/a on cuda", ("/models/a", {"backend": "cuda"})),
        ("on cuda", ("on cuda", {})),
    ],
)
def test_the_name_says_where(opened, name, call):
    assert generator.open_generator(name).source.label == "measured on NVIDIA H200"
    assert opened == [call]


def test_the_page_offers_and_opens_it(opened, monkeypatch):
    monkeypatch.setattr(generator, "_gpu", lambda: True)
    monkeypatch.setattr(generator, "fetched", lambda: {"smollm2": "somewhere"})
    hub = Hub({"engine": generator.open_generator})
    assert hub.models == ["demo", "demo on cuda", "smollm2 on cuda"]
    source = hub.generator("demo on cuda").source
    assert opened == [("demo", {"backend": "cuda"})]
    assert hub.sources["live: demo on cuda"] is source and source.kind == "measured"


@pytest.mark.parametrize("missing", ["cupy", "driver"])
def test_nothing_is_offered_where_there_is_no_gpu(monkeypatch, missing):
    monkeypatch.setattr(generator, "find_spec", lambda name: None if missing == "cupy" else name)
    monkeypatch.setattr(generator, "DRIVER", "libno-such-driver.so.1")
    generator._gpu.cache_clear()
    try:
        assert generator.models() == []
    finally:
        generator._gpu.cache_clear()


def test_without_a_gpu_the_page_is_told_what_is_missing(monkeypatch):
    monkeypatch.setattr("engine.cuda.backend.open_device", lambda: (_ for _ in ()).throw(MkvizError("no GPU found", "cpu")))
    with pytest.raises(MkvizError, match="no GPU found"):
        Hub({"engine": generator.open_generator}).generator("demo on cuda")
