"""STAND-IN for the engine's HTTP API: the shapes of vLLM's answers and counters, without a model.

It exists so that a gate can be shown to fire: each fault is one way in which a real pair was seen, or can be expected,
to misbehave. Run it alone with ``python -m tests.standin.engine --port 8000 --fault garbage``; in a test, use
``with Engine("garbage") as engine: ... engine.url``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

FAULTS = {
    "no_tokens": "health is 200, but completions carry no token",
    "blank": "completions count tokens and carry only blanks",
    "garbage": "every text is !!!!",
    "wrong_name": "the model is served under another name",
    "extra_name": "a second model is listed",
    "wrong_width": "every step drafts the whole proposal",
    "short_width": "every step drafts one token less",
    "accepts_beyond": "an accept is counted beyond the verified width",
    "never_accepted": "no drafted token is ever accepted",
    "always_accepted": "every drafted token is accepted",
    "error_500": "generation answers 500",
    "unhealthy": "health answers 503",
    "ends_early": "a text ends after half of the tokens that were asked for",
    "hang": "generation never answers",
    "trickle": "an answer arrives one byte at a time, and never whole",
    "truncated": "an answer ends before its announced length; a stream ends without [DONE]",
    "stream_error": "a stream carries an error event after its first piece",
    "late_stream": "a stream delivers everything in its last piece",
    "broken_grammar": "guided counting stops at 39",
    "free_grammar": "the response format is ignored",
    "wrong_tool": "the tool is called with another city",
    "no_tool": "a required tool is not called",
    "named_tool": "a named tool is not called, a required one is",
    "no_metrics": "the speculation counters are missing",
    "no_positions": "the counters per position are missing",
    "frozen_metrics": "the counters never move",
    "counters_reset": "counters start again between two readings",
    "small_pool": "the KV pool has half of its blocks",
    "no_pool": "the size of the KV pool is not told",
    "open_api": "a request without the key is answered",
    "closed_api": "a request with the key is refused",
    "closed_health": "health asks for the key",
    "serial": "one request is served at a time",
    "deaf_template": "thinking cannot be switched off",
    "never_thinks": "thinking cannot be switched on",
    "short_context": "prompts of more than 256 tokens are refused",
    "cut_context": "prompts are cut to 256 tokens",
    "crowded": "more than two requests at once are refused",
    "reflects_key": "errors quote the authorization header",
}
PHRASE = ("a", "lamp", "burns", "over", "the", "quiet", "sea", "and", "ships", "find", "their", "way", "home")
PROMPT_FLOOR = 12
BLOCK, BLOCKS = 16, 4096
SERIAL_GAP = 0.2
SIMPLE = {"integer": 1, "number": 1.5, "boolean": True}


@dataclass
class Behaviour:
    """What the stand-in imitates. ``step_seconds`` is the duration of one decoding step."""

    faults: frozenset[str] = frozenset()
    model: str = "stand-in"
    proposal: int = 7
    verify: int = 3
    speculates: bool = True
    thinks: bool = False
    tokenizer: str = "words"
    api_key: str = ""
    max_model_len: int = 1024
    counter_base: float = 0.0
    engines: int = 1
    step_seconds: float = 0.0


@dataclass
class Counters:
    """Speculation counters since the start."""

    drafts: float = 0
    draft_tokens: float = 0
    accepted: float = 0
    positions: list[float] = field(default_factory=list)


def instance(schema: dict[str, Any]) -> Any:
    """The value that a JSON schema forces; only the parts that this project's schemas use."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        items = schema["items"]
        return [instance(s) for s in schema.get("prefixItems") or [items] * schema["minItems"]]
    if schema.get("type") == "object":
        return {name: instance(s) for name, s in schema.get("properties", {}).items()}
    return SIMPLE.get(str(schema.get("type")), "free")


