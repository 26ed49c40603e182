"""The dashboards and alerts of `deploy/grafana` ask for metrics that a server gives, in a way that can be answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.metrics.described import DESCRIBED
from tests import promql

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "grafana"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((DEPLOY / "dashboards").glob("*.json"))}
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Its panels, without the headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def variables(dashboard: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def asked(dashboard: dict[str, Any]) -> list[str]:
    """What its panels ask."""
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]


def listed(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What its variables ask: a selector, and the label whose values are listed."""
    for variable in variables(dashboard).values():
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            yield found[1], found[2]


def every_expression() -> list[str]:
    """All PromQL of dashboards and alerts."""
    shown = [text for each in DASHBOARDS.values() for text in (*asked(each), *(of for of, _ in listed(each)))]
    return [*shown, *(rule["expr"] for rule in ALERTS)]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_ask_for_labels_that_are_there(name: str) -> None:
    dashboard = DASHBOARDS[name]
    known = variables(dashboard)
    for panel in panels(dashboard):
        for target in panel["targets"]:
            expression = promql.parse(target["expr"])
            result = promql.labels(expression)
            assert result is not None and set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= result, target
            assert target["datasource"] == DATASOURCE
            for selector in promql.selectors(expression):
                matched = {each.name: each.value for each in selector.matchers.matchers}
                assert matched["job"] == "$job", target
                assert {each[1:] for each in matched.values() if each.startswith("$")} <= set(known), target
                assert ("database" in promql.SERIES[selector.name]) <= ("database" in matched or name == "overview")
    for selector, label in listed(dashboard):
        result = promql.labels(promql.parse(selector))
        assert result is not None and label in result
    assert known["datasource"]["type"] == "datasource" and known["datasource"]["query"] == "prometheus"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_places_of_their_own_and_say_what_they_show(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert dashboard["uid"] == f"headwater-{name}" and dashboard["title"].startswith("Headwater / ")
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    covered = []
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        covered.append(
            {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
        )
    assert not [both for both in combinations(covered, 2) if both[0] & both[1]]
    for panel in panels(dashboard):
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel


def test_every_metric_is_shown() -> None:
    shown = {
        promql.family(selector.name)
        for dashboard in DASHBOARDS.values()
        for text in asked(dashboard)
        for selector in promql.selectors(promql.parse(text))
    }
    assert shown == set(DESCRIBED)


def test_alerts_say_what_to_do_with_labels_that_are_there() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) > 20
    for rule in ALERTS:
        result = promql.labels(promql.parse(rule["expr"]))
        assert result is not None
        annotations = rule["annotations"]
        assert set(re.findall(r"\$labels\.(\w+)", " ".join(annotations.values()))) <= result, rule
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert len(annotations["summary"]) > 20 and len(annotations["description"]) > 60, rule


def test_every_alert_is_in_the_documentation_and_the_other_way_round() -> None:
    rows = re.findall(r"^\| `(Headwater\w+)` \| (\w+) \| (\w+) \| .+ \|$", (ROOT / "docs/metrics.md").read_text(), re.M)
    assert rows == [(rule["alert"], rule["labels"]["severity"], rule.get("for", "0s")) for rule in ALERTS]


def test_labels_that_an_expression_lacks_are_found() -> None:
    for wrong in (
        "sum by (queue) (headwater_registers)",
        "headwater_registers{queue='a'}",
        "headwater_queue_depth > 0 and headwater_registers > 0",
        "histogram_quantile(0.5, rate(headwater_relay_added_seconds_sum[5m]))",
    ):
        with pytest.raises(AssertionError):
            promql.labels(promql.parse(wrong))
    for unknown in ("headwater_nothing", "headwater_queue_depth_total", "headwater_statements"):
        with pytest.raises(KeyError):
            promql.labels(promql.parse(unknown))
