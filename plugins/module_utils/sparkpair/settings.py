"""The one schema of operator settings.

Every setting stands here once: Ansible variable, environment key, kind of value, default and one line of help. The
parser, the settings table, the example ``.env`` and the tests all read this schema. Names are the recipe's, in lower
case. Nothing here imports Ansible.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, ValidationInfo, field_validator

MAX_DIGITS = 18
SHOWN_CHARACTERS = 120
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_KEY|ACCESS_KEY|PRIVATE_KEY)$")
READY_TIMEOUT_MAX = 86400


@dataclass(frozen=True)
class Problem:
    """One refused input; ``given`` is the repr of the value, and never that of a secret."""

    setting: str
    given: str
    origin: str
    allowed: str
    reason: str

    def __str__(self) -> str:
        """One readable line."""
        return f"{self.setting} = {self.given} (from {self.origin}): {self.reason}; allowed: {self.allowed}"


class Refused(Exception):  # noqa: N818 - an outcome of the product, named as its reports name it
    """The inputs cannot become a plan; ``problems`` holds every reason found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(set(problems), key=lambda p: (p.setting, p.origin, p.reason))
        super().__init__("\n".join(str(p) for p in self.problems))


def shown(value: object) -> str:
    """Give the repr of a value, shortened so that one bad input cannot bury the other messages."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def clean_text(text: str) -> str:
    """Return the text unchanged.

    Raises ValueError on control characters (they would break a rendered line), on the single quote and on a backslash
    at the end (rendered environment lines are ``KEY='value'``, and Compose would read on behind such a backslash).
    """
    if found := CONTROL.search(text):
        names = {"\r": "a carriage return (CRLF file?)", "\n": "a newline", "\0": "a NUL character"}
        raise ValueError(f"contains {names.get(found.group(), f'the control character {found.group()!r}')}")
    if "'" in text:
        raise ValueError("contains a single quote")
    if text.endswith("\\"):
        raise ValueError("ends with a backslash")
    return text


class Kind(Protocol):
    """How a raw value becomes a typed one. ``allowed`` tells an operator what is accepted."""

    @property
    def allowed(self) -> str:
        """Say in words what is accepted."""

    @property
    def type_name(self) -> str:
        """Name the type for the settings table."""

    def parse(self, value: object) -> Any:
        """Return the typed value, or raise ValueError with the reason."""


def _as_whole(value: object) -> int:
    if isinstance(value, bool):
        raise ValueError("is a boolean, not a number")  # noqa: TRY004 - pydantic collects ValueError only
    if isinstance(value, int):
        if len(str(abs(value))) > MAX_DIGITS:
            raise ValueError(f"has more than {MAX_DIGITS} digits")
        return value
    if isinstance(value, str):
        if not re.fullmatch(r"-?[0-9]+", value):
            raise ValueError("is not a whole number")
        digits = value.lstrip("-").lstrip("0")
        if len(digits) > MAX_DIGITS:
            raise ValueError(f"has more than {MAX_DIGITS} digits")
        return int(value)
    raise ValueError("is not a whole number")


@dataclass(frozen=True)
class Whole:
    """A whole number in a range, or one of ``choices``; ``optional`` lets an empty value mean none.

    Accepts integers and plain decimal digits (leading zeros are dropped: "007" is 7). Refuses booleans, fractions
    (also "3.0"), signs other than "-", digit separators and surrounding spaces.
    """

    low: int = 0
    high: int = 0
    choices: tuple[int, ...] = ()
    optional: bool = False
    type_name = "whole number"

    @property
    def allowed(self) -> str:
        """Say in words what is accepted."""
        text = (
            _one_of([str(c) for c in self.choices])
            if self.choices
            else f"a whole number from {self.low} to {self.high}"
        )
        return f"{text}, or empty" if self.optional else text

    def parse(self, value: object) -> int | None:
        """Return the number; None for an empty value of an optional setting."""
        if self.optional and value in (None, "", "none"):
            return None
        number = _as_whole(value)
        if self.choices:
            if number not in self.choices:
                raise ValueError("is not one of the accepted values")
        elif not self.low <= number <= self.high:
            raise ValueError("is out of range")
        return number


@dataclass(frozen=True)
class Flag:
    """A switch. Accepts booleans, 0 and 1, and the words 0, 1, true, false, yes, no in any case."""

    type_name = "switch"
    allowed = "true, false, yes, no, 1 or 0"

    def parse(self, value: object) -> bool:
        """Return the boolean."""
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, int | str):
            found = words.get(str(value).lower())
            if found is not None:
                return found
        raise ValueError("is not a switch")


@dataclass(frozen=True)
class Share:
    """A decimal above 0 and at most 1, such as 0.87 or ".87"; no exponent, no infinity."""

    type_name = "decimal"
    allowed = "a decimal above 0 and at most 1"

    def parse(self, value: object) -> float:
        """Return the number as a float."""
        if isinstance(value, bool):
            raise ValueError("is a boolean, not a number")  # noqa: TRY004
        if isinstance(value, str):
            if not re.fullmatch(r"[0-9]{0,18}\.?[0-9]{1,18}", value):
                raise ValueError("is not a plain decimal")
            number = float(value)
        elif isinstance(value, int | float):
            if isinstance(value, int) and value > 1:
                raise ValueError("is out of range")
            number = float(value)
        else:
            raise ValueError("is not a plain decimal")  # noqa: TRY004
        if not math.isfinite(number) or not 0 < number <= 1:
            raise ValueError("is out of range")
        return number


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


@dataclass(frozen=True)
class Choice:
    """One of a few words, spelled exactly."""

    words: tuple[str, ...]
    type_name = "word"

    @property
    def allowed(self) -> str:
        """Say in words what is accepted."""
        return _one_of(list(self.words))

    def parse(self, value: object) -> str:
        """Return the word."""
        # YAML reads a bare `no` or `off` as a boolean; none of our words is one, so a boolean is a mistake.
        if not isinstance(value, str) or value not in self.words:
            raise ValueError("is not one of the accepted words")
        return value


@dataclass(frozen=True)
class Text:
    """Text that matches ``pattern`` as a whole. ``empty`` lets "" (or the word none) leave the thing out."""

    pattern: str
    describe: str
    empty: bool = False
    type_name = "text"

    @property
    def allowed(self) -> str:
        """Say in words what is accepted."""
        return f"{self.describe}, or empty" if self.empty else self.describe

    def parse(self, value: object) -> str:
        """Return the text."""
        if self.empty and value in (None, "", "none"):
            return ""
        if not isinstance(value, str):
            raise ValueError("is not text (quote it)")  # noqa: TRY004
        clean_text(value)
        if not re.fullmatch(self.pattern, value):
            raise ValueError("does not have the accepted form")
        return value


@dataclass(frozen=True)
class Chunk:
    """GLM53_MIXED_PREFILL_CHUNK: a word, or a number of tokens."""

    type_name = "word or whole number"
    allowed = "skip, -1, 0, off, no, fair or a whole number from 1 to 1024"

    def parse(self, value: object) -> str:
        """Return the canonical text."""
        if isinstance(value, str) and value in {"skip", "off", "no", "fair"}:
            return value
        number = _as_whole(value)
        if not -1 <= number <= 1024:  # noqa: PLR2004 - the range is spelled out in `allowed`
            raise ValueError("is out of range")
        return str(number)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"has the JSON key {key!r} twice")
        result[key] = value
    return result


def _json(value: object, wanted: type) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=_unique)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError("is not valid JSON") from error
    if isinstance(value, tuple):
        value = list(value)
    if not isinstance(value, wanted):
        raise ValueError(f"is not a {'list' if wanted is list else 'JSON object'}")  # noqa: TRY004
    return value


def _scalar_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"holds {shown(value)}, which is neither text nor a number")  # noqa: TRY004
    return value if isinstance(value, str) else repr(value)


@dataclass(frozen=True)
class Strings:
    """A list of arguments, or a JSON list in text. Numbers become text; booleans are refused."""

    type_name = "list"
    allowed = 'a list of text such as ["--seed", "1"] (a JSON list in .env), without control characters'

    def parse(self, value: object) -> tuple[str, ...]:
        """Return the items in order."""
        items = tuple(_scalar_text(item) for item in _json(value, list))
        for item in items:
            if found := CONTROL.search(item):
                raise ValueError(f"holds {shown(item)}, which contains the control character {found.group()!r}")
            if not item:
                raise ValueError("holds an empty argument")
        return items


@dataclass(frozen=True)
class Variables:
    """Environment variables, name to value; from ``.env`` or the environment as a JSON object."""

    type_name = "mapping"
    allowed = (
        'names to text such as {"NAME": "value"} (a JSON object in .env); no secret, single quote or control character'
    )

    def parse(self, value: object) -> dict[str, str]:
        """Return the variables sorted by name."""
        result = {}
        for name, item in _json(value, dict).items():
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"holds {shown(name)}, which is not a variable name")
            # The plan and the rendered environment are readable by anyone on the rank.
            if SECRET_NAME.search(name.upper()):
                raise ValueError(f"holds {name}, which looks like a secret, and the plan keeps no secrets")
            try:
                result[name] = clean_text(_scalar_text(item))
            except ValueError as error:
                raise ValueError(f"holds {name}, whose value {error}") from None
        return dict(sorted(result.items()))


@dataclass(frozen=True)
class Limits:
    """Items per prompt by kind, such as {"image": 4}; an empty object leaves the flag out."""

    type_name = "mapping"
    allowed = 'kinds to whole numbers from 0 to 4096 such as {"image": 4, "video": 1} (a JSON object in .env)'

    def parse(self, value: object) -> dict[str, int]:
        """Return the limits sorted by kind."""
        result = {}
        for name, item in _json(value, dict).items():
            if not isinstance(name, str) or not re.fullmatch(r"[a-z_]+", name):
                raise ValueError(f"holds {shown(name)}, which is not a kind of item")
            number = _as_whole(item)
            if not 0 <= number <= 4096:  # noqa: PLR2004 - the range is spelled out in `allowed`
                raise ValueError(f"holds {name}: {number}, which is out of range")
            result[name] = number
        return dict(sorted(result.items()))


@dataclass(frozen=True)
class Secret:
    """A key that never appears in a plan, a message or a log."""

    type_name = "secret"
    allowed = "8 to 512 printable ASCII characters without spaces and quotes, or empty"

    def parse(self, value: object) -> SecretStr:
        """Return the wrapped secret."""
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
        if value is None or value == "":
            return SecretStr("")
        if not isinstance(value, str) or not re.fullmatch(r"""[!#-&(-~]{8,512}""", value):
            raise ValueError("does not have the accepted form")
        return SecretStr(value)


@dataclass(frozen=True)
class About:
    """What the schema knows about one setting beside its Python type.

    ``width`` marks speculation settings, which a rollback to stock must survive even when they are malformed.
    ``ignored_by_stock`` marks the width settings proper, which a stock plan never reads. ``in_release`` is False for
    values that only the controller uses; they do not change the release id.
    """

    key: str
    group: str
    kind: Kind
    help: str
    secret: bool = False
    width: bool = False
    ignored_by_stock: bool = False
    in_release: bool = True


PATH = r"/[A-Za-z0-9_./+-]+"
PATH_WORDS = "an absolute path of letters, digits and _ . / + -"
REPO = Text(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*", "a repository id such as owner/name")
REVISION = Text(r"[0-9a-f]{40}", "a commit of 40 lower-case hexadecimal digits")
VERSION = Text(r"[0-9]+(\.[0-9]+){1,3}", "a version such as 2.60.0", empty=True)
ACCOUNT = Text(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*", "a user name of letters, digits and _ . @ + -", empty=True)
CACHE_NAME = Text(r"[A-Za-z0-9][A-Za-z0-9_.-]*", "a folder name such as models--owner--name", empty=True)
NAME = Text(r"[A-Za-z0-9][A-Za-z0-9_.-]*", "a name of letters, digits and _ . -", empty=True)
IMAGE_FORM = Text(
    r"[a-z0-9][A-Za-z0-9_./:-]*(@sha256:[0-9a-f]{64})?", "an image reference, best pinned with @sha256: and 64 digits"
)
SIZE = Text(r"[1-9][0-9]{0,5}[kmg]", "a size such as 32g, 512m or 64k")
SPECULATION, MODEL, SERVING, ENGINE, CONTAINER, ROLLOUT = (
    "Width and speculation",
    "Model and image",
    "Serving",
    "Engine and cluster",
    "Container",
    "Rollout",
)


class Settings(BaseModel):
    """All operator settings, typed. Build it with ``resolve``; field metadata is an ``About`` (see ``ABOUT``)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, protected_namespaces=()
    )

    verify_tokens: Annotated[
        int,
        About(
            "DFLASH_VERIFY_TOKENS",
            SPECULATION,
            Whole(choices=(0, 1, 3, 7)),
            "Draft tokens per step that the target checks; 0 is stock (full width), the only recommended value.",
            width=True,
            ignored_by_stock=True,
        ),
    ] = 0
    dflash_tokens: Annotated[
        int,
        About(
            "DFLASH_TOKENS",
            SPECULATION,
            Whole(1, 7),
            "Draft tokens per step that DFlash2 proposes (its trained block holds 7).",
            width=True,
            ignored_by_stock=True,
        ),
    ] = 7
    structured_width: Annotated[
        str,
        About(
            "STRUCTURED_WIDTH",
            SPECULATION,
            Choice(("stock", "uniform")),
            "With a verify width: batches with a structured request keep full width (stock) or narrow too (uniform).",
            width=True,
            ignored_by_stock=True,
        ),
    ] = "stock"
    spec_method: Annotated[
        str,
        About(
            "SPEC_METHOD",
            SPECULATION,
            Choice(("dflash", "mtp", "none")),
            "Speculative decoding method.",
            width=True,
        ),
    ] = "dflash"
    mtp_tokens: Annotated[
        int,
        About(
            "MTP_TOKENS",
            SPECULATION,
            Whole(0, 7),
            "Draft tokens per step with spec_method mtp; 0 turns speculation off.",
            width=True,
        ),
    ] = 2
    dflash_draft_tp: Annotated[
        int | None,
        About(
            "DFLASH_DRAFT_TP",
            SPECULATION,
            Whole(1, 64, optional=True),
            "Tensor-parallel size of the draft: 1 (on the head), the number of ranks, or empty to inherit.",
            width=True,
        ),
    ] = 1

    image: Annotated[
        str,
        About(
            "IMAGE",
            MODEL,
            IMAGE_FORM,
            "Engine image, pinned by digest.",
        ),
    ] = (
        "ghcr.io/miaai-lab/glm-5.3-flash-2x-dgx-sparks"
        "@sha256:9bb1557a4234fce63d59599e44d10747eabd742beb337eebf9e7070be8a0fd58"
    )
    image_transfer: Annotated[
        str,
        About(
            "IMAGE_TRANSFER",
            MODEL,
            Choice(("stream", "pull", "none")),
            "How other ranks get it: over the fabric from the head, or by a pull of their own; none fetches nothing.",
            in_release=False,
        ),
    ] = "stream"
    registry_user: Annotated[
        str,
        About("REGISTRY_USER", MODEL, ACCOUNT, "Account for the image's registry; empty: no login.", in_release=False),
    ] = ""
    registry_password_file: Annotated[
        str,
        About(
            "REGISTRY_PASSWORD_FILE",
            MODEL,
            Text(PATH, PATH_WORDS, empty=True),
            "File on the controller, mode 0600, whose first line is that account's password or token.",
            in_release=False,
        ),
    ] = ""
    ray_version: Annotated[
        str,
        About(
            "RAY_VERSION",
            MODEL,
            VERSION,
            "Ray that the image must hold with executor ray; added to one that lacks it. Empty: what the image has.",
        ),
    ] = "2.60.0"
    ray_wheels: Annotated[
        str,
        About(
            "RAY_WHEELS",
            MODEL,
            Text(PATH, PATH_WORDS, empty=True),
            "Folder on the head with the wheels of that Ray; empty: the build fetches them from the package index.",
            in_release=False,
        ),
    ] = ""
    package_root: Annotated[
        str,
        About("PACKAGE_ROOT", MODEL, Text(PATH, PATH_WORDS), "Folder in the image that holds the vllm package."),
    ] = "/usr/local/lib/python3.12/dist-packages"
    model: Annotated[str, About("MODEL", MODEL, REPO, "Target weights.")] = "Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw"
    model_revision: Annotated[str, About("MODEL_REVISION", MODEL, REVISION, "Commit of the target weights.")] = (
        "25a44fdbf16862a46b7cc9921142c6c81350af2f"
    )
    model_cache_name: Annotated[
        str,
        About("MODEL_CACHE_NAME", MODEL, CACHE_NAME, "Folder of the target in the cache's hub; empty derives it."),
    ] = ""
    dflash_model: Annotated[str, About("DFLASH_MODEL", MODEL, REPO, "Draft weights.")] = "incoai/GLM-5.3-Flash-DFlash2"
    dflash_revision: Annotated[str, About("DFLASH_REVISION", MODEL, REVISION, "Commit of the draft weights.")] = (
        "dc77ff1c99eeb2df044ee3d4f0094eb033fee410"
    )
    dflash_cache_name: Annotated[
        str,
        About("DFLASH_CACHE_NAME", MODEL, CACHE_NAME, "Folder of the draft in the cache's hub; empty derives it."),
    ] = ""
    quantization: Annotated[
        str, About("QUANTIZATION", MODEL, NAME, "Quantization method; empty leaves the flag out.")
    ] = "exl3"
    load_format: Annotated[str, About("LOAD_FORMAT", MODEL, NAME, "Weight loader; empty leaves the flag out.")] = ""

    served_model_name: Annotated[
        str,
        About(
            "SERVED_MODEL_NAME",
            SERVING,
            Text(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,127}", "a name of letters, digits and _ . / : -"),
            "Name that the API lists.",
        ),
    ] = "GLM-5.3-Flash-EXL3"
    port: Annotated[int, About("PORT", SERVING, Whole(1, 65535), "API port on the head.")] = 8888
    api_key: Annotated[
        SecretStr,
        About("VLLM_API_KEY", SERVING, Secret(), "Key that API clients must send; empty serves without.", secret=True),
    ] = SecretStr("")
    max_num_seqs: Annotated[int, About("MAX_NUM_SEQS", SERVING, Whole(1, 64), "Requests decoded at once.")] = 4
    max_model_len: Annotated[int, About("MAX_MODEL_LEN", SERVING, Whole(1, 1_000_000), "Context length in tokens.")] = (
        1_000_000
    )
    max_num_batched_tokens: Annotated[
        int,
        About("MAX_NUM_BATCHED_TOKENS", SERVING, Whole(1, 8_388_608), "Tokens per engine step (prefill chunk)."),
    ] = 1024
    gpu_mem_util: Annotated[
        float, About("GPU_MEM_UTIL", SERVING, Share(), "Share of the device memory that the engine may take.")
    ] = 0.87
    kv_cache_dtype: Annotated[
        str,
        About(
            "KV_CACHE_DTYPE", SERVING, Text(r"[a-z0-9_]+", "a type name such as fp8 or auto"), "Type of the KV cache."
        ),
    ] = "fp8"
    tool_call_parser: Annotated[
        str, About("TOOL_CALL_PARSER", SERVING, NAME, "Tool call parser; empty turns tool choice off.")
    ] = "glm47"
    reasoning_parser: Annotated[
        str, About("REASONING_PARSER", SERVING, NAME, "Reasoning parser; empty leaves the flag out.")
    ] = "glm45"
    chat_template: Annotated[
        str,
        About(
            "CHAT_TEMPLATE", SERVING, Text(PATH, PATH_WORDS, empty=True), "Chat template inside the image; empty: none."
        ),
    ] = "/opt/glm53/chat_template.jinja"
    language_model_only: Annotated[bool, About("LANGUAGE_MODEL_ONLY", SERVING, Flag(), "Serve text only.")] = False
    skip_mm_profiling: Annotated[
        bool, About("SKIP_MM_PROFILING", SERVING, Flag(), "Skip the memory profile of images and video.")
    ] = True
    limit_mm: Annotated[
        dict[str, int], About("LIMIT_MM", SERVING, Limits(), "Items per prompt; empty object leaves the flag out.")
    ] = {"image": 4, "video": 1}
    enforce_eager: Annotated[
        bool, About("ENFORCE_EAGER", SERVING, Flag(), "Run without CUDA graphs (and without a capture list).")
    ] = False
    extra_args: Annotated[
        tuple[str, ...],
        About("EXTRA_ARGS", SERVING, Strings(), "More arguments for vllm serve; an own capture list here wins."),
    ] = ()

    executor: Annotated[
        str,
        About("EXECUTOR", ENGINE, Choice(("ray", "mp")), "How ranks form one engine: Ray, or vLLM's own processes."),
    ] = "ray"
    ray_port: Annotated[int, About("RAY_PORT", ENGINE, Whole(1, 65535), "Ray port on the head.")] = 6379
    ray_object_store_bytes: Annotated[
        int,
        About(
            "RAY_OBJECT_STORE_MEMORY",
            ENGINE,
            Whole(78_643_200, 68_719_476_736),
            "Ray object store per rank in bytes; small, since memory is shared with the GPU.",
        ),
    ] = 1_073_741_824
    ray_join_timeout: Annotated[
        int, About("RAY_JOIN_TIMEOUT", ENGINE, Whole(10, 86400), "Seconds until every rank must be alive in Ray.")
    ] = 600
    master_port: Annotated[
        int, About("MASTER_PORT", ENGINE, Whole(1, 65535), "Rendezvous port on the head with executor mp.")
    ] = 29521
    execute_model_timeout: Annotated[
        int,
        About(
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
            ENGINE,
            Whole(10, 86400),
            "Seconds that one engine step may take.",
        ),
    ] = 1800
    nccl_debug: Annotated[
        str, About("NCCL_DEBUG", ENGINE, Choice(("VERSION", "WARN", "INFO", "TRACE")), "NCCL log level.")
    ] = "WARN"
    nccl_cross_nic: Annotated[
        int, About("NCCL_CROSS_NIC", ENGINE, Whole(choices=(0, 1, 2)), "NCCL use of different NICs per ring.")
    ] = 0
    exl3_fused_moe: Annotated[
        bool, About("EXL3_FUSED_MOE", ENGINE, Flag(), "Fused expert kernel; off loops over the experts.")
    ] = True
    glm53_suppress_stops_in_reasoning: Annotated[
        bool,
        About("GLM53_SUPPRESS_STOPS_IN_REASONING", ENGINE, Flag(), "Ignore client stop strings while reasoning."),
    ] = True
    glm53_mixed_prefill_chunk: Annotated[
        str,
        About("GLM53_MIXED_PREFILL_CHUNK", ENGINE, Chunk(), "Prefill beside decoding: skip, a token count, or 0."),
    ] = "skip"
    extra_env: Annotated[
        dict[str, str], About("EXTRA_ENV", ENGINE, Variables(), "More environment variables for the engine container.")
    ] = {}

    gpus: Annotated[
        str,
        About(
            "GPUS", CONTAINER, Choice(("all", "none")), "GPUs given to the container; none where no NVIDIA runtime is."
        ),
    ] = "all"
    rdma: Annotated[
        bool, About("RDMA", CONTAINER, Flag(), "Give the container /dev/infiniband and let NCCL use RoCE.")
    ] = True
    shm_size: Annotated[str, About("SHM_SIZE", CONTAINER, SIZE, "Size of /dev/shm.")] = "32g"
    stop_grace: Annotated[
        int, About("STOP_GRACE", CONTAINER, Whole(1, 600), "Seconds between the stop signal and the kill.")
    ] = 60
    log_max_size: Annotated[str, About("LOG_MAX_SIZE", CONTAINER, SIZE, "Size at which a container log rotates.")] = (
        "50m"
    )
    log_max_files: Annotated[int, About("LOG_MAX_FILES", CONTAINER, Whole(1, 100), "Rotated logs that are kept.")] = 5

    ready_timeout: Annotated[
        int,
        About(
            "READY_TIMEOUT",
            ROLLOUT,
            Whole(10, READY_TIMEOUT_MAX),
            "Seconds until a started engine must serve.",
            in_release=False,
        ),
    ] = 3600
    drain_timeout: Annotated[
        int,
        About(
            "DRAIN_TIMEOUT",
            ROLLOUT,
            Whole(0, 3600),
            "Seconds that running requests get to end before the engine is stopped.",
            in_release=False,
        ),
    ] = 30
    settle_timeout: Annotated[
        int,
        About(
            "SETTLE_TIMEOUT",
            ROLLOUT,
            Whole(0, 3600),
            "Seconds that a stopped engine's memory gets to come back before the next one starts.",
            in_release=False,
        ),
    ] = 180
    settle_free_gib: Annotated[
        int,
        About(
            "SETTLE_FREE_GIB",
            ROLLOUT,
            Whole(0, 4096),
            "GiB that must be free (MemFree) before a start; 0 takes gpu_mem_util of the memory and 1.5 GiB more.",
            in_release=False,
        ),
    ] = 0
    keep_releases: Annotated[
        int,
        About(
            "KEEP_RELEASES",
            ROLLOUT,
            Whole(0, 100),
            "Accepted releases that stay on the ranks beside the current, the one before it and the last stock one.",
            in_release=False,
        ),
    ] = 5
    drop_page_cache: Annotated[
        bool,
        About(
            "DROP_PAGE_CACHE",
            ROLLOUT,
            Flag(),
            "Drop every rank's page cache before the engine starts (with gpus all): CUDA counts it as used memory.",
            in_release=False,
        ),
    ] = True
    spark_warmup: Annotated[
        bool,
        About("GLM53_BOOT_SHAPE_WARMUP", ROLLOUT, Flag(), "Run the shape warm-up after a start.", in_release=False),
    ] = True
    spark_warmup_timeout: Annotated[
        int,
        About(
            "GLM53_WARMUP_REQ_TIMEOUT",
            ROLLOUT,
            Whole(1, 86400),
            "Seconds that one warm-up request may take.",
            in_release=False,
        ),
    ] = 240

    @field_validator("*", mode="before")
    @classmethod
    def _parse(cls, value: object, info: ValidationInfo) -> Any:
        return ABOUT[str(info.field_name)].kind.parse(value)


def _about() -> dict[str, About]:
    return {
        name: next(item for item in field.metadata if isinstance(item, About))
        for name, field in Settings.model_fields.items()
    }


ABOUT: dict[str, About] = _about()
"""Setting name to what the schema knows about it, in the order of the settings table."""

NAME_OF_KEY: dict[str, str] = {about.key: name for name, about in ABOUT.items()}
"""Environment key to setting name."""


@dataclass(frozen=True)
class Given:
    """A raw value and where it came from, such as ``-e`` or ``environment DFLASH_VERIFY_TOKENS``."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Resolved:
    """Typed settings and the origin of each.

    ``problems`` lists what was refused. ``settings`` holds the default for a refused setting, and ``invalid`` names
    those, so that later rules can still judge the others. ``notes`` tells what a ``stock`` plan left out.
    """

    settings: Settings
    origins: dict[str, str]
    problems: tuple[Problem, ...] = ()
    invalid: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    stock: bool = False


def problem(name: str, given: Given, reason: str) -> Problem:
    """Describe one refused setting; the value of a secret is not shown."""
    about = ABOUT[name]
    text = "(hidden)" if about.secret else shown(given.value)
    return Problem(name, text, given.origin, about.kind.allowed, reason)


def resolve(given: Mapping[str, Given], *, stock: bool = False) -> Resolved:
    """Type the given values; settings that nobody gave take their default.

    With ``stock`` the width settings proper are not read at all, and a malformed speculation setting falls back to its
    default with a note instead of being refused, so that bad tuning never blocks the way back.
    """
    used = {n: g for n, g in given.items() if not (stock and ABOUT[n].ignored_by_stock)}
    origins = {name: used[name].origin if name in used else "default" for name in ABOUT}
    reasons: dict[str, str] = {}
    try:
        settings = Settings.model_validate({n: g.value for n, g in used.items()})
    except ValidationError as error:
        for entry in error.errors(include_url=False, include_input=False):
            reason = entry["msg"].removeprefix("Value error, ")
            reasons.setdefault(str(entry["loc"][0]), reason)
        settings = Settings.model_validate({n: g.value for n, g in used.items() if n not in reasons})
    problems, notes = [], []
    for name, reason in reasons.items():
        if stock and ABOUT[name].width:
            origins[name] = "default"
            notes.append(f"{problem(name, used[name], reason)}; the stock plan uses the default")
        else:
            problems.append(problem(name, used[name], reason))
    if stock:
        notes += [f"{n} from {g.origin} is left out: this plan is stock" for n, g in given.items() if n not in used]
    invalid = frozenset(p.setting for p in problems)
    return Resolved(settings, origins, tuple(problems), invalid, tuple(notes), stock)


def public(settings: Settings) -> dict[str, Any]:
    """Every setting that is not a secret, as plain JSON data."""
    data: dict[str, Any] = settings.model_dump(mode="json", exclude={n for n, a in ABOUT.items() if a.secret})
    return data
