"""A stand-in for the Hugging Face hub: the few requests with which huggingface_hub lists and downloads a snapshot.

It is no hub: it knows one repository at one commit, and neither redirects nor the xet protocol.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGE = 1024
"""Files from this size on are stored as LFS objects, with a sha256."""


def sha256(content: bytes) -> str:
    """Hex sha256, the name of a large file."""
    return hashlib.sha256(content).hexdigest()


def git_id(content: bytes) -> str:
    """Hex git hash, the name of a small file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Hub:
    """Serves ``files`` of ``repository`` at ``revision`` while the context is open.

    ``seen`` holds method and path of every request, with ``Range`` where one was sent; ``token``, when set, is
    demanded; ``cut`` ends the next answer with this file's content in the middle; each answer takes ``delay`` seconds.
    """

    def __init__(
        self, repository: str, revision: str, files: Mapping[str, bytes], *, address: str = "127.0.0.1", token: str = ""
    ) -> None:
        self.repository, self.revision, self.files, self.token = repository, revision, dict(files), token
        self.seen: list[str] = []
        self.cut, self.delay = "", 0.0
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_address[1]}"

    def __enter__(self) -> Hub:
        """Begin to serve."""
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()

    def downloads(self) -> list[str]:
        """Files whose content was asked for."""
        return [
            line.split(f"/resolve/{self.revision}/")[1]
            for line in self.seen
            if line.startswith("GET ") and "/resolve/" in line
        ]

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        """Answer one request."""
        time.sleep(self.delay)
        path = request.path.partition("?")[0]
        wanted = request.headers.get("Range", "")
        self.seen.append(f"{request.command} {path} {wanted}".strip())
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            self._send(
                request, 401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "a token is needed"}, body=body
            )
        elif path == f"/api/models/{self.repository}/revision/{self.revision}":
            siblings = [self._sibling(name) for name in self.files]
            data = {"id": self.repository, "modelId": self.repository, "sha": self.revision, "siblings": siblings}
            self._send(request, 200, json.dumps(data).encode(), {}, body=body)
        elif path == f"/api/models/{self.repository}/tree/{self.revision}":
            data_list = [self._tree(name) for name in self.files]
            self._send(request, 200, json.dumps(data_list).encode(), {}, body=body)
        elif (found := re.fullmatch(f"/{self.repository}/resolve/{self.revision}/(.*)", path)) and found[
            1
        ] in self.files:
            self._file(request, found[1], wanted, body=body)
        else:
            self._send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"}, body=body)

    def _sibling(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_id(content)}
        if len(content) >= LARGE:
            entry["lfs"] = {"size": len(content), "sha256": sha256(content), "pointerSize": 134}
        return entry

    def _tree(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_id(content)}
        if len(content) >= LARGE:
            entry["lfs"] = {"size": len(content), "oid": sha256(content), "pointerSize": 134}
        return entry

    def _file(self, request: BaseHTTPRequestHandler, name: str, wanted: str, *, body: bool) -> None:
        content = self.files[name]
        etag = sha256(content) if len(content) >= LARGE else git_id(content)
        start = int(wanted.removeprefix("bytes=").partition("-")[0] or 0) if wanted else 0
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self.revision, "Accept-Ranges": "bytes"}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if body and self.cut == name:
            self.cut = ""
            request.send_response(206 if wanted else 200)
            for key, value in {**headers, "Content-Length": str(len(content) - start)}.items():
                request.send_header(key, value)
            request.end_headers()
            request.wfile.write(content[start : start + (len(content) - start) // 2])
            request.close_connection = True
            return
        self._send(request, 206 if wanted else 200, content[start:], headers, body=body)

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler, status: int, content: bytes, headers: Mapping[str, str], *, body: bool
    ) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            request.send_header(key, value)
        request.end_headers()
        if body:
            request.wfile.write(content)
