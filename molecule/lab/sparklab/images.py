"""Images of the local pair: the Spark host, and the engine with real vLLM and real Ray. Built once per input."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from .host import KEYRING, LabError, follow, heartbeat, ok, out, pipe, say

INPUTS = Path(__file__).resolve().parents[1] / "images"
PREFIX = "sparkpair-lab"
LABEL = "sparkpair.lab=1"
SPARK_SUITE = "trixie"
SPARK_PACKAGES = (
    "systemd,systemd-sysv,dbus,openssh-server,sudo,python3,python3-requests,python3-yaml,iproute2,iptables,rsync,"
    "docker.io,docker-cli,docker-compose,curl,ca-certificates,procps,jq,kmod"
)
ENGINE_SUITE = "bookworm"
ENGINE_PACKAGES = "python3.11,libpython3.11,iproute2,procps,curl,libnuma1,libgomp1,ca-certificates"
ENGINE_ENVIRONMENT = {
    "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_PRELOAD": "/opt/venv/lib/libiomp5.so",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "KMP_BLOCKTIME": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "LAB_FORK_ENGINE_CORE": "1",
}


# Debian's Python brings no ensurepip, so the pip of the running interpreter is lent to the container.
_INSTALL_PACKAGES = """
python3.11 -m venv --without-pip /opt/venv
PYTHONPATH=/opt/pip /opt/venv/bin/python -m pip install --progress-bar off --no-deps -r /inputs/engine.lock
rm -rf /opt/venv/lib/python3.11/site-packages/torch/include
find /opt/venv -type d -name tests -path '*/site-packages/*' -prune -exec rm -rf {} +
test -e /opt/venv/lib/libiomp5.so
"""
_INSTALL_PLUGIN = """
cp -r /inputs/plugin /tmp/plugin
PYTHONPATH=/opt/pip /opt/venv/bin/python -m pip install --progress-bar off --no-deps --no-build-isolation /tmp/plugin
rm -rf /tmp/plugin
"""


def digest(paths: Iterable[Path], *texts: str) -> str:
    """First 12 hex digits of a hash over the files below ``paths`` (names and contents) and over ``texts``."""
    total = hashlib.sha256()
    for path in paths:
        for file in sorted([path] if path.is_file() else path.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and ".egg-info" not in str(file):
                total.update(file.relative_to(path.parent).as_posix().encode() + b"\0" + file.read_bytes())
    for text in texts:
        total.update(text.encode() + b"\0")
    return total.hexdigest()[:12]


def spark_image() -> str:
    """Reference of the Spark host image for the inputs of this checkout."""
    return f"{PREFIX}/spark:{digest([INPUTS / 'sshd.conf'], SPARK_SUITE, SPARK_PACKAGES, 'spark 2')}"


def base_image() -> str:
    """Reference of the engine's root file system without any Python package."""
    return f"{PREFIX}/engine-base:{digest([], ENGINE_SUITE, ENGINE_PACKAGES)}"


def packages_image() -> str:
    """Reference of the engine image without the lab's plugin."""
    texts = (base_image(), str(ENGINE_ENVIRONMENT), _INSTALL_PACKAGES)
    return f"{PREFIX}/engine-packages:{digest([INPUTS / 'engine.lock'], *texts)}"


def engine_image() -> str:
    """Reference of the engine image for the inputs of this checkout."""
    return f"{PREFIX}/engine:{digest([INPUTS / 'plugin'], packages_image(), _INSTALL_PLUGIN)}"


def models_digest() -> str:
    """First 12 hex digits that name the tiny models: they depend on their maker and on the engine's packages."""
    return digest([INPUTS / "make_models.py", INPUTS / "engine.lock"])


def debian_mirror(sources: Path = Path("/etc/apt")) -> str | None:
    """The Debian mirror that this machine's apt uses, or None: debootstrap then takes its own default."""
    files = sorted([*sources.glob("sources.list"), *sources.glob("sources.list.d/*")])
    text = "\n".join(p.read_text(errors="replace") for p in files)
    for url in re.findall(r"(?m)^(?:URIs:\s*|deb\s+(?:\[[^\]]*\]\s+)?)(https?://\S+)", text):
        if url.rstrip("/").endswith("/debian"):
            return str(url)
    return None


def exists(image: str) -> bool:
    """Tell whether the Docker Engine holds an image."""
    return ok(["docker", "image", "inspect", image])


