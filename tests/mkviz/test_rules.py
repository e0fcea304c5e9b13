"""Rules and mkviz check: each value on steps worked by hand, exit codes, and mistakes that are named."""

import json

import pytest
from test_many_steps import WAITS, tell

from mkviz.cli import main
from mkviz.errors import MkvizError
from mkviz.protocols import TokenInfo
from mkviz.rules import RULES, check_rules, exit_code
from mkviz.trace import Trace, TraceWriter

SM_TIME = 2 * sum(wait + 60 for wait in WAITS)


def write(path, **more):
    with TraceWriter(path, kind="measured", device="cpu") as writer:
        tell(writer, WAITS, **more)
        for i in range(10):
            writer.token(TokenInfo(0, i, 1, "a", i, 1000 * i))
        writer.lost(4)
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write(tmp_path_factory.mktemp("rules") / "t.mkt")


VALUES = {
    "max-tail": 0.5,  # SM 1 has no task
    "max-wait": sum(wait - 40 for wait in WAITS) / SM_TIME,
    "max-starved": 0,
    "max-overhead": 0,
    "max-unknown": 0,
    "min-compute": 21 * 100 / SM_TIME,
    "max-wave-tail": 0,  # each op runs on one SM
    "max-step": 101,
    "max-step-p90": 102,
    "max-step-p99": 200,
    "max-step-worst": 200,
    "max-path-hop": 1 / 101,  # step 1, of median time, waits for 1 ns
    "max-path-publish": 0,
    "max-path-starved": 0,
    "max-path-overhead": 0,
    "max-path-tail": 0,
    "max-path-unknown": 0,
    "min-tok-s": 10 / (20_102e-9),  # the last of 21 steps begins at 20 µs and takes 102 ns
    "max-lost": 4,
    "max-broken": 0,
    "max-repeated": 0,
}


def test_every_value_by_hand(trace):
    assert set(RULES) == {*VALUES, "max-clock-error"}
    found = check_rules(Trace.open(trace), dict.fromkeys(VALUES, "0ns")
                        | {name: "0" for name, rule in RULES.items() if name in VALUES and rule.kind != "time"})  # fmt: skip
    assert {v.rule.name: v.value for v in found} == pytest.approx(VALUES)


@pytest.mark.parametrize(
    ("rule", "limit", "code"),
    [
        ("max-tail", "50%", 0), ("max-tail", "0.5", 0), ("max-tail", "49.99 %", 1), ("max-step", "101ns", 0),
        ("max-step", "0.1us", 1), ("max-step", "0.101 µs", 0), ("max-step-worst", "1ms", 0), ("min-compute", "46%", 0),
        ("min-compute", "50%", 1), ("min-tok-s", "497000", 0), ("min-tok-s", "498000", 1), ("max-lost", "4", 0),
        ("max-lost", "3", 1), ("max-clock-error", "1us", 2),
    ],
)  # fmt: skip
def test_the_exit_code(trace, capsys, rule, limit, code):
    assert main(["check", str(trace), f"--{rule}", limit]) == code
    word = {0: "ok   ", 1: "FAIL ", 2: "???? "}[code] + rule
    assert f"\n{word}" in capsys.readouterr().out


def test_a_broken_rule_outweighs_one_that_cannot_be_checked(trace, capsys):
    assert main(["check", str(trace), "--max-lost", "0", "--max-clock-error", "1us", "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert (out["label"], out["code"], [rule["code"] for rule in out["rules"]]) == ("recorded (cpu)", 1, [2, 1])
    assert out["rules"][0]["why"] == "the error of the clocks is not known"
    assert main(["check", str(trace), "--max-lost", "9", "--max-clock-error", "1us"]) == 2
    assert "could not be checked: the error of the clocks is not known" in capsys.readouterr().out


def test_some_steps(trace, capsys):
    assert main(["check", str(trace), "--max-step-worst", "199ns", "--max-lost", "0", "--steps", "0-6"]) == 0
    assert main(["check", str(trace), "--max-step-worst", "199ns", "--steps", "0-7"]) == 1


def test_mistakes_are_named(trace, capsys):
    for words, told in (
        (["--max-tial", "5%"], "unrecognized arguments: --max-tial 5%"),
        (["--max-ste", "1us"], "unrecognized arguments: --max-ste 1us"),
        (["--max-tail", "abc"], "--max-tail 'abc'; a limit like 5% or 0.05"),
        (["--max-tail", "5"], "--max-tail '5'; a limit like 5% or 0.05"),
        (["--max-step", "400"], "--max-step '400'; a limit like 400us"),
        (["--max-lost", "1.5"], "--max-lost '1.5'; a limit like a whole number"),
        (["--max-lost", "1.2.3"], "--max-lost '1.2.3'"),
        ([], "no rule to check; one or several of max-wait"),
    ):
        assert main(["check", str(trace), *words]) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(MkvizError, match="rule 'max-tial'; did you mean 'max-tail'"):
        check_rules(Trace.open(trace), {"max-tial": "5%"})


def test_what_a_trace_cannot_tell_is_no_pass(trace, tmp_path):
    part = Trace.open(trace).slice(tmp_path / "part.mkt", sms=0)
    empty = tmp_path / "empty.mkt"
    TraceWriter(empty, kind="measured").close()
    for of in (part, Trace.open(empty)):
        for name in ("max-tail", "max-wave-tail"):
            verdicts = check_rules(of, {name: "1"})
            assert exit_code(verdicts) == 2 and verdicts[0].why
    for name in ("max-step", "max-path-hop", "min-tok-s"):
        assert (
            exit_code(check_rules(Trace.open(empty), {name: {"max-path-hop": "1"}.get(name, "1s" if "step" in name else "1")}))
            == 2
        )
