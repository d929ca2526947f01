"""An image over one TCP connection: both ends real, on loopback addresses, with a stand-in for the Docker CLI."""

from __future__ import annotations

import os
import socket
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from sparkpair import image_job, image_transfer
from sparkpair import image_stream as stream
from sparkpair.image_stream import Channel, Route, StreamError
from sparkpair.images import ImageError
from sparkpair.noting import Note

from tests.fakeengine import FakeEngine, digest, image

NAME = "sparkpair/engine:0123456789ab"
SECRET = "5" * 64


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def route() -> Route:
    """Head on one loopback address, rank on another."""
    return Route("127.0.0.1", free_port(), "127.0.0.2", SECRET, wait=10, patience=10)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeEngine, FakeEngine]]:
    """Engines of head and rank; a program ``docker`` in front of the head's."""
    head, rank = FakeEngine(tmp_path / "head"), FakeEngine(tmp_path / "rank")
    head.put(images={NAME: image("a", "b", "c")})
    monkeypatch.setenv("PATH", f"{head.program().parent}:{os.environ['PATH']}")
    return head, rank


def load_of(rank: FakeEngine) -> list[str]:
    return [str(rank.program()), "load", "-q"]


def move(
    head: FakeEngine, rank: FakeEngine, route: Route, told: list[tuple[Any, ...]] | None = None
) -> tuple[Any, Any]:
    """Both ends at once; what each returned or raised."""
    notes = [] if told is None else told

    def note(*one: Any) -> None:
        notes.append(one)

    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(image_transfer.send, head, NAME, route, 1, note)
        received = pool.submit(image_transfer.receive, rank, NAME, route, note, load=load_of(rank))
        return tuple(f.exception(60) or f.result() for f in (sent, received))  # type: ignore[return-value]


def test_the_rank_gets_the_head_s_image_and_both_ends_say_the_same(
    pair: tuple[FakeEngine, FakeEngine], route: Route
) -> None:
    sent, received = move(*pair, route)
    assert pair[1].images[NAME]["RootFS"] == pair[0].images[NAME]["RootFS"]
    assert (sent[0].bytes, sent[0].peer, sent[0].left_out) == (received.bytes, "127.0.0.2", 0)
    assert received.layers == 3
    assert not pair[0].did("--platform")


@pytest.mark.parametrize(
    ("store", "held", "of"), [(False, [], 99), (True, [], 0), (False, ["a"], 0)], ids=["whole", "containerd", "partly"]
)
def test_both_ends_tell_how_far_they_are(
    pair: tuple[FakeEngine, FakeEngine], route: Route, store: bool, held: list[str], of: int
) -> None:
    head, rank = pair
    head.put(images={NAME: image("a", "b", "c", Size=99)})
    if store:
        head.put(store={"containerd": True})
    if held:
        rank.put(images={"other:1": image(*held)})
    told: list[tuple[Any, ...]] = []
    sent, _ = move(*pair, route, told)
    sending = [note for note in told if note[0] == f"send {NAME} to 127.0.0.2"]
    assert sending[0][1:] == (0, of, "bytes")
    assert sending[-1][1:] == (sent[0].bytes, of, "bytes")
    assert told.count((f"unpack {NAME}",)) == 1


def test_layers_that_the_rank_holds_are_not_sent(pair: tuple[FakeEngine, FakeEngine], route: Route) -> None:
    pair[1].put(images={"base": image("a", "b")})
    sent, _ = move(*pair, route)
    assert sent[0].left_out == 2
    assert pair[1]._file("came.json") == [digest("c")]
    assert NAME in pair[1].images


def test_a_layer_that_comes_again_above_the_held_ones_is_sent(
    pair: tuple[FakeEngine, FakeEngine], route: Route
) -> None:
    pair[0].put(images={NAME: image("empty", "b", "empty", "c")})
    pair[1].put(images={"base": image("empty", "b")})
    sent, _ = move(*pair, route)
    assert sent[0].left_out == 1
    assert NAME in pair[1].images


def test_containerd_s_store_gets_every_layer(pair: tuple[FakeEngine, FakeEngine], route: Route) -> None:
    pair[1].put(images={"base": image("a", "b")}, store={"containerd": True})
    sent, _ = move(*pair, route)
    assert sent[0].left_out == 0


