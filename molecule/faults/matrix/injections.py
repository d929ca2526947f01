"""How each row of the matrix is injected: name of the fault to a function that breaks, runs, and mends."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable

from bench import OLD, ROOT, Bench, Process, interrupt, kill, new
from sparklab import layout

from tests.labtest import Run
from tests.standin import image as standin

Injection = Callable[[Bench], Run]
INJECTIONS: dict[str, Injection] = {}
STAGED = "Take the lock and have everything ready"
TAKEN = "TASK [spark_lock : Bring the head's lock"
STAGING = "TASK [spark_rollout : Stage while the old pair serves]"
STARTED = "starting engine ("
WARM = "gate 8/"


def injects(name: str) -> Callable[[Injection], Injection]:
    """Register a function for a row."""

    def register(function: Injection) -> Injection:
        INJECTIONS[name] = function
        return function

    return register


def simple(name: str, *args: str) -> None:
    """A row that needs nothing but arguments."""
    INJECTIONS[name] = lambda bench: bench.deploy(*args)


for _name, _fault in (
    ("nothing to return to", "garbage"),
    ("engine exits", "exits"),
    ("fatal log line", "fatal_line"),
    ("healthy without tokens", "no_tokens"),
    ("garbage", "garbage"),
    ("wrong served name", "wrong_name"),
    ("wrong width", "short_width"),
    ("drafts never accepted", "never_accepted"),
    ("broken grammar", "broken_grammar"),
    ("engine dies in the warm-up", "dies_in_warmup"),
):
    simple(_name, *new(_fault))
simple("gate misspelt", *new("", "-e", "spark_gate_skip=canari"))
simple("bad setting", *OLD, "-e", "verify_tokens=8")
simple("gate limit out of reach", *new("", "-e", json.dumps({"spark_gate_limits": {"headroom_gib": 4000}})))
simple("never healthy", *new("unhealthy", "-e", "ready_timeout=10"))
simple("memory never settles", *new("", "-e", "settle_free_gib=4000", "-e", "settle_timeout=2"))


# --- before the stop -------------------------------------------------------------------------------------------------


def _cut_at(bench: Bench, marker: str, *args: str, rank: int = 1) -> Run:
    try:
        return bench.deploy(*args, at=marker, then=lambda _: bench.cut(rank))
    finally:
        bench.mend(rank)


def cut(name: str, marker: str, *args: str, rank: int = 1) -> None:
    """A row in which SSH of a rank is cut when the controller's screen shows ``marker``."""
    INJECTIONS[name] = lambda bench: _cut_at(bench, marker, *args, rank=rank)


for _name, _marker in (
    ("at first", "PLAY ["),
    ("while staging", STAGING),
    ("at the lock", TAKEN),
    ("in the drain", "TASK [Wait for what the old engine was asked]"),
    ("at the stop", "TASK [Stop the old engine]"),
    ("at the switch", "TASK [spark_rollout : Enter phase switch]"),
    ("in the gates", WARM),
    ("at the record", "TASK [spark_rollout : Enter phase record]"),
):
    cut(f"worker unreachable {_name}", _marker, *new())
cut("worker unreachable while it starts", STARTED, *new("slow"))
cut("head unreachable while it starts", STARTED, *new("slow"), rank=0)
cut(
    "worker unreachable on the way back",
    "TASK [spark_rollout : Switch to the release that was accepted before]",
    *new("garbage"),
)


@injects("login banner")
def _(bench: Bench) -> Run:
    files = "~spark/.bashrc ~spark/.profile ~root/.bashrc"
    banner = f"echo 'echo Welcome to Spark 1, {{unit: 7}}; echo warning >&2' | tee -a {files}"
    keep, back = "cp -p ~spark/.bashrc ~spark/.profile /tmp/", "cp -p /tmp/.bashrc /tmp/.profile ~spark/"
    with bench.changed(
        1, f"{keep} && cp -p ~root/.bashrc /tmp/root && {banner}", f"{back} && cp -p /tmp/root ~root/.bashrc"
    ):
        return bench.deploy(*OLD)


