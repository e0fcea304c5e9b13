"""Settings: one schema, three places, an error for what none of them knows."""

import argparse
import dataclasses

import pytest

from engine.serve.settings import Settings, add_arguments, load
from mkviz.errors import MkvizError


def parsed(*argv):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return vars(parser.parse_args(argv))


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nbatch = 1\nqueue = 1\napi_key = ["a", "b"]\ntrace = false\nshutdown_deadline = 3\n')
    environ = {"MKVIZ_SERVE_CONFIG": str(file), "MKVIZ_SERVE_PORT": "2", "MKVIZ_SERVE_BATCH": "2", "HOME": "x"}
    settings = load(parsed("--port", "3"), environ)
    assert (settings.port, settings.batch, settings.queue) == (3, 2, 1)
    assert (settings.api_key, settings.trace, settings.shutdown_deadline) == (("a", "b"), False, 3.0)
    assert load(parsed("--config", str(file)), {}).port == 1 and load({}, {}) == Settings()


def test_every_field_can_be_said_in_all_three_places(tmp_path):
    for item in dataclasses.fields(Settings):
        value = {"int": 7, "float": 7.5, "bool": False, "tuple": ("a",)}.get(item.type.split(" ")[0].split("[")[0], "x")
        if item.metadata["choices"]:
            value = item.metadata["choices"][-1]
        option = "--" + item.name.replace("_", "-")
        argv = [value] if item.name == "model" else [option.replace("--", "--no-")] if value is False else [option, f"{value}"]
        argv = [option, value[0]] if isinstance(value, tuple) else argv
        assert getattr(load(parsed(*argv), {}), item.name) == value
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        assert getattr(load({}, {f"MKVIZ_SERVE_{item.name.upper()}": text}), item.name) == value
        file = tmp_path / "one.toml"
        written = {bool: "false", tuple: '["a"]', str: f'"{value}"'}.get(type(value), value)
        file.write_text(f"{item.name} = {written}")
        assert getattr(load({"config": file}, {}), item.name) == value


@pytest.mark.parametrize(
    ("argv", "environ", "toml", "words"),
    [
        (["--port", "x"], {}, "", "--port: 'x'; a whole number"),
        (["--port", "70000"], {}, "", "--port: 70000; 0 to 65535"),
        (["--backend", "tpu"], {}, "", "--backend: 'tpu'; one of cpu, cuda"),
        ([], {"MKVIZ_SERVE_PROT": "1"}, "", "MKVIZ_SERVE_PROT: no such setting"),
        ([], {"MKVIZ_SERVE_TRACE": "perhaps"}, "", "MKVIZ_SERVE_TRACE: 'perhaps'; true or false"),
        ([], {}, "prot = 1", "prot: no such setting"),
        ([], {}, 'port = "8000"', "port: '8000'; a whole number"),
        ([], {}, "port = true", "port: True; a whole number"),
        ([], {}, "port = -1", "port: -1; 0 to 65535"),
        ([], {}, "api_key = [1]", "api_key"),
        ([], {}, "port = ", "is not TOML"),
        (["--api-key", "sk-1,sk-2"], {}, "", "--api-key: a comma; the option again for each"),
        (["--allow-origin", "http://a,http://b"], {}, "", "--allow-origin: a comma; the option again for each"),
        (["--api-key", "sp aced"], {}, "", "api_key"),
        ([], {"MKVIZ_SERVE_API_KEY": ""}, "", "MKVIZ_SERVE_API_KEY: empty"),  # a secret that is not there opens nothing
        ([], {"MKVIZ_SERVE_API_KEY": "a, "}, "", "MKVIZ_SERVE_API_KEY: empty"),
        ([], {"MKVIZ_SERVE_HOST": ""}, "", "MKVIZ_SERVE_HOST: empty"),  # nor to everybody
        (["--served-name", ""], {}, "", "--served-name: empty"),
        ([], {}, 'api_key = [""]', "api_key: empty"),
        (["--config", "/nowhere/x.toml"], {}, "", "cannot be read"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, argv, environ, toml, words):
    file = tmp_path / "serve.toml"
    file.write_text(toml)
    arguments = parsed(*argv)
    with pytest.raises(MkvizError) as told:
        load({"config": file} | {k: v for k, v in arguments.items() if v is not None}, environ)
    assert words in str(told.value) and "sp aced" not in str(told.value) and "sk-1" not in str(told.value)


def test_several_keys():
    two = ("sk-1", "sk-2")
    assert load(parsed("--api-key", "sk-1", "--api-key", "sk-2"), {}).api_key == two
    assert load({}, {"MKVIZ_SERVE_API_KEY": "sk-1, sk-2"}).api_key == two


def test_a_file_that_is_not_named_might_have_had_the_keys():
    with pytest.raises(MkvizError, match="MKVIZ_SERVE_CONFIG: empty"):
        load({}, {"MKVIZ_SERVE_CONFIG": ""})
