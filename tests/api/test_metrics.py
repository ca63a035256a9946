"""What an operator sees: metrics from closed label sets, and log lines without anyone's text."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api import worker
from tests.api.conftest import Api, Start
from tests.api.sse import opened

pytestmark = pytest.mark.anyio

SECRET = "canary-4711"


async def test_every_metric_is_ours_described_and_carries_no_id(api: Api) -> None:
    posted = await api.answered(SECRET, SECRET, conversation="user-42", metadata={"note": SECRET})
    await api.http.get(f"/v1/turns/{posted['turn_id']}")
    await api.http.get(f"/{SECRET}")
    text = (await api.http.get("/metrics")).text

    for family in text_string_to_metric_families(text):
        assert family.name.startswith("aiforge_")
        assert re.fullmatch(r"[A-Z][^.]*\.", family.documentation), family.name
        assert family.samples or family.name.startswith("aiforge_ledger")
    for secret in (SECRET, posted["turn_id"], "user-42"):
        assert secret not in text


async def test_the_stores_figures_are_exposed(api: Api) -> None:
    await api.answered("one", "1", conversation="a")
    await worker.claim(api.store, (await api.post(conversation="b"))["turn_id"])
    await api.post(conversation="c")
    seen = await _samples(api)

    assert seen['aiforge_turns_stored{state="queued"}'] == 1
    assert seen['aiforge_turns_stored{state="running"}'] == 1
    assert {'aiforge_lane_depth{lane="chat"}', 'aiforge_lane_depth{lane="batch"}'} <= set(seen)
    pair = 'model="gpt-4o-mini",provider="openai"'
    assert seen[f"aiforge_ledger_cost_usd_total{{{pair}}}"] == pytest.approx(float(worker.COST))
    assert seen[f'aiforge_ledger_tokens_total{{kind="input",{pair}}}'] == worker.USAGE.input_tokens
    assert seen['aiforge_ledger_calls_total{model="gpt-4o-mini",outcome="ok",provider="openai"}'] == 1
    assert seen[f"aiforge_ledger_unpriced_calls_total{{{pair}}}"] == 0


async def test_a_model_that_a_caller_made_up_is_no_label(api: Api) -> None:
    posted = await api.post(model=SECRET)
    await (await worker.claim(api.store, posted["turn_id"], model=SECRET)).fail(
        "provider_refused", "no such model"
    )

    assert SECRET not in (await api.http.get("/metrics")).text


async def test_a_call_that_no_model_answered_is_counted(api: Api) -> None:
    await (await worker.claim(api.store, (await api.post())["turn_id"])).fail("provider_refused", "not now")

    seen = await _samples(api)
    assert seen['aiforge_ledger_calls_total{model="",outcome="error",provider="openai"}'] == 1


async def test_requests_are_counted_by_route_method_and_class(api: Api) -> None:
    posted = await api.post()
    await api.http.get("/v1/turns/170000000000000000000a")
    await api.http.request("BREW", "/v1/turns")
    async with opened(api.http, "GET", f"/v1/turns/{posted['turn_id']}/events") as stream:
        await stream.next()
        seen = await _samples(api)

    assert seen["aiforge_open_streams"] == 1
    assert seen['aiforge_http_requests_total{method="POST",route="/v1/turns",status="2xx"}'] == 1
    assert seen['aiforge_http_requests_total{method="GET",route="/v1/turns/{turn_id}",status="4xx"}'] == 1
    assert seen['aiforge_http_requests_total{method="other",route="/v1/turns",status="4xx"}'] == 1
    assert seen['aiforge_http_request_duration_seconds_count{method="POST",route="/v1/turns"}'] == 1


async def test_log_lines_are_json_and_hold_no_text(capsys: pytest.CaptureFixture[str], start: Start) -> None:
    api = await start(log_level="debug")
    posted = await api.answered(SECRET, SECRET, metadata={"note": SECRET})
    await api.http.get(f"/v1/turns/{posted['turn_id']}", params={SECRET: SECRET})
    err = capsys.readouterr().err

    lines: list[dict[str, Any]] = [msgspec.json.decode(line) for line in err.splitlines() if line[0] == "{"]
    requests = [line for line in lines if line["event"] == "request"]
    assert [(line["method"], line["route"], line["status"]) for line in requests] == [
        ("POST", "/v1/turns", 202),
        ("GET", "/v1/turns/{turn_id}", 400),
    ]
    assert requests[0]["turn_id"] == posted["turn_id"]
    assert all(line["request_id"] and line["level"] == "info" and line["timestamp"] for line in requests)
    assert SECRET not in err


async def _samples(api: Api) -> dict[str, float]:
    """Samples by name and sorted labels, as they stand in the text format."""
    text = (await api.http.get("/metrics")).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