@injects("history damaged")
def _(bench: Bench) -> Run:
    bench.sudo(1, f'echo \'{{"run": "cut\' >> {ROOT}/history.jsonl')
    return bench.deploy(*OLD)


@injects("clock an hour ahead")
def _(bench: Bench) -> Run:
    # The clock of a container is its host's, so the hour is added where Python reads it.
    where = "/usr/lib/python3/dist-packages/an-hour-ahead.pth"
    ahead = "import time; time.time = lambda now=time.time: now() + 3600"
    with bench.changed(1, f"echo '{ahead}' > {where}", f"rm {where}"):
        return bench.deploy(*new())


@injects("port taken")
def _(bench: Bench) -> Run:
    listen = "systemd-run --unit=squatter --quiet python3 -m http.server 8899"
    with bench.changed(0, listen, "systemctl stop squatter"):
        return bench.deploy(*new("", "-e", "port=8899"))


@injects("image differs")
def _(bench: Bench) -> Run:
    tag = "sparkpair-lab/standin:differs"
    bench.load(0, tag)
    bench.load(1, tag, {"opt/standin/note": b"other bytes"})
    return bench.deploy(*new("", "-e", f"image={tag}", "-e", "image_transfer=none"))


@injects("image missing")
def _(bench: Bench) -> Run:
    tag = "sparkpair-lab/standin:head-only"
    bench.load(0, tag)
    return bench.deploy(*new("", "-e", f"image={tag}", "-e", "image_transfer=none"))


@injects("weights missing")
def _(bench: Bench) -> Run:
    hub = f"/home/{layout.USER}/.cache/huggingface/hub"
    away = f"for m in {hub}/models--*; do mv $m/snapshots $m/away; done"
    back = f"for m in {hub}/models--*; do mv $m/away $m/snapshots; done"
    with bench.changed(0, away, back), bench.changed(1, away, back):
        return bench.deploy(*new())


@injects("disk full")
def _(bench: Bench) -> Run:
    # The releases move to a file system of their own, with no more room than they take.
    move = (
        f"cd {ROOT} && mv releases releases.kept && mkdir releases && mount -t tmpfs -o size=64m tmpfs releases && "
        "cp -a releases.kept/. releases/ && (dd if=/dev/zero of=releases/filler bs=4k 2>/dev/null; true)"
    )
    back = f"cd {ROOT} && umount releases && rmdir releases && mv releases.kept releases"
    with bench.changed(1, move, back):
        return bench.deploy(*new())


@injects("controller killed while staging")
def _(bench: Bench) -> Run:
    return bench.deploy(*new(), at="TASK [spark_release : Stage the release]", then=kill)


def _spoil_staged(bench: Bench, command: str, *args: str) -> Run:
    """Run a command in the new release's directory on the worker when the lock is taken."""
    old = bench.current(1)

    def spoil(_: Process) -> None:
        fresh = bench.sudo(1, f"ls -t {ROOT}/releases | grep -v {old} | head -1").strip()
        bench.sudo(1, f"cd {ROOT}/releases/{fresh} && {command}")

    for rank in (0, 1):
        bench.sudo(rank, f"cd {ROOT}/releases && ls | grep -v {old} | xargs -r rm -rf")
    return bench.deploy(*args, at=TAKEN, then=spoil)


@injects("overlay byte flipped")
def _(bench: Bench) -> Run:
    flip = "f=$(find overlays -name '*.py' | head -1) && printf '#' | dd of=$f bs=1 seek=100 conv=notrunc 2>/dev/null"
    return _spoil_staged(bench, flip, *new("", "-e", "verify_tokens=3"))


@injects("release file truncated")
def _(bench: Bench) -> Run:
    return _spoil_staged(bench, "truncate -s 40 compose.yaml", *new())


@injects("release directory removed")
def _(bench: Bench) -> Run:
    return _spoil_staged(bench, "rm -rf $PWD", *new())


@injects("Docker hangs at the lock")
def _(bench: Bench) -> Run:
    try:
        return bench.deploy(*new(), at=TAKEN, then=lambda _: bench.sudo(1, "pkill -STOP -x dockerd"))
    finally:
        bench.sudo(1, "pkill -CONT -x dockerd")


