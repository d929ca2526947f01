"""Timed API traffic: every answer is data, times are comparable, and nothing waits longer than it was told to."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sparkpair import traffic

from tests.standin.engine import Engine

MODEL = "stand-in"


def get(path: str, **more: Any) -> dict[str, Any]:
    return {"id": path, "method": "GET", "path": path, **more}


def chat(name: str = "chat", *, stream: bool = False, **body: Any) -> dict[str, Any]:
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    content = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 30, **more, **body}
    return {"id": name, "method": "POST", "path": "/v1/chat/completions", "body": content, "stream": stream}


def send(url: str, *requests: dict[str, Any], mode: str = "sequential", **more: Any) -> list[dict[str, Any]]:
    return traffic.run_groups(base_url=url, groups=[{"name": "g", "mode": mode, "requests": list(requests)}], **more)


@pytest.fixture
def raw() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Serve connections with a function that writes bytes as it likes; gives the URL."""
    servers = []

    def serve(answer: Callable[[socket.socket], None]) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def loop() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connection.recv(65_536)
                    try:
                        answer(connection)
                    except OSError:
                        continue

        threading.Thread(target=loop, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield serve
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


# --- server-sent events -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_events_survive_any_chunk_boundary(size: int, end: str) -> None:
    text = 'data: {"x": "zażółć €"}||: a comment||data: one|data: two||event: x|data:three||data: [DONE]||'
    raw_bytes = text.replace("|", end).encode()
    chunks = (raw_bytes[i : i + size] for i in range(0, len(raw_bytes), size))
    assert list(traffic.sse_events(chunks)) == ['{"x": "zażółć €"}', "one\ntwo", "three", "[DONE]"]


def test_last_event_without_a_blank_line_counts() -> None:
    assert list(traffic.sse_events(iter([b"data: a\n\ndata: b\n"]))) == ["a", "b"]


# --- whole answers ----------------------------------------------------------------------------------------------------


def test_whole_answer_is_parsed() -> None:
    with Engine() as engine:
        answer, health = send(engine.url, chat(), get("/health"))
    assert (answer["status"], answer["error"], answer["group"]) == (200, None, "g")
    assert answer["content"].startswith("a lamp burns")
    assert answer["usage"]["completion_tokens"] == 30
    assert answer["finish_reason"] == "length"
    assert answer["started"] < answer["ended"] < health["ended"]
    assert (health["status"], health["json"], health["text"]) == (200, None, "")


def test_reasoning_and_tool_calls_are_read() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {}, "type": "object"}}}]
    with Engine(thinks=True) as engine:
        thinking, calling = send(engine.url, chat(), chat("call", tools=tools, tool_choice="required"))
    assert thinking["reasoning_content"].startswith("a lamp")
    assert calling["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_metrics_lines_are_kept_by_pattern() -> None:
    with Engine() as engine:
        kept, bounded = send(
            engine.url, get("/metrics", keep_lines="^vllm:spec_decode_num_drafts"), get("/metrics", max_body=20)
        )
    assert [line.split("{")[0] for line in kept["text"].splitlines()] == [
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_drafts_created",
    ]
    assert len(bounded["text"]) == 20


def test_error_status_keeps_the_servers_words() -> None:
    with Engine("error_500") as engine:
        whole, streamed = send(engine.url, chat(), chat("s", stream=True))
    for answer in (whole, streamed):
        assert answer["status"] == 500
        assert answer["error"] is None
        assert "EngineCore" in answer["json"]["error"]["message"]


def test_refused_connection_is_data() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (answer,) = send(f"http://127.0.0.1:{port}", get("/health"))
    assert answer["status"] is None
    assert "ConnectionRefusedError" in answer["error"]
    assert answer["started"] <= answer["ended"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [5]}',
        b'{"choices": {"a": 1}}',
        b'{"choices": [{"message": 7}]}',
        b"[1, 2]",
        b"5",
        b"null",
        b"\xff",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_no_shape_of_an_answer_raises(raw: Any, body: bytes, stream: bool) -> None:
    sent = b"data: " + body + b"\n\n" if stream else body
    url = raw(lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(sent), sent)))
    (answer,) = send(url, chat(stream=stream))
    assert answer["status"] == 200
    assert answer["ended"]