def test_one_platform_is_saved_where_docker_can_choose(pair: tuple[FakeEngine, FakeEngine], route: Route) -> None:
    pair[0].put(api={"version": "1.48"})
    move(*pair, route)
    save = next(call for call in pair[0].calls if call[0] == "save")
    assert save == ["save", "--platform", "linux/arm64", NAME]


def test_an_interrupted_save_leaves_nothing_and_the_next_run_succeeds(
    pair: tuple[FakeEngine, FakeEngine], route: Route
) -> None:
    pair[0].put(cut={"after": 1})
    sent, received = move(*pair, route)
    assert isinstance(sent, ImageError)
    assert "write: broken" in str(sent)
    assert isinstance(received, ImageError)
    assert "the sender gave up" in str(received)
    assert pair[1].images == {}
    (pair[0].folder / "cut.json").unlink()
    move(*pair, replace(route, port=free_port()))
    assert NAME in pair[1].images


@pytest.mark.parametrize("held", [[], ["a", "b"]], ids=["whole", "without_layers"])
@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("Error response from daemon: no space left on device\n", "no space left on device (exit code 125)"),
        ("", "(exit code 125)"),
    ],
    ids=["with_words", "silent"],
)
def test_a_save_that_dies_before_its_first_byte_tells_docker_s_reason(
    pair: tuple[FakeEngine, FakeEngine], route: Route, held: list[str], says: str, told: str
) -> None:
    pair[0].put(dies={"code": 125, "says": says})
    if held:
        pair[1].put(images={"base": image(*held)})
    for outcome in move(*pair, route):
        assert isinstance(outcome, ImageError), outcome
        assert told in str(outcome)
    assert NAME not in pair[1].images
    (pair[0].folder / "dies.json").unlink()
    move(*pair, replace(route, port=free_port()))
    assert NAME in pair[1].images


def test_a_full_disk_of_the_rank_is_told_on_both_ends(pair: tuple[FakeEngine, FakeEngine], route: Route) -> None:
    pair[1].put(broken={"load": "write /x: no space left on device"})
    for outcome in move(*pair, route):
        assert isinstance(outcome, ImageError)
        assert "no space left on device" in str(outcome)
    assert pair[1].images == {}


def test_a_rank_that_does_not_come_ends_the_wait_of_the_head(pair: tuple[FakeEngine, FakeEngine], route: Route) -> None:
    with pytest.raises(ImageError, match=r"1 rank\(s\) did not connect to 127\.0\.0\.1"):
        image_transfer.send(pair[0], NAME, replace(route, wait=0.2), 1)


def test_a_head_that_does_not_answer_ends_the_wait_of_the_rank(
    pair: tuple[FakeEngine, FakeEngine], route: Route
) -> None:
    with pytest.raises(ImageError, match=r"the head does not answer at 127\.0\.0\.1"):
        image_transfer.receive(pair[1], NAME, replace(route, wait=0.2))


def test_a_port_in_use_names_the_variable(pair: tuple[FakeEngine, FakeEngine], route: Route) -> None:
    with socket.create_server((route.address, route.port)), pytest.raises(ImageError, match="spark_image_port"):
        image_transfer.send(pair[0], NAME, route, 1)


def test_a_transfer_that_outlived_its_controller_is_named_by_the_next_run(
    pair: tuple[FakeEngine, FakeEngine], route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_job, "place", lambda: tmp_path)
    go = tmp_path / "go"

    def work(note: Note) -> dict[str, Any]:
        note("send other:1 to 192.0.2.2", 3 * 1024**3, 0, "bytes")
        while not go.exists():
            time.sleep(0.05)
        return {}

    job = image_job.begin(work)
    image_job.look(job, 0.5)
    try:
        with socket.create_server((route.address, route.port)), pytest.raises(ImageError) as told:
            image_transfer.send(pair[0], NAME, route, 1)
    finally:
        go.touch()
    assert "send other:1 to 192.0.2.2, 3.0 GiB so far" in str(told.value)
    assert "wait until it has ended" in str(told.value)
    assert "spark_image_port" not in str(told.value)
    image_job.look(job, 20)
    # Nothing of ours is at work: then the port is somebody else's.
    with socket.create_server((route.address, route.port)), pytest.raises(ImageError, match="spark_image_port"):
        image_transfer.send(pair[0], NAME, route, 1)


def test_an_image_that_the_head_lacks_is_not_served(pair: tuple[FakeEngine, FakeEngine], route: Route) -> None:
    with pytest.raises(ImageError, match="is not on the head"):
        image_transfer.send(pair[1], NAME, route, 1)


