"""Every verb from inside the head: its own rank by the local connection, the other one over SSH.

A Spark's Python has no pip, so the packages of the controller come in a folder that this machine fills for it. The
tests build on each other in the order in which they stand.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labtest import CHECKOUT, INVENTORY, engine

PLACE = "/home/spark/controller"
PACKAGES = (
    *("ansible-core", "Jinja2", "MarkupSafe", "PyYAML", "cryptography", "cffi", "pycparser", "packaging", "resolvelib"),
    *("pydantic", "pydantic_core", "annotated-types", "typing_extensions", "typing-inspection", "python-dotenv"),
    "prometheus_client",
)
COLLECTIONS = ("docker", "library_inventory_filtering_v1")


def pins() -> list[str]:
    """The controller's packages as the checkout pins them."""
    lines = (CHECKOUT / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line.partition("==")[0] in PACKAGES]


def lab() -> dict[str, Any]:
    """The lab's own inventory."""
    return dict(json.loads(subprocess.run([str(INVENTORY / "sparks.py")], capture_output=True, check=True).stdout))


def inventory() -> dict[str, Any]:
    """The lab's inventory as an operator on the head would write it."""
    made = lab()
    hosts = made["_meta"]["hostvars"]
    del hosts["spark-0"]["ansible_host"]
    hosts["spark-0"]["ansible_connection"] = "local"
    common = made["sparks"]["vars"]
    common["ansible_ssh_private_key_file"] = f"{PLACE}/key"
    common["ansible_ssh_common_args"] = f"-o UserKnownHostsFile={PLACE}/known_hosts -o IdentitiesOnly=yes"
    return {"sparks": {"hosts": hosts, "vars": common}}


@pytest.fixture(scope="module")
def head(sparks: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The head with a checkout, the controller's packages, an inventory, and a key for the other rank."""
    spark, folder = sparks[0], tmp_path_factory.mktemp("controller")
    version = spark.check_output("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'")
    machine = spark.check_output("uname -m")
    platforms = [f"manylinux{v}_{machine}" for v in ("2014", "_2_17", "_2_28", "_2_34")]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:"),
            *("--python-version", version, "--implementation", "cp"),
            *(part for platform in platforms for part in ("--platform", platform)),
            *("--target", str(folder / "site"), *pins()),
        ],
        check=True,
    )
    (folder / "hosts.yml").write_text(json.dumps(inventory()))
    key = Path(lab()["sparks"]["vars"]["ansible_ssh_private_key_file"])
    community = Path(sysconfig.get_path("purelib")) / "ansible_collections" / "community"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True).stdout
    (folder / "listed").write_bytes(listed)
    archive = folder / "controller.tar"
    for place, transform, *names in (
        (CHECKOUT, "s,^,checkout/,", "--null", "-T", str(folder / "listed")),
        (folder, "s,^,,", "site", "hosts.yml"),
        (community, "s,^,site/ansible_collections/community/,", *COLLECTIONS),
        (key.parent, f"s,^{key.name}$,key,", key.name, "known_hosts"),
    ):
        argv = ["tar", "-C", str(place), f"--transform={transform}", "-rf", str(archive), *names]
        subprocess.run(argv, check=True)
    with archive.open("rb") as content:
        subprocess.run(
            [
                *("ssh", "-i", str(key), "-o", f"UserKnownHostsFile={key.parent}/known_hosts"),
                f"spark@{lab()['_meta']['hostvars']['spark-0']['ansible_host']}",
                f"mkdir -p {PLACE} && tar -C {PLACE} -x && chmod 600 {PLACE}/key && mkdir {PLACE}/inventory && "
                f"mv {PLACE}/hosts.yml {PLACE}/inventory && "
                f"cp -r {PLACE}/checkout/inventories/lab/group_vars {PLACE}/inventory",
            ],
            stdin=content,
            check=True,
        )
    yield spark
    with spark.sudo():
        spark.check_output(f"rm -rf {PLACE}")


