"""Ranks: several captures, part by part, here and on two workers of a Dask cluster, say what each says by itself."""

import pandas as pd
import pytest
from test_tally import capture

from mkviz.accounting import KINDS, account
from mkviz.errors import MkvizError
from mkviz.hops import hops
from mkviz.ranks import Ranks

COLUMNS = [*KINDS, "sm_time"]


@pytest.fixture
def traces(tmp_path):
    return {f"rank {seed}": capture(tmp_path / f"{seed}.mkt", seed).path for seed in (1, 4)}


def hops_of(trace, steps):
    return hops(trace, steps).frame()


def agrees(ranks, traces):
    one = {rank: account(path) for rank, path in traces.items()}
    by_rank = ranks.account("rank")
    assert by_rank["rank"].tolist() == list(traces)
    for rank, row in by_rank.set_index("rank").iterrows():
        assert {kind: int(row[kind]) for kind in KINDS} == one[rank].totals
    expected = pd.concat([a.frame("op", "layer") for a in one.values()]).groupby(["op", "layer"], as_index=False).sum()
    found = ranks.account("op", "layer")
    kept = expected[COLUMNS].any(axis=1)
    pd.testing.assert_frame_equal(found, expected[kept].reset_index(drop=True))
    assert ranks.account()["sm_time"].tolist() == [sum(a.sm_time for a in one.values())]
    rows = ranks.frame(hops_of)
    for rank, path in traces.items():
        mine = rows[rows["rank"] == rank].drop(columns="rank").reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, hops(path).frame(), check_dtype=False)


@pytest.mark.parametrize("part", [1, 70, 1 << 22])
def test_parts_one_after_the_other(traces, part):
    ranks = Ranks(traces, part=part)
    assert len(ranks.parts) == {1: 18, 70: len(ranks.parts), 1 << 22: 2}[part]
    agrees(ranks, traces)


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_on_two_workers_of_a_cluster(traces, processes):
    distributed = pytest.importorskip("distributed", reason="extra dask is not installed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=processes, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        ranks = Ranks(traces, client, part=70)
        assert len(ranks.parts) > 4
        agrees(ranks, traces)
        ran = {key for keys in client.has_what().values() for key in keys}
        assert not ran  # nothing is kept on workers
        workers = client.run(lambda: 1)
        assert len(workers) == 2


def test_what_cannot_be_is_refused_by_name(traces, tmp_path):
    with pytest.raises(MkvizError, match="no traces"):
        Ranks([])
    with pytest.raises(MkvizError, match=r"gone\.mkt"):
        Ranks([tmp_path / "gone.mkt"])
    with pytest.raises(MkvizError, match="'step'; any of rank, sm, op, layer"):
        Ranks(traces).account("step")
    with pytest.raises(MkvizError, match="parts of 0 records"):
        Ranks(traces, part=0)
    assert [part.rank for part in Ranks(list(traces.values())).parts] == ["0", "1"]