def _bootstrap(suite: str, packages: str, folder: Path) -> None:
    argv = ["debootstrap", "--variant=minbase", f"--include={packages}"]
    argv += [f"--keyring={KEYRING}"] if KEYRING.exists() else []
    argv += [suite, str(folder), *([mirror] if (mirror := debian_mirror()) else [])]
    # debootstrap passes the environment on to package scripts, and a foreign TMPDIR does not exist in there.
    env = {"TMPDIR": "/tmp", "LC_ALL": "C"}  # noqa: S108 - inside the new root
    follow(f"debootstrap {suite}", argv, env=env)
    shutil.rmtree(folder / "var/cache/apt/archives", ignore_errors=True)
    shutil.rmtree(folder / "var/lib/apt/lists", ignore_errors=True)
    for path in ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"):
        shutil.rmtree(folder / path, ignore_errors=True)
    (folder / "var/cache/apt/archives/partial").mkdir(parents=True)
    (folder / "var/lib/apt/lists/partial").mkdir(parents=True)


def _import(folder: Path, image: str, changes: Iterable[str] = ()) -> None:
    options = [part for change in (f"LABEL {LABEL}", *changes) for part in ("--change", change)]
    say(f"import {image}")
    pipe(
        f"import {image}",
        ["tar", "-C", str(folder), "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "-c", "."],
        ["docker", "import", *options, "-", image],
    )


def build_spark() -> str:
    """Build the Spark host image when it is not there; returns its reference. Raises LabError."""
    image = spark_image()
    if exists(image):
        return image
    with tempfile.TemporaryDirectory(prefix="sparkpair-lab-", dir=work_folder()) as name:
        root = Path(name) / "root"
        _bootstrap(SPARK_SUITE, SPARK_PACKAGES, root)
        (root / "etc/ssh/sshd_config.d/sparkpair-lab.conf").write_bytes((INPUTS / "sshd.conf").read_bytes())
        (root / "etc/sudoers.d").mkdir(exist_ok=True)
        sudoers = root / "etc/sudoers.d/spark"
        sudoers.write_text("spark ALL=(ALL) NOPASSWD: ALL\n")
        sudoers.chmod(0o440)
        out(["chroot", str(root), "useradd", "-m", "-s", "/bin/bash", "-u", "1000", "spark"])
        # Host keys come from the lab's folder, so that a Spark made anew is still the host that the controller knows.
        for key in (root / "etc/ssh").glob("ssh_host_*"):
            key.unlink()
        for unit in ("systemd-modules-load", "systemd-udevd", "systemd-logind", "getty@tty1", "apt-daily.timer"):
            out(["chroot", str(root), "systemctl", "mask", unit], check=False)
        out(["chroot", str(root), "systemctl", "enable", "docker", "ssh"])
        (root / "etc/docker").mkdir(exist_ok=True)
        (root / "etc/docker/daemon.json").write_text('{"storage-driver": "overlay2"}\n')
        (root / "etc/machine-id").write_text("")
        _import(root, image, ['CMD ["/sbin/init"]', "ENV container=docker"])
    return image


_PIP_OF_THIS_MACHINE = {
    *("PIP_BREAK_SYSTEM_PACKAGES", "PIP_CACHE_DIR", "PIP_CONFIG_FILE", "PIP_DRY_RUN", "PIP_EDITABLE", "PIP_LOG"),
    *("PIP_NO_DEPS", "PIP_PREFIX", "PIP_PYTHON", "PIP_QUIET", "PIP_REPORT", "PIP_REQUIRE_VIRTUALENV"),
    *("PIP_REQUIREMENT", "PIP_ROOT", "PIP_SRC", "PIP_TARGET", "PIP_USER", "PIP_VERBOSE"),
}


def pip_environment(listed: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What pip is told here, as environment variables for a ``pip install`` elsewhere.

    ``listed`` is the output of ``pip config list``. pip's own order holds: global settings, then those of ``install``,
    then the environment. Places of this machine that mean nothing in the engine image are left out.
    """
    found: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in listed.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(section):
                try:
                    text = str(ast.literal_eval(value))
                except (SyntaxError, ValueError):
                    text = value
                name = "PIP_" + key.removeprefix(section).upper().replace("-", "_")
                found[name] = " ".join(text.splitlines()).strip()
    found.update({k: v for k, v in environment.items() if k.startswith("PIP_")})
    return {k: v for k, v in found.items() if v and k not in _PIP_OF_THIS_MACHINE}


def pip_settings() -> tuple[dict[str, str], list[Path]]:
    """Settings of this machine's pip as environment variables, and the local files and folders that they name."""
    # The pip that is lent to the image is the one of this interpreter, and so are its settings.
    env = pip_environment(out([sys.executable, "-m", "pip", "config", "list"], check=False), os.environ)
    words = [word.removeprefix("file://") for value in env.values() for word in value.split()]
    paths = {Path(w) for w in words if w.startswith("/") and Path(w).exists()}
    # A simple index of files links to wheels beside it, so its whole folder is needed.
    return env, sorted({p.parent if p.name == "simple" else p for p in paths})


def build_engine() -> str:
    """Build the engine image when it is not there; returns its reference. Raises LabError."""
    image = engine_image()
    if exists(image):
        return image
    if not exists(base_image()):
        with tempfile.TemporaryDirectory(prefix="sparkpair-lab-", dir=work_folder()) as name:
            _bootstrap(ENGINE_SUITE, ENGINE_PACKAGES, Path(name) / "root")
            _import(Path(name) / "root", base_image(), ['CMD ["/bin/bash"]'])
    if not exists(packages_image()):
        step = "install vLLM and Ray into the engine image (downloads about 700 MB)"
        _extend(step, base_image(), packages_image(), _INSTALL_PACKAGES)
    _extend("install the lab's plugin into the engine image", packages_image(), image, _INSTALL_PLUGIN)
    return image


def _extend(step: str, base: str, image: str, script: str) -> None:
    """Run a script in ``base`` with this machine's pip and its settings, and keep the result as ``image``."""
    spec = find_spec("pip")
    if spec is None or spec.origin is None:
        raise LabError("this Python has no pip to lend to the engine image; run the lab with the checkout's .venv")
    env, paths = pip_settings()
    maker = f"{PREFIX}-make-engine"
    out(["docker", "rm", "-f", maker], check=False)
    run = ["docker", "run", "--name", maker, "--network", "host", "--label", LABEL]
    run += ["-v", f"{INPUTS}:/inputs:ro", "-v", f"{Path(spec.origin).parent}:/opt/pip/pip:ro"]
    run += [p for path in paths for p in ("-v", f"{path}:{path}:ro")]
    run += [part for key, value in env.items() for part in ("-e", f"{key}={value}")]
    run += ["-e", "PIP_NO_CACHE_DIR=1", "-e", "PIP_ROOT_USER_ACTION=ignore", "-e", "LD_PRELOAD=", base]
    try:
        follow(step, [*run, "bash", "-euc", script])
        # A commit keeps the container's environment, so pip's settings are taken out again by name.
        changes = [f'ENV {k}="{v}"' for k, v in ENGINE_ENVIRONMENT.items()]
        changes += [f'ENV {k}=""' for k in env]
        options = [part for change in (*changes, f"LABEL {LABEL}") for part in ("--change", change)]
        say(f"commit {image}")
        with heartbeat(f"commit {image}"):
            out(["docker", "commit", *options, maker, image], timeout=1800)
    finally:
        out(["docker", "rm", "-f", maker], check=False)


def make_models(home: Path) -> Path:
    """Make the tiny models with the engine image, laid out as a Hugging Face cache; returns its folder.

    The layout is what a download by revision leaves: ``hub/models--<org>--<name>/{refs/main,snapshots/<revision>}``.
    """
    cache = home / "models" / models_digest() / "huggingface"
    if (cache / "complete").exists():
        return cache
    shutil.rmtree(cache.parent, ignore_errors=True)
    cache.mkdir(parents=True)
    maker = ["docker", "run", "--rm", "--network", "none", "-v", f"{INPUTS}:/inputs:ro", "-v", f"{cache.parent}:/made"]
    out([*maker, engine_image(), "python3", "/inputs/make_models.py", "/made/plain"], timeout=900)
    for folder, (name, revision) in model_revisions().items():
        repo = cache / "hub" / f"models--{PREFIX}--{name}"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text(revision)
        (repo / "snapshots").mkdir()
        (cache.parent / "plain" / folder).rename(repo / "snapshots" / revision)
    (cache / "complete").touch()
    say(f"made the tiny models in {cache}")
    return cache


def model_revisions() -> dict[str, tuple[str, str]]:
    """Folder that make_models.py writes, to (repository name, 40 hex digits of its revision)."""
    names = {"target": "tiny-target", "draft-dflash": "tiny-dflash", "target-mtp": "tiny-mtp"}
    return {
        folder: (name, hashlib.sha1(f"{models_digest()} {name}".encode()).hexdigest())  # noqa: S324 - a git-like id
        for folder, name in names.items()
    }


def work_folder() -> Path:
    """A folder with room for a root file system; /tmp is often memory."""
    folder = Path("/var/tmp")  # noqa: S108 - only the parent of a private folder
    if shutil.disk_usage(folder).free < 8 * 1024**3:
        raise LabError(f"{folder} has less than 8 GiB free, and building the images needs that much")
    return folder


def leftovers() -> list[str]:
    """Build containers that an interrupted run left behind."""
    return out(["docker", "ps", "-aq", "--filter", f"name={PREFIX}-make-"], check=False).split()
