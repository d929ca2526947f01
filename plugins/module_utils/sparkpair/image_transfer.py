"""The two ends of a transfer: the head that saves and sends an image, and a rank that receives and loads it."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from . import image_stream as stream
from .image_job import running
from .image_stream import Route
from .images import ImageError, inspect, layers_held, layers_of
from .memory import gib
from .noting import Note, unnoted
from .preflight_host import version
from .runner import Runner

SAVE_PLATFORM_API = (1, 48)
LOAD_SECONDS = 1800.0
SENDING = "send "
"""How the note of a transfer begins, by which a later run knows one that goes on without its controller."""


@dataclass(frozen=True)
class Moved:
    """What went to or came from one peer: bytes, seconds, layers left out because the receiver holds them."""

    peer: str
    bytes: int
    seconds: float
    layers: int
    left_out: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a module result."""
        return asdict(self)


class _Frames:
    """A writable file that sends what it gets as frames; ``tell`` gets the bytes so far."""

    def __init__(self, channel: stream.Channel, tell: Callable[[int], None]) -> None:
        self._channel, self._tell = channel, tell
        self.count = 0

    def write(self, data: bytes) -> int:
        for at in range(0, len(data), stream.BLOCK):
            self._channel.send(stream.DATA, bytes(data[at : at + stream.BLOCK]))
        self.count += len(data)
        self._tell(self.count)
        return len(data)


def save_command(runner: Runner, reference: str, data: Mapping[str, Any]) -> list[str]:
    """``docker save`` of one platform: an engine with containerd's store may hold an index of several, in part."""
    done = runner(["docker", "version", "--format", "{{.Client.APIVersion}} {{.Server.APIVersion}}"], timeout=60)
    both = [version(text) for text in done.out.split()]
    if done.ok and both and all(api >= SAVE_PLATFORM_API for api in both):
        platform = f"{data.get('Os') or 'linux'}/{data['Architecture']}"
        return ["docker", "save", "--platform", platform, reference]
    return ["docker", "save", reference]


def send(runner: Runner, reference: str, route: Route, ranks: int, note: Note = unnoted) -> list[Moved]:
    """Serve ``reference`` to ``ranks`` other ranks, one after the other; ``note`` gets the bytes that were sent.

    Listens on the fabric address only, and only until every rank was served or nobody came for ``wait`` seconds. A peer
    that does not know the secret is sent away and costs nothing else. Raises ImageError.
    """
    data = inspect(runner, reference)
    if not data:
        raise ImageError(f"{reference} is not on the head, so it cannot be sent")
    argv = save_command(runner, reference, data)
    # Of containerd's store the archive is compressed, and the size that Docker states is not.
    size = 0 if keeps_blobs(runner) else int(data.get("Size") or 0)
    moved: list[Moved] = []
    problems: list[str] = []
    try:
        listener = socket.create_server((route.address, route.port), backlog=16)
    except OSError as error:
        raise ImageError(f"the head cannot listen on {route.address}:{route.port}: {_unheard(error)}") from error
    with listener:
        deadline = time.monotonic() + route.wait
        while len(moved) + len(problems) < ranks:
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                connection, peer = listener.accept()
            except TimeoutError:
                problems.append(
                    f"{ranks - len(moved) - len(problems)} rank(s) did not connect to {route.address}:{route.port} "
                    f"within {route.wait:.0f} s"
                )
                break
            with connection:
                try:
                    channel = stream.accept(connection, route)
                except (stream.StreamError, OSError):
                    continue
                try:
                    tell = _Telling(note, f"{SENDING}{reference} to {peer[0]}", size)
                    moved.append(_serve(channel, str(peer[0]), argv, layers_of(data), tell))
                except (stream.StreamError, ImageError) as error:
                    problems.append(f"to {peer[0]}: {error}")
                deadline = time.monotonic() + route.wait
    if problems:
        raise ImageError(f"{reference} was not sent everywhere: {'; '.join(problems)}")
    return moved


def _unheard(error: OSError) -> str:
    """Why nothing can be bound and what to do: a transfer may have outlived the controller that began it."""
    at_work = [note for note in running() if str(note["doing"]).startswith(SENDING)]
    if error.errno != errno.EADDRINUSE or not at_work:
        return f"{error}; set spark_image_port to a free port"
    return (
        f"a transfer of another run is under way ({at_work[0]['doing']}, {gib(at_work[0]['done'])} so far); "
        "wait until it has ended and run again, which finds what it brought"
    )


@dataclass
class _Telling:
    """Notes the bytes of one transfer; ``size`` is how many there will be, 0 when that is not known."""

    note: Note
    doing: str
    size: int

    def __call__(self, count: int) -> None:
        self.note(self.doing, count, self.size, "bytes")


