"""docs/serving.md names every setting with its default, every field that requests may have, and every one that is refused."""

import dataclasses
import re
from pathlib import Path

import pytest

from engine.serve.requests import REFUSED, ChatRequest, CompletionRequest, StreamOptions
from engine.serve.settings import Settings

TEXT = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")


def section(heading):
    return TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_setting_is_there_with_its_default():
    told = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", section("Settings"), re.MULTILINE))
    defaults = {item.name: item.default for item in dataclasses.fields(Settings)}
    words = {
        name: "–" if d in (None, ()) else str(d).lower() if isinstance(d, bool) else str(d) for name, d in defaults.items()
    }
    assert told == words


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest, StreamOptions])
def test_every_parameter_is_named(model):
    named = set(re.findall(r"`(\w+)`", section("Parameters") + section("Tools and reasoning")))
    own = {"model", "messages", "prompt", "include_obfuscation"}  # what a request is about, and what has no effect
    assert model.model_fields.keys() - own <= named


def test_what_is_refused_is_named_and_nothing_else():
    paragraph = section("Parameters").split("**Refused by name**")[1].split(";")[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) == set(REFUSED)