@injects("current is no link")
def _(bench: Bench) -> Run:
    with bench.changed(
        1, f"cd {ROOT} && mv current kept && mkdir current", f"cd {ROOT} && rmdir current && mv kept current"
    ):
        return bench.deploy(*new())


@injects("history is no file")
def _(bench: Bench) -> Run:
    file = f"{ROOT}/history.jsonl"
    with bench.changed(1, f"mv {file} {file}.kept && mkdir {file}", f"rmdir {file} && mv {file}.kept {file}"):
        return bench.deploy(*new())


@injects("way back closed")
def _(bench: Bench) -> Run:
    try:
        for rank in (0, 1):
            bench.load(rank, standin.tag(), {"opt/standin/note": b"loaded again"})
        return bench.deploy(*new())
    finally:
        for rank in (0, 1):
            bench.load(rank, standin.tag())


def _locked(bench: Bench, ranks: tuple[int, ...], note: dict[str, object] | None) -> Run:
    for rank in ranks:
        write = f"echo '{json.dumps(note)}' > {ROOT}/lock/holder.json" if note else "true"
        bench.sudo(rank, f"mkdir {ROOT}/lock && {write}")
    try:
        run = bench.deploy(*new())
        assert [bool(bench.sudo(r, f"ls -d {ROOT}/lock || true")) for r in (0, 1)] == [r in ranks for r in (0, 1)]
        return run
    finally:
        for rank in ranks:
            bench.sudo(rank, f"rm -rf {ROOT}/lock")


@injects("lock held")
def _(bench: Bench) -> Run:
    note = {"run": "another", "who": "eve", "controller": "laptop", "verb": "deploy", "time": time.time()}
    return _locked(bench, (0, 1), note)


@injects("lock stale")
def _(bench: Bench) -> Run:
    note = {"run": "old", "who": "eve", "controller": "laptop", "verb": "deploy", "time": time.time() - 3 * 86_400}
    return _locked(bench, (0, 1), note)


@injects("lock half taken")
def _(bench: Bench) -> Run:
    return _locked(bench, (1,), None)


@injects("two controllers")
def _(bench: Bench) -> Run:
    """The first one holds the lock while it starts a slow engine; the second one is the row's run."""
    second: list[Run] = []
    first = bench.deploy(
        *new("slow"), at=STARTED, then=lambda _: second.append(bench.verb("deploy", *new("", "-e", "port=8890")))
    )
    assert first.code == 0, first.screen
    assert bench.current(0) == bench.current(1) == first.result["release"]
    back = bench.verb("deploy", *OLD)
    assert back.code == 0, back.screen
    return second[0]


def _rollback(bench: Bench, do: str, undo: str) -> Run:
    old = bench.current(1)
    with bench.changed(1, do.format(f"{ROOT}/releases/{old}"), undo.format(f"{ROOT}/releases/{old}")):
        return bench.verb("rollback", "-e", f"release={old}")


@injects("rollback target missing")
def _(bench: Bench) -> Run:
    return _rollback(bench, "mv {0} /root/away", "mv /root/away {0}")


@injects("rollback target damaged")
def _(bench: Bench) -> Run:
    return _rollback(bench, "chmod 0600 {0}/compose.yaml", "chmod 0644 {0}/compose.yaml")


# --- after the stop --------------------------------------------------------------------------------------------------


@injects("Docker hangs at the stop")
def _(bench: Bench) -> Run:
    hang = "pkill -STOP -x dockerd; (sleep 70; pkill -CONT -x dockerd) >/dev/null 2>&1 &"
    try:
        return bench.deploy(*new(), at="TASK [Stop the old engine]", then=lambda _: bench.sudo(1, hang))
    finally:
        bench.sudo(1, "pkill -CONT -x dockerd")


@injects("history lost")
def _(bench: Bench) -> Run:
    bench.sudo(1, f"rm {ROOT}/history.jsonl")
    return bench.deploy(*new("garbage"))


