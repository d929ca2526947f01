"""Sends groups of API requests to an engine and returns timed answers. Standard library only: runs on a rank.

An answer is data, also when the request failed: nothing here raises for a server that misbehaves.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MAX_BODY = 262_144
MAX_READ = 16_777_216
MAX_EVENTS = 4096
CHUNK = 65_536
TIMEOUT = 60.0
LATE = "no complete answer within"
"""What the error of a request that ran out of time begins with."""


class _Clock:
    """Epoch seconds that never jump: one reading of the wall clock, then the monotonic one."""

    def __init__(self) -> None:
        self._wall, self._base = time.time(), time.monotonic()

    def now(self) -> float:
        return self._wall + time.monotonic() - self._base


def sse_events(chunks: Iterator[bytes]) -> Iterator[str]:
    """Data fields of server-sent events; chunks may break anywhere, also inside a UTF-8 sequence or a line ending."""
    buffer, data = b"", list[str]()
    for chunk in chunks:
        buffer += chunk
        while (end := buffer.find(b"\n")) >= 0:
            line, buffer = buffer[:end].rstrip(b"\r").decode(errors="replace"), buffer[end + 1 :]
            if line.startswith("data:"):
                data.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and data:
                yield "\n".join(data)
                data = []
    if data:
        yield "\n".join(data)


def _empty(request: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {
        "id": request["id"],
        "group": group,
        "status": None,
        "error": None,
        "json": None,
        "text": None,
        "started": None,
        "first_token": None,
        "ended": None,
        "events": [],
        "content": None,
        "reasoning_content": None,
        "finish_reason": None,
        "usage": None,
        "tool_calls": None,
    }


class _Sender:
    def __init__(self, base_url: str, api_key: str, ends: float, clock: _Clock) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"base_url must be an http URL, not {base_url!r}")
        self._host, self._port, self._prefix = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self._api_key, self._ends, self._clock = api_key, ends, clock

    def extend(self, seconds: float) -> None:
        """Move the deadline by what was waited on purpose."""
        self._ends += seconds

    def send(self, request: Mapping[str, Any], group: str) -> dict[str, Any]:
        """Send one request; what goes wrong stands in ``error``, beside whatever arrived before it did."""
        answer = _empty(request, group)
        time.sleep(max(0.0, min(float(request.get("pause") or 0), self._ends - time.monotonic())))
        patience = min(float(request.get("timeout") or TIMEOUT), self._ends - time.monotonic())
        if patience <= 0:
            answer["error"] = "the deadline passed before it was sent"
            return answer
        connection = http.client.HTTPConnection(self._host, self._port, timeout=patience)
        late = threading.Event()
        answer["started"] = self._clock.now()
        begun = time.monotonic()
        watchdog: threading.Timer | None = None
        try:
            connection.connect()
            # A socket's timeout counts from byte to byte, so a server that trickles would hold the request for ever.
            # Only a shutdown wakes a thread that reads; closing the socket would not.
            watchdog = threading.Timer(patience - (time.monotonic() - begun), _cut, (connection.sock, late))
            watchdog.daemon = True
            watchdog.start()
            self._exchange(connection, request, answer)
        except TimeoutError:
            late.set()
        except Exception as error:
            # A broken server may send any shape of anything; each of them is an answer to judge, not a reason to stop.
            answer["error"] = self._clean(f"{type(error).__name__}: {error}")
        finally:
            if watchdog:
                watchdog.cancel()
            connection.close()
            answer["ended"] = self._clock.now()
        if late.is_set():
            answer["error"] = f"{LATE} {round(patience, 1):g} s"
        return answer

    def _exchange(
        self, connection: http.client.HTTPConnection, request: Mapping[str, Any], answer: dict[str, Any]
    ) -> None:
        body = request.get("body")
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._api_key and request.get("auth", True):
            headers["Authorization"] = f"Bearer {self._api_key}"
        payload = None if body is None else json.dumps(body).encode()
        connection.request(str(request.get("method", "GET")), self._prefix + request["path"], payload, headers)
        response = connection.getresponse()
        answer["status"] = response.status
        if request.get("stream") and response.status < http.client.BAD_REQUEST:
            self._stream(response, answer)
        else:
            self._whole(response, request, answer)

    def _clean(self, text: str) -> str:
        # Servers and exceptions quote headers.
        return text.replace(self._api_key, "***") if self._api_key else text

    def _whole(self, response: http.client.HTTPResponse, request: Mapping[str, Any], answer: dict[str, Any]) -> None:
        raw = response.read(MAX_READ + 1)
        if len(raw) > MAX_READ:
            raise ValueError(f"the body is longer than {MAX_READ} bytes")
        if response.length:
            raise ValueError(f"the body ended {response.length} bytes early")
        text = raw.decode(errors="replace")
        if response.status >= http.client.BAD_REQUEST:
            text = self._clean(text)
        kept = request.get("keep_lines")
        if kept:
            text = "\n".join(line for line in text.splitlines() if re.search(kept, line))
        try:
            answer["json"] = json.loads(text)
        except ValueError:
            answer["text"] = text[: int(request.get("max_body") or MAX_BODY)]
            return
        if not isinstance(answer["json"], dict):
            return
        answer["usage"] = answer["json"].get("usage")
        for choice in (answer["json"].get("choices") or [])[:1]:
            message = choice.get("message") or {}
            answer["content"] = choice.get("text", message.get("content"))
            answer["reasoning_content"] = message.get("reasoning_content") or message.get("reasoning")
            answer["tool_calls"] = message.get("tool_calls")
            answer["finish_reason"] = choice.get("finish_reason")

    def _stream(self, response: http.client.HTTPResponse, answer: dict[str, Any]) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        try:
            for data in sse_events(_chunks(response)):
                if data == "[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise ValueError(f"the stream carries an error: {json.dumps(event['error'])[:200]}")
                answer["usage"] = event.get("usage") or answer["usage"]
                for choice in (event.get("choices") or [])[:1]:
                    delta = choice.get("delta") or {"content": choice.get("text")}
                    thought = delta.get("reasoning_content") or delta.get("reasoning")
                    if delta.get("content") or thought or delta.get("tool_calls"):
                        self._arrived(answer)
                    texts.append(delta.get("content") or "")
                    thoughts.append(thought or "")
                    for piece in delta.get("tool_calls") or []:
                        _join_call(calls, piece)
                    answer["finish_reason"] = choice.get("finish_reason") or answer["finish_reason"]
            raise ValueError("the stream ended without [DONE]")
        finally:
            answer["content"] = "".join(texts)
            answer["reasoning_content"] = "".join(thoughts) or None
            answer["tool_calls"] = [calls[index] for index in sorted(calls)] or None

    def _arrived(self, answer: dict[str, Any]) -> None:
        now = self._clock.now()
        answer["first_token"] = answer["first_token"] or now
        # The last place follows the stream's end, so that a long answer keeps its true duration.
        if len(answer["events"]) == MAX_EVENTS:
            answer["events"].pop()
        answer["events"].append(now)


def get(url: str, timeout: float) -> dict[str, Any]:
    """The answer to GET of an http URL, as ``run_groups`` gives it: whole within ``timeout`` seconds, or an error."""
    parts = urlsplit(url)
    request = {"id": "get", "path": parts.path, "max_body": MAX_READ}
    sender = _Sender(f"http://{parts.netloc}", "", time.monotonic() + timeout, _Clock())
    return sender.send(request | {"timeout": timeout}, "get")


def _cut(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    total = 0
    while chunk := response.read1(CHUNK):
        total += len(chunk)
        if total > MAX_READ:
            raise ValueError(f"the stream is longer than {MAX_READ} bytes")
        yield chunk


def _join_call(calls: dict[int, dict[str, Any]], piece: Mapping[str, Any]) -> None:
    """Add one streamed piece of a tool call: the id and name come once, the arguments in parts."""
    call = calls.setdefault(
        int(piece.get("index") or 0), {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
    )
    function = piece.get("function") or {}
    call["id"] = piece.get("id") or call["id"]
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


def _read_key(path: str | None) -> str:
    if not path:
        return ""
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the API key file cannot be read: {type(error).__name__}") from None
    if not key.isascii() or not key.isprintable():
        raise ValueError("the API key file holds a character that no HTTP header can carry")
    return key


def run_groups(
    *,
    base_url: str,
    groups: Sequence[Mapping[str, Any]],
    api_key_file: str | None = None,
    deadline: float = 300.0,
    before: Callable[[], float] | None = None,
) -> list[dict[str, Any]]:
    """Send every request, group by group, and return the answers in the order of the requests.

    Args:
        base_url: such as http://127.0.0.1:8888; proxies are never used.
        groups: each with ``name``, ``mode`` (sequential or concurrent) and ``requests``; a request has ``id``, ``path``
            and optionally ``method``, ``body`` (JSON), ``stream``, ``timeout`` (seconds), ``auth`` (send the key),
            ``keep_lines`` (a pattern; other lines of a text body are dropped), ``max_body`` (characters kept) and
            ``pause`` (seconds to wait before it).
        api_key_file: file with the bearer token; missing or empty means none. The token is never returned: where an
            error quotes it, it reads ``***``.
        deadline: seconds for everything; what is left after it fails with that reason.
        before: called before each group; the seconds that it returns were waited, and do not count for the deadline.

    Returns:
        One dict per request: ``id``, ``group``, ``status``, ``error``, ``json`` or ``text``, ``started``,
        ``first_token``, ``ended`` and ``events`` (arrival of each piece of a stream, the first 4095 and the last) in
        epoch seconds, ``content``, ``reasoning_content``, ``finish_reason``, ``usage``, ``tool_calls``. A stream that
        breaks keeps what came before; ``error`` says why it broke.

    Raises:
        ValueError: ``base_url`` is not an http URL, the key cannot be read or sent, or a request has no id or path.
    """
    clock = _Clock()
    sender = _Sender(base_url, _read_key(api_key_file), time.monotonic() + deadline, clock)
    for group in groups:
        for request in group["requests"]:
            if not {"id", "path"} <= set(request):
                raise ValueError(f"a request of group {group['name']} has no id or no path")
    answers: list[dict[str, Any]] = []
    for group in groups:
        requests, name = group["requests"], str(group["name"])
        sender.extend(before() if before else 0.0)
        if group.get("mode", "sequential") == "concurrent" and requests:
            answers += _concurrent(sender, requests, name)
        else:
            answers += [sender.send(request, name) for request in requests]
    return answers


def _concurrent(sender: _Sender, requests: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    together = threading.Barrier(len(requests))
    found: list[dict[str, Any]] = [_empty(request, name) for request in requests]

    def one(index: int) -> None:
        together.wait()
        found[index] = sender.send(requests[index], name)

    threads = [threading.Thread(target=one, args=(index,), daemon=True) for index in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
