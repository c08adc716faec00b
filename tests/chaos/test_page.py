"""The page is generated from results, and leaves what is written by hand alone."""

import re
from pathlib import Path

import pytest

from chaos import page

RESULT = {
    "seed": 7,
    "minutes": 1.0,
    "started_at": "2026-01-02T03:04:05+00:00",
    "versions": {"server": "valkey 9.1.2"},
    "machine": {"cpus": 2},
    "processes": {"started": 13},
    "injected": [
        {"nemesis": "kill", "target": "orders-run", "hits": 1, "began": 1.0, "ended": 1.2},
        {"nemesis": "cut-after", "target": "proxies", "hits": 30, "began": 3.0, "ended": 5.0},
    ],
    "left_out": {"clock": "libfaketime is not installed"},
    "counts": {"publishes confirmed": 1234, "messages left in Redis": 0},
    "journal_entries": 10,
    "ledger_lines": 20,
    "violations": [],
    "failures": [],
    "series": {
        "step_seconds": 1,
        "published_per_second": [1, 2],
        "handled_per_second": [1, 2],
        "publish_median_seconds": [0.1, None],
        "publish_p99_seconds": [0.1, None],
        "delivery_median_seconds": [0.1, None],
        "delivery_p99_seconds": [0.1, None],
    },
}


def test_a_result_becomes_a_section_with_its_figures() -> None:
    text = page.campaign_text(RESULT)
    assert "`python -m chaos --seed 7 --minutes 1`" in text
    assert "| `kill` | 1 |" in text
    assert "| `cut-after` | 1, 30 requests |" in text
    assert "| `clock` | **left out** | libfaketime is not installed |" in text
    assert "- 1,234 publishes were confirmed" in text
    assert "No promise was broken" in text


def test_a_broken_promise_is_shown() -> None:
    broken = RESULT | {"violations": ["fairness (orders): a", "fairness (orders): b"], "failures": ["x\nValueError: y"]}
    text = page.campaign_text(broken)
    assert "No promise was broken" not in text
    assert "- fairness: 2 times" in text
    assert "- a process failed: ValueError: y" in text


def test_only_the_generated_section_is_replaced() -> None:
    before = "above\n<!-- begin soak: python -m chaos page -->\nold\n<!-- end soak -->\nbelow\n"
    after = page.replace_section(before, "soak", "new")
    assert after == "above\n<!-- begin soak: python -m chaos page -->\n\nnew\n\n<!-- end soak -->\nbelow\n"
    assert page.replace_section(after, "soak", "new") == after


def test_a_page_without_a_place_for_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no line"):
        page.replace_section("nothing\n", "soak", "new")


def test_the_plots_of_the_page_exist() -> None:
    shown = re.findall(r"\]\((reliability/[a-z-]+\.svg)\)", page.PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(f"reliability/{path.name}" for path in page.PLOTS.glob("*.svg"))
    assert all((Path(page.PAGE).parent / name).exists() for name in shown)
