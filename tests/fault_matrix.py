"""The fault matrix: what is broken, when, how the pair ends, and what the operator reads.

The scenario ``faults`` injects each row on the local pair; the README shows the table. Ends:

- ``untouched``: the old pair serves, its containers were not restarted; nothing was stopped.
- ``returned``: the new release failed after the stop, and the old one serves again, through the same gates.
- ``down``: every rank that can be reached is stopped, and the lock says why (or there was nothing to return to).
- ``locked``: the controller is gone; the lock names the phase, and the next run is refused until it is released.

In every case a second run of the old release heals the pair. Rows that repeat a kind run with ``FAULTS=all`` only.
"""

from __future__ import annotations

from dataclasses import dataclass

UNTOUCHED, RETURNED, DOWN, LOCKED = "untouched", "returned", "down", "locked"
PHASES = ("plan", "probe", "preflight", "stage", "lock", "drain", "stop", "switch", "start", "gates", "return", "later")


@dataclass(frozen=True)
class Fault:
    """One row; ``says`` is a part of what the screen shows, ``lost`` the rank that cannot be reached when it ends.

    An ``again`` row repeats a kind that another one has.
    """

    name: str
    phase: str
    what: str
    end: str
    says: str
    again: bool = False
    lost: int | None = None


FAULTS = (
    Fault("nothing to return to", "gates", "first deploy on a clean pair; the engine writes garbage", DOWN,
          "not restored: there was no accepted release to return to"),
    Fault("bad setting", "plan", "verify_tokens=8", UNTOUCHED, "verify_tokens"),
    Fault("gate misspelt", "plan", "spark_gate_skip names a gate that does not exist", UNTOUCHED, "canari"),
    Fault("worker unreachable at first", "probe", "SSH of the worker is cut before the run", UNTOUCHED, "UNREACHABLE"),
    Fault("login banner", "probe", "login shells of the worker print a banner", UNTOUCHED, "already serves"),
    Fault("history damaged", "probe", "a line of the worker's history is cut", UNTOUCHED, "cannot be read"),
    Fault("clock an hour ahead", "preflight", "the worker's clock is an hour ahead", UNTOUCHED, "clocks of rank"),
    Fault("port taken", "preflight", "another process holds the API port on the head", UNTOUCHED,
          "port 8899 is held by"),
    Fault("image differs", "preflight", "the same tag names other bytes on the worker, and nothing may be sent",
          UNTOUCHED, "image"),
    Fault("image missing", "preflight", "the worker does not hold the image, and nothing may be sent", UNTOUCHED,
          "image", again=True),
    Fault("weights missing", "preflight", "no rank holds the pinned snapshot", UNTOUCHED, "snapshot"),
    Fault("worker unreachable while staging", "stage", "SSH of the worker is cut when staging begins", UNTOUCHED,
          "spark-1 was not checked"),
    Fault("disk full", "stage", "the worker has no room for the release", UNTOUCHED, "No space left"),
    Fault("controller killed while staging", "stage", "SIGKILL of ansible-playbook", UNTOUCHED, ""),
    Fault("overlay byte flipped", "lock", "one byte of an overlay changes on the worker after staging", UNTOUCHED,
          "content differs"),
    Fault("release file truncated", "lock", "compose.yaml is cut on the worker after staging", UNTOUCHED,
          "content differs"),
    Fault("release directory removed", "lock", "the staged release vanishes from the worker", UNTOUCHED,
          "it is missing"),
    Fault("current is no link", "lock", "a directory stands in the place of the link on the worker", UNTOUCHED,
          "is not a link"),
    Fault("history is no file", "lock", "a directory stands in the place of the worker's history", UNTOUCHED,
          "the history of this rank cannot be kept", again=True),
    Fault("Docker hangs at the lock", "lock", "dockerd of the worker is suspended", UNTOUCHED,
          "Docker does not answer", again=True),
    Fault("lock held", "lock", "another run holds the lock", UNTOUCHED, "never taken over"),
    Fault("lock stale", "lock", "a run of three days ago holds the lock", UNTOUCHED, "held for 3 d"),
    Fault("lock half taken", "lock", "only the worker's lock is there, without a note", UNTOUCHED,
          "a run that left no note"),
    Fault("worker unreachable at the lock", "lock", "SSH of the worker is cut when the lock is taken", UNTOUCHED,
          "UNREACHABLE"),
    Fault("two controllers", "lock", "a second controller deploys at the same time", UNTOUCHED, "refused before"),
    Fault("way back closed", "lock", "the old image's name leads to other bytes on both ranks", UNTOUCHED,
          "could not go back to it"),
    Fault("worker unreachable in the drain", "drain", "SSH of the worker is cut when the old engine is drained",
          UNTOUCHED, "refused before anything was stopped", lost=1),
    Fault("rollback target missing", "plan", "the worker lacks the release that is asked for", UNTOUCHED,
          "cannot be used"),
    Fault("rollback target damaged", "plan", "a file of it has another mode on the worker", UNTOUCHED,
          "cannot be used"),
    Fault("memory never settles", "stop", "less memory is free than the next engine asks for", RETURNED,
          "the memory did not settle"),
    Fault("worker unreachable at the stop", "stop", "SSH of the worker is cut when the head is stopped", DOWN,
          "could not be reached", again=True, lost=1),
    Fault("Docker hangs at the stop", "stop", "dockerd of the worker is suspended for 70 s", RETURNED,
          "the engine of this rank is not stopped", again=True),
    Fault("controller killed at the stop", "stop", "SIGKILL of ansible-playbook", LOCKED, "in phase stop"),
    Fault("one rank cannot switch", "switch", "current cannot be moved on the worker", DOWN,
          "could not become current on every rank"),
    Fault("worker unreachable at the switch", "switch", "SSH of the worker is cut when both are stopped", DOWN,
          "could not be reached", again=True, lost=1),
    Fault("controller killed between the commits", "switch", "the head has switched, the worker has not", LOCKED,
          "in phase switch"),
    Fault("worker killed while it starts", "start", "docker kill, real Ray", RETURNED, "ended with exit code 137"),
    Fault("head unreachable while it starts", "start", "SSH of the head is cut", DOWN, "could not be reached",
          again=True, lost=0),
    Fault("head killed while it starts", "start", "docker kill, real Ray", RETURNED, "ended with exit code 137",
          again=True),
    Fault("Docker restarted mid-start", "start", "systemctl restart docker on the worker", RETURNED, "spark-1"),
    Fault("worker rebooted mid-start", "start", "the worker restarts", DOWN, "could not be reached",
          again=True, lost=1),
    Fault("worker unreachable while it starts", "start", "SSH of the worker is cut", DOWN, "could not be reached",
          lost=1),
    Fault("controller killed while it starts", "start", "SIGKILL of ansible-playbook", LOCKED, "in phase start",
          again=True),
    Fault("never healthy", "start", "/health answers 503 for ever", RETURNED, "not ready within"),
    Fault("engine exits", "start", "vllm ends with an error", RETURNED, "ended with exit code 1", again=True),
    Fault("fatal log line", "start", "vllm logs a fatal line and lingers", RETURNED,
          "Engine core initialization failed", again=True),
    Fault("healthy without tokens", "gates", "/health is 200, completions are empty", RETURNED,
          "gate completion failed"),
    Fault("garbage", "gates", "every text is one mark", RETURNED, "gate canary failed"),
    Fault("wrong served name", "gates", "the model has another name", RETURNED, "gate models failed"),
    Fault("wrong width", "gates", "a draft token less than planned in each step", RETURNED, "gate width failed"),
    Fault("drafts never accepted", "gates", "no drafted token is accepted", RETURNED, "gate canary failed"),
    Fault("broken grammar", "gates", "guided counting stops at 39", RETURNED, "gate json failed", again=True),
    Fault("engine dies in the warm-up", "gates", "vllm ends after twelve requests", RETURNED, "gate warmup failed",
          again=True),
    Fault("worker killed in the warm-up", "gates", "docker kill", RETURNED, "gate ranks failed"),
    Fault("head killed in the warm-up", "gates", "docker kill", RETURNED, "failed", again=True),
    Fault("gate limit out of reach", "gates", "spark_gate_limits wants 4000 GiB of headroom", RETURNED,
          "gate memory failed", again=True),
    Fault("worker paused in the gates", "gates", "docker pause", RETURNED, "(paused, release"),
    Fault("history lost", "gates", "the worker's history is gone before the run; the new engine writes garbage",
          RETURNED, "the record lacks"),
    Fault("gate that the serving pair fails", "gates",
          "the worker's history is gone, and what serves is deployed with a gate that it fails", UNTOUCHED,
          "nothing was stopped"),
    Fault("record cannot be written", "gates", "the worker's history becomes read-only", RETURNED,
          "the history cannot be written"),
    Fault("worker unreachable in the gates", "gates", "SSH of the worker is cut", DOWN, "could not be reached",
          again=True, lost=1),
    Fault("worker unreachable at the record", "gates", "SSH of the worker is cut after the last gate", DOWN,
          "could not be reached", again=True, lost=1),
    Fault("root turns read-only", "gates", "/opt/sparkpair of the worker is mounted read-only", DOWN, "not restored",
          again=True),
    Fault("disk full in the gates", "gates",
          "/opt/sparkpair of the worker fills up while the new engine writes garbage", RETURNED, "rolled back to",
          again=True),
    Fault("all of a Spark full in the gates", "gates",
          "/opt, /tmp and home of the worker fill up while the new engine writes garbage", RETURNED, "rolled back to",
          again=True),
    Fault("controller full in the gates", "gates",
          "Ansible's temporary folder fills up while the new engine writes garbage", RETURNED, "rolled back to",
          again=True),
    Fault("Ctrl-C in the gates", "gates", "SIGINT to ansible-playbook", LOCKED, "in phase gates"),
    Fault("return fails too", "return", "the old release is damaged when the new one fails", DOWN,
          "the return failed too"),
    Fault("worker unreachable on the way back", "return", "garbage, and SSH of the worker is cut in the return", DOWN,
          "spark-1 could not be reached any more", lost=1),
    Fault("sudo missing on the way back", "return", "garbage, and the worker has no sudo for 12 s in the return",
          RETURNED, "rolled back to", again=True),
    Fault("worker killed after acceptance", "later", "docker kill of a serving worker; status tells it, then stop",
          DOWN, "spark-1: sparkpair-engine of release"),
    Fault("head killed after acceptance", "later", "docker kill of a serving head; status tells it, then stop", DOWN,
          "spark-0: sparkpair-engine of release", again=True),
)  # fmt: skip
