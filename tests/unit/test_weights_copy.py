"""Copies between two caches over real sockets: whole, cut off and continued, refused, repaired."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sparkpair import weights_copy
from sparkpair.weights import PARTIAL, Cache, Entry, Hashes, WeightsError, survey
from sparkpair.weights_copy import Bringing, Folder, Remote, Server, clear, lacking_bytes, servable

from tests.fixtures.hf_cache import MODEL, OTHER_REVISION, contents, fill, model, target, tree
from tests.unit.test_weights import known

FILES = target(shards=6, size=200_000)
SECRET = "5" * 64
HEAD, WORKER = "127.0.0.1", "127.0.0.2"
FIRST = "model-00001-of-00006.safetensors"


class Pair:
    """A head with a whole snapshot, and a worker with an empty cache."""

    def __init__(self, folder: Path, *, plain: bool = False) -> None:
        self.snapshot = fill(folder / "head", FILES, plain=plain)
        self.head, self.worker = Cache.at(str(folder / "head")), Cache.at(str(folder / "worker"))
        self.head_hashes, self.hashes = Hashes(folder / "root-0"), Hashes(folder / "root-1")
        self.manifest = known(self.head, MODEL, self.head_hashes)

    def bring(self, source: Any, *, streams: int = 3, soft: float = 60, hard: float = 60, **options: Any) -> Bringing:
        """Copy once what the worker lacks."""
        found = survey(self.worker, MODEL, self.manifest, self.hashes)
        assert found.unknown == {}
        work = Bringing(self.worker, MODEL, self.hashes, source, soft, hard, **options)
        work.run(found, streams)
        return work

    @property
    def complete(self) -> bool:
        """Whether the worker holds everything, without a further hash."""
        return survey(self.worker, MODEL, self.manifest, self.hashes).complete

    @contextmanager
    def serving(self, **options: Any) -> Iterator[Remote]:
        """Serve the head's files in a thread."""
        given = {"token": SECRET, "peers": [WORKER], "idle": 30.0, "lifetime": 60.0} | options
        server = Server((HEAD, 0), servable(self.head, MODEL, self.manifest), **given)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        remote = Remote(HEAD, server.server_address[1], SECRET, WORKER)
        try:
            yield remote
        finally:
            remote.end()
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@pytest.mark.parametrize("plain", [True, False])
def test_an_empty_cache_is_filled_in_the_heads_layout_and_nothing_is_hashed_again(tmp_path: Path, plain: bool) -> None:
    pair = Pair(tmp_path, plain=plain)
    with pair.serving() as source:
        work = pair.bring(source)
    assert pair.complete
    assert contents(pair.worker.snapshot(MODEL)) == FILES
    assert work.received == pair.manifest.size
    assert pair.hashes.hashed == 0
    assert (pair.worker.snapshot(MODEL) / FIRST).is_symlink() is not plain
    assert (pair.worker.snapshot(MODEL) / FIRST).stat().st_mode & 0o777 == 0o644
    clear(pair.worker, MODEL)
    assert not (pair.worker.repository(MODEL) / PARTIAL).exists()


def test_a_truncated_shard_is_repaired_and_only_that_one_is_sent(pair: Pair) -> None:
    with pair.serving() as source:
        pair.bring(source)
        blob = (pair.worker.snapshot(MODEL) / FIRST).resolve()
        # An engine that has the old file open keeps it: the repair is a rename, not a write.
        with blob.open("rb") as held:
            os.truncate(blob, 777)
            inode = blob.stat().st_ino
            assert pair.bring(source).received == 200_000
            assert os.fstat(held.fileno()).st_ino == inode
    assert blob.stat().st_ino != inode
    assert pair.complete


def test_a_file_that_was_cut_off_is_continued_where_it_stopped(pair: Pair) -> None:
    entry = next(e for e in pair.manifest.entries if e.path == FIRST)
    part = pair.worker.partial(MODEL, entry)
    part.parent.mkdir(parents=True)
    part.write_bytes(FILES[FIRST][:150_000])
    found = survey(pair.worker, MODEL, pair.manifest, pair.hashes)
    assert lacking_bytes(pair.worker, MODEL, found) == pair.manifest.size - 150_000
    with pair.serving() as source:
        assert pair.bring(source).received == pair.manifest.size - 150_000
    assert pair.complete


