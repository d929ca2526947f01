"""Each planted fault of a host gives its one clear finding and nothing else; a healthy host of every kit gives none."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sparkpair import history
from sparkpair.images import RAY_PROBE
from sparkpair.preflight import CHECKS, IDS, check, chosen, verdict
from sparkpair.preflight_fabric import discover, gid_rows, netdev_of
from sparkpair.preflight_host import GIB, NOT_ASKED, Host, Options, Thresholds, version
from sparkpair.preflight_pair import join, proposal_lines
from sparkpair.runner import TIMED_OUT, Completed
from sparkpair.weights_cache import credited_bytes

from tests.fixtures.host_tree import KITS, Link, Listener, Rdma, Row, Spark, container, engine, kit, mapped

PROBE = Options(probe_image=True)


def judge(spark: Spark, root: Path, options: Options = PROBE, **more: Any) -> dict[str, Any]:
    """The result of all checks on one Spark."""
    return check(spark.build(root), spark.plan, spark.rank, options, **more)


FAULTS: list[tuple[Callable[[Spark], None], str]] = []
SAYS: dict[str, tuple[str, str, str]] = {}
"""Fault to its level, a part of what it must say was observed, and a part of the remedy."""


def fault(name: str, level: str, observed: str, remedy: str) -> Callable[[Callable[[Spark], None]], None]:
    """Register a fault: the check that finds it, the level, and words that observation and remedy must hold."""

    def register(plant: Callable[[Spark], None]) -> None:
        FAULTS.append((plant, name))
        SAYS[plant.__name__] = (level, observed, remedy)

    return register


# --- machine ---------------------------------------------------------------------------------------------------------


@fault("become", "blocked", "user id 1000", "sudo")
def login_user_without_root(s: Spark) -> None:
    s.euid = 1000


@fault("architecture", "blocked", "x86_64", "ansible_host")
def host_is_not_a_spark(s: Spark) -> None:
    s.machine = "x86_64"


@fault("kernel", "blocked", "7.0.0-1019-nvidia with kexec handover", "kho=off")
def kernel_1019_with_kexec_handover(s: Spark) -> None:
    s.kernel = "7.0.0-1019-nvidia"


@fault("kernel", "blocked", "7.0.0-31-generic", "6.17")
def kernel_31_with_kexec_handover(s: Spark) -> None:
    s.kernel = "7.0.0-31-generic"


@fault("kernel", "blocked", "CmaTotal is 0", "kho=off")
def contiguous_memory_broken_on_an_unlisted_kernel(s: Spark) -> None:
    s.memory |= {"CmaTotal": 0, "CmaFree": 4096}


@fault("docker", "blocked", "Cannot connect to the Docker daemon", "systemctl enable --now docker")
def docker_stopped(s: Spark) -> None:
    s.docker_error = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."


@fault("docker", "blocked", "permission denied", "group docker")
def docker_socket_not_allowed(s: Spark) -> None:
    s.docker_error = "permission denied while trying to connect to the Docker daemon socket"


@fault("docker", "blocked", "daemon is not running", "journalctl")
def docker_error_within_an_answer(s: Spark) -> None:
    s.docker_info = {"ServerErrors": ["the daemon is not running"]}


@fault("docker", "degraded", "Docker 20.10.24", "update Docker")
def docker_too_old(s: Spark) -> None:
    s.docker_info["ServerVersion"] = "20.10.24+dfsg1"


@fault("compose", "blocked", "no docker compose", "docker-compose-plugin")
def compose_missing(s: Spark) -> None:
    s.compose = None


@fault("compose", "blocked", "Compose v2.5.0", "docker-compose-plugin")
def compose_too_old(s: Spark) -> None:
    s.compose = "v2.5.0"


@fault("nvidia_runtime", "blocked", "io.containerd.runc.v2, runc", "nvidia-ctk runtime configure")
def nvidia_runtime_not_registered(s: Spark) -> None:
    del s.docker_info["Runtimes"]["nvidia"]


@fault("gpu", "blocked", "couldn't communicate with the driver", "dmesg")
def gpu_lost(s: Spark) -> None:
    s.gpu = None


@fault("gpu", "degraded", "RTX PRO 6000", "gpu_name")
def gpu_of_another_kind(s: Spark) -> None:
    s.gpu = "NVIDIA RTX PRO 6000, 580.95.05"


@fault("foreign_gpu", "blocked", "open-webui", "docker stop open-webui")
def foreign_container_with_gpu(s: Spark) -> None:
    s.containers = [container("a", "open-webui", gpu=True), container("b", "grafana")]


@fault("foreign_gpu", "blocked", "comfy", "docker stop comfy")
def foreign_container_with_gpu_and_its_process(s: Spark) -> None:
    s.containers = [container("a", "comfy", Runtime="nvidia")]
    s.compute = ["777, python3"]
    s.files["/proc/777/cgroup"] = "0::/system.slice/docker-" + "a" * 64 + ".scope"


@fault("foreign_gpu", "degraded", "ollama (pid 555)", "gpu_mem_util")
def foreign_gpu_process(s: Spark) -> None:
    s.compute = ["555, ollama"]


@fault("ports", "blocked", "port 8888 is held by jupyter-lab (pid 4242)", "stop jupyter-lab")
def api_port_taken(s: Spark) -> None:
    s.listeners = [Listener(8888, comm="jupyter-lab")]


@fault("ports", "blocked", "port 6379 is held by redis-server", "another port")
def ray_port_taken_on_ipv6(s: Spark) -> None:
    s.listeners = [Listener(6379, comm="redis-server", ipv6=True)]


@fault("ports", "blocked", "container vllm-old", "stop container vllm-old")
def port_taken_by_a_foreign_container(s: Spark) -> None:
    s.containers = [container("c", "vllm-old")]
    s.listeners = [Listener(8888, container="c" * 64)]


@fault("ports", "blocked", "container web", "stop container web")
def port_published_by_dockers_proxy(s: Spark) -> None:
    s.containers = [container("d", "web", PortBindings={"80/tcp": [{"HostIp": "", "HostPort": "8888"}]})]
    s.listeners = [Listener(8888, comm="docker-proxy")]


@fault("ports", "blocked", "a process that this user cannot see", "another port")
def port_taken_by_an_unseen_process(s: Spark) -> None:
    s.listeners = [Listener(8888, pid=0)]


@fault("memory", "blocked", "60.0 GiB available", "gpu_mem_util to at most 0.48")
def memory_held_by_others(s: Spark) -> None:
    s.memory |= {"MemFree": 58 * 1024**2, "MemAvailable": 60 * 1024**2}


@fault("memory", "info", "2.0 GiB free, 117.0 GiB available: the rest is page cache", "drop_caches=3")
def memory_full_of_page_cache(s: Spark) -> None:
    s.memory |= {"MemFree": 2 * 1024**2, "MemAvailable": 117 * 1024**2}


@fault("swap", "degraded", "vm.swappiness 60", "vm.swappiness=0")
def swappiness_of_a_desktop(s: Spark) -> None:
    s.swappiness = 60


@fault("swap", "info", "no swap", "swap file")
def swap_missing(s: Spark) -> None:
    s.memory["SwapTotal"] = 0


@fault("limits", "blocked", "rootless", "docker context")
def docker_rootless(s: Spark) -> None:
    s.docker_info["SecurityOptions"].append("name=rootless")


@fault("limits", "degraded", "dockerd may open 1024 files", "LimitNOFILE")
def docker_with_few_open_files(s: Spark) -> None:
    s.dockerd_files = "1024"


@fault("limits", "blocked", "dockerd may lock 8 MiB", "LimitMEMLOCK")
def docker_that_cannot_lift_memlock(s: Spark) -> None:
    s.dockerd_capabilities = "00000000a80425fb"


@fault("caches", "blocked", "/var/cache/sparkpair/triton cannot be written", "read-only")
def cache_directory_not_writable(s: Spark) -> None:
    s.unwritable = {"/var/cache/sparkpair/triton"}


@fault("caches", "blocked", "/var/cache/sparkpair/vllm is not a directory", "make /var/cache/sparkpair/vllm")
def cache_directory_is_a_file(s: Spark) -> None:
    s.files["/var/cache/sparkpair/vllm"] = "oops"


# --- fabric ----------------------------------------------------------------------------------------------------------


@fault(
    "fabric_interface",
    "blocked",
    "no interface enp1s0f1np1; up with IPv4: enP7s7 (172.16.0.10), eth9 (192.0.2.1)",
    "discover=true",
)
def interface_renamed_since_the_inventory_was_written(s: Spark) -> None:
    s.links["eth9"] = s.links.pop("enp1s0f1np1")


@fault("fabric_interface", "blocked", "enp1s0f1np1 is down; up with IPv4: enP7s7 (172.16.0.10)", "plug the cable")
def cable_not_in_this_port(s: Spark) -> None:
    s.link.state = "down"
    s.rdma.state = "1: DOWN"


@fault("fabric_interface", "blocked", "has no IPv4 address; 192.0.2.1 is nowhere", "netplan")
def fabric_address_lost(s: Spark) -> None:
    s.link.addresses = []


@fault("fabric_interface", "blocked", "192.0.2.1 is on lo", "spark_fabric_address")
def fabric_address_is_a_loopback_alias(s: Spark) -> None:
    s.link.addresses = ["192.0.2.77"]
    s.links["lo"].addresses.append("192.0.2.1")


@fault("fabric_route", "blocked", "rank 1 (192.0.2.2) is reached through enP7s7", "one subnet")
def route_to_the_other_rank_over_the_lan(s: Spark) -> None:
    s.routes["192.0.2.2"] = "enP7s7"


@fault("fabric_route", "blocked", "cannot be reached: RTNETLINK answers: Network is unreachable", "one subnet")
def route_to_the_other_rank_missing(s: Spark) -> None:
    s.routes["192.0.2.2"] = ""


@fault("fabric_mtu", "degraded", "MTU 1500", "netplan")
def mtu_reset_by_a_firmware_update(s: Spark) -> None:
    s.link.mtu = 1500


@fault("fabric_speed", "degraded", "25000 Mb/s", "cable")
def link_negotiated_down(s: Spark) -> None:
    s.link.speed = 25_000


@fault("rdma", "blocked", "no RDMA device rocep1s0f1; the host has", "spark_rdma_devices")
def rdma_device_of_another_name(s: Spark) -> None:
    s.devices["mlx5_0"] = s.devices.pop("rocep1s0f1")


@fault("rdma", "blocked", "rocep1s0f1 (enp1s0f1np1) is DOWN", "discover=true")
def rdma_port_down(s: Spark) -> None:
    s.rdma.state = "1: DOWN"


@fault("rdma", "blocked", "rocep1s0f1 is bound to enp1s0f0np0", "set spark_rdma_devices to rocep9s0f9")
def rdma_device_of_the_other_port(s: Spark) -> None:
    s.devices["rocep9s0f9"] = s.devices["rocep1s0f1"]
    s.links["enp1s0f0np0"] = Link(["192.0.2.9"])
    s.devices["rocep1s0f1"] = Rdma.of("enp1s0f0np0", "192.0.2.9", node="uverbs3")


@fault("rdma", "blocked", "link layer InfiniBand", "mlxconfig")
def rdma_port_set_to_infiniband(s: Spark) -> None:
    s.rdma.layer = "InfiniBand"


@fault("rdma", "blocked", "lacks a verbs device", "modprobe ib_uverbs")
def rdma_verbs_module_missing(s: Spark) -> None:
    s.rdma.node = None


@fault("rdma", "blocked", "no device in the plan", "spark_rdma_devices")
def rdma_devices_not_in_the_plan(s: Spark) -> None:
    s.me["rdma_devices"] = []


@fault("gid", "blocked", "rocep1s0f1: row 3 is empty (all zero)", "mlx5_core")
def gid_row_all_zero(s: Spark) -> None:
    s.rdma.rows = {0: Row("fe80::1", "IB/RoCE v1"), 1: Row("fe80::1")}


@fault("gid", "blocked", "row 3 is 192.0.2.1 with type IB/RoCE v1", "spark_gid_index: 4")
def gid_row_moved_by_one(s: Spark) -> None:
    s.rdma.rows = {3: Row(mapped("192.0.2.1"), "IB/RoCE v1"), 4: Row(mapped("192.0.2.1"))}


@fault("gid", "blocked", "row 3 is fe80:", "spark_gid_index: 5")
def gid_row_pushed_back_by_a_second_link_local_pair(s: Spark) -> None:
    s.rdma.rows |= {2: Row("fe80::2", "IB/RoCE v1"), 3: Row("fe80::2")}
    s.rdma.rows |= {4: Row(mapped("192.0.2.1"), "IB/RoCE v1"), 5: Row(mapped("192.0.2.1"))}


@fault("gid", "blocked", "row 3 is 192.0.2.99", "mlx5_core")
def gid_row_of_an_old_address(s: Spark) -> None:
    s.rdma.rows[3] = Row(mapped("192.0.2.99"))


@fault("gid", "blocked", "no RoCE v2 row for 192.0.2.1", "mlx5_core")
def gid_index_to_be_discovered_but_absent(s: Spark) -> None:
    s.me["gid_index"] = None
    del s.rdma.rows[3]


@fault("names", "degraded", "the own name gx10-0 does not resolve", "/etc/hosts")
def own_name_unknown(s: Spark) -> None:
    s.forward.pop("gx10-0")


@fault("names", "degraded", "192.0.2.2 (rank 1) is named gx10-1, which resolves to 172.16.0.11", "fabric address agree")
def name_of_the_other_rank_leads_to_the_lan(s: Spark) -> None:
    s.forward["gx10-1"] = ["172.16.0.11"]


# --- content ---------------------------------------------------------------------------------------------------------


@fault("disk", "blocked", "10.0 GiB free", "prune")
def disk_too_small_for_the_weights(s: Spark) -> None:
    s.free = {"/": 900 * GIB, "/home": 10 * GIB}


@fault("disk", "degraded", "170.0 GiB free", "prune")
def disk_nearly_full_when_all_is_stored(s: Spark) -> None:
    s.free = {"/": 900 * GIB, "/home": 170 * GIB}


@fault("image", "blocked", "is built for amd64", "linux/arm64")
def image_of_another_architecture(s: Spark) -> None:
    assert s.image
    s.image["Architecture"] = "amd64"


@fault("image", "info", "is not on this host", "deploy.yml brings it")
def image_not_pulled_yet(s: Spark) -> None:
    s.image = None


@fault("ray", "blocked", "no Ray in the image", "with Ray in it")
def image_without_ray(s: Spark) -> None:
    s.ray = None


@fault("engine_flags", "blocked", "--skip-mm-profiling", "extra_args")
def flag_unknown_to_the_image(s: Spark) -> None:
    s.flags.remove("--skip-mm-profiling")


@fault("engine_flags", "degraded", "does not print its flags (usage: vllm serve", "read the image's flags yourself")
def image_that_prints_no_flags(s: Spark) -> None:
    s.flags = []


@fault(
    "self_check",
    "blocked",
    "on the GPU ended with 1: 1 | 2 | 3 | test_moe ... FAIL | FAILED (failures=1)",
    "[self_check]",
)
def self_check_of_the_image_fails(s: Spark) -> None:
    # The last lines are shown, so the banner is not.
    s.self_check = Completed(1, "== banner ==\n\n1\n2\n3\n", "test_moe ... FAIL\nFAILED (failures=1)\n")


@fault("weights", "info", "GLM-5.3-Flash-DFlash2 is not at", "weights.yml brings it")
def draft_not_downloaded_yet(s: Spark) -> None:
    del s.files[f"{s.snapshot('dflash')}/config.json"]


@fault("weights", "degraded", "has no usable config.json", "weights.yml brings it")
def snapshot_without_its_config(s: Spark) -> None:
    del s.files[f"{s.snapshot('model')}/config.json"]
    s.files[f"{s.snapshot('model')}/model-00001-of-00120.safetensors"] = "x"


@fault("weights", "degraded", "has no usable config.json", "weights.yml brings it")
def snapshot_with_a_truncated_config(s: Spark) -> None:
    s.files[f"{s.snapshot('model')}/config.json"] = '{"model_type": '


@pytest.mark.parametrize(("plant", "name"), FAULTS, ids=[f.__name__ for f, _ in FAULTS])
def test_one_fault_gives_its_one_finding(plant: Callable[[Spark], None], name: str, tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    plant(spark)
    result = judge(spark, tmp_path)
    level, observed, remedy = SAYS[plant.__name__]
    assert [(f["check"], f["level"], f["rank"]) for f in result["findings"]] == [(name, level, 0)], result["findings"]
    found = result["findings"][0]
    assert observed in found["observed"]
    assert remedy in found["remedy"]
    assert found["wanted"]
    assert result["verdict"] == ("ready" if level == "info" else level)
    assert result["checks"][name] == level


@pytest.fixture(scope="module")
def healthy_worker(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of rank 1 without a fault."""
    return judge(kit("one_cable")[1], tmp_path_factory.mktemp("worker"))


