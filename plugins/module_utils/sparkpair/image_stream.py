"""One image from the head to another rank: ``docker save`` there, ``docker load`` here, one TCP connection between.

Both ends know a secret of this run and prove it to each other before a byte flows. Every frame carries a MAC over its
number and content, so nothing else reaches ``docker load``; the content is not encrypted, since an image is no secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol, cast

BLOCK = 1 << 20
NONCE = 32
TAG = 32
HANDSHAKE_SECONDS = 20.0
_HEAD = struct.Struct("!BI")
DATA, END, FAILED = 1, 2, 3


class Sink(Protocol):
    """What an archive is written to."""

    def write(self, data: bytes, /) -> int:
        """Take all of ``data``."""


class StreamError(Exception):
    """The stream ended early, or was not ours; the message says which end saw what."""


@dataclass(frozen=True)
class Route:
    """Where the head listens (its fabric address and a port), the rank's own fabric address, and the run's secret.

    ``wait`` is how many seconds the two ends wait for each other, ``patience`` how long a started stream may be silent.
    """

    address: str
    port: int
    own: str
    secret: str
    wait: float = 60.0
    patience: float = 900.0


def _mac(key: bytes, *parts: bytes) -> bytes:
    total = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        total.update(struct.pack("!I", len(part)) + part)
    return total.digest()


def _exactly(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        try:
            block = source.recv(min(size - len(found), BLOCK))
        except TimeoutError as error:
            raise StreamError(f"nothing came for {source.gettimeout():.0f} s") from error
        except OSError as error:
            raise StreamError(f"the connection broke: {error}") from error
        if not block:
            raise StreamError("the connection was closed before the end")
        found += block
    return bytes(found)


class Channel:
    """Frames in one direction each way over a connection whose both ends proved that they know the secret."""

    def __init__(self, connection: socket.socket, key: bytes, mine: bytes, theirs: bytes) -> None:
        self._socket = connection
        self._key = key
        self._mine, self._theirs = mine, theirs
        self._sent = self._received = 0

    def send(self, kind: int, data: bytes = b"") -> None:
        """Send one frame. Raises StreamError."""
        head = _HEAD.pack(kind, len(data))
        tag = _mac(self._key, self._mine, struct.pack("!Q", self._sent), head, data)
        self._sent += 1
        try:
            self._socket.sendall(head + data + tag)
        except OSError as error:
            raise StreamError(f"the connection broke: {error}") from error

    def receive(self) -> tuple[int, bytes]:
        """Receive one frame. Raises StreamError for a connection that ends and for a frame that is not the peer's."""
        head = _exactly(self._socket, _HEAD.size)
        kind, size = _HEAD.unpack(head)
        if size > BLOCK:
            raise StreamError(f"a frame of {size} bytes is larger than any that is sent")
        data = _exactly(self._socket, size)
        wanted = _mac(self._key, self._theirs, struct.pack("!Q", self._received), head, data)
        if not hmac.compare_digest(wanted, _exactly(self._socket, TAG)):
            raise StreamError("a frame does not carry the secret of this run")
        self._received += 1
        return kind, data

    def wait_for(self, patience: float) -> None:
        """Set how many seconds the peer may be silent."""
        self._socket.settimeout(patience)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a small message as the last frame of this direction."""
        self.send(END, json.dumps(message).encode()[:BLOCK])

    def blocks(self) -> Iterator[bytes]:
        """Content up to the end frame. Raises StreamError when it does not come, or when the peer gave up."""
        while True:
            kind, data = self.receive()
            if kind == FAILED:
                raise StreamError(f"the sender gave up: {data.decode(errors='replace')}")
            if kind == END:
                return
            yield data


def _keep_alive(connection: socket.socket) -> None:
    """Have the kernel ask a silent peer, so that one that is gone is noticed long before the patience ends."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def accept(connection: socket.socket, route: Route) -> Channel:
    """The head's side of the handshake. Raises StreamError for a peer that does not know the secret."""
    connection.settimeout(HANDSHAKE_SECONDS)
    _keep_alive(connection)
    key = route.secret.encode()
    theirs = _exactly(connection, NONCE)
    mine = secrets.token_bytes(NONCE)
    connection.sendall(mine + _mac(key, b"head", theirs, mine))
    if not hmac.compare_digest(_mac(key, b"rank", theirs, mine), _exactly(connection, TAG)):
        raise StreamError("a peer does not know the secret of this run")
    connection.settimeout(route.patience)
    return Channel(connection, _mac(key, b"stream", theirs, mine), b"head", b"rank")


def connect(route: Route) -> tuple[socket.socket, Channel]:
    """Reach the head from the own fabric address, and prove the secret to each other.

    Raises StreamError when the head does not answer in time or does not know the secret.
    """
    deadline = time.monotonic() + route.wait
    while True:
        try:
            target = (route.address, route.port)
            connection = socket.create_connection(target, timeout=5, source_address=(route.own, 0))
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise StreamError(f"the head does not answer at {route.address}:{route.port}: {error}") from error
            time.sleep(0.5)
    try:
        return connection, _greet(connection, route)
    except OSError as error:
        connection.close()
        raise StreamError(f"the connection broke: {error}") from error
    except StreamError:
        connection.close()
        raise


def _greet(connection: socket.socket, route: Route) -> Channel:
    # The head serves one rank after the other, so its greeting may take as long as another rank's image.
    connection.settimeout(route.patience)
    _keep_alive(connection)
    key, mine = route.secret.encode(), secrets.token_bytes(NONCE)
    connection.sendall(mine)
    theirs = _exactly(connection, NONCE)
    if not hmac.compare_digest(_mac(key, b"head", mine, theirs), _exactly(connection, TAG)):
        raise StreamError(f"what answers at {route.address}:{route.port} does not know the secret of this run")
    connection.sendall(_mac(key, b"rank", mine, theirs))
    return Channel(connection, _mac(key, b"stream", mine, theirs), b"rank", b"head")


def without_layers(source: IO[bytes], sink: Sink, skip: Sequence[str]) -> int:
    """Copy an archive of ``docker save`` without the files of layers whose digests are in ``skip``; returns how many.

    Docker 25 and later name a file after the digest of its content (``blobs/sha256/...``); other files are kept, which
    costs time only. ``docker load`` opens no file of a layer that its engine holds.
    """
    names = {f"blobs/{layer.replace(':', '/')}" for layer in skip}
    left_out = 0
    with (
        tarfile.open(fileobj=source, mode="r|", bufsize=BLOCK) as whole,
        tarfile.open(fileobj=cast(IO[bytes], sink), mode="w|", bufsize=BLOCK, format=tarfile.PAX_FORMAT) as slim,
    ):
        for member in whole:
            if member.name in names:
                left_out += 1
                continue
            slim.addfile(member, whole.extractfile(member) if member.isfile() else None)
    with contextlib.suppress(OSError):
        while source.read(BLOCK):
            pass  # the padding of the archive, or docker would find its pipe closed
    return left_out
