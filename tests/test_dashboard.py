"""The dashboard as a file; that its panels show what happens is seen in kills/test_watched_drill.py."""

from __future__ import annotations

import json
import re
from itertools import combinations

from deadsure.metrics.catalogue import CATALOGUE
from kit import promql
from kit.dashboard import BOARD, EXPRESSIONS, PANELS, ROWS, VARIABLES

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: What Grafana sets by itself.
OF_GRAFANA = {"__rate_interval", "__interval", "__range"}


def test_it_is_the_same_dashboard_wherever_it_is_imported() -> None:
    assert (BOARD["uid"], BOARD["id"], BOARD["schemaVersion"]) == ("deadsure", None, 42)


def test_it_asks_in_the_order_of_an_operator() -> None:
    assert [row["title"] for row in ROWS] == [
        "Is anything unknown?",
        "Is work flowing?",
        "Are we saturated?",
        "What died, and how fast was it settled?",
        "How is the database?",
    ]


def test_no_two_panels_share_a_number_or_a_title_or_a_place() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in BOARD["panels"]]
    assert len(set(titles)) == len(titles)
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert [place for place in places if place["x"] + place["w"] > 24] == []
    assert [(one, other) for one, other in combinations(places, 2) if _overlap(one, other)] == []
    assert [place["y"] for place in places] == sorted(place["y"] for place in places)


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in (("x", "w"), ("y", "h"))
    )


def test_every_panel_has_a_unit_a_description_and_the_chosen_source() -> None:
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == SOURCE, panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {SOURCE["uid"]}, panel["title"]


def test_every_variable_that_is_used_is_declared_and_the_other_way_round() -> None:
    declared = {variable["name"] for variable in VARIABLES}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]) + json.dumps(VARIABLES)))
    assert used - OF_GRAFANA == declared


def test_every_panel_names_metrics_and_labels_of_the_catalogue() -> None:
    exported: dict[str, set[str]] = {}
    for metric in CATALOGUE:
        exported[metric.name] = set(metric.labels)
        if metric.type == "histogram":
            exported[f"{metric.name}_bucket"] = {*metric.labels, "le"}
    assert [wrong for expression in EXPRESSIONS for wrong in promql.wrong(expression, exported)] == []


def test_figures_about_the_whole_database_are_not_added_up_over_the_pools() -> None:
    """Each pool tells the same ones; added up they would be as many times too high."""
    of_one_pool = {"pool", "process", "version", "part"}
    whole = {metric.name for metric in CATALOGUE if metric.type == "gauge" and not of_one_pool & set(metric.labels)}
    assert {"deadsure_tasks", "deadsure_unknown_tasks", "deadsure_dead_tuples"} <= whole
    for expression in EXPRESSIONS:
        for name in promql.metrics(expression) & whole:
            assert re.search(rf"max(?: by \([^)]*\) )?\({name}\b", expression), expression


def test_a_misspelt_metric_or_label_would_be_noticed() -> None:
    exported = {"deadsure_tasks": {"queue", "state"}}
    assert promql.wrong('sum by (job, queue) (deadsure_tasks{state="queued"})', exported) == []
    for misspelt in ("deadsure_task", 'deadsure_tasks{stat="queued"}', "sum by (qeue) (deadsure_tasks)"):
        assert promql.wrong(misspelt, exported), misspelt
