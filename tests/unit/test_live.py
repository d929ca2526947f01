"""Does the pair serve exactly this plan? Every difference has a reason, and a pair without one serves."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sparkpair import live, probe, traffic
from sparkpair.live import Probe, Verdict, judge_probe, rank_reasons, rank_report, untried, verdict
from sparkpair.screen import short_image, status_table, table

from tests.planning import plan

ROOT = Path(__file__).resolve().parents[2]
PLAN = plan(verify_tokens=3)
RELEASE = PLAN["release"]
OTHER = "ba9876543210"
NAMES = {0: "spark-0", 1: "spark-1"}
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def metrics(drafts: float, draft_tokens: float, accepted: float) -> str:
    """Counters as the engine prints them."""
    values = {DRAFTS: drafts, DRAFT_TOKENS: draft_tokens, ACCEPTED: accepted}
    lines = [f'{name}{{engine="0",model_name="m"}} {float(value)}' for name, value in values.items()]
    return "\n".join([*lines, f'{PER_POSITION}{{engine="0",model_name="m",position="0"}} {float(accepted)}'])


def responses(**changed: Any) -> list[dict[str, Any]]:
    """Answers of a healthy head to the probe; ``changed`` replaces keys of one of them by its id."""
    empty = {"status": 200, "error": None, "json": None, "text": None, "started": 10.0, "ended": 10.1}
    made = {
        "health": {"text": ""},
        "models": {"json": {"object": "list", "data": [{"id": PLAN["served_model_name"]}]}},
        "before": {"text": metrics(100, 300, 150)},
        "completion": {"started": 100.0, "ended": 102.0, "json": {"usage": {"completion_tokens": 48}}},
        "after": {"text": metrics(120, 360, 178)},
    }
    return [{"id": name, **empty, **own, **changed.get(name, {})} for name, own in made.items()]


def container(**changed: Any) -> dict[str, Any]:
    """An engine container of the release."""
    return {
        "name": "sparkpair-engine",
        "status": "running",
        "running": True,
        "labels": {"sparkpair.release": RELEASE},
        "restart_count": 0,
        "image": PLAN["image"],
        "image_id": "sha256:" + "c" * 64,
        "started_at": "2026-03-01T10:00:00Z",
        **changed,
    }


def state(**changed: Any) -> dict[str, Any]:
    """State of a rank that runs the release."""
    return {
        "docker": None,
        "current": RELEASE,
        "release": {"id": RELEASE, "exists": True, "damage": []},
        "leftovers": [],
        "containers": [container()],
        **changed,
    }


def pair() -> dict[int, dict[str, Any] | None]:
    """States of a pair that serves."""
    return {0: state(responses=responses()), 1: state()}


# --- the probe -------------------------------------------------------------------------------------------------------


def test_a_healthy_head_serves_with_its_rate_and_width() -> None:
    assert judge_probe(PLAN, responses()) == Probe(True, "", 24.0, 3.0)


def test_the_answers_judged_are_those_to_the_requests_sent() -> None:
    sent = probe.requests(PLAN)
    assert [r["id"] for r in sent["groups"][0]["requests"]] == [r["id"] for r in responses()]
    assert sent["groups"][0]["mode"] == "sequential"
    assert sent["base_url"] == f"http://127.0.0.1:{PLAN['port']}"
    body = sent["groups"][0]["requests"][3]["body"]
    assert (body["model"], body["max_tokens"]) == (PLAN["served_model_name"], probe.TOKENS)
    # The second reading has time of its own: it tells a busy pair from one that hangs.
    assert sent["groups"][0]["requests"][3]["timeout"] < sent["deadline"]
    json.dumps(sent)


LATE = {"status": None, "error": f"{traffic.LATE} 60 s", "started": 100.0, "ended": 160.0}
GENERATED = "vllm:generation_tokens_total"


def generated(before: float, after: float, **completion: Any) -> list[dict[str, Any]]:
    """Answers between which two engines have generated tokens, each its half."""

    def reading(tokens: float, drafts: float) -> str:
        halves = [f'{GENERATED}{{engine="{n}",model_name="m"}} {tokens / 2}' for n in (0, 1)]
        return "\n".join([metrics(drafts, 3 * drafts, drafts), *halves])

    return responses(
        before={"text": reading(before, 100)},
        after={"text": reading(after, 120), "ended": 170.1},
        completion=completion,
    )


def test_a_pair_that_is_busy_with_others_was_taken_for_one_that_does_not_serve() -> None:
    assert judge_probe(PLAN, generated(1000, 2600, **LATE)) == Probe(True, "", 10.0, 3.0)
    # The control: it generates nothing while somebody waits.
    assert judge_probe(PLAN, generated(1000, 1000, **LATE)) == Probe(False, f"completion: {traffic.LATE} 60 s")
    # A restart, an engine without that counter, and what is no wait.
    assert not judge_probe(PLAN, generated(2600, 1000, **LATE)).serves
    assert not judge_probe(PLAN, responses(completion=LATE)).serves
    refused = {**LATE, "error": "ConnectionRefusedError: refused"}
    assert judge_probe(PLAN, generated(1000, 2600, **refused)).reason == "completion: ConnectionRefusedError: refused"


@pytest.mark.parametrize("tokens", ["48", None, [], 0, -1])
def test_a_count_that_is_no_count_is_no_token_and_no_crash(tokens: Any) -> None:
    answer = {"json": {"usage": {"completion_tokens": tokens}}}
    assert judge_probe(PLAN, responses(completion=answer)) == Probe(False, "completion: no token came back")


@pytest.mark.parametrize("name", ["health", "models", "completion"])
@pytest.mark.parametrize(
    ("changed", "seen"),
    [
        ({"status": 503}, "status 503"),
        ({"status": 401, "error": None}, "status 401"),
        ({"status": None, "error": "ConnectionRefusedError: refused"}, "ConnectionRefusedError: refused"),
    ],
)
def test_an_answer_that_is_not_200_is_the_reason(name: str, changed: dict[str, Any], seen: str) -> None:
    assert judge_probe(PLAN, responses(**{name: changed})) == Probe(False, f"{name}: {seen}")
    assert judge_probe(PLAN, responses(**{name: {"status": 200}})).serves


@pytest.mark.parametrize("name", ["health", "models", "completion"])
def test_an_answer_that_never_came_is_the_reason(name: str) -> None:
    left = [r for r in responses() if r["id"] != name]
    assert judge_probe(PLAN, left) == Probe(False, f"{name}: nothing")


@pytest.mark.parametrize(
    ("answer", "served"),
    [
        ({"data": [{"id": "another"}]}, "['another']"),
        ({"data": []}, "[]"),
        ({}, "[]"),
        (None, "[]"),
        ([], "[]"),
        ("text", "[]"),
        ({"data": {"id": "x"}}, "[]"),
        ({"data": ["x", {}]}, "[None, None]"),
    ],
)
def test_a_wrong_served_name_is_named_whatever_shape_the_answer_has(answer: Any, served: str) -> None:
    found = judge_probe(PLAN, responses(models={"json": answer}))
    assert found == Probe(False, f"models: serves {served}, wanted {PLAN['served_model_name']!r}")


def test_one_of_several_served_names_is_enough() -> None:
    both = {"data": [{"id": "another"}, {"id": PLAN["served_model_name"]}]}
    assert judge_probe(PLAN, responses(models={"json": both})).serves


@pytest.mark.parametrize(
    "answer", [{"usage": {"completion_tokens": 0}}, {"usage": None}, {"usage": []}, {"usage": {}}, {}, None, []]
)
def test_a_completion_without_a_token_does_not_serve(answer: Any) -> None:
    found = judge_probe(PLAN, responses(completion={"json": answer}))
    assert found == Probe(False, "completion: no token came back")


def test_a_completion_in_no_time_has_a_rate_too() -> None:
    rate = judge_probe(PLAN, responses(completion={"started": 100.0, "ended": 100.0})).tokens_per_second
    assert rate is not None
    assert rate > 0


def without(name: str, text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(name))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"before": {"text": None}}, f"/metrics has no {ACCEPTED}, {DRAFT_TOKENS}, {DRAFTS}, {PER_POSITION}"),
        ({"after": {"text": ""}}, f"/metrics has no {ACCEPTED}, {DRAFT_TOKENS}, {DRAFTS}, {PER_POSITION}"),
        ({"after": {"text": without(DRAFTS, metrics(120, 360, 178))}}, f"/metrics has no {DRAFTS}"),
        (
            {"after": {"text": metrics(20, 60, 30)}},
            "a counter went back between two readings: the engine was restarted",
        ),
        ({"after": {"text": metrics(100, 300, 150)}}, "no step with a draft was counted"),
    ],
    ids=["no answer before", "no answer after", "one missing", "reset", "no growth"],
)
def test_without_the_counters_a_speculating_pair_is_not_proven_to_serve(changed: dict[str, Any], reason: str) -> None:
    found = judge_probe(PLAN, responses(**changed))
    assert found == Probe(False, f"metrics: {reason}", 24.0)
    assert judge_probe(plan(spec_method="none"), responses(**changed)) == Probe(True, "", 24.0, None)


@pytest.mark.parametrize("name", ["before", "after"])
def test_a_metrics_answer_that_never_came_is_a_reason_and_no_crash(name: str) -> None:
    left = [r for r in responses() if r["id"] != name]
    assert judge_probe(PLAN, left).reason.startswith("metrics: /metrics has no")


def test_counters_that_are_no_numbers_are_a_reason() -> None:
    found = judge_probe(PLAN, responses(after={"text": f"{DRAFTS} many"}))
    assert found.reason.startswith("metrics: /metrics cannot be parsed")


# --- the pair --------------------------------------------------------------------------------------------------------


def test_a_pair_that_runs_the_plan_serves() -> None:
    assert verdict(PLAN, pair(), NAMES) == Verdict(True, [], Probe(True, "", 24.0, 3.0))


Change = Callable[[dict[str, Any]], object]

DIFFERENCES: list[tuple[str, Change, str]] = [
    ("another release", lambda s: s.update(current=OTHER), f"current release is {OTHER}"),
    ("no release", lambda s: s.update(current=None), "current release is none"),
    (
        "damage",
        lambda s: s["release"].update(damage=[".env: missing", "x: not part of the release"]),
        f"release {RELEASE} is damaged: .env: missing; x: not part of the release",
    ),
    (
        "release directory gone",
        lambda s: s["release"].update(exists=False),
        f"release {RELEASE} is current and its directory is gone",
    ),
    (
        "no container",
        lambda s: s.update(containers=[]),
        f"sparkpair-engine of release {RELEASE} does not run; found no container",
    ),
    (
        "stopped",
        lambda s: s["containers"][0].update(running=False, status="exited"),
        f"sparkpair-engine of release {RELEASE} does not run; found sparkpair-engine (exited, release {RELEASE})",
    ),
    (
        "container of another release",
        lambda s: s["containers"][0].update(labels={"sparkpair.release": OTHER}),
        f"sparkpair-engine of release {RELEASE} does not run; found sparkpair-engine (running, release {OTHER})",
    ),
    (
        "foreign container",
        lambda s: s["containers"][0].update(labels={}),
        f"sparkpair-engine of release {RELEASE} does not run; found sparkpair-engine (running, release none)",
    ),
    (
        "second container",
        lambda s: s["containers"].append(container(name="x", running=False)),
        "more than one container of ours",
    ),
    ("restarts", lambda s: s["containers"][0].update(restart_count=2), "sparkpair-engine was restarted 2 times"),
    ("docker", lambda s: s.update(docker="docker ps: no answer"), "docker ps: no answer"),
]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(("change", "reason"), [d[1:] for d in DIFFERENCES], ids=[d[0] for d in DIFFERENCES])
def test_each_difference_of_a_rank_is_a_reason_of_its_own(number: int, change: Change, reason: str) -> None:
    states = pair()
    assert rank_reasons(number, NAMES[number], copy.deepcopy(states[number]), RELEASE) == []
    changed = states[number]
    assert changed is not None
    change(changed)
    found = verdict(PLAN, states, NAMES)
    assert not found.serving
    assert found.reasons == [f"spark-{number}: {reason}"]
    assert found.probe is not None
    assert found.probe.serves


def test_two_names_that_lead_to_one_machine_do_not_pass_for_a_pair() -> None:
    states = pair()
    for number in (0, 1):
        labels = {"sparkpair.release": RELEASE, "sparkpair.rank": str(number)}
        states[number]["containers"][0].update(labels=labels)  # type: ignore[index]
    assert verdict(PLAN, states, NAMES).serving
    states[1] = states[0]
    found = verdict(PLAN, states, NAMES)
    assert not found.serving
    assert [reason.partition(";")[0] for reason in found.reasons] == [
        "spark-1: sparkpair-engine is that of rank 0 and not of rank 1"
    ]


def test_an_engine_whose_images_name_leads_to_other_bytes_by_now_is_not_as_planned() -> None:
    """As after a second docker load under the same name: what serves is not what a start would bring."""
    states = pair()
    mine, image_id = states[1], container()["image_id"]
    assert mine is not None
    mine.update(layers={image_id: "sha256:one"}, images={PLAN["image"]: "sha256:one"})
    assert verdict(PLAN, states, NAMES).serving
    for unknown in (None, ""):
        mine.update(images={PLAN["image"]: unknown})
        assert verdict(PLAN, states, NAMES).serving
    mine.update(images={PLAN["image"]: "sha256:two"})
    wanted = f"spark-1: the engine runs other bytes than {PLAN['image']} names by now"
    assert verdict(PLAN, states, NAMES).reasons == [wanted]


def test_damage_of_a_release_that_is_not_wanted_is_no_reason() -> None:
    states = pair()
    states[1] = state(release={"id": OTHER, "exists": True, "damage": ["x: missing"]})
    assert verdict(PLAN, states, NAMES).serving


def test_a_wanted_release_that_is_not_there_yet_is_told_once() -> None:
    missing = {"id": RELEASE, "exists": False, "damage": []}
    found = rank_reasons(1, "spark-1", state(current=OTHER, release=missing), RELEASE)
    assert found == [f"spark-1: current release is {OTHER}"]


@pytest.mark.parametrize("states", [{1: None}, {}], ids=["unreachable", "never asked"])
def test_a_worker_that_was_not_reached_is_a_reason(states: dict[int, None]) -> None:
    head = pair()[0]
    assert verdict(PLAN, {0: head, **states}, NAMES).reasons == ["spark-1: not reached"]


def test_a_head_that_was_not_reached_is_a_reason_and_there_is_no_probe() -> None:
    assert verdict(PLAN, {**pair(), 0: None}, NAMES) == Verdict(False, ["spark-0: not reached"], None)


@pytest.mark.parametrize("answers", [None, []])
def test_a_pair_whose_api_was_not_asked_does_not_count_as_serving(answers: Any) -> None:
    states = {**pair(), 0: state(responses=answers)}
    assert verdict(PLAN, states, NAMES) == Verdict(False, ["spark-0: the API was not asked"], None)


def test_a_failing_probe_is_the_reason_when_all_else_is_right() -> None:
    states = {**pair(), 0: state(responses=responses(health={"status": 500}))}
    assert verdict(PLAN, states, NAMES).reasons == ["spark-0: health: status 500"]


def test_reasons_of_all_ranks_stand_in_their_order_and_the_probe_last() -> None:
    states = {
        0: state(current=None, responses=responses(models={"json": {}})),
        1: state(containers=[]),
    }
    assert verdict(PLAN, states, NAMES).reasons == [
        "spark-0: current release is none",
        f"spark-1: sparkpair-engine of release {RELEASE} does not run; found no container",
        f"spark-0: models: serves [], wanted {PLAN['served_model_name']!r}",
    ]


def test_three_ranks_are_all_judged() -> None:
    made = plan(3, verify_tokens=3)
    names = {**NAMES, 2: "spark-2"}
    own = {"labels": {"sparkpair.release": made["release"]}}

    def third(**changed: Any) -> dict[str, Any]:
        release = {"id": made["release"], "exists": True, "damage": []}
        return state(current=made["release"], release=release, containers=[container(**own, **changed)])

    states = {0: third() | {"responses": responses()}, 1: third(), 2: third()}
    assert verdict(made, states, names).serving
    states[2] = third(restart_count=1)
    assert verdict(made, states, names).reasons == ["spark-2: sparkpair-engine was restarted 1 times"]


# --- report and screen -----------------------------------------------------------------------------------------------


def test_a_rank_is_reported_with_what_runs_on_it() -> None:
    found = rank_report(1, "spark-1", "192.0.2.2", state())
    assert found == {
        "rank": 1,
        "name": "spark-1",
        "address": "192.0.2.2",
        "reached": True,
        "release": RELEASE,
        "container": "sparkpair-engine",
        "container_state": "running",
        "image": PLAN["image"],
        "image_id": "sha256:" + "c" * 64,
        "started_at": "2026-03-01T10:00:00Z",
    }


def test_the_engine_is_reported_before_any_other_container_and_a_leftover_when_alone() -> None:
    left = container(name="leftover", status="exited")
    assert rank_report(0, "n", "a", state(containers=[left, container()]))["container"] == "sparkpair-engine"
    assert rank_report(0, "n", "a", state(containers=[left]))["container_state"] == "exited"


def test_a_rank_without_a_container_and_one_not_reached_are_told_apart() -> None:
    empty, lost = rank_report(0, "n", "a", state(containers=[])), rank_report(0, "n", "a", None)
    assert (empty["reached"], empty["container"], empty["release"]) == (True, None, RELEASE)
    assert (lost["reached"], lost["container"], lost["release"]) == (False, None, None)


def test_a_table_is_aligned_and_none_is_a_dash() -> None:
    assert table(("a", "long"), [(1, None), ("wide one", "x")]) == ["a         long", "1         -", "wide one  x"]
    assert table(("a", "b"), []) == ["a  b"]


@pytest.mark.parametrize(
    ("image", "short"),
    [
        (None, None),
        ("registry.example.invalid:5000/team/vllm@sha256:" + "abcdef0123456789" * 4, "vllm@abcdef012345"),
        ("vllm:1.2", "vllm:1.2"),
        ("registry.example.invalid:5000/vllm:1.2", "vllm:1.2"),
    ],
)
def test_an_image_is_shortened_to_what_tells_it_apart(image: str | None, short: str | None) -> None:
    assert short_image(image) == short


def shown(states: dict[int, Any], made: dict[str, Any] | None = PLAN) -> list[str]:
    ranks = [rank_report(n, NAMES[n], f"192.0.2.{n + 1}", states[n]) for n in NAMES]
    return status_table(made, ranks, states, verdict(PLAN, states, NAMES))


def test_the_status_of_a_serving_pair_ends_with_endpoint_rate_and_width() -> None:
    states = pair()
    assert states[0] is not None
    states[0]["ray"] = {"alive": ["192.0.2.1", "192.0.2.2"], "error": None}
    lines = shown(states)
    assert lines[0].split() == ["rank", "host", "release", "image", "engine", "ray"]
    assert lines[1].split() == ["0", "spark-0", RELEASE, short_image(PLAN["image"]), "running", "alive"]
    assert lines[2].split() == ["1", "spark-1", RELEASE, short_image(PLAN["image"]), "running", "alive"]
    assert lines[3:] == ["serving at http://192.0.2.1:8888: 24.0 tokens/s in the probe, 3.0 draft tokens per step"]


def test_the_status_says_why_a_pair_does_not_serve() -> None:
    states = {0: pair()[0], 1: None}
    lines = shown(states)
    assert lines[2].split() == ["1", "spark-1", "-", "-", "unreachable", "-"]
    assert lines[3:] == ["not serving:", "  - spark-1: not reached"]
    assert shown({0: pair()[0], 1: state(containers=[])})[2].split()[-3:] == ["no", "container", "-"]


def test_a_rank_that_ray_does_not_count_is_no_alive_one_and_mp_uses_no_ray() -> None:
    states = pair()
    assert states[0] is not None
    states[0]["ray"] = {"alive": ["192.0.2.1"], "error": None}
    assert [line.split()[-1] for line in shown(states)[1:3]] == ["alive", "-"]
    assert [line.split()[-2:] for line in shown(states, plan(executor="mp"))[1:3]] == [["not", "used"]] * 2


def test_a_pair_without_speculation_says_so() -> None:
    made = plan(spec_method="none")
    judged = Verdict(True, [], Probe(True, "", 24.0, None))
    ranks = [rank_report(n, NAMES[n], "a", state()) for n in NAMES]
    assert status_table(made, ranks, pair(), judged)[-1].endswith("in the probe, no speculation")


def accepted_with(**settings: Any) -> list[dict[str, Any]]:
    """A record in which the release was accepted with these settings."""
    made = live.switch_settings(plan(**settings)["settings"])
    return [{"outcome": "accepted", "release": RELEASE, "switch_settings": made}]


def test_a_release_on_record_is_switched_to_as_it_was_accepted() -> None:
    """A pair that needs two hours to load, or never has all of its memory free, could be deployed and not put back."""
    noted = accepted_with(ready_timeout=7200, settle_free_gib=90, spark_warmup=False, drop_page_cache=False)
    settings = live.named(PLAN, NAMES, noted)["settings"]
    assert settings["ready_timeout"] == 7200
    assert settings["settle_free_gib"] == 90
    assert (settings["spark_warmup"], settings["drop_page_cache"]) == (False, False)
    again = [{"outcome": "accepted", "release": RELEASE, "switch_settings": live.switch_settings(settings)}]
    assert live.named(PLAN, NAMES, [*noted, *again])["settings"] == settings


def test_a_start_that_was_quick_once_gets_the_usual_time_all_the_same() -> None:
    quick = accepted_with(ready_timeout=60, settle_timeout=0, spark_warmup_timeout=30)
    assert live.named(PLAN, NAMES, quick)["settings"] == live.named(PLAN, NAMES, accepted_with())["settings"]


@pytest.mark.parametrize(
    "changed",
    [
        {"outcome": "rolled_back"},
        {"release": OTHER},
        {"switch_settings": {}},
        {"switch_settings": {"ready_timeout": "7200", "settle_free_gib": True, "spark_warmup": 0}},
    ],
    ids=["not accepted", "another release", "an older record", "odd values"],
)
def test_without_such_a_record_the_defaults_hold(changed: dict[str, Any]) -> None:
    (noted,) = accepted_with(ready_timeout=7200, settle_free_gib=90, spark_warmup=False)
    assert live.named(PLAN, NAMES, [noted | changed]) == live.named(PLAN, NAMES)
    assert live.named(PLAN, NAMES)["settings"]["ready_timeout"] == 3600


def test_without_a_plan_each_rank_says_what_is_wrong_with_it() -> None:
    """The head's plan was edited by hand; the worker has nothing to answer for."""
    damaged = state(release={"id": RELEASE, "exists": True, "damage": ["plan.json: content differs"]}, plan=None)
    assert live.without_plan({0: damaged, 1: state()}, NAMES).reasons == [
        f"spark-0: release {RELEASE} is damaged: plan.json: content differs"
    ]
    reasons = live.without_plan({0: state(current=None), 1: None}, NAMES).reasons
    assert reasons == ["spark-0: no release is current", "spark-1: not reached"]