def _serve(channel: stream.Channel, peer: str, argv: Sequence[str], layers: Sequence[str], tell: _Telling) -> Moved:
    began = time.monotonic()
    # The receiver is told the layers first, and answers how many of the lowest ones it holds.
    channel.send(stream.DATA, json.dumps({"layers": list(layers)}).encode())
    kind, answer = channel.receive()
    asked = json.loads(answer) if kind == stream.DATA else {"held": 0}
    count = min(int(asked["held"]), len(layers))
    skip = sorted(set(layers[:count]) - set(layers[count:]))
    if skip:
        tell.size = 0
    # Docker prepares the archive before its first byte comes.
    tell(0)
    sink, left_out = _Frames(channel, tell), 0
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        broken = ""
        try:
            with process:
                assert process.stdout is not None  # noqa: S101 - asked for above
                try:
                    left_out = _copy(process.stdout, sink, skip)
                except tarfile.TarError as error:
                    # Docker ended early, and its own words say more than what is wrong with the archive.
                    broken = f"no whole archive came: {error}"
        except stream.StreamError as error:
            process.kill()
            raise stream.StreamError(f"{error} after {sink.count} bytes") from error
        if process.returncode or broken:
            errors.seek(0)
            said = errors.read()[-500:].decode(errors="replace").strip() or broken
            why = f"{said} (exit code {process.returncode})"
            channel.send(stream.FAILED, why.encode())
            raise ImageError(f"{' '.join(argv)}: {why}")
    channel.send(stream.END)
    channel.wait_for(LOAD_SECONDS + 60)
    _, verdict = channel.receive()
    said = json.loads(verdict)
    if said["problem"]:
        raise ImageError(str(said["problem"]))
    return Moved(peer, sink.count, round(time.monotonic() - began, 1), len(layers), left_out)


def _copy(source: IO[bytes], sink: _Frames, skip: Sequence[str]) -> int:
    if skip:
        return stream.without_layers(source, sink, skip)
    while block := source.read(stream.BLOCK):
        sink.write(block)
    return 0


def keeps_blobs(runner: Runner) -> bool:
    """Tell whether this engine uses containerd's image store, which wants every file of an archive that it loads."""
    done = runner(["docker", "info", "--format", "{{json .DriverStatus}}"], timeout=60)
    return "io.containerd.snapshotter" in done.out


def receive(
    runner: Runner,
    reference: str,
    route: Route,
    note: Note = unnoted,
    *,
    load: Sequence[str] = ("docker", "load", "-q"),
) -> Moved:
    """Receive ``reference`` from the head and load it. Raises ImageError; an image is there whole or not at all.

    ``note`` is told once all has come: the sender counts the bytes, and Docker unpacks most of them afterwards.
    """
    began = time.monotonic()
    try:
        connection, channel = stream.connect(route)
    except stream.StreamError as error:
        raise ImageError(f"{reference} was not received: {error}") from error
    with connection:
        try:
            layers = [str(layer) for layer in json.loads(channel.receive()[1])["layers"]]
            held = 0 if keeps_blobs(runner) else layers_held(runner, layers)
            channel.send(stream.DATA, json.dumps({"held": held}).encode())
            size, problem = _load(channel, load, lambda: note(f"unpack {reference}"))
            if not problem and not inspect(runner, reference):
                problem = f"docker load ended well, but {reference} is not there"
            channel.tell({"problem": problem})
        except stream.StreamError as error:
            raise ImageError(f"{reference} was not received: {error}; nothing of it is used, run again") from error
    if problem:
        raise ImageError(f"{reference} could not be loaded: {problem}")
    return Moved(route.address, size, round(time.monotonic() - began, 1), len(layers), held)


def _load(channel: stream.Channel, argv: Sequence[str], arrived: Callable[[], None]) -> tuple[int, str]:
    """Feed ``docker load`` until the end frame; returns bytes and what went wrong ("" when nothing did).

    When the stream breaks, the command is ended before its input, so that it never sees a shortened archive as whole.
    """
    count, closed = 0, False
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(list(argv), stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT)
        assert process.stdin is not None  # noqa: S101 - asked for above
        try:
            for block in channel.blocks():
                count += len(block)
                if not closed:
                    try:
                        process.stdin.write(block)
                    except OSError:
                        # Ended early: its words say why. The rest is read, so that the sender can be told.
                        closed = True
        except stream.StreamError:
            process.kill()
            process.wait()
            raise
        arrived()
        try:
            process.stdin.close()
        except OSError:
            closed = True
        try:
            status = process.wait(LOAD_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return count, f"docker load did not end within {LOAD_SECONDS:.0f} s after the last byte"
        said.seek(0)
        words = said.read()[-2000:].decode(errors="replace").strip()
    if status or closed:
        return count, (words.splitlines() or [f"docker load ended with {status}"])[-1]
    return count, ""