def test_a_stranger_is_sent_away_and_the_rank_is_served(pair: tuple[FakeEngine, FakeEngine], route: Route) -> None:
    def knock() -> bytes:
        for _ in range(100):
            try:
                with socket.create_connection((route.address, route.port), timeout=5) as stranger:
                    stranger.sendall(b"x" * (stream.NONCE + stream.TAG))
                    found = b""
                    while block := stranger.recv(4096):
                        found += block
                    return found
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise AssertionError("nobody listened")

    with ThreadPoolExecutor(3) as pool:
        sent = pool.submit(image_transfer.send, pair[0], NAME, route, 1)
        # The head's greeting is all that a stranger sees.
        assert len(pool.submit(knock).result(30)) == stream.NONCE + stream.TAG
        received = pool.submit(image_transfer.receive, pair[1], NAME, route, load=load_of(pair[1]))
        assert received.result(30).layers == 3
        assert len(sent.result(30)) == 1


def test_a_false_head_is_not_believed(pair: tuple[FakeEngine, FakeEngine], route: Route) -> None:
    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(image_transfer.send, pair[0], NAME, replace(route, secret="6" * 64, wait=0.5), 1)
        received = pool.submit(image_transfer.receive, pair[1], NAME, route, load=load_of(pair[1]))
        assert "does not know the secret of this run" in str(received.exception(30))
        assert isinstance(sent.exception(30), ImageError)
    assert not pair[1].did("load")


# --- frames -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection."""
    one, other = socket.socketpair()
    one.settimeout(5)
    other.settimeout(5)
    with one, other:
        yield one, other


def channels(one: socket.socket, other: socket.socket) -> tuple[Channel, Channel]:
    return Channel(one, b"k" * 32, b"head", b"rank"), Channel(other, b"k" * 32, b"rank", b"head")


def test_frames_arrive_in_order_and_end(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = channels(*sockets)
    for block in (b"one", b"two"):
        sender.send(stream.DATA, block)
    sender.send(stream.END)
    assert list(receiver.blocks()) == [b"one", b"two"]


def _raw(change: Callable[[list[bytes]], bytes]) -> bytes:
    """Bytes of two frames, changed."""
    one, other = socket.socketpair()
    frames = []
    with one, other:
        sender, _ = channels(one, other)
        for block in (b"one", b"two"):
            sender.send(stream.DATA, block)
            frames.append(other.recv(4096))
    return change(frames)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: f[0].replace(b"one", b"0ne"), "does not carry the secret"),
        (lambda f: f[1], "does not carry the secret"),
        (lambda f: f[0] + f[0], "does not carry the secret"),
        (lambda f: f[0][:-1], "closed before the end"),
        (lambda f: f[0] + f[1], "closed before the end"),
        (lambda _: b"\x01\xff\xff\xff\xff", "larger than any"),
    ],
    ids=["changed", "out of order", "twice", "cut", "without an end", "too large"],
)
def test_a_stream_that_is_not_as_it_was_sent_is_refused(
    sockets: tuple[socket.socket, socket.socket], change: Callable[[list[bytes]], bytes], why: str
) -> None:
    sockets[0].sendall(_raw(change))
    sockets[0].shutdown(socket.SHUT_WR)
    with pytest.raises(StreamError, match=why):
        list(channels(*sockets)[1].blocks())


def test_a_silent_peer_is_given_up(sockets: tuple[socket.socket, socket.socket]) -> None:
    _, receiver = channels(*sockets)
    receiver.wait_for(0.05)
    with pytest.raises(StreamError, match="nothing came"):
        receiver.receive()


def test_an_archive_without_layers_is_a_whole_archive() -> None:
    source = BytesIO()
    with tarfile.open(fileobj=source, mode="w") as archive:
        for name in ("blobs/sha256/aa", "blobs/sha256/bb", "manifest.json"):
            entry = tarfile.TarInfo(name)
            entry.size = 700
            archive.addfile(entry, BytesIO(name.encode() * 70))
    source.seek(0)
    sink = BytesIO()
    assert stream.without_layers(source, sink, ["sha256:aa"]) == 1
    sink.seek(0)
    with tarfile.open(fileobj=sink) as archive:
        assert archive.getnames() == ["blobs/sha256/bb", "manifest.json"]