def verb(head: Any, name: str, *arguments: str) -> Any:
    """Run a verb on the head as the user that logs in there."""
    return head.run(
        f"cd {PLACE}/checkout && PYTHONPATH={PLACE}/site:{PLACE}/checkout/plugins/module_utils LC_ALL=C.UTF-8 "
        f"python3 -m ansible playbook -i {PLACE}/inventory playbooks/{name}.yml {' '.join(arguments)}"
    )


def test_the_head_s_own_rank_is_local(head: Any) -> None:
    """The inventory is what the test is about."""
    text = head.file(f"{PLACE}/inventory/hosts.yml").content_string
    spark = json.loads(text)["sparks"]["hosts"]["spark-0"]
    assert spark["ansible_connection"] == "local"
    assert "ansible_host" not in spark


def test_preflight_finds_both_ranks_ready(head: Any) -> None:
    """The checks reach both ranks."""
    done = verb(head, "preflight")
    assert done.rc == 0, done.stdout + done.stderr
    assert "preflight: ready" in done.stdout


def test_deploy_serves_and_a_second_one_changes_nothing(head: Any, sparks: list[Any]) -> None:
    """The same release on both ranks."""
    done = verb(head, "deploy")
    assert done.rc == 0, done.stdout + done.stderr
    labels = [engine(s)["Config"]["Labels"]["sparkpair.release"] for s in sparks]
    assert len(set(labels)) == 1
    again = verb(head, "deploy")
    assert again.rc == 0, again.stdout + again.stderr
    assert again.stdout.count("changed=0") == 2


@pytest.mark.parametrize("name", ["status", "lock", "rollback", "history", "drift", "weights", "pin"])
def test_a_verb_that_finds_the_pair_serving_succeeds(head: Any, name: str) -> None:
    """Rollback goes to the stock release, which serves already."""
    done = verb(head, name)
    assert done.rc == 0, done.stdout + done.stderr


def test_the_other_rank_may_have_another_user_and_a_become_password(head: Any, sparks: list[Any]) -> None:
    """A user who is not in the group docker and whose sudo asks; a wrong password is a finding about that rank."""
    worker, vars_file = sparks[1], f"{PLACE}/inventory/host_vars/spark-1.yml"

    def log_in_with(password: str) -> None:
        head.check_output(f"printf 'ansible_user: lab-op\nansible_become_password: {password}\n' > {vars_file}")

    head.check_output(f"mkdir -p {PLACE}/inventory/host_vars")
    with worker.sudo():
        worker.check_output(
            "useradd -m -s /bin/bash lab-op && echo lab-op:lab-become | chpasswd && "
            "echo 'lab-op ALL=(ALL) ALL' > /etc/sudoers.d/lab-op && chmod 440 /etc/sudoers.d/lab-op && "
            "install -d -o lab-op -m 700 /home/lab-op/.ssh && "
            "install -o lab-op -m 600 /home/spark/.ssh/authorized_keys /home/lab-op/.ssh/"
        )
    try:
        log_in_with("lab-become")
        done = verb(head, "deploy")
        assert done.rc == 0, done.stdout + done.stderr
        assert done.stdout.count("changed=0") == 2
        log_in_with("wrong")
        refused = verb(head, "preflight")
        assert refused.rc != 0
        assert "rank 1, reach: spark-1 was not checked" in refused.stdout
    finally:
        head.check_output(f"rm {vars_file}")
        with worker.sudo():
            worker.check_output("userdel -r lab-op 2>/dev/null; rm -f /etc/sudoers.d/lab-op")


def test_stop_leaves_no_engine(head: Any, sparks: list[Any]) -> None:
    """Neither here nor there."""
    done = verb(head, "stop")
    assert done.rc == 0, done.stdout + done.stderr
    for spark in sparks:
        with spark.sudo():
            assert spark.check_output("docker ps -aq --filter label=sparkpair.release") == ""