def test_a_cut_off_file_with_a_wrong_byte_is_fetched_anew(pair: Pair) -> None:
    entry = next(e for e in pair.manifest.entries if e.path == FIRST)
    part = pair.worker.partial(MODEL, entry)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"X" + FILES[FIRST][1:150_000])
    with pair.serving() as source:
        pair.bring(source)
    assert contents(pair.worker.snapshot(MODEL)) == FILES


def test_a_cut_off_file_that_is_too_long_is_fetched_anew(pair: Pair) -> None:
    entry = next(e for e in pair.manifest.entries if e.path == FIRST)
    part = pair.worker.partial(MODEL, entry)
    part.parent.mkdir(parents=True)
    part.write_bytes(FILES[FIRST] + b"more")
    with pair.serving() as source:
        pair.bring(source)
    assert contents(pair.worker.snapshot(MODEL)) == FILES


class Slow:
    """A source that moves a clock with each block."""

    def __init__(self, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.folder, self.starts = 0.0, Folder(snapshot), dict[str, list[int]]()
        monkeypatch.setattr(weights_copy, "BLOCK", 50_000)

    def __call__(self, entry: Entry, start: int) -> Any:
        self.starts.setdefault(entry.path, []).append(start)
        opened = self.folder(entry, start)
        slow = self

        class Stream:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                opened.close()

            def readinto(self, buffer: memoryview) -> int:
                slow.now += 1.0
                return int(opened.readinto(buffer) or 0)

        return Stream()


def test_no_file_is_begun_after_soft_and_none_continued_after_hard(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Slow(pair.snapshot, monkeypatch)
    work = pair.bring(source, streams=1, soft=1.5, hard=3, clock=lambda: source.now)
    # Three blocks of the largest file, which is then left as it is; nothing else was begun.
    assert (work.received, list(source.starts.values())) == (150_000, [[0]])
    rounds = 1
    while not pair.complete:
        begun = source.now
        pair.bring(source, streams=1, soft=1.5, hard=3, clock=lambda begun=begun: source.now - begun)
        rounds += 1
    assert rounds > 6
    # A part is continued, never begun anew.
    assert source.starts["model-00001-of-00006.safetensors"] == [0, 150_000]
    assert contents(pair.worker.snapshot(MODEL)) == FILES


def test_a_killed_receiver_leaves_a_part_that_the_next_one_continues(pair: Pair, tmp_path: Path) -> None:
    script = tmp_path / "receive.py"
    script.write_text(
        "import json, os, sys, time\n"
        "from pathlib import Path\n"
        "from sparkpair import weights_copy\n"
        "from sparkpair.weights import Manifest\n"
        "from tests.unit.test_weights_copy import MODEL, Bringing, Cache, Folder, Hashes, survey\n"
        "weights_copy.BLOCK = 10_000\n"
        "class Source(Folder):\n"
        "    def __call__(self, entry, start):\n"
        "        opened = super().__call__(entry, start)\n"
        "        class Stream:\n"
        "            __enter__ = lambda self: self\n"
        "            __exit__ = lambda self, *_: None\n"
        "            def readinto(self, buffer):\n"
        "                print('block', flush=True)\n"
        "                time.sleep(0.05)\n"
        "                return opened.readinto(buffer)\n"
        "        return Stream()\n"
        "manifest = Manifest.read(json.loads(Path(sys.argv[1]).read_text()))\n"
        "cache, hashes = Cache.at(sys.argv[2]), Hashes(Path(sys.argv[3]))\n"
        "work = Bringing(cache, MODEL, hashes, Source(Path(sys.argv[4])), 60, 60)\n"
        "work.run(survey(cache, MODEL, manifest, hashes), 1)\n"
    )
    (tmp_path / "manifest.json").write_text(json.dumps(pair.manifest.to_json()))
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, script, tmp_path / "manifest.json", pair.worker.home, tmp_path / "root-1", pair.snapshot],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(root)},
    ) as process:
        assert process.stdout is not None
        for _ in range(8):
            process.stdout.readline()
        process.kill()
    parts = list((pair.worker.repository(MODEL) / PARTIAL).iterdir())
    assert len(parts) == 1
    there = parts[0].stat().st_size
    assert 0 < there < 200_000
    assert not pair.worker.snapshot(MODEL).exists()
    with pair.serving() as source:
        assert pair.bring(source).received == pair.manifest.size - there
    assert pair.complete


