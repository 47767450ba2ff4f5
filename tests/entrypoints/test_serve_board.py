"""Figures of several replicas as those of one endpoint."""

from __future__ import annotations

from tpuctl.entrypoints.serve_board import Board, ReplicaFigures, together
from tpuctl.runs.events import event

ONE = {"running": 3, "waiting": 1, "output_tokens": 100, "page_use": 0.5, "first_token_seconds": 0.2}
OTHER = {"running": 1, "waiting": 0, "output_tokens": 20, "page_use": 0.1, "first_token_seconds": None}


def test_counts_are_added_and_shares_averaged() -> None:
    assert together([ONE, OTHER]) == {
        "running": 4,
        "waiting": 1,
        "output_tokens": 120,
        "page_use": 0.3,
        "first_token_seconds": 0.2,
    }


def test_news_are_what_is_new_and_no_figures_before_a_replica_has_any() -> None:
    board = Board()
    for phase in ("reserved", "weights"):
        board.put(event("phase", phase=phase))
    board.put_figures("a", None)
    news = board.news(since=1)
    assert [item["phase"] for item in news.events] == ["weights"]
    assert news.figures is None
    board.put_figures("b", ReplicaFigures(model="m", figures=OTHER, metrics=b"text"))
    figures = board.news(since=0).figures
    assert figures is not None
    assert figures["output_tokens"] == 20
    assert board.metrics() == [({"model_name": "m", "replica": "b"}, b"text")]