def test_no_release_at_all_has_a_table_too() -> None:
    judged = live.Verdict(False, ["spark-0: no release is current"])
    ranks = [rank_report(n, NAMES[n], "a", None) for n in NAMES]
    lines = status_table(None, ranks, {0: None, 1: None}, judged)
    assert len(lines) == 5
    assert lines[-1] == "  - spark-0: no release is current"


@pytest.mark.parametrize(
    ("accepted", "new"),
    [
        (plan(verify_tokens=3), False),
        (plan(max_num_seqs=2, port=9000), False),
        (plan(extra_args=["--a-flag"]), False),
        (plan(image="registry.example/other:1"), True),
        (plan(chat_template=""), True),
        (None, True),
    ],
    ids=["equal", "other values", "one flag less", "other image", "one flag more", "nothing accepted"],
)
def test_an_image_or_flag_that_was_never_accepted_is_untried(accepted: dict[str, Any] | None, *, new: bool) -> None:
    assert untried(plan(verify_tokens=3, chat_template="/chat.jinja"), accepted) is new


def test_a_recorded_plan_is_switched_to_with_default_times_whatever_the_inventory_says() -> None:
    recorded = {key: PLAN[key] for key in PLAN if key != "settings"}
    recorded["ranks"] = [{k: v for k, v in rank.items() if k != "host"} for rank in PLAN["ranks"]]
    found = live.named(recorded, {0: "left", 1: "right"})
    assert [rank["host"] for rank in found["ranks"]] == ["left", "right"]
    assert found["settings"]["ready_timeout"] == 3600
    assert found["settings"]["keep_releases"] == 5
    tasks = "".join((ROOT / f"roles/spark_rollout/tasks/{name}.yml").read_text() for name in ("drain", "switch"))
    assert set(re.findall(r"(?:target|plan)\.settings\.(\w+)", tasks)) == set(live.OF_A_SWITCH) - {"keep_releases"}