def test_a_blob_of_another_snapshot_is_linked_and_not_sent(pair: Pair, tmp_path: Path) -> None:
    fill(tmp_path / "worker", {FIRST: FILES[FIRST]}, model(revision=OTHER_REVISION))
    before = tree(pair.worker.snapshot(model(revision=OTHER_REVISION)))
    found = survey(pair.worker, MODEL, pair.manifest, pair.hashes)
    for real in found.unknown:
        pair.hashes.make(real)
    with pair.serving() as source:
        assert pair.bring(source).received == pair.manifest.size - 200_000
    assert pair.complete
    assert tree(pair.worker.snapshot(model(revision=OTHER_REVISION))) == before


def test_two_files_of_one_content_are_both_there(tmp_path: Path) -> None:
    pair = Pair(tmp_path, plain=True)
    fill(tmp_path / "head", {"copy.safetensors": FILES[FIRST]}, plain=True)
    pair.manifest = known(pair.head, MODEL, pair.head_hashes)
    with pair.serving() as source:
        pair.bring(source)
        pair.bring(source)
    assert pair.complete


def test_content_that_is_not_the_manifests_never_reaches_the_cache(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_copy.time, "sleep", lambda _: None)
    (pair.snapshot / FIRST).resolve().write_bytes(b"Y" * 200_000)
    with pair.serving() as source, pytest.raises(WeightsError, match=f"{FIRST} arrived with sha256"):
        pair.bring(source, streams=1)
    assert not (pair.worker.snapshot(MODEL) / FIRST).exists()


def test_a_server_that_is_gone_is_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_copy.time, "sleep", lambda _: None)
    with pair.serving() as source:
        pass
    with pytest.raises(WeightsError, match=r"does not arrive.*[Rr]efused"):
        pair.bring(source)
    assert source.end() is False


# --- who is served ----------------------------------------------------------------------------------------------------


def ask(source: Remote, path: str, *, token: str = SECRET, own: str = WORKER, verb: str = "GET") -> int:
    """Status of a request."""
    connection = http.client.HTTPConnection(source.address, source.port, timeout=5, source_address=(own, 0))
    connection.request(verb, path, headers={"Authorization": f"Bearer {token}"})
    return connection.getresponse().status


def test_only_the_pinned_files_go_to_ranks_of_the_plan_with_the_token_of_the_run(pair: Pair) -> None:
    name = pair.manifest.entries[0].sha256
    with pair.serving() as source:
        assert ask(source, f"/{name}") == 206
        assert ask(source, f"/{name}", token="") == 403
        assert ask(source, f"/{name}", token=SECRET[:-1]) == 403
        assert ask(source, f"/{name}", own="127.0.0.3") == 403
        assert ask(source, "/", token="x", verb="DELETE") == 403
        assert ask(source, "/../../etc/passwd") == 404
        assert ask(source, "/" + "0" * 64) == 404
        assert ask(source, f"/{name}") == 206


@pytest.mark.parametrize("bounds", [{"idle": 0.3}, {"lifetime": 0.3}])
def test_the_server_ends_by_itself(pair: Pair, bounds: dict[str, float]) -> None:
    given = {"token": SECRET, "peers": [WORKER], "idle": 60.0, "lifetime": 60.0} | bounds
    server = Server((HEAD, 0), {}, **given)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> bool:
    """Wait for a condition, not longer than some seconds."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_the_server_outlives_the_process_that_made_it_and_ends_when_it_is_told(pair: Pair, tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom sparkpair.weights_copy import Server, serve_apart\n"
        "server = Server(('127.0.0.1', 0), {'a' * 64: Path(sys.argv[1])}, token='t', peers=['127.0.0.2'], "
        "idle=30, lifetime=60)\nprint(server.server_address[1])\nserve_apart(server)\nprint('done')\n"
    )
    # The output ends although the server lives on: nothing of it holds the pipe that Ansible reads.
    done = subprocess.run(
        [sys.executable, script, pair.snapshot / FIRST], capture_output=True, text=True, check=True, timeout=20
    )
    port, *rest = done.stdout.split()
    assert rest == ["done"]
    source = Remote(HEAD, int(port), "t", WORKER)
    with source(Entry(FIRST, 200_000, "a" * 64), 199_990) as stream:
        assert stream.read() == FILES[FIRST][-10:]
    assert source.end()
    assert until(lambda: not source.end())


def test_a_folder_is_a_source_like_the_head(pair: Pair) -> None:
    assert pair.bring(Folder(pair.snapshot)).received == pair.manifest.size
    assert pair.complete