@pytest.mark.parametrize(("plant", "name"), FAULTS, ids=[f.__name__ for f, _ in FAULTS])
def test_one_fault_is_one_finding_to_the_operator_of_the_pair(
    plant: Callable[[Spark], None], name: str, healthy_worker: dict[str, Any], tmp_path: Path
) -> None:
    spark = kit("one_cable")[0]
    plant(spark)
    results = {"spark-0": judge(spark, tmp_path), "spark-1": healthy_worker}
    outcome = join(results, ranks={"spark-0": 0, "spark-1": 1})
    # An MTU that differs is told by the comparison: it stops the pair, where a small one on both only slows it.
    shown = "parity" if name == "fabric_mtu" else name
    assert [f["check"] for f in outcome.findings] == [shown], outcome.findings


def test_at_least_thirty_faults_cover_every_check() -> None:
    assert len(FAULTS) >= 30
    assert {name for _, name in FAULTS} == set(IDS)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", sorted(KITS))
def test_a_healthy_kit_gives_no_finding(name: str, rank: int, tmp_path: Path) -> None:
    result = judge(kit(name)[rank], tmp_path)
    assert result["findings"] == []
    assert result["verdict"] == "ready"
    skipped = {"engine_flags"} if rank else set()
    assert {check for check, state in result["checks"].items() if state != "ok"} == skipped