class Engine:
    """The stand-in as a server on the loopback address, and a context manager. ``seen`` lists received bodies."""

    def __init__(self, *faults: str, port: int = 0, **behaviour: Any) -> None:
        unknown = set(faults) - set(FAULTS)
        if unknown:
            raise ValueError(f"no fault is named {sorted(unknown)}; there are {sorted(FAULTS)}")
        self.behaviour = Behaviour(frozenset(faults), **behaviour)
        base = self.behaviour.counter_base
        self.counters = Counters(base, base, base, [base] * self.behaviour.proposal)
        self.seen: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.turn = threading.Lock()
        self.running = 0
        self.stopped = threading.Event()
        handler = type("Handler", (_Handler,), {"engine": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def has(self, fault: str) -> bool:
        """Whether it was told to misbehave in this way."""
        return fault in self.behaviour.faults

    def __enter__(self) -> Engine:
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()

    def tokens(self, prompt: Any) -> list[int]:
        """Token ids of a prompt: one per word, or one per byte."""
        if isinstance(prompt, list):
            return [int(t) for t in prompt]
        if self.behaviour.tokenizer == "bytes":
            return list(str(prompt).encode())
        return [sum(word.encode()) % 50_000 for word in str(prompt).split()]

    def steps(self, tokens: int, guided: bool) -> Iterator[int]:
        """Decode ``tokens`` tokens, one speculative step after the other, and count; yields the tokens of each step."""
        b = self.behaviour
        width = b.proposal if guided or self.has("wrong_width") else b.verify
        width -= self.has("short_width")
        yield min(1, tokens)
        left = tokens - 1
        for number in itertools.count():
            if left <= 0:
                return
            accepted = 0
            if b.speculates:
                accepted = width if self.has("always_accepted") else number % (width + 1)
                accepted = 0 if self.has("never_accepted") else accepted
                self._count(width, accepted)
            done = min(accepted + 1, left)
            left -= done
            time.sleep(b.step_seconds)
            yield done

    def _count(self, width: int, accepted: int) -> None:
        if self.has("frozen_metrics"):
            return
        with self.lock:
            c = self.counters
            c.drafts += 1
            c.draft_tokens += width
            c.accepted += accepted
            for position in range(accepted):
                c.positions[position] += 1
            if self.has("accepts_beyond") and accepted:
                c.positions[width] += 1

    def metrics(self) -> str:
        """The text of /metrics; each engine of several holds an equal share."""
        b, c = self.behaviour, self.counters
        lines = ["# HELP vllm:num_requests_running Number of requests.", "# TYPE vllm:num_requests_running gauge"]
        lines.append(f'vllm:num_requests_running{{engine="0",model_name="{b.model}"}} 0.0')
        if not self.has("no_pool"):
            labels = f'block_size="{BLOCK}",engine="0",num_gpu_blocks="{BLOCKS // (1 + self.has("small_pool"))}"'
            lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{labels}}} 1.0"]
        if self.has("no_metrics") or not b.speculates:
            return "\n".join(lines) + "\n"
        with self.lock:
            names = {"drafts": c.drafts, "draft_tokens": c.draft_tokens, "accepted_tokens": c.accepted}
            for name, value in names.items():
                lines += self._series(f"vllm:spec_decode_num_{name}", value)
            if not self.has("no_positions"):
                lines += self._positions(c.positions)
            if self.has("counters_reset"):
                self.counters = Counters(0, 0, 0, [0] * b.proposal)
        return "\n".join(lines) + "\n"

    def _series(self, name: str, value: float) -> list[str]:
        lines = [f"# HELP {name}_total Counter.", f"# TYPE {name}_total counter"]
        for engine in range(self.behaviour.engines):
            labels = f'engine="{engine}",model_name="{self.behaviour.model}"'
            lines.append(f"{name}_total{{{labels}}} {float(value) / self.behaviour.engines!r}")
        lines.append(f"# TYPE {name}_created gauge")
        return [*lines, f'{name}_created{{engine="0",model_name="{self.behaviour.model}"}} 1.7646528e+09']

    def _positions(self, positions: list[float]) -> list[str]:
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        lines = [f"# TYPE {name}_total counter"]
        for engine, (position, value) in itertools.product(range(self.behaviour.engines), enumerate(positions)):
            labels = f'engine="{engine}",model_name="{self.behaviour.model}",position="{position}"'
            lines.append(f"{name}_total{{{labels}}} {value / self.behaviour.engines!r}")
        return lines


