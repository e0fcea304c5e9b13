"""The inter-token budget against laws of step times, on a clock of its own (benchmarks/budget_laws.py)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import budget_laws as laws

PROMPTS = (100, 300, 1000, 2000, 4000, 8000)


@pytest.mark.parametrize(
    ("law", "budget", "share"), [("line", 6, 0.8), ("stairs", 6, 0.8), ("h200", 3, 0.85), ("h200", 6, 0.85), ("h200", 12, 0.8)]
)
def test_99_of_100_tokens_come_within_the_budget_and_prompts_get_the_rest(law, budget, share):
    """``share``: of what a batcher reads that knows the law; little is read, so that learning is much of it."""
    run = laws.measure(laws.LAWS[law], budget, PROMPTS)
    knows = laws.measure(laws.LAWS[law], budget, PROMPTS, step_time=laws.Knows(laws.LAWS[law]))
    for phase in ("cold", "warm"):
        assert run[phase]["p99_ms"] <= budget
        assert run[phase]["prompt_rows_s"] >= share * knows[phase]["prompt_rows_s"]


def test_where_time_goes_with_rows_nine_tenths_of_the_budget_are_used():
    run = laws.measure(laws.Law("2 ms and 0.1 ms a row", {64: (2, 0.1)}, noise=0.01), 5, (30_000, 30_000))
    assert run["warm"]["p99_ms"] <= 5 and run["warm"]["p50_ms"] >= 4.5


def decoding(law, budget, count, max_rows=64):
    """A machine on which so many requests decode."""
    machine = laws.Machine(law, budget, laws.StepTime(laws.CONFIG), max_rows, count + 1, 400)
    for _ in range(count):
        machine.submit(10, 1 << 40)
    while any(s.state != "decode" for s in machine.batcher):
        machine.step()
    return machine


def read(machine, prompt):
    """Rows of a prompt in each step until it has been read."""
    late, rows = machine.submit(prompt, 1), []
    while not late.first_token:
        before = late.left
        machine.step()
        rows.append(before - (0 if late.first_token else late.left))
    return rows


def test_a_row_that_costs_more_than_it_is_worth_is_not_taken():
    """Eight rows take 2 ms, more 3.9: of at most eleven, one decoding, 7 in 2 ms are more than 10 in 3.9."""
    rows = read(decoding(laws.Law("", {8: (2, 0), 16: (3.9, 0)}), 4.5, 1, max_rows=11), 3000)
    assert rows[100:-1].count(7) > 0.98 * len(rows[100:-1])
    worth = read(decoding(laws.Law("", {8: (2, 0), 16: (2.5, 0)}), 4.5, 1, max_rows=11), 3000)
    assert worth[100:-1].count(10) > 0.98 * len(worth[100:-1])


def starved(budget):
    """Rows of a prompt in each step, and gaps, where eight rows, that decode, take 2 ms and more 3.5 or 9."""
    machine = decoding(laws.Law("", {8: (2, 0), 16: (3.5, 0), 64: (9, 0)}), budget, 8)
    first = len(machine.gaps)
    return read(machine, 200), [ns / 1e6 for _, ns in machine.gaps[first:]]


def test_where_only_decoding_fits_prompts_get_a_whole_step_seldom():
    sizes, gaps = starved(3)
    assert [n for n in sizes if n] == [1, 1, 1, 56, 56, 56, 29]  # three of nine rows to learn from
    assert len(sizes) > 3 * 399 and sum(g > 3 for g in gaps) < 0.01 * len(gaps)


def test_where_not_even_decoding_fits_prompts_fill_the_size_of_one_more_row():
    sizes, gaps = starved(1)
    assert set(sizes[4:]) == {8} and min(gaps) > 1
