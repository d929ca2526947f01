"""Bring files of a snapshot to this rank: from the head over the fabric, or from a folder.

The head serves files by their sha256 over HTTP, for one run: bound to its fabric address, to ranks of the plan only,
with a token of that run, and with an end of its own. Content is hashed while it arrives, and a file appears in the
cache by a rename once its hash is right. What was cut off is continued where it stopped.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .apart import apart
from .weights import PARTIAL, Cache, Entry, Hashes, Manifest, Model, Survey, WeightsError, drop_from_memory
from .weights_cache import Clock, Owner

BLOCK = 1 << 22
ATTEMPTS = 3
ANSWER_SECONDS = 60.0
Source = Callable[[Entry, int], AbstractContextManager[Any]]
"""Opens the content of an entry from a byte on, as a stream with ``readinto``. Raises OSError or WeightsError."""


# --- the head's side --------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Serves files by sha256 until it is told to end, nobody asked for ``idle`` seconds, or ``lifetime`` is over."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        files: Mapping[str, Path],
        *,
        token: str,
        peers: Collection[str],
        idle: float,
        lifetime: float,
    ) -> None:
        super().__init__(address, Handler)
        self.files, self.token, self.peers = dict(files), token, frozenset(peers)
        self.idle, self.end = idle, time.monotonic() + lifetime
        self.busy, self.asked, self.guard = 0, time.monotonic(), threading.Lock()

    def serve(self) -> None:
        """Serve until one of the ends."""
        threading.Thread(target=self._watch, daemon=True).start()
        self.serve_forever(poll_interval=0.2)
        self.server_close()

    def _watch(self) -> None:
        while time.monotonic() < self.end and (self.busy or time.monotonic() - self.asked < self.idle):
            time.sleep(min(1.0, self.idle / 4))
        self.shutdown()

    def note(self, change: int) -> None:
        """Count a request that begins (1) or has ended (-1)."""
        with self.guard:
            self.busy += change
            self.asked = time.monotonic()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: a rank that goes away in the middle is no fault of the server, and nobody reads its output."""


class Handler(BaseHTTPRequestHandler):
    """One request of a rank."""

    server: Server
    timeout = ANSWER_SECONDS

    def _refused(self) -> bool:
        given = self.headers.get("Authorization", "").encode()
        if self.client_address[0] in self.server.peers and hmac.compare_digest(
            given, f"Bearer {self.server.token}".encode()
        ):
            return False
        self.send_error(HTTPStatus.FORBIDDEN)
        return True

    def do_GET(self) -> None:
        """Send a file, from the byte on that ``Range: bytes=N-`` names."""
        if self._refused():
            return
        path = self.server.files.get(self.path.lstrip("/"))
        if path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.server.note(1)
        try:
            with path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
                self.send_response(HTTPStatus.PARTIAL_CONTENT)
                self.send_header("Content-Length", str(size - start))
                self.end_headers()
                self.wfile.flush()
                self.connection.sendfile(stream, start)
                drop_from_memory(stream.fileno())
        finally:
            self.server.note(-1)

    def do_DELETE(self) -> None:
        """End the server."""
        if self._refused():
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()
        threading.Thread(target=self.server.shutdown, daemon=True).start()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server names it
        """Keep no log."""


def serve_apart(server: Server) -> None:
    """Let a process of its own serve, which outlives this one; the caller keeps no end of it."""
    apart(server.serve)
    server.server_close()


# --- sources ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remote:
    """The head's server, asked from the address ``own`` of this rank."""

    address: str
    port: int
    token: str
    own: str

    def _ask(self, verb: str, path: str, start: int = 0) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(
            self.address, self.port, timeout=ANSWER_SECONDS, source_address=(self.own, 0)
        )
        connection.request(
            verb, f"/{path}", headers={"Authorization": f"Bearer {self.token}", "Range": f"bytes={start}-"}
        )
        return connection.getresponse()

    def __call__(self, entry: Entry, start: int) -> AbstractContextManager[Any]:
        """Open a file of the head. Raises OSError, WeightsError."""
        answer = self._ask("GET", entry.sha256, start)
        if answer.status != HTTPStatus.PARTIAL_CONTENT:
            raise WeightsError(f"the head at {self.address}:{self.port} does not give {entry.path}: {answer.status}")
        return answer

    def end(self) -> bool:
        """Tell the server to end; False when there was none any more."""
        try:
            return self._ask("DELETE", "").status == HTTPStatus.NO_CONTENT
        except (OSError, http.client.HTTPException):
            return False


@dataclass(frozen=True)
class Folder:
    """A snapshot in another cache of this host."""

    snapshot: Path

    def __call__(self, entry: Entry, start: int) -> AbstractContextManager[Any]:
        """Open a file of the folder. Raises OSError."""
        stream = (self.snapshot / entry.path).open("rb", buffering=0)
        stream.seek(start)
        return stream


# --- the receiving side -----------------------------------------------------------------------------------------------