class _Handler(BaseHTTPRequestHandler):
    engine: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "POST" and self.engine.has("truncated"):
            body, self.close_connection = body[: len(body) // 2], True
        if self.command == "POST" and self.engine.has("trickle"):
            for byte in body[:-1]:
                self.wfile.write(bytes([byte]))
                if self.engine.stopped.wait(0.01):
                    return
            self.engine.stopped.wait(30)
        self.wfile.write(body)

    def _error(self, status: int, message: str) -> None:
        if self.engine.has("reflects_key"):
            message += f" ({self.headers.get('Authorization')})"
        kind = {401: "AuthenticationError", 400: "BadRequestError"}.get(status, "InternalServerError")
        self._json(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})

    def _refused(self) -> bool:
        e = self.engine
        guarded = self.path.startswith("/v1") or e.has("closed_health")
        if not e.behaviour.api_key or not guarded or (e.has("open_api") and self.path.startswith("/v1")):
            return False
        if self.headers.get("Authorization") == f"Bearer {e.behaviour.api_key}" and not e.has("closed_api"):
            return False
        self._error(401, "Unauthorized")
        return True

    def do_GET(self) -> None:
        """Serve /health, /v1/models and /metrics."""
        e = self.engine
        if self._refused():
            return
        if self.path == "/health":
            self._send(503 if e.has("unhealthy") else 200, b"", "text/plain")
        elif self.path == "/metrics":
            self._send(200, e.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif self.path == "/v1/models":
            names = ["another"] if e.has("wrong_name") else [e.behaviour.model]
            names += ["second"] if e.has("extra_name") else []
            data = [{"id": n, "object": "model", "max_model_len": e.behaviour.max_model_len} for n in names]
            self._json(200, {"object": "list", "data": data})
        else:
            self._error(404, "Not Found")

    def do_POST(self) -> None:
        """Serve /tokenize, /v1/completions and /v1/chat/completions."""
        e = self.engine
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        with e.lock:
            e.seen.append(body)
        if self.path == "/tokenize":
            ids = e.tokens(body["prompt"])
            self._json(200, {"count": len(ids), "max_model_len": e.behaviour.max_model_len, "tokens": ids})
        elif body.get("model") != e.behaviour.model:
            self._error(404, f"The model `{body.get('model')}` does not exist.")
        else:
            self._generate(body)

    def _generate(self, body: dict[str, Any]) -> None:
        e = self.engine
        if e.has("hang"):
            e.stopped.wait(30)
        if e.has("error_500"):
            self._error(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.")
            return
        with e.lock:
            e.running += 1
            running = e.running
        try:
            if e.has("crowded") and running > 2:
                self._error(503, "too many requests")
            elif e.has("serial"):
                with e.turn:
                    self._answer(body)
                    # A client on a busy machine reads late, and two answers in a row would look like two at once.
                    time.sleep(SERIAL_GAP)
            else:
                self._answer(body)
        finally:
            with e.lock:
                e.running -= 1

    def _answer(self, body: dict[str, Any]) -> None:
        e = self.engine
        chat = "messages" in body
        prompt = " ".join(m["content"] for m in body["messages"]) if chat else body["prompt"]
        prompt_tokens = len(e.tokens(prompt)) + (PROMPT_FLOOR if chat else 0)
        room = 256 if e.has("short_context") else e.behaviour.max_model_len
        if prompt_tokens + 1 > room:
            self._error(400, f"This model's maximum context length is {room} tokens.")
            return
        if e.has("cut_context"):
            prompt_tokens = min(prompt_tokens, 256)
        made = _Made(e, body, room - prompt_tokens)
        if body.get("stream"):
            self._stream(body, made, chat, prompt_tokens)
            return
        for _ in e.steps(made.tokens, made.guided):
            pass
        choice: dict[str, Any] = {"index": 0, "finish_reason": made.finish_reason, "logprobs": None}
        if chat:
            choice["message"] = {
                "role": "assistant",
                "content": made.text or None,
                "reasoning": made.thought or None,
                "tool_calls": made.tool_calls,
            }
        else:
            choice["text"] = made.text
        kind = "chat.completion" if chat else "text_completion"
        usage = made.usage(prompt_tokens)
        self._json(200, {"id": "x", "object": kind, "model": body["model"], "choices": [choice], "usage": usage})

    def _event(self, value: Any) -> None:
        data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        raw = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(raw), raw))
        self.wfile.flush()

    def _stream(self, body: dict[str, Any], made: _Made, chat: bool, prompt_tokens: int) -> None:
        e = self.engine
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if chat:
            self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        sizes = list(e.steps(made.tokens, made.guided)) if e.has("late_stream") else e.steps(made.tokens, made.guided)
        done = 0
        if made.tool_calls:
            self._tool_events(made.tool_calls)
        for size in [sum(sizes)] if isinstance(sizes, list) else sizes:
            piece = made.piece(done, done + size)
            done += size
            field_name = "reasoning" if made.thought and done <= made.tokens // 2 else "content"
            delta = {"delta": {field_name: piece}} if chat else {"text": piece}
            if not made.tool_calls:
                self._event({"choices": [{"index": 0, **delta, "finish_reason": None}]})
            if e.has("truncated"):
                self.close_connection = True
                self.wfile.write(b"0\r\n\r\n")
                return
            if e.has("stream_error"):
                self._event({"error": {"message": "EngineCore encountered an issue.", "code": 500}})
                break
        last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        self._event({"choices": [{"index": 0, **last, "finish_reason": made.finish_reason}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event({"choices": [], "usage": made.usage(prompt_tokens)})
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _tool_events(self, calls: list[dict[str, Any]]) -> None:
        for index, call in enumerate(calls):
            arguments = call["function"]["arguments"]
            head = {
                "index": index,
                "id": call["id"],
                "type": "function",
                "function": {"name": call["function"]["name"]},
            }
            tail = [{"index": index, "function": {"arguments": a}} for a in (arguments[:5], arguments[5:])]
            for piece in (head, *tail):
                self._event({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]})


class _Made:
    """One answer: text, thought, tool calls, and how many tokens they took."""

    def __init__(self, engine: Engine, body: dict[str, Any], room: int) -> None:
        self.text, self.thought, self.finish_reason = "", "", "length"
        self.tool_calls: list[dict[str, Any]] | None = None
        self.guided = False
        limit = min(room, int(body.get("max_tokens") or 24))
        response_format = body.get("response_format") or {}
        if body.get("tool_choice") not in (None, "none", "auto"):
            self._call(engine, body)
        elif response_format.get("type") == "json_schema" and not engine.has("free_grammar"):
            value = instance(response_format["json_schema"]["schema"])
            if engine.has("broken_grammar"):
                value = value[:-1]
            self.text, self.guided = json.dumps(value, separators=(",", ":")), True
        if self.guided or self.tool_calls:
            whole = max(1, len(self.text) // 2 or 10)
            self.tokens = min(limit, whole)
            if not self.tool_calls:
                self.finish_reason = "stop" if whole <= limit else "length"
            return
        self.tokens = 0 if engine.has("no_tokens") else limit
        if engine.has("ends_early") and not body.get("ignore_eos"):
            self.tokens, self.finish_reason = limit // 2, "stop"
        self.text = self._ordinary(engine)
        wanted = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        on = (wanted or engine.has("deaf_template")) and not engine.has("never_thinks")
        if "messages" in body and engine.behaviour.thinks and on:
            self.thought, self.text = self.text, self.text[-8:]

    def _ordinary(self, engine: Engine) -> str:
        if engine.has("garbage"):
            return "!" * self.tokens
        if engine.has("blank"):
            return " " * self.tokens
        return " ".join(itertools.islice(itertools.cycle(PHRASE), self.tokens))

    def _call(self, engine: Engine, body: dict[str, Any]) -> None:
        named = isinstance(body["tool_choice"], dict)
        if engine.has("no_tool") or (engine.has("named_tool") and named):
            return
        function = body["tools"][0]["function"]
        arguments = instance(function["parameters"])
        if engine.has("wrong_tool"):
            arguments["city"] = "Kraków"
        call = {"name": function["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
        self.tool_calls = [{"id": "call-1", "type": "function", "function": call}]
        self.guided, self.finish_reason = True, "stop" if named else "tool_calls"

    def piece(self, start: int, end: int) -> str:
        """The part of the text that these tokens carry; every part of a longer text has its share of the characters."""
        text = self.thought or self.text
        return text[len(text) * start // self.tokens : len(text) * end // self.tokens] if self.tokens else ""

    def usage(self, prompt_tokens: int) -> dict[str, int]:
        """Token counts as vLLM gives them."""
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": prompt_tokens + self.tokens,
        }


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="STAND-IN for the engine's HTTP API")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="stand-in")
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS))
    given = parser.parse_args()
    with Engine(*given.fault, port=given.port, model=given.model) as engine:
        print(f"stand-in engine on {engine.url}: {', '.join(given.fault) or 'no fault'}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