def test_a_healthy_kit_passes_with_other_executors_and_methods(tmp_path: Path) -> None:
    for number, wanted in enumerate(({"executor": "mp"}, {"spec_method": "mtp"}, {"spec_method": "none"})):
        result = judge(kit("one_cable", **wanted)[0], tmp_path / str(number))
        assert result["findings"] == []


def test_only_reading_commands_are_run(tmp_path: Path) -> None:
    spark = kit("dual_rail")[0]
    judge(spark, tmp_path)
    allowed = ("info", "compose", "ps", "inspect", "image", "run")
    for argv in spark.commands:
        assert argv[0] in ("ip", "nvidia-smi") or (argv[0] == "docker" and argv[1] in allowed), argv
        if "run" in argv[:2]:
            assert "--rm" in argv
            assert argv[argv.index("--pull") + 1] == "never"
            assert argv[argv.index("--network") + 1] == "none"


def test_without_permission_to_probe_no_container_is_started(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    result = judge(spark, tmp_path, Options())
    assert not [argv for argv in spark.commands if argv[:2] == ["docker", "run"]]
    assert result["checks"]["ray"].startswith("skipped: ")
    assert result["checks"]["engine_flags"].startswith("skipped: ")
    assert result["checks"]["self_check"].startswith("skipped: ")


# --- cases that need more than one change ---------------------------------------------------------------------------


def test_all_findings_are_collected_not_only_the_first(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.link.mtu, spark.swappiness, spark.compose = 1500, 60, None
    found = {f["check"] for f in judge(spark, tmp_path)["findings"]}
    assert found == {"fabric_mtu", "swap", "compose"}


def test_an_interface_that_is_down_silences_what_depends_on_it(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    cable = spark.link
    cable.state, cable.mtu = "down", 1500
    checks = judge(spark, tmp_path)["checks"]
    for name in ("fabric_route", "fabric_mtu", "fabric_speed", "rdma", "gid"):
        assert checks[name] == "not judged"


def test_what_only_rdma_cannot_do_without_warns_where_there_is_none(tmp_path: Path) -> None:
    spark = kit("one_cable", rdma=False)[0]
    spark.kernel = "7.0.0-1019-nvidia"
    spark.docker_info["SecurityOptions"].append("name=rootless")
    found = judge(spark, tmp_path)["findings"]
    assert [(f["check"], f["level"]) for f in found] == [("kernel", "degraded"), ("limits", "degraded")]


def test_known_bad_kernel_with_kho_off_is_fine(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.kernel, spark.cmdline = "7.0.0-1019-nvidia", "ro kho=off quiet"
    assert judge(spark, tmp_path)["findings"] == []


def test_kernel_310_is_not_taken_for_31(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.kernel = "7.0.0-310-generic"
    assert judge(spark, tmp_path)["findings"] == []


def test_ports_held_by_our_engine_pass_and_the_owner_is_shown(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.containers = [engine("feedfacecafe")]
    spark.listeners = [Listener(8888, container="e" * 64), Listener(6379, pid=4243, container="e" * 64)]
    spark.compute = ["4242, VLLM::Worker"]
    spark.memory |= {"MemFree": 1024**2, "MemAvailable": 2 * 1024**2}
    result = judge(spark, tmp_path, Options())
    assert result["findings"] == []
    assert result["facts"]["ports"]["8888"] == "container sparkpair-engine of release feedfacecafe"
    assert result["checks"]["memory"].startswith("skipped: ")


def test_a_port_of_the_head_that_a_worker_has_taken_only_warns(tmp_path: Path) -> None:
    spark = kit("one_cable")[1]
    spark.listeners = [Listener(8888, comm="nginx")]
    found = judge(spark, tmp_path)["findings"]
    assert [(f["check"], f["level"], f["rank"]) for f in found] == [("ports", "degraded", 1)]


def test_no_port_of_the_plan_is_bound_by_a_worker_and_the_head_binds_all(tmp_path: Path) -> None:
    for rank, level in ((0, "blocked"), (1, "degraded")):
        spark = kit("one_cable")[rank]
        ports = {spark.plan["port"], spark.plan["ray"]["port"]}
        spark.listeners = [Listener(port, pid=4000 + port) for port in sorted(ports)]
        found = judge(spark, tmp_path / str(rank), only=["ports"])["findings"]
        assert [(f["level"], int(f["observed"].split()[1])) for f in found] == [(level, p) for p in sorted(ports)]


def test_with_executor_mp_the_rendezvous_port_is_looked_at_and_ray_is_not(tmp_path: Path) -> None:
    spark = kit("one_cable", executor="mp")[0]
    spark.ray = None
    spark.listeners = [Listener(6379), Listener(29521, pid=4300, comm="old-engine")]
    found = judge(spark, tmp_path)["findings"]
    assert [f["observed"] for f in found] == ["port 29521 is held by old-engine (pid 4300)"]


def test_dual_rail_second_device_at_another_index_names_the_device(tmp_path: Path) -> None:
    spark = kit("dual_rail")[0]
    spark.devices["roceP2p1s0f1"] = Rdma.of("enP2p1s0f1np1", "198.51.100.1", first=4, node="uverbs1")
    found = judge(spark, tmp_path)["findings"]
    assert [(f["check"], f["observed"]) for f in found] == [
        ("gid", "roceP2p1s0f1: row 3 is empty (all zero)"),
    ]
    assert "rocep1s0f1 has 3, roceP2p1s0f1 has 5" in found[0]["remedy"]
    assert "leave spark_gid_index out" in found[0]["remedy"]


def test_dual_rail_second_interface_without_an_address(tmp_path: Path) -> None:
    spark = kit("dual_rail")[1]
    spark.links["enP2p1s0f1np1"].addresses = []
    found = judge(spark, tmp_path)["findings"]
    assert [(f["check"], f["rank"]) for f in found] == [("gid", 1)]
    assert "enP2p1s0f1np1 of roceP2p1s0f1 has no IPv4 address" in found[0]["observed"]


def test_dual_rail_without_a_pin_takes_each_devices_own_index(tmp_path: Path) -> None:
    spark = kit("dual_rail")[0]
    spark.me["gid_index"] = None
    spark.devices["roceP2p1s0f1"] = Rdma.of("enP2p1s0f1np1", "198.51.100.1", first=4, node="uverbs1")
    result = judge(spark, tmp_path)
    assert result["findings"] == []
    assert result["facts"]["gid"] == {"rocep1s0f1": [3], "roceP2p1s0f1": [5]}


def test_a_plan_without_rdma_and_gpu_needs_neither(tmp_path: Path) -> None:
    spark = kit("one_cable", rdma=False, gpus="none")[0]
    spark.gpu, spark.devices, spark.link.mtu, spark.link.speed = None, {}, 1500, None
    spark.docker_info["Runtimes"] = {"runc": {}}
    spark.memory = {"MemTotal": 4 * 1024**2, "MemFree": 1024**2, "MemAvailable": 2 * 1024**2, "SwapTotal": 0}
    result = judge(spark, tmp_path)
    assert result["findings"] == []
    assert result["facts"]["mtu"] == 1500


def test_disk_credits_no_bytes_of_another_snapshot(tmp_path: Path) -> None:
    limits = Thresholds.read({"weights_bytes": 100, "draft_bytes": 0, "disk_margin_bytes": 0})
    for linked, levels in ((False, ["blocked"]), (True, [])):
        spark = kit("one_cable")[0]
        spark.free = {"/": 900 * GIB, "/home": 20}
        repository = spark.snapshot("model").rpartition("/snapshots")[0]
        spark.files[f"{repository}/blobs/{'a' * 64}"] = "x" * 100
        host = spark.build(tmp_path / str(linked))
        link = host.path(spark.snapshot("model") if linked else f"{repository}/snapshots/other") / "model.safetensors"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"../../blobs/{'a' * 64}")
        found = check(host, spark.plan, 0, Options(thresholds=limits), only=["disk"])["findings"]
        assert [f["level"] for f in found] == levels, found


def test_disk_counts_a_blob_that_two_files_of_a_snapshot_share_once(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a").write_text("x" * 10)
    snapshot = tmp_path / "snapshots" / "pin"
    snapshot.mkdir(parents=True)
    for name in ("one", "two"):
        (snapshot / name).symlink_to("../../blobs/a")
    (snapshot / "gone").symlink_to("../../blobs/b")
    (tmp_path / ".sparkpair").mkdir()
    (tmp_path / ".sparkpair" / "coming").write_text("x" * 3)
    assert credited_bytes(tmp_path, snapshot) == 13
    assert credited_bytes(tmp_path / "none", tmp_path / "none" / "snapshots" / "pin") == 0


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, ["degraded"]),
        ({"free": 46}, []),
        ({"rank": 1}, []),
        ({"transfer": "pull"}, []),
        ({"containerd": True}, []),
        ({"staged": True}, []),
        ({"size": 1 * GIB}, []),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_head_that_holds_the_image_may_need_room_to_send_it(
    changes: dict[str, Any], levels: list[str], tmp_path: Path
) -> None:
    spark = kit("one_cable", image_transfer=changes.get("transfer", "stream"))[changes.get("rank", 0)]
    assert spark.image
    spark.image |= {"Size": changes.get("size", 0)}
    if changes.get("containerd"):
        spark.docker_info["DriverStatus"] = [["driver-type", "io.containerd.snapshotter.v1"]]
    spark.free = {"/": 900 * GIB} | {f"/var/lib/{n}": changes.get("free", 44) * GIB for n in ("docker", "containerd")}
    spark.files |= {"/var/lib/docker/.keep": "", "/var/lib/containerd/.keep": ""}
    found = judge(spark, tmp_path, Options(staged=changes.get("staged", False)), only=["disk"])["findings"]
    assert [f["level"] for f in found] == levels
    assert all("while it is sent to a rank that lacks it" in f["wanted"] for f in found)


def test_disk_credits_weights_that_are_there_and_unfinished_ones(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.free = {"/": 900 * GIB, "/home": 20}
    limits = Thresholds.read({"weights_bytes": 100, "draft_bytes": 100, "disk_margin_bytes": 0})
    repository = spark.snapshot("model").rpartition("/snapshots")[0]
    spark.files |= {f"{spark.snapshot('model')}/a": "x" * 70, f"{repository}/blobs/b.incomplete": "x" * 40}
    spark.files |= {f"{spark.snapshot('dflash')}/c": "x" * 99}
    assert judge(spark, tmp_path, Options(thresholds=limits))["findings"] == []


def test_disk_counts_a_missing_image_on_dockers_file_system(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.image = None
    spark.docker_info["DriverStatus"] = [["driver-type", "io.containerd.snapshotter.v1"]]
    spark.free = {"/": 900 * GIB, "/var/lib/containerd": 30 * GIB}
    spark.files["/var/lib/containerd/.keep"] = ""
    found = [f for f in judge(spark, tmp_path)["findings"] if f["check"] == "disk"]
    assert [f["observed"] for f in found] == ["30.0 GiB free where /var/lib/containerd is"]
    assert "40.0 GiB for the image, and" in found[0]["wanted"]


@pytest.mark.parametrize(
    ("transfer", "free", "levels"),
    [("stream", 79, ["blocked"]), ("stream", 86, []), ("pull", 79, []), ("pull", 39, ["blocked"])],
)
def test_disk_counts_the_archive_of_a_stream_into_the_older_image_store(
    transfer: str, free: int, levels: list[str], tmp_path: Path
) -> None:
    spark = kit("one_cable", image_transfer=transfer)[1]
    spark.image = None
    spark.free = {"/": 900 * GIB, "/var/lib/docker": free * GIB}
    spark.files["/var/lib/docker/.keep"] = ""
    found = [f for f in judge(spark, tmp_path)["findings"] if f["check"] == "disk"]
    assert [f["level"] for f in found] == levels
    assert all(("its archive while it is sent" in f["wanted"]) is (transfer == "stream") for f in found)


def test_several_needs_on_one_disk_are_added_up(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.image = None
    spark.free = {"/": 180 * GIB}
    found = [f for f in judge(spark, tmp_path)["findings"] if f["check"] == "disk"]
    assert len(found) == 1
    assert "for the image + 40.0 GiB for its archive while it is sent + 164.0 GiB for" in found[0]["wanted"]


def test_staged_image_and_weights_that_are_missing_block(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.image = None
    del spark.files[f"{spark.snapshot('model')}/config.json"]
    found = judge(spark, tmp_path, Options(staged=True))["findings"]
    assert [(f["check"], f["level"]) for f in found] == [("image", "blocked"), ("weights", "blocked")]


def test_a_model_at_a_path_must_be_provided_by_a_mount(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.plan["settings"]["model"] = "/root/.cache/huggingface/tiny"
    spark.files["/home/op/.cache/huggingface/tiny/config.json"] = "{}"
    assert judge(spark, tmp_path / "there")["findings"] == []
    spark.plan["settings"]["model"] = "/models/tiny"
    found = judge(spark, tmp_path / "absent")["findings"]
    assert [(f["check"], f["level"]) for f in found] == [("weights", "blocked")]


def test_an_image_that_prints_its_flags_for_plain_help_only(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.help_all = False
    assert judge(spark, tmp_path / "known")["findings"] == []
    flags = Options(probe_image=True, engine_flags=("--max_model_len=4", "--not-a-flag", "--no-enable-prefix-caching"))
    found = judge(spark, tmp_path / "unknown", flags)["findings"]
    assert [f["observed"] for f in found] == ["the image's vllm serve does not know --not-a-flag"]


def test_an_image_that_needs_a_gpu_to_print_its_flags_is_asked_again_with_one(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.help_needs_gpu = True
    assert judge(spark, tmp_path / "gpu")["findings"] == []
    asked = [argv for argv in spark.commands if "vllm" in argv]
    assert ["--gpus" in argv for argv in asked] == [False, False, True]
    without = kit("one_cable", gpus="none", rdma=False)[0]
    without.help_needs_gpu = True
    found = judge(without, tmp_path / "none", only=["engine_flags"])["findings"]
    assert [(f["level"], "libcuda.so.1" in f["observed"]) for f in found] == [("degraded", True)]
    assert not [argv for argv in without.commands if "--gpus" in argv]


# --- the image's self-check -----------------------------------------------------------------------------------------


def self_checks(spark: Spark) -> list[list[str]]:
    """Options of the containers that ran the self-check."""
    return [argv[: argv.index("--entrypoint")] for argv in spark.commands if argv[-1].endswith("_exl3_overlay.py")]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_self_check_of_the_image_runs_on_the_gpu_of_every_rank(rank: int, tmp_path: Path) -> None:
    spark = kit("one_cable")[rank]
    result = judge(spark, tmp_path)
    assert (result["findings"], result["checks"]["self_check"]) == ([], "ok")
    (options,) = self_checks(spark)
    assert options[-4:] == ["--gpus", "all", "--env", "EXL3_SELFCHECK_GPU=1"]
    assert options[:5] == ["docker", "run", "--rm", "--pull", "never"]


def test_the_self_check_runs_without_a_gpu_where_the_plan_has_none(tmp_path: Path) -> None:
    spark = kit("one_cable", rdma=False, gpus="none")[0]
    assert judge(spark, tmp_path, only=["self_check"])["findings"] == []
    (options,) = self_checks(spark)
    assert not {"--gpus", "--env"} & set(options)


def test_an_image_without_a_self_check_is_skipped_with_the_reason(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.self_check = None
    result = judge(spark, tmp_path)
    assert result["findings"] == []
    assert result["checks"]["self_check"] == "skipped: the image has no /opt/glm53/test_exl3_overlay.py"
    assert self_checks(spark) == []


def test_a_self_check_under_a_serving_engine_takes_no_gpu_and_says_so(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.containers = [engine()]
    found = judge(spark, tmp_path, only=["self_check"])["findings"]
    assert [f["level"] for f in found] == ["info"]
    assert "passed without a GPU: sparkpair-engine serves" in found[0]["observed"]
    assert ["--gpus" in options for options in self_checks(spark)] == [False]


def test_a_self_check_without_an_end_is_removed_and_blocks(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.self_check = Completed(TIMED_OUT, "", "docker: no answer within 900 s")
    found = judge(spark, tmp_path, only=["self_check"])["findings"]
    assert [f["level"] for f in found] == ["blocked"]
    assert "ended with 124: docker: no answer within 900 s" in found[0]["observed"]
    (options,) = self_checks(spark)
    assert ["docker", "rm", "--force", options[options.index("--name") + 1]] in spark.commands


def test_an_image_without_python_is_said_not_to_have_been_self_checked(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    host = spark.build(tmp_path)

    def run(argv: Sequence[str], **more: Any) -> Completed:
        return Completed(127, "", "exec: python3: not found") if "python3" in argv else host.run(argv, **more)

    found = check(replace(host, run=run), spark.plan, 0, PROBE, only=["self_check"])["findings"]
    assert [(f["level"], "exec: python3: not found" in f["observed"]) for f in found] == [("degraded", True)]


def test_a_stage_of_an_untried_release_asks_for_every_check_that_needs_the_image(tmp_path: Path) -> None:
    stage = (Path(__file__).resolve().parents[2] / "roles" / "spark_rollout" / "tasks" / "stage.yml").read_text()
    asked = re.search(r"ternary\((\[.*?\]), \[\]\)", stage)
    assert asked
    result = judge(kit("one_cable")[0], tmp_path, Options())
    unasked = [name for name, state in result["checks"].items() if state == f"skipped: {NOT_ASKED}"]
    assert ast.literal_eval(asked[1]) == unasked


def test_slow_name_lookups_are_named(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.lookup_seconds = 10.0
    found = judge(spark, tmp_path)["findings"]
    assert {(f["check"], f["level"]) for f in found} == {("names", "degraded")}
    assert "took 10.0 s" in found[0]["observed"]


def test_fabric_addresses_without_names_are_fine_when_the_answer_is_quick(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.reverse = {}
    assert judge(spark, tmp_path)["findings"] == []


def test_a_read_only_weight_mount_that_exists_needs_no_write(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.unwritable = {"/home/op/.cache/huggingface"}
    assert judge(spark, tmp_path)["findings"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which only root can")
def test_a_folder_of_another_owner_in_the_weight_cache_is_told_before_the_stage_refuses_it(tmp_path: Path) -> None:
    """Root can write everywhere, so the writable check passed, and only the stage that brings weights named it."""
    spark = kit("one_cable")[0]
    host, home = spark.build(tmp_path), "/home/op/.cache/huggingface"
    repository = spark.snapshot("model").rpartition("/snapshots")[0]
    for name in (home, f"{home}/hub", spark.snapshot("dflash").rpartition("/snapshots")[0]):
        for path in (host.path(name), *host.path(name).iterdir()):
            os.chown(path, 12345, 12345)
    os.chown(host.path(repository), 0, 0)
    os.chown(host.path(spark.snapshot("dflash")), 12345, 12345)
    result = check(host, spark.plan, 0, PROBE)
    assert [(f["check"], f["level"]) for f in result["findings"]] == [("caches", "degraded")]
    found = result["findings"][0]
    assert found["observed"] == f"{repository} belongs to root, but the cache {home} to 12345"
    assert found["remedy"] == f"chown -R 12345: {repository}"
    assert (result["checks"]["weights"], result["verdict"]) == ("ok", "degraded")
    # Control: after the remedy there is no finding.
    for path in (host.path(repository), *host.path(repository).rglob("*")):
        os.chown(path, 12345, 12345)
    assert check(host, spark.plan, 0, PROBE)["findings"] == []


def test_missing_tools_are_findings_not_crashes(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    host = spark.build(tmp_path)
    nothing = Completed(127, "", "not found")
    bare = Host(**(vars(host) | {"run": lambda *_, **__: nothing}))
    result = check(bare, spark.plan, 0, PROBE)
    assert {f["check"] for f in result["findings"]} == {"docker", "gpu", "fabric_interface"}


def test_an_empty_machine_is_judged_without_a_crash(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    healthy = spark.build(tmp_path / "unused")
    host = Host(**(vars(healthy) | {"root": tmp_path / "empty", "device": lambda _: 0, "free_bytes": lambda _: 0}))
    result = check(host, spark.plan, 0, PROBE)
    assert result["verdict"] == "blocked"


# --- switches, thresholds, helpers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IDS)
def test_every_check_can_be_switched_off_and_run_alone(name: str, tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    assert name not in judge(spark, tmp_path / "off", skip=[name])["checks"]
    assert list(judge(kit("one_cable")[0], tmp_path / "alone", only=[name])["checks"]) == [name]


def test_unknown_checks_and_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no check gids"):
        chosen(["gids"], [])
    spark = kit("one_cable")[0]
    with pytest.raises(ValueError, match="no rank 7"):
        check(spark.build(tmp_path), spark.plan, 7, Options())


def test_a_check_comes_after_those_it_needs() -> None:
    seen: set[str] = set()
    for entry in CHECKS:
        assert seen.issuperset(entry.needs)
        seen.add(entry.id)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mtu": 1500}, "threshold mtu does not exist"),
        ({"mtu_min": "many"}, "not a number"),
        ({"mtu_min": -1}, "at least 0"),
        ({"clock_max_seconds": "inf"}, "finite"),
        ({"clock_max_seconds": "nan"}, "finite"),
        ({"bad_kernels": "7.0"}, "not a list"),
    ],
)
def test_wrong_thresholds_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Thresholds.read(given)


def test_thresholds_are_read_by_type() -> None:
    read = Thresholds.read({"mtu_min": "1500", "bad_kernels": ["6.8"], "docker_min": 24.0})
    assert (read.mtu_min, read.bad_kernels, read.docker_min) == (1500, ("6.8",), "24.0")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("v2.26.1-ds1", (2, 26, 1)),
        ("20.10.24+dfsg1", (20, 10, 24)),
        ("2.20", (2, 20)),
        ("dev", ()),
        ("28.0-rc.1", (28, 0)),
    ],
)
def test_versions_compare_by_number(text: str, numbers: tuple[int, ...]) -> None:
    assert version(text) == numbers


def test_verdict_takes_the_worst_level() -> None:
    assert verdict([]) == verdict([{"level": "info"}]) == "ready"
    assert verdict([{"level": "info"}, {"level": "degraded"}]) == "degraded"
    assert verdict([{"level": "degraded"}, {"level": "blocked"}]) == "blocked"


def test_the_probe_of_ray_is_valid_python() -> None:
    compile(RAY_PROBE, "probe", "exec")


# --- discovery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", sorted(KITS))
def test_discovery_finds_what_the_inventory_of_each_kit_says(name: str, rank: int, tmp_path: Path) -> None:
    spark = kit(name)[rank]
    proposed = discover(spark.build(tmp_path))["host_vars"]
    assert proposed == {
        "spark_fabric_interface": spark.me["interface"],
        "spark_fabric_address": spark.me["address"],
        "spark_rdma_devices": spark.me["rdma_devices"],
        "spark_gid_index": spark.me["gid_index"],
    }


def test_discovery_leaves_the_index_open_when_no_index_fits_all_devices(tmp_path: Path) -> None:
    spark = kit("dual_rail")[0]
    spark.devices["roceP2p1s0f1"] = Rdma.of("enP2p1s0f1np1", "198.51.100.1", first=4, node="uverbs1")
    found = discover(spark.build(tmp_path))
    assert found["host_vars"]["spark_gid_index"] is None
    lines = "\n".join(proposal_lines("spark-0", found))
    assert "no GID index fits all of these devices: without spark_gid_index NCCL picks" in lines
    assert "\nspark_gid_index" not in lines


def test_discovery_without_a_cable_offers_nothing(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.link.state = "down"
    found = discover(spark.build(tmp_path))
    assert found["candidates"] == []
    assert proposal_lines("spark-0", found)[0].startswith("# spark-0: no interface")


def test_proposed_lines_can_be_pasted_as_host_variables(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    found = discover(kit("dual_rail")[0].build(tmp_path))
    assert yaml.safe_load("\n".join(proposal_lines("spark-0", found))) == found["host_vars"]


def test_gid_rows_leave_out_empty_rows_and_odd_text(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.rdma.rows[6] = Row("not a gid", "")
    host = spark.build(tmp_path)
    rows = gid_rows(host, "rocep1s0f1")
    assert [(r.index, r.address, r.v2) for r in rows] == [
        (0, "", False),
        (1, "", True),
        (2, "192.0.2.1", False),
        (3, "192.0.2.1", True),
        (6, "", False),
    ]
    assert netdev_of(host, "rocep1s0f1") == "enp1s0f1np1"
    assert netdev_of(host, "nothing") == ""


@pytest.mark.parametrize(("gpu", "levels"), [(None, ["degraded"]), ("NVIDIA GB10, 580.95.05", [])])
def test_an_nvidia_smi_that_does_not_answer_is_stated_and_not_taken_for_an_idle_gpu(
    gpu: str | None, levels: list[str], tmp_path: Path
) -> None:
    spark = kit("one_cable")[0]
    spark.gpu = gpu
    found = judge(spark, tmp_path, only=["foreign_gpu"])["findings"]
    assert [f["level"] for f in found] == levels
    assert all("processes outside of containers were not seen" in f["observed"] for f in found)


@pytest.mark.parametrize(("staged", "level"), [(False, "info"), (True, "blocked")])
def test_an_image_that_lies_here_under_its_source_s_name_only_is_told(staged: bool, level: str, tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    spark.image_name = spark.plan["settings"]["image"]
    result = judge(spark, tmp_path, replace(PROBE, staged=staged), only=["image"])
    assert [f["level"] for f in result["findings"]] == [level]
    assert f"but {spark.image_name}, which it comes from, is" in result["findings"][0]["observed"]
    assert result["facts"]["image"]["digests"]


@pytest.mark.parametrize(("accepted", "levels"), [("sha256:other", ["degraded"]), ("", []), (None, [])])
def test_an_image_whose_name_means_other_bytes_than_at_the_acceptance_is_told(
    accepted: str | None, levels: list[str], tmp_path: Path
) -> None:
    spark = kit("one_cable")[0]
    host = spark.build(tmp_path)
    if accepted is not None:
        entry = {"release": spark.plan["release"], "outcome": history.ACCEPTED, "image_id": accepted}
        history.append(host.path(PROBE.root), entry)
    found = check(host, spark.plan, spark.rank, replace(PROBE, staged=True), only=["image"])["findings"]
    assert [f["level"] for f in found] == levels
    assert all("sha256:other, which release" in f["wanted"] for f in found)


def test_an_image_whose_name_means_the_same_bytes_is_no_finding(tmp_path: Path) -> None:
    spark = kit("one_cable")[0]
    host = spark.build(tmp_path)
    entry = {"release": spark.plan["release"], "outcome": history.ACCEPTED, "image_id": spark.image["Id"]}
    history.append(host.path(PROBE.root), entry)
    assert check(host, spark.plan, spark.rank, PROBE, only=["image"])["findings"] == []