@dataclass
class Bringing:
    """Brings what a survey found lacking.

    No further file is begun after ``soft`` seconds, and none is continued after ``hard``; a later call goes on from
    there. Each call brings something, however short the times are.
    """

    cache: Cache
    model: Model
    hashes: Hashes
    source: Source
    soft: float
    hard: float
    clock: Clock = time.monotonic

    def __post_init__(self) -> None:
        """Start the time."""
        self.begun, self.owner = self.clock(), Owner.of(self.cache)
        self.received = 0

    def _over(self, seconds: float) -> bool:
        return self.clock() - self.begun >= seconds

    def run(self, lacking: Survey, streams: int) -> None:
        """Link what is there, and fetch what is not, in ``streams`` parallel streams. Raises WeightsError."""
        for entry in lacking.link:
            self._link(entry)
        # Equal content is fetched once; the next survey finds the others' blobs, or copies them again.
        waiting = list({e.sha256: e for e, _ in sorted(lacking.bring, key=lambda item: -item[0].size)}.values())
        begun: list[Entry] = []
        guard, failed = threading.Lock(), threading.Event()

        def work() -> None:
            while not failed.is_set():
                with guard:
                    if not waiting or (begun and self._over(self.soft)):
                        return
                    begun.append(entry := waiting.pop(0))
                try:
                    self._bring(entry)
                except BaseException:
                    failed.set()
                    raise

        try:
            with ThreadPoolExecutor(max(1, streams)) as pool:
                for done in [pool.submit(work) for _ in range(max(1, streams))]:
                    done.result()
        except OSError as error:
            raise WeightsError(f"cannot bring {self.model.repository}: {error}") from error

    def _bring(self, entry: Entry) -> None:
        for attempt in range(ATTEMPTS):
            try:
                if self._fetch(entry):
                    self._settle(entry)
            except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
                if attempt + 1 == ATTEMPTS:
                    raise WeightsError(f"{entry.path} does not arrive: {error or type(error).__name__}") from error
                time.sleep(attempt)
            else:
                return

    def _fetch(self, entry: Entry) -> bool:
        """Have the whole content in the partial file; False when the time was over before."""
        part = self.cache.partial(self.model, entry)
        self.owner.mkdir(part.parent)
        digest, buffer = hashlib.sha256(), memoryview(bytearray(BLOCK))
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "r+b", buffering=0) as out:
            have = 0
            while size := out.readinto(buffer):
                digest.update(buffer[:size])
                have += size
            if have > entry.size:
                _anew(part, f"{part} was longer than {entry.path}")
            if have < entry.size:
                with self.source(entry, have) as stream:
                    while have < entry.size:
                        size = stream.readinto(buffer)
                        if not size:
                            raise ConnectionResetError(f"the source ended {entry.size - have} bytes too early")
                        out.write(buffer[:size])
                        digest.update(buffer[:size])
                        have += size
                        self.received += size
                        if have < entry.size and self._over(self.hard):
                            return False
            if digest.hexdigest() != entry.sha256:
                _anew(part, f"{entry.path} arrived with sha256 {digest.hexdigest()}, wanted {entry.sha256}")
            os.fchmod(out.fileno(), 0o644)
            os.fdatasync(out.fileno())
            drop_from_memory(out.fileno())
        return True

    def _settle(self, entry: Entry) -> None:
        part, target = self.cache.partial(self.model, entry), self.cache.blob(self.model, entry)
        self.owner.give(part)
        self.owner.mkdir(target.parent)
        part.replace(target)
        # A rename changes the ctime, so the hash is remembered of the file in its place.
        self.hashes.remember(os.path.realpath(target), target.stat(), entry.sha256)
        if entry.blob:
            self._link(entry)

    def _link(self, entry: Entry) -> None:
        path = self.cache.snapshot(self.model) / entry.path
        self.owner.mkdir(path.parent)
        fresh = path.with_name(f".{path.name}{PARTIAL}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(os.path.relpath(self.cache.blob(self.model, entry), path.parent))
        self.owner.give(fresh)
        fresh.replace(path)


def _anew(part: Path, why: str) -> None:
    """Throw a partial file away and have it fetched anew. Raises ConnectionError."""
    part.unlink()
    raise ConnectionError(why)


def clear(cache: Cache, model: Model) -> None:
    """Remove what transfers left in the repository; nothing is to arrive any more."""
    folder = cache.repository(model) / PARTIAL
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def lacking_bytes(cache: Cache, model: Model, found: Survey) -> int:
    """Bytes that are still to arrive; what a cut-off transfer left counts as there."""
    total = 0
    for entry, _ in found.bring:
        total += entry.size
        if entry.sha256:
            with suppress(OSError):
                total -= min(entry.size, cache.partial(model, entry).stat().st_size)
    return total


def servable(cache: Cache, model: Model, manifest: Manifest) -> dict[str, Path]:
    """Files of a complete snapshot by sha256."""
    return {e.sha256: Path(os.path.realpath(cache.snapshot(model) / e.path)) for e in manifest.entries}
