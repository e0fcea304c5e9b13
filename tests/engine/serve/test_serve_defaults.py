"""A model's own sampling defaults: read from its directory, and used where a request is silent."""

import json

import pytest

from engine.defaults import sampling_defaults
from engine.serve.requests import CompletionRequest
from mkviz.errors import MkvizError

MAKERS = {"temperature": 0.3, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1}


def write(folder, **values):
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


def test_what_the_file_says_of_sampling_and_nothing_else(tmp_path):
    assert sampling_defaults(tmp_path) == {}
    more = {"do_sample": True, "eos_token_id": [6, 9], "max_length": 20, "min_p": None}
    assert sampling_defaults(write(tmp_path, **MAKERS, **more)) == MAKERS


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [("temperature", "hot", "a number"), ("top_k", 4.5, "a whole number"), ("top_p", 1.5, "above 0, at most 1"),
     ("temperature", -1, "0 \\(greedy\\) or a positive number"), ("min_p", True, "a number")],
)  # fmt: skip
def test_a_bad_value_is_refused_by_file_and_field(tmp_path, name, value, right):
    with pytest.raises(MkvizError, match=rf"generation_config\.json: {name}:? .*; {right}"):
        sampling_defaults(write(tmp_path, **{name: value}))


def of(service, **said):
    (params,) = service.params(CompletionRequest(model="demo", prompt="x", **said), 1)
    return {name: getattr(params, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}


def test_a_request_has_the_word_over_the_model_and_the_model_over_the_api(service, monkeypatch):
    api = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert service.defaults == {} and of(service) == api
    monkeypatch.setattr(service, "defaults", MAKERS)
    assert of(service) == api | MAKERS
    said = {"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.0}
    assert of(service, **said) == said | {"top_k": 0}