@injects("gate that the serving pair fails")
def _(bench: Bench) -> Run:
    bench.sudo(1, f"rm {ROOT}/history.jsonl")
    return bench.deploy(*OLD, "-e", "spark_gate_also=quality")


@injects("controller killed at the stop")
def _(bench: Bench) -> Run:
    return bench.deploy(*new(), at="TASK [Stop the old engine]", then=kill)


@injects("controller killed while it starts")
def _(bench: Bench) -> Run:
    return bench.deploy(*new(), at="TASK [spark_engine : Start the head's engine]", then=kill)


@injects("Ctrl-C in the gates")
def _(bench: Bench) -> Run:
    return bench.deploy(*new(), at=WARM, then=interrupt)


@injects("controller killed between the commits")
def _(bench: Bench) -> Run:
    old = bench.current(1)

    def between(process: Process) -> None:
        kill(process)
        # Both ranks move within milliseconds of each other; the worker is put back to where it was before its own.
        bench.sudo(1, f"cd {ROOT} && ln -sfn releases/{old} current")

    # The first line after the commits, and before the next phase is noted.
    run = bench.deploy(*new(), at="TASK [spark_rollout : Enter phase start]", then=between)
    assert bench.current(0) != bench.current(1) == old
    return run


@injects("one rank cannot switch")
def _(bench: Bench) -> Run:
    old = bench.current(0)
    block = f"cd {ROOT} && rm current && mkdir current && touch current/in-the-way"
    try:
        run = bench.deploy(*new(), at="TASK [spark_rollout : Enter phase switch]", then=lambda _: bench.sudo(1, block))
        assert bench.current(0) == old
        return run
    finally:
        bench.sudo(1, f"rm -rf {ROOT}/current")


def _kill_engine(bench: Bench, rank: int) -> Callable[[Process], object]:
    return lambda _: bench.sudo(rank, "docker kill sparkpair-engine")


@injects("worker killed while it starts")
def _(bench: Bench) -> Run:
    return bench.deploy(*new("slow", executor="ray"), at=STARTED, then=_kill_engine(bench, 1))


@injects("head killed while it starts")
def _(bench: Bench) -> Run:
    return bench.deploy(*new("slow", executor="ray"), at=STARTED, then=_kill_engine(bench, 0))


@injects("worker killed in the warm-up")
def _(bench: Bench) -> Run:
    return bench.deploy(*new(), at=WARM, then=_kill_engine(bench, 1))


@injects("head killed in the warm-up")
def _(bench: Bench) -> Run:
    return bench.deploy(*new(), at=WARM, then=_kill_engine(bench, 0))


@injects("Docker restarted mid-start")
def _(bench: Bench) -> Run:
    return bench.deploy(*new("slow"), at=STARTED, then=lambda _: bench.sudo(1, "systemctl restart docker"))


@injects("worker rebooted mid-start")
def _(bench: Bench) -> Run:
    def reboot(_: Process) -> None:
        subprocess.run(["docker", "restart", "-t", "3", layout.container(1)], capture_output=True, check=True)

    try:
        return bench.deploy(*new("slow"), at=STARTED, then=reboot)
    finally:
        bench.wait_for_ssh(1)


@injects("record cannot be written")
def _(bench: Bench) -> Run:
    file = f"{ROOT}/history.jsonl"
    freeze = f"mount --bind {file} {file} && mount -o remount,ro,bind {file}"
    try:
        return bench.deploy(*new(), at=WARM, then=lambda _: bench.sudo(1, freeze))
    finally:
        bench.sudo(1, f"umount {file}")


@injects("return fails too")
def _(bench: Bench) -> Run:
    spoil = f"rm {ROOT}/releases/{bench.current(1)}/compose.yaml"
    return bench.deploy(
        *new("garbage"), at="TASK [spark_rollout : Return to the last", then=lambda _: bench.sudo(1, spoil)
    )


@injects("root turns read-only")
def _(bench: Bench) -> Run:
    freeze = f"mount --bind {ROOT} {ROOT} && mount -o remount,ro,bind {ROOT}"
    try:
        return bench.deploy(*new(), at=WARM, then=lambda _: bench.sudo(1, freeze))
    finally:
        bench.sudo(1, f"umount {ROOT}")


