"""spark_release in real ansible-playbook runs: two hosts behind an ssh that runs here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sparkpair.store import File, Store

from tests.planning import host_variables, plan
from tests.sshhere import ansible, configure, program

ID = "a" * 12


def entry(name: str, **variables: Any) -> dict[str, Any]:
    """A task that includes an entry of the role."""
    role = {"name": "spark_release", "tasks_from": f"{name}.yml"}
    return {"ansible.builtin.include_role": role, "vars": {"spark_release_id": ID, **variables}}


class Site:
    """Two ranks that hold a release with a key of its own, and settings that name today's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores = [Store(folder / f"spark-{rank}") for rank in (0, 1)]
        for store in self.stores:
            store.stage(ID, [File("compose.yaml", b"services: {}\n", 0o644)])
            store.arm(ID, {"api_key": "its own"})
            (store.path(ID) / ".secrets-next").rename(store.path(ID) / "secrets")
        program(folder / "sudo", 'for last; do :; done\nexec sh -c "$last"\n')
        program(folder / "ssh", 'for last; do :; done\nexec sh -c "$last"\n')
        configure(folder)
        hosts = {
            f"spark-{rank}": {
                **host_variables(rank),
                "ansible_host": f"192.0.2.{rank + 1}",
                "ansible_python_interpreter": sys.executable,
                "ansible_become_exe": str(folder / "sudo"),
                "spark_release_root": str(store.root),
                "api_key": "of-today",
            }
            for rank, store in enumerate(self.stores)
        }
        (folder / "hosts.json").write_text(json.dumps({"all": {"children": {"sparks": {"hosts": hosts}}}}))

    def play(self, *tasks: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run tasks on both ranks."""
        play = {"hosts": "sparks", "gather_facts": False, "any_errors_fatal": True, "tasks": tasks}
        (self.folder / "play.json").write_text(json.dumps([play]))
        return ansible(self.folder, "-i", "hosts.json", "play.json")

    def prepare(self, *, own_key: bool) -> subprocess.CompletedProcess[str]:
        """Have the release prepared."""
        return self.play(entry("prepared", spark_release_api_key_set=True, spark_release_own_key=own_key))

    @property
    def keys(self) -> list[str]:
        """The key that each rank would start the release with."""
        return [(store.path(ID) / ".secrets-next" / "api_key").read_text() for store in self.stores]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(("own_key", "key"), [(True, "its own"), (False, "of-today")])
def test_a_release_on_record_serves_with_its_own_key_and_a_new_one_with_todays(
    site: Site, own_key: bool, key: str
) -> None:
    done = site.prepare(own_key=own_key)
    assert done.returncode == 0, done.stdout
    assert site.keys == [key, key]
    assert [store.leftovers() for store in site.stores] == [[".current-next", f"{ID}/.secrets-next"]] * 2
    assert "of-today" not in done.stdout


def test_a_rank_that_cannot_be_prepared_leaves_no_link_ready_on_the_other(site: Site) -> None:
    (site.stores[1].path(ID) / "compose.yaml").write_text("services: {stray: {}}\n")
    done = site.prepare(own_key=True)
    assert done.returncode == 2, done.stdout
    assert "compose.yaml: content differs" in done.stdout
    assert f"release {ID} could not be prepared on every rank" in done.stdout
    assert [store.leftovers() for store in site.stores] == [[], []]


@pytest.mark.parametrize(
    ("holder", "moved"), [("mine", True), ("another", False), ("mine, from another terminal", False)]
)
@pytest.mark.parametrize("name", ["prepared", "switch", "pruned"])
def test_a_controller_that_slept_changes_no_release_once_the_lock_is_not_its_own(
    site: Site, name: str, holder: str, moved: bool
) -> None:
    """A colleague has released its lock and deployed something else in the meantime."""
    lock = {
        "spark_lock": {"root": "{{ spark_release_root }}", "state": "held", "run": "mine", "verb": "deploy"},
        "become": True,
    }
    if holder != "mine":
        for store in site.stores:
            (store.root / "lock").mkdir()
            note = {"run": holder.partition(",")[0], "session": "another"}
            (store.root / "lock" / "holder.json").write_text(json.dumps(note))
    before = [state(store) for store in site.stores]
    tasks = [lock] if moved else []
    done = site.play(*tasks, entry(name, spark_release_run="mine", spark_release_keep=[]))
    assert (done.returncode == 0) == moved, done.stdout
    assert ([state(store) for store in site.stores] != before) == moved
    assert ("the lock is not this run's any more, so nothing was changed" in done.stdout) != moved


def state(store: Store) -> tuple[str | None, list[str], list[str]]:
    """The current release of a rank, those that it holds, and what is left half done."""
    return store.current(), store.ids(), store.leftovers()


def test_a_key_that_was_changed_while_a_run_staged_served_as_the_planned_one(site: Site) -> None:
    made = plan(api_key="another-key")
    done = site.play(entry("prepared", spark_release_api_key_set=True, spark_release_plan=made))
    assert done.returncode == 2
    assert "api_key: is not what the plan was made with any more" in done.stdout
    assert [store.leftovers() for store in site.stores] == [[], []]
    made = plan(api_key="of-today")
    done = site.play(entry("prepared", spark_release_api_key_set=True, spark_release_plan=made))
    assert done.returncode == 0, done.stdout


def test_a_way_back_did_not_need_todays_settings_and_read_them(site: Site) -> None:
    hosts = json.loads((site.folder / "hosts.json").read_text())
    for variables in hosts["all"]["children"]["sparks"]["hosts"].values():
        variables["api_key"] = "{{ lookup('file', '/nowhere') }}"
    (site.folder / "hosts.json").write_text(json.dumps(hosts))
    assert site.prepare(own_key=True).returncode == 0
    assert site.keys == ["its own", "its own"]
    assert site.prepare(own_key=False).returncode == 2
