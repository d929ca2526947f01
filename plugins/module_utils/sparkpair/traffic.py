"""Sends groups of API requests to an engine and returns timed answers. Standard library only: runs on a rank.

An answer is data, also when the request failed: nothing here raises for a server that misbehaves.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MAX_BODY = 262_144
MAX_EVENTS = 4096
CHUNK = 65_536


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

    def send(self, request: Mapping[str, Any], group: str) -> dict[str, Any]:
        """Send one request; what goes wrong stands in ``error``."""
        answer = _empty(request, group)
        patience = min(float(request.get("timeout") or 60), self._ends - time.monotonic())
        if patience <= 0:
            answer["error"] = "the deadline passed before it was sent"
            return answer
        body = request.get("body")
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._api_key and request.get("auth", True):
            headers["Authorization"] = f"Bearer {self._api_key}"
        connection = http.client.HTTPConnection(self._host, self._port, timeout=patience)
        answer["started"] = self._clock.now()
        limit = time.monotonic() + patience
        # A socket's timeout counts from byte to byte; a server that trickles would hold the request for ever.
        watchdog = threading.Timer(patience, lambda: connection.sock and connection.sock.close())
        watchdog.daemon = True
        watchdog.start()
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(str(request.get("method", "GET")), self._prefix + request["path"], payload, headers)
            response = connection.getresponse()
            answer["status"] = response.status
            if request.get("stream") and response.status < http.client.BAD_REQUEST:
                self._stream(response, answer)
            else:
                self._whole(response, request, answer)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            late = time.monotonic() >= limit
            answer["error"] = (
                f"no complete answer within {patience:.0f} s" if late else f"{type(error).__name__}: {error}"
            )
        finally:
            watchdog.cancel()
            connection.close()
            answer["ended"] = self._clock.now()
        return answer

    def _whole(self, response: http.client.HTTPResponse, request: Mapping[str, Any], answer: dict[str, Any]) -> None:
        text = response.read().decode(errors="replace")
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
        finished = False
        parts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        for data in sse_events(iter(lambda: response.read1(CHUNK), b"")):
            if data == "[DONE]":
                finished = True
                break
            event = json.loads(data)
            if "error" in event:
                raise ValueError(f"the stream carries an error: {json.dumps(event['error'])[:200]}")
            answer["usage"] = event.get("usage") or answer["usage"]
            for choice in (event.get("choices") or [])[:1]:
                delta = choice.get("delta") or {"content": choice.get("text")}
                thought = delta.get("reasoning_content") or delta.get("reasoning")
                if delta.get("content") or thought or delta.get("tool_calls"):
                    now = self._clock.now()
                    answer["first_token"] = answer["first_token"] or now
                    if len(answer["events"]) < MAX_EVENTS:
                        answer["events"].append(now)
                parts["content"].append(delta.get("content") or "")
                parts["reasoning_content"].append(thought or "")
                answer["finish_reason"] = choice.get("finish_reason") or answer["finish_reason"]
        answer["content"] = "".join(parts["content"])
        answer["reasoning_content"] = "".join(parts["reasoning_content"]) or None
        if not finished:
            raise ValueError("the stream ended without [DONE]")


def _read_key(path: str | None) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def run_groups(
    *, base_url: str, groups: Sequence[Mapping[str, Any]], api_key_file: str | None = None, deadline: float = 300.0
) -> list[dict[str, Any]]:
    """Send every request, group by group, and return the answers in the order of the requests.

    Args:
        base_url: such as http://127.0.0.1:8888; proxies are never used.
        groups: each with ``name``, ``mode`` (sequential or concurrent) and ``requests``; a request has ``id``, ``path``
            and optionally ``method``, ``body`` (JSON), ``stream``, ``timeout`` (seconds), ``auth`` (send the key),
            ``keep_lines`` (a pattern; other lines of a text body are dropped) and ``max_body`` (characters kept).
        api_key_file: file with the bearer token; missing or empty means none. The token is never returned.
        deadline: seconds for everything; what is left after it fails with that reason.

    Returns:
        One dict per request: ``id``, ``group``, ``status``, ``error``, ``json`` or ``text``, ``started``,
        ``first_token``, ``ended`` and ``events`` (arrival of each piece of a stream) in epoch seconds, ``content``,
        ``reasoning_content``, ``finish_reason``, ``usage``, ``tool_calls``.

    Raises:
        ValueError: ``base_url`` is not an http URL.
    """
    clock = _Clock()
    sender = _Sender(base_url, _read_key(api_key_file), time.monotonic() + deadline, clock)
    answers: list[dict[str, Any]] = []
    for group in groups:
        requests, name = group["requests"], str(group["name"])
        if group.get("mode", "sequential") == "concurrent":
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