FILL = "dd if=/dev/zero of={0}/filler bs=4k 2>/dev/null || true"


@injects("disk full in the gates")
def _(bench: Bench) -> Run:
    # All of it moves to a file system of its own, which is smaller than preflight wants one to be.
    move = f"cp -a {ROOT} {ROOT}.kept && mount -t tmpfs -o size=64m tmpfs {ROOT} && cp -a {ROOT}.kept/. {ROOT}/"
    with bench.changed(1, move, f"rm -rf {ROOT}.kept && umount -l {ROOT}"):
        small = new("garbage", "-e", json.dumps({"spark_rollout_preflight_skip": ["disk"]}))
        return bench.deploy(*small, at=WARM, then=lambda _: bench.sudo(1, FILL.format(ROOT)))


@injects("all of a Spark full in the gates")
def _(bench: Bench) -> Run:
    # One small file system below all places that a module could be laid down in.
    full = "/mnt/full"
    places = {ROOT: f"cp -a {ROOT}/. {full}{ROOT}/", "/tmp": "true", "/var/tmp": "true"}
    home = f"/home/{layout.USER}"
    places[home] = f"cp -a {home}/.ssh {full}{home}/ && chown -R {layout.USER}: {full}{home}"
    made = [
        f"mkdir -p {full}{place} && {fill} && chmod --reference={place} {full}{place}" for place, fill in places.items()
    ]
    cache = f"mkdir {full}{home}/.cache && mount --rbind {home}/.cache {full}{home}/.cache"
    bound = [f"mount --rbind {full}{place} {place}" for place in places]
    move = " && ".join([f"mkdir {full} && mount -t tmpfs -o size=96m tmpfs {full}", *made, cache, *bound])
    back = "; ".join([*(f"umount -l {place}" for place in reversed(places)), f"umount -l {full}{home}/.cache {full}"])
    bench.inside(1, "sh", "-c", move)
    try:
        small = new("garbage", "-e", json.dumps({"spark_rollout_preflight_skip": ["disk"]}))
        return bench.deploy(*small, at=WARM, then=lambda _: bench.inside(1, "sh", "-c", FILL.format(full)))
    finally:
        bench.inside(1, "sh", "-c", f"{back}; rmdir {full}")


@injects("worker paused in the gates")
def _(bench: Bench) -> Run:
    # After the last answer of the engine, or its silence would be what fails.
    return bench.deploy(*new(), at="gate 20/", then=lambda _: bench.sudo(1, "docker pause sparkpair-engine"))


@injects("sudo missing on the way back")
def _(bench: Bench) -> Run:
    gone = "mv /usr/bin/sudo /root/; (sleep 12; mv /root/sudo /usr/bin/) >/dev/null 2>&1 &"
    try:
        return bench.deploy(
            *new("garbage"),
            at="TASK [spark_rollout : Return to the last",
            then=lambda _: bench.inside(1, "sh", "-c", gone),
        )
    finally:
        bench.inside(1, "sh", "-c", "test -e /usr/bin/sudo || mv /root/sudo /usr/bin/")


@injects("controller full in the gates")
def _(bench: Bench) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], check=True)
        try:
            fill = ["sh", "-c", FILL.format(folder)]
            return bench.deploy(
                *new("garbage"), at=WARM, then=lambda _: subprocess.run(fill, check=True), ANSIBLE_LOCAL_TEMP=folder
            )
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def _killed_while_it_serves(bench: Bench, rank: int) -> Run:
    bench.sudo(rank, "docker kill sparkpair-engine")
    told = bench.verb("status")
    stopped = bench.verb("stop")
    assert stopped.code == 0, stopped.screen
    return told


@injects("worker killed after acceptance")
def _(bench: Bench) -> Run:
    return _killed_while_it_serves(bench, 1)


@injects("head killed after acceptance")
def _(bench: Bench) -> Run:
    return _killed_while_it_serves(bench, 0)
