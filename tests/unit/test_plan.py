"""The plan: every rule that spans settings, with a case that fires and a control that passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sparkpair.overlay_manifest import overlay_digest
from sparkpair.plan import (
    DEFAULT_CACHE_DIR,
    RANK_ENVIRONMENT,
    argument_problems,
    build_plan,
    environment_problems,
    find_overlays,
    fit_stock,
    own_capture_list,
    rank_differences,
    read_ranks,
    release_document,
    schedule_problems,
)
from sparkpair.settings import Refused, resolve

from tests.planning import OVERLAYS, given, host_variables, plan, rank, refusals, resolved

DRAFT = "/root/.cache/huggingface/hub/models--incoai--GLM-5.3-Flash-DFlash2/snapshots/"
DRAFT += "dc77ff1c99eeb2df044ee3d4f0094eb033fee410"
TARGET = "/root/.cache/huggingface/hub/models--Mia-AiLab--GLM-5.3-Flash-EXL3-TR3-4bpw/snapshots/"
TARGET += "25a44fdbf16862a46b7cc9921142c6c81350af2f"


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        ({}, [1, 2, 4, 8, 16, 24, 32]),
        ({"max_num_seqs": 8}, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]),
        ({"verify_tokens": 3}, [1, 2, 4, 8, 12, 16, 24, 32]),
        ({"verify_tokens": 3, "max_num_seqs": 5}, [1, 2, 4, 8, 12, 16, 20, 24, 32]),
        ({"verify_tokens": 1}, [1, 2, 4, 6, 8, 16, 24, 32]),
        ({"verify_tokens": 7}, [1, 2, 4, 8, 16, 24, 32]),
        ({"dflash_tokens": 3}, [1, 2, 4, 8, 12, 16, 24, 32]),
        ({"spec_method": "mtp"}, [1, 2, 3, 4, 6, 8, 12]),
        ({"spec_method": "none"}, [1, 2, 3, 4, 6, 8, 12]),
        ({"enforce_eager": True}, None),
        ({"extra_args": ["--cudagraph-capture-sizes", "1", "2"]}, None),
        ({"extra_args": ["--seed", "1"]}, [1, 2, 4, 8, 16, 24, 32]),
    ],
)
def test_capture_sizes(values: dict[str, Any], sizes: list[int] | None) -> None:
    made = plan(**values)
    assert made["capture_sizes"] == sizes
    arguments = made["ranks"][0]["arguments"]
    if sizes is None:
        assert arguments.count("--cudagraph-capture-sizes") == (1 if values.get("extra_args") else 0)
    else:
        start = arguments.index("--cudagraph-capture-sizes") + 1
        assert arguments[start : start + len(sizes)] == [str(size) for size in sizes]
        assert arguments[start + len(sizes) :] == values.get("extra_args", [])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cudagraph-capture-sizes", "1", "2"],
        ["--cudagraph-capture-sizes=1"],
        ["--cudagraph_capture_sizes", "1"],
        ["--cudagraph-capture", "1"],
        ["--max-cudagraph-capture-size", "8"],
        ["--compilation-config", '{"cudagraph_capture_sizes": [1]}'],
        ['--compilation_config={"cudagraph_capture_sizes": [1]}'],
        ["--compilation-config.cudagraph_capture_sizes+", "1,2"],
        ["-cc", '{"cudagraph_capture_sizes": [1]}'],
        ['-cc={"max_cudagraph_capture_size": 1}'],
        ["-cc.cudagraph_capture_sizes=[1]"],
        ["-O", '{"cudagraph_capture_sizes": [1]}'],
    ],
)
def test_own_capture_list_in_every_spelling(arguments: list[str]) -> None:
    assert own_capture_list(arguments)
    assert plan(extra_args=arguments)["capture_sizes"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--cudagraph-metrics"],
        ["-O3"],
        ["-O", "2"],
        ["--compilation-config", '{"cudagraph_mode": "PIECEWISE"}'],
        ["--compilation-config", "not JSON"],
        ["--seed", "1", "--attention-config", '{"cudagraph_capture_sizes": [1]}'],
    ],
)
def test_no_capture_list_of_the_operator(arguments: list[str]) -> None:
    assert not own_capture_list(arguments)
    assert plan(extra_args=arguments)["capture_sizes"]


@pytest.mark.parametrize(
    ("values", "config", "width"),
    [
        (
            {},
            '{"method":"dflash","model":"%s","num_speculative_tokens":7,"kv_cache_dtype":"auto",'
            '"draft_sample_method":"probabilistic","rejection_sample_method":"standard","draft_tensor_parallel_size":1}',
            7,
        ),
        (
            {"verify_tokens": 3, "max_num_seqs": 5},
            '{"method":"dflash","model":"%s","num_speculative_tokens":7,"kv_cache_dtype":"auto",'
            '"draft_sample_method":"probabilistic","rejection_sample_method":"standard","draft_tensor_parallel_size":1,'
            '"num_speculative_tokens_per_batch_size":[[1,5,3]]}',
            3,
        ),
        (
            {"dflash_tokens": 3, "dflash_draft_tp": ""},
            '{"method":"dflash","model":"%s","num_speculative_tokens":3,"kv_cache_dtype":"auto",'
            '"draft_sample_method":"probabilistic","rejection_sample_method":"standard"}',
            3,
        ),
        ({"spec_method": "mtp"}, '{"method":"mtp","num_speculative_tokens":2}', 2),
        ({"spec_method": "mtp", "mtp_tokens": 0}, None, None),
        ({"spec_method": "none"}, None, None),
    ],
)
def test_speculative_config_bytes(values: dict[str, Any], config: str | None, width: int | None) -> None:
    for executor in ("ray", "mp"):
        made = plan(executor=executor, **values)
        assert made["expected_width"] == width
        for entry in made["ranks"]:
            if not entry["arguments"]:
                continue
            if config is None:
                assert "--speculative-config" not in entry["arguments"]
                assert made["speculative_config"] is None
            else:
                wanted = config % DRAFT if "%s" in config else config
                assert entry["arguments"][entry["arguments"].index("--speculative-config") + 1] == wanted
                assert made["speculative_config"] == json.loads(wanted)


def test_verify_width_equal_to_the_proposal_still_has_schedule_and_overlays() -> None:
    made = plan(verify_tokens=7)
    assert made["speculative_config"]["num_speculative_tokens_per_batch_size"] == [[1, 4, 7]]
    assert [o["name"] for o in made["overlays"]] == ["gdn_runtime_width", "verify_width"]
    assert plan()["overlays"] == []


def test_width_variables_exist_only_with_a_width() -> None:
    wide = plan(verify_tokens=3, structured_width="uniform")["ranks"]
    assert all(r["environment"]["DFLASH_VERIFY_TOKENS"] == "3" for r in wide)
    assert all(r["environment"]["SPARKPAIR_STRUCTURED_WIDTH"] == "uniform" for r in wide)
    for entry in plan(structured_width="uniform")["ranks"]:
        assert not {"DFLASH_VERIFY_TOKENS", "SPARKPAIR_STRUCTURED_WIDTH"} & set(entry["environment"])


@pytest.mark.parametrize(
    ("values", "setting", "words"),
    [
        ({"verify_tokens": 3, "spec_method": "mtp"}, "verify_tokens", "needs spec_method dflash"),
        ({"verify_tokens": 3, "spec_method": "none"}, "verify_tokens", "needs spec_method dflash"),
        ({"verify_tokens": 3, "dflash_tokens": 2}, "verify_tokens", "is above dflash_tokens (2)"),
        ({"dflash_draft_tp": 3}, "dflash_draft_tp", "neither 1 nor the number of ranks"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens", "is below max_num_seqs (4)"),
        ({"port": 6379}, "port", "is also ray_port"),
        ({"port": 29521, "executor": "mp"}, "port", "is also master_port"),
        ({"extra_args": ["--port", "1"]}, "extra_args", "use port"),
        ({"extra_env": {"RAY_ADDRESS": "x"}}, "extra_env", "the plan reserves"),
        ({"extra_env": {"DFLASH_TOKENS": "3"}}, "extra_env", "use the setting dflash_tokens"),
    ],
)
def test_rules_that_span_settings(values: dict[str, Any], setting: str, words: str) -> None:
    found = refusals(**values)
    assert len(found) == 1
    assert found[0].startswith(f"{setting} = ")
    assert words in found[0]
    assert "from -e" in found[0]
    assert "allowed: " in found[0]


@pytest.mark.parametrize(
    "values",
    [
        {"verify_tokens": 3, "dflash_tokens": 3},
        {"spec_method": "mtp"},
        {"dflash_draft_tp": 2},
        {"max_num_batched_tokens": 4},
        {"port": 29521},
        {"port": 6379, "executor": "mp"},
        {"extra_env": {"RAY_health_check_period_ms": "1", "OMP_NUM_THREADS": "1"}},
        {"structured_width": "uniform"},
    ],
)
def test_controls_of_the_rules(values: dict[str, Any]) -> None:
    assert refusals(**values) == []


def test_stock_replaces_a_draft_size_that_does_not_fit() -> None:
    raw = given(dflash_draft_tp=3)
    fitted = fit_stock(resolve(raw, stock=True), 2)
    assert fitted.settings.dflash_draft_tp == 1
    assert "does not fit 2 ranks" in fitted.notes[0]
    assert fit_stock(resolve(raw, stock=True), 3).settings.dflash_draft_tp == 3
    assert fit_stock(resolve(raw), 2).settings.dflash_draft_tp == 3


def test_a_rule_is_silent_about_settings_that_are_refused_already() -> None:
    assert len(refusals(verify_tokens=3, dflash_tokens="x")) == 1
    assert len(refusals(verify_tokens=3, spec_method="mtp", port=0, max_num_seqs=0)) == 3


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ([], "non-empty list"),
        (None, "non-empty list"),
        ("[[1,4,3]]", "non-empty list"),
        ([[1, 4]], "three whole numbers"),
        ([[1, 4, 3, 2]], "three whole numbers"),
        ([[1, 4, 3.0]], "three whole numbers"),
        ([[1, 4, True]], "three whole numbers"),
        ([1], "three whole numbers"),
        ([[0, 4, 3]], "must be positive"),
        ([[1, -4, 3]], "must be positive"),
        ([[4, 1, 3]], "must not be above the last"),
        ([[1, 4, -1]], "must not be negative"),
        ([[1, 4, 8]], "must not be above num_speculative_tokens (7)"),
        ([[2, 4, 3]], "must start at batch size 1"),
        ([[1, 4, 3], [4, 8, 7]], "overlap"),
        ([[3, 8, 7], [1, 4, 3]], "overlap"),
    ],
)
def test_schedule_rules_fire(schedule: object, words: str) -> None:
    found = schedule_problems(schedule, 7)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize(
    "schedule", [[[1, 4, 3]], [(1, 4, 7)], [[1, 1, 0]], [[5, 8, 1], [1, 4, 3]], [[1, 2, 3], [7, 8, 1]]]
)
def test_schedule_controls(schedule: object) -> None:
    assert schedule_problems(schedule, 7) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "1"], "holds --port, which the plan sets itself; use port"),
        (["--port=1"], "use port"),
        (["--tensor_parallel_size", "2"], "number of hosts"),
        (["--tensor-par", "2"], "number of hosts"),
        (["--speculative-config", "{}"], "use spec_method"),
        (["--speculative-config.num_speculative_tokens", "3"], "use spec_method"),
        (["--distributed-executor-backend", "mp"], "use executor"),
        (["--node-rank", "0"], "use spark_rank"),
        (["--headless"], "use executor"),
        (["--no-enforce-eager"], "use enforce_eager"),
        (["--data-parallel-size-local", "1"], "one replica"),
        (["--api-key=secret"], "use api_key"),
        (["--max-num-se", "2"], "use max_num_seqs"),
        (["-tp", "2"], "short form"),
        (["-n2"], "short form"),
        (["-q", "fp8"], "short form"),
        (["--"], "'--'"),
        (["stray"], "belongs to no flag"),
    ],
)
def test_arguments_that_contradict_the_plan(arguments: list[str], words: str) -> None:
    found = argument_problems(arguments)
    assert len(found) == 1
    assert words in found[0]
    assert "secret" not in found[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seed", "1"],
        ["--chat-template-content-format", "string"],
        ["--reasoning-parser-plugin", "x"],
        ["--kv-cache-dtype-skip-layers", "1"],
        ["--no-enable-prefix-caching"],
        ["--structured-outputs-config", '{"backend":"xgrammar"}'],
        ["--override-generation-config", '{"a": "-n"}'],
        ["--logits-processors", "-1"],
        ["-O3"],
        ["-cc", "{}"],
        ["--model-impl", "auto"],
        ["--config-format", "hf"],
        ["--kv-cache-memory-bytes", "67108864"],
    ],
)
def test_arguments_of_the_operator_that_pass(arguments: list[str]) -> None:
    assert argument_problems(arguments) == []
    assert plan(extra_args=arguments)["ranks"][0]["arguments"][-len(arguments) :] == arguments


def test_reserved_environment() -> None:
    for name in (
        "VLLM_HOST_IP",
        "NCCL_SOCKET_IFNAME",
        "RAY_AUTH_MODE",
        "HF_HOME",
        "VLLM_API_KEY",
        "MASTER_ADDR",
        "COMPOSE_FILE",
        "DOCKER_HOST",
    ):
        assert len(environment_problems([name])) == 1
    assert environment_problems(["LD_PRELOAD", "RAY_gcs_server_request_timeout_seconds", "NCCL_IB_TC"]) == []


def test_arguments_with_ray() -> None:
    head, worker = plan(api_key="0123456789")["ranks"]
    assert worker["arguments"] == []
    assert (head["role"], worker["role"]) == ("head", "worker")
    assert not worker["headless"]
    assert head["arguments"][:-8] == [
        TARGET,
        *("--served-model-name", "GLM-5.3-Flash-EXL3", "--host", "0.0.0.0", "--port", "8888"),  # noqa: S104
        *("--tensor-parallel-size", "2", "--distributed-executor-backend", "ray"),
        *("--tool-call-parser", "glm47", "--enable-auto-tool-choice", "--reasoning-parser", "glm45"),
        *("--enable-prefix-caching", "--no-enable-flashinfer-autotune", "--quantization", "exl3"),
        *("--max-model-len", "1000000", "--gpu-memory-utilization", "0.87", "--max-num-seqs", "4"),
        *("--max-num-batched-tokens", "1024", "--kv-cache-dtype", "fp8", "--speculative-config"),
        head["arguments"][head["arguments"].index("--speculative-config") + 1],
        *("--chat-template", "/opt/glm53/chat_template.jinja"),
        *("--limit-mm-per-prompt", '{"image":4,"video":1}', "--skip-mm-profiling"),
    ]


def test_arguments_with_mp_on_three_ranks() -> None:
    ranks = plan(3, executor="mp")["ranks"]
    for number, entry in enumerate(ranks):
        start = entry["arguments"].index("--tensor-parallel-size")
        wanted = ["--tensor-parallel-size", "3", "--nnodes", "3", "--node-rank", str(number)]
        wanted += ["--master-addr", "192.0.2.1", "--master-port", "29521", "--distributed-executor-backend", "mp"]
        wanted += ["--headless"] if number else []
        assert entry["arguments"][start : start + len(wanted)] == wanted
        assert entry["headless"] is (number > 0)
        assert not any(key.startswith("RAY_") for key in entry["environment"])


def test_optional_arguments_can_be_left_out() -> None:
    arguments = plan(
        tool_call_parser="",
        reasoning_parser="",
        chat_template="",
        quantization="",
        limit_mm={},
        skip_mm_profiling=False,
        enforce_eager=True,
        spec_method="none",
    )["ranks"][0]["arguments"]
    joined = " ".join(arguments)
    for flag in ("parser", "auto-tool", "template", "--quantization", "mm", "capture", "speculative"):
        assert flag not in joined
    only_text = plan(language_model_only=True, load_format="dummy")["ranks"][0]["arguments"]
    assert "--language-model-only" in only_text
    assert "--limit-mm-per-prompt" not in only_text
    assert only_text[only_text.index("--load-format") + 1] == "dummy"


def test_environment_of_real_sparks() -> None:
    head, worker = (r["environment"] for r in plan()["ranks"])
    assert head["NCCL_IB_HCA"] == "rocep1s0f0"
    assert (head["NCCL_IB_GID_INDEX"], worker["NCCL_IB_GID_INDEX"]) == ("3", "4")
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"):
        assert (head[name], worker[name]) == ("enp1s0f0np0", "enp1s0f1np1")
    assert worker["VLLM_HOST_IP"] == "192.0.2.2"
    assert head["RAY_AUTH_MODE"] == "token"
    assert head["RAY_memory_monitor_refresh_ms"] == "0"
    assert list(head) == sorted(head)


def test_environment_without_rdma_and_without_gpus() -> None:
    tcp = plan(rdma=False)["ranks"][0]
    assert tcp["environment"]["NCCL_IB_DISABLE"] == "1"
    assert not {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_NET"} & set(tcp["environment"])
    assert (tcp["rdma_devices"], tcp["gid_index"]) == ([], None)
    lab = plan(gpus="none")["ranks"][0]["environment"]
    assert [n for n in lab if n.startswith(("NCCL_", "CUDA", "PYTORCH", "TORCH", "FLASHINFER"))] == [
        "NCCL_SOCKET_IFNAME"
    ]


def test_extra_env_reaches_every_rank_and_never_overrides() -> None:
    for entry in plan(extra_env={"TORCHDYNAMO_DISABLE": "1"})["ranks"]:
        assert entry["environment"]["TORCHDYNAMO_DISABLE"] == "1"


def test_mounts() -> None:
    mounts = plan()["ranks"][1]["mounts"]
    assert mounts[0] == {
        "source": "/home/op1/.cache/huggingface",
        "target": "/root/.cache/huggingface",
        "read_only": True,
    }
    assert [(m["source"], m["target"], m["read_only"]) for m in mounts[1:]] == [
        ("/var/cache/sparkpair/vllm", "/root/.cache/vllm", False),
        ("/var/cache/sparkpair/triton", "/root/.triton/cache", False),
        ("/var/cache/sparkpair/tilelang", "/root/.tilelang/cache", False),
    ]


CHANGES_RELEASE: list[dict[str, Any]] = [
    {"verify_tokens": 3},
    {"max_num_seqs": 5},
    {"image": "other:1"},
    {"api_key": "0123456789"},
    {"stop_grace": 61},
    {"ray_join_timeout": 601},
    {"extra_env": {"A": "1"}},
    {"extra_args": ["--seed", "1"]},
    {"package_root": "/opt/other"},
    {"log_max_size": "1m"},
]


@pytest.mark.parametrize("values", CHANGES_RELEASE)
def test_what_reaches_a_rank_changes_the_release(values: dict[str, Any]) -> None:
    assert plan(**values)["release"] != plan()["release"]


@pytest.mark.parametrize(
    "values",
    [{"ready_timeout": 60}, {"spark_warmup": False}, {"spark_warmup_timeout": 9}, {"structured_width": "uniform"}],
)
def test_what_stays_on_the_controller_keeps_the_release(values: dict[str, Any]) -> None:
    made = plan(**values)
    assert made["release"] == plan()["release"]
    assert release_document(made) == release_document(plan())
    assert made["settings"] != plan()["settings"]


def test_host_names_and_origins_keep_the_release_and_addresses_change_it() -> None:
    ranks = [rank(0), rank(1)]
    base = build_plan(resolved(), ranks).release
    assert build_plan(resolved(), [replace(r, host=f"other-{r.rank}") for r in ranks]).release == base
    assert build_plan(resolved(port="8888"), ranks).release == base
    assert build_plan(resolved(), [ranks[0], replace(ranks[1], address="192.0.2.9")]).release != base
    assert build_plan(resolved(), [ranks[0], replace(ranks[1], gid_index=9)]).release != base
    wide = [build_plan(resolved(verify_tokens=3), ranks, {"verify_width": d * 64}).release for d in "ab"]
    assert wide[0] != wide[1]


def test_the_api_key_is_in_no_part_of_the_plan_and_two_keys_differ() -> None:
    made = plan(api_key="0123456789")
    assert made["api_key_set"] is True
    assert "0123456789" not in json.dumps(made)
    assert "fingerprint" not in json.dumps(made)
    assert made["release"] != plan(api_key="9876543210")["release"]


def test_plan_is_plain_json_with_the_contract_keys() -> None:
    made = plan(verify_tokens=3)
    assert json.loads(json.dumps(made)) == made
    assert made["schema"] == 1
    assert len(made["release"]) == 12
    assert int(made["release"], 16) >= 0
    assert made["endpoint"] == "http://192.0.2.1:8888"
    assert made["ray"] == {"port": 6379, "object_store_bytes": 1073741824, "num_gpus": 1, "join_timeout": 600}
    assert set(made["container"]) == {
        "gpus",
        "rdma",
        "shm_size",
        "stop_grace",
        "memory_share",
        "log_max_size",
        "log_max_files",
    }


def test_rank_differences_allow_what_belongs_to_a_rank() -> None:
    for executor in ("ray", "mp"):
        assert rank_differences(plan(3, executor=executor)) == []


@pytest.mark.parametrize(
    ("executor", "break_it", "words"),
    [
        ("ray", lambda r: r["environment"].update(EXL3_FUSED_MOE="0"), "environment EXL3_FUSED_MOE"),
        ("ray", lambda r: r["environment"].update(ONLY_HERE="1"), "environment ONLY_HERE"),
        ("ray", lambda r: r["environment"].pop("NCCL_IB_HCA"), "environment NCCL_IB_HCA"),
        ("ray", lambda r: r["arguments"].append("--seed"), "Ray worker has arguments"),
        ("mp", lambda r: r["arguments"].append("--seed"), "arguments differ"),
        ("mp", lambda r: r["mounts"].pop(), "mount targets"),
        ("mp", lambda r: r["mounts"][0].update(read_only=False), "mount targets"),
        ("mp", lambda r: r.update(surprise=1), "keys of the rank"),
    ],
)
def test_rank_differences_report_any_other(executor: str, break_it: Any, words: str) -> None:
    made = plan(executor=executor)
    break_it(made["ranks"][1])
    found = rank_differences(made)
    assert len(found) == 1
    assert words in found[0]


def test_ranks_are_read_from_inventory_variables() -> None:
    hosts = {"b": host_variables(0), "a": {**host_variables(1), "spark_rdma_devices": "rocep1s0f1,roceP2p1s0f1"}}
    del hosts["b"]["spark_cache_dir"]
    ranks, problems = read_ranks(hosts, rdma=True)
    assert not problems
    assert [r.host for r in ranks] == ["b", "a"]
    assert ranks[1].rdma_devices == ("rocep1s0f1", "roceP2p1s0f1")
    assert ranks[0].cache_dir == DEFAULT_CACHE_DIR


@pytest.mark.parametrize(
    ("change", "setting", "words"),
    [
        ({"spark_rank": "x"}, "spark_rank", "whole number"),
        ({"spark_rank": 0}, "spark_rank", "more than one host"),
        ({"spark_rank": 2}, "spark_rank", "leaves a gap"),
        ({"spark_rank": None}, "spark_rank", "is not set"),
        ({"spark_fabric_address": "192.0.2.1"}, "spark_fabric_address", "more than one host"),
        ({"spark_fabric_address": "300.1.1.1"}, "spark_fabric_address", "not an IPv4 address"),
        ({"spark_fabric_address": "fe80::1"}, "spark_fabric_address", "not an IPv4 address"),
        ({"spark_fabric_address": 5}, "spark_fabric_address", "not an IPv4 address"),
        ({"spark_fabric_address": "127.0.0.1"}, "spark_fabric_address", "cannot be reached"),
        ({"spark_fabric_interface": "a b"}, "spark_fabric_interface", "accepted form"),
        ({"spark_fabric_interface": "x" * 16}, "spark_fabric_interface", "accepted form"),
        ({"spark_gid_index": -1}, "spark_gid_index", "out of range"),
        ({"spark_gid_index": True}, "spark_gid_index", "boolean"),
        ({"spark_rdma_devices": []}, "spark_rdma_devices", "not a list"),
        ({"spark_rdma_devices": "a,,b"}, "spark_rdma_devices", "not a device name"),
        ({"spark_rdma_devices": "a,a"}, "spark_rdma_devices", "twice"),
        ({"spark_hf_home": "~/x"}, "spark_hf_home", "accepted form"),
        ({"spark_cache_dir": "x"}, "spark_cache_dir", "accepted form"),
    ],
)
def test_bad_rank_variables(change: dict[str, Any], setting: str, words: str) -> None:
    _, problems = read_ranks({"h0": host_variables(0), "h1": {**host_variables(1), **change}}, rdma=True)
    assert [p.setting for p in problems] == [setting]
    assert words in problems[0].reason
    assert "h1" in problems[0].origin
    assert problems[0].allowed


@pytest.mark.parametrize("open_ranks", [(0,), (1,), (0, 1)])
def test_a_gid_index_that_is_left_out_is_left_to_nccl(open_ranks: tuple[int, ...]) -> None:
    hosts = {f"h{n}": host_variables(n) for n in (0, 1)}
    for number in open_ranks:
        del hosts[f"h{number}"]["spark_gid_index"]
    ranks, problems = read_ranks(hosts, rdma=True)
    assert not problems
    made = build_plan(resolved(), ranks).to_json()
    pins = [r["environment"].get("NCCL_IB_GID_INDEX") for r in made["ranks"]]
    assert pins == [None if n in open_ranks else str(3 + n) for n in (0, 1)]
    assert [r["environment"]["NCCL_IB_ROCE_VERSION_NUM"] for r in made["ranks"]] == ["2", "2"]
    assert [r["gid_index"] is None for r in made["ranks"]] == [n in open_ranks for n in (0, 1)]
    assert rank_differences(made) == []


def test_another_variable_that_one_rank_lacks_is_still_a_difference() -> None:
    made = plan()
    del made["ranks"][1]["environment"]["NCCL_IB_HCA"]
    assert len(rank_differences(made)) == 1


def test_rdma_variables_are_not_read_without_rdma() -> None:
    hosts = {f"h{n}": {**host_variables(n), "spark_rdma_devices": "?", "spark_gid_index": "?"} for n in (0, 1)}
    assert not read_ranks(hosts, rdma=False)[1]
    assert len(read_ranks(hosts, rdma=True)[1]) == 4


def test_half_a_pair_is_refused() -> None:
    assert "too few" in read_ranks({"h0": host_variables(0)}, rdma=True)[1][0].reason


def test_all_problems_come_together() -> None:
    _, problems = read_ranks({"h0": host_variables(0), "h1": {}}, rdma=True)
    with pytest.raises(Refused) as caught:
        build_plan(resolved(verify_tokens=2, port=6379), [rank(0)], OVERLAYS, problems)
    settings = {p.setting for p in caught.value.problems}
    assert {"verify_tokens", "port", "spark_rank", "spark_hf_home"} <= settings
    assert str(caught.value).count("\n") == len(caught.value.problems) - 1


def test_overlay_digests_follow_the_content(tmp_path: Path) -> None:
    assert find_overlays(tmp_path / "none") == {}
    folder = tmp_path / "verify_width"
    folder.mkdir()
    assert find_overlays(tmp_path) == {}
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    before = overlay_digest(folder)
    assert find_overlays(tmp_path) == {"verify_width": before}
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("x", encoding="utf-8")
    assert overlay_digest(folder) == before
    (folder / "manifest.json").write_text("{ }", encoding="utf-8")
    assert overlay_digest(folder) != before


def test_rank_environment_names_are_those_of_the_plan() -> None:
    head, worker = (r["environment"] for r in plan()["ranks"])
    assert {name for name in head if head[name] != worker[name]} == RANK_ENVIRONMENT