def test_garbage_instead_of_http_is_data(raw: Any) -> None:
    (answer,) = send(raw(lambda c: c.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")), get("/health"))
    assert "BadStatusLine" in answer["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_truncated_answer_is_an_error_and_keeps_what_came(stream: bool) -> None:
    with Engine("truncated") as engine:
        (answer,) = send(engine.url, chat(stream=stream))
    assert answer["status"] == 200
    assert ("without [DONE]" if stream else "early") in answer["error"]
    assert not stream or answer["content"] == "a la"


def test_body_without_a_bound_is_not_read_for_ever(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_READ", 1000)
    url = raw(lambda c: c.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000))
    whole, streamed = send(url, chat(), chat("s", stream=True))
    assert "longer than 1000 bytes" in whole["error"]
    assert "longer than 1000 bytes" in streamed["error"]


# --- streams ----------------------------------------------------------------------------------------------------------


def test_stream_has_times_text_and_usage() -> None:
    with Engine(step_seconds=0.002) as engine:
        (answer,) = send(engine.url, chat(stream=True))
    assert answer["error"] is None
    assert answer["content"].startswith("a lamp burns over")
    assert answer["usage"]["completion_tokens"] == 30
    assert answer["finish_reason"] == "length"
    assert answer["first_token"] == answer["events"][0]
    assert answer["events"] == sorted(answer["events"])
    assert answer["started"] < answer["first_token"] < answer["ended"]
    assert answer["events"][-1] - answer["events"][0] > 0.01


def test_streamed_tool_call_is_joined() -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"city": {"enum": ["Łódź"]}}}}
    with Engine() as engine:
        (answer,) = send(
            engine.url,
            chat(stream=True, tools=[{"type": "function", "function": tool}], tool_choice="required"),
        )
    assert answer["tool_calls"] == [
        {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Łódź"}'}}
    ]


def test_error_event_ends_a_stream() -> None:
    with Engine("stream_error") as engine:
        (answer,) = send(engine.url, chat(stream=True))
    assert "EngineCore encountered an issue" in answer["error"]
    assert answer["content"] == "a la"


def test_events_are_bounded_and_keep_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_EVENTS", 4)
    with Engine(step_seconds=0.002) as engine:
        (answer,) = send(engine.url, chat(stream=True))
    assert len(answer["events"]) == 4
    assert answer["events"][-1] - answer["events"][2] > 0.004


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["hang", "trickle"])
def test_timeout_ends_a_request_that_hangs_or_trickles(fault: str) -> None:
    with Engine(fault) as engine:
        begun = time.monotonic()
        (answer,) = send(engine.url, chat() | {"timeout": 0.3})
        took = time.monotonic() - begun
    assert answer["error"] == "no complete answer within 0.3 s"
    assert 0.25 < took < 2


def test_trickling_stream_without_length_ends_in_time(raw: Any) -> None:
    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for _ in range(500):
            connection.sendall(b": still here\n\n")
            time.sleep(0.01)

    begun = time.monotonic()
    (answer,) = send(raw(trickle), chat(stream=True) | {"timeout": 0.3})
    assert time.monotonic() - begun < 2
    assert "no complete answer" in answer["error"]


def test_deadline_covers_everything() -> None:
    with Engine("hang") as engine:
        begun = time.monotonic()
        first, second = send(engine.url, chat(), chat("second"), deadline=0.3)
        took = time.monotonic() - begun
    assert "no complete answer" in first["error"]
    assert second["error"] == "the deadline passed before it was sent"
    assert took < 2


def test_pause_comes_before_a_request_and_ends_with_the_deadline() -> None:
    with Engine() as engine:
        first, second, third = send(
            engine.url, get("/health"), get("/health", pause=0.1), get("/health", pause=9), deadline=0.4
        )
    assert second["started"] - first["ended"] >= 0.1
    assert third["error"] == "the deadline passed before it was sent"


def test_concurrent_requests_start_together_and_keep_their_order() -> None:
    with Engine(step_seconds=0.05) as engine:
        answers = send(engine.url, *(chat(str(i), stream=True) for i in range(4)), mode="concurrent")
    starts = [a["started"] for a in answers]
    assert [a["id"] for a in answers] == ["0", "1", "2", "3"]
    assert max(starts) < min(a["ended"] for a in answers)


def test_empty_groups_send_nothing() -> None:
    assert send("http://127.0.0.1:1", mode="concurrent") == []


# --- the key, proxies, arguments --------------------------------------------------------------------------------------


def test_key_is_sent_unless_told_otherwise(tmp_path: Path) -> None:
    key = tmp_path / "api_key"
    key.write_text("s3cret-key\n")
    with Engine(api_key="s3cret-key") as engine:
        given, withheld = send(engine.url, get("/v1/models"), get("/v1/models", auth=False), api_key_file=str(key))
        (missing,) = send(engine.url, get("/v1/models"), api_key_file=str(tmp_path / "none"))
    assert (given["status"], withheld["status"], missing["status"]) == (200, 401, 401)


def test_key_never_comes_back(tmp_path: Path) -> None:
    key = tmp_path / "api_key"
    key.write_text("s3cret-key")
    with Engine("error_500", "reflects_key") as engine:
        answers = send(engine.url, chat(), get("/nowhere"), api_key_file=str(key))
    assert "s3cret-key" not in json.dumps(answers)
    assert "Bearer ***" in json.dumps(answers)


@pytest.mark.parametrize("content", [b"two\nlines", b"null\x00byte", "klucz-ż".encode(), b"\xff\xfe"])
def test_unsendable_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    key = tmp_path / "api_key"
    key.write_bytes(content)
    with pytest.raises(ValueError, match="API key file") as caught:
        send("http://127.0.0.1:1", get("/health"), api_key_file=str(key))
    assert not re.search("two|null|klucz", str(caught.value))


def test_proxies_are_bypassed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Engine() as engine:
        (answer,) = send(engine.url, get("/health"))
    assert answer["status"] == 200


@pytest.mark.parametrize("url", ["https://127.0.0.1", "127.0.0.1:8888", "http://"])
def test_base_url_must_be_http(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        send(url, get("/health"))


def test_request_without_a_path_is_refused_before_anything_is_sent() -> None:
    with Engine() as engine:
        with pytest.raises(ValueError, match="no id or no path"):
            send(engine.url, chat(), {"id": "x"})
        assert engine.seen == []
