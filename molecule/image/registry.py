"""The distribution's docker-registry on the lab's network, with TLS and one account: ``registry.py up|down``.

Prints where it listens. Its folder holds everything: certificate, password, blobs, log.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

from sparklab import layout

PORT = 5443
USER = "robot"
FOLDER = layout.home() / "registry"
ADDRESS = layout.SUBNET.rsplit(".", 1)[0] + ".1"
CONFIG = f"""version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {FOLDER}/blobs}}, delete: {{enabled: true}}}}
http: {{addr: "{ADDRESS}:{PORT}", secret: "{secrets.token_hex(16)}",
  tls: {{certificate: {FOLDER}/ca.crt, key: {FOLDER}/ca.key}}}}
auth: {{htpasswd: {{realm: lab, path: {FOLDER}/htpasswd}}}}
"""


def install() -> None:
    """Have the distribution's registry and htpasswd; the package's own service is not used."""
    programs = {"docker-registry": "docker-registry", "htpasswd": "apache2-utils"}
    packages = [package for program, package in programs.items() if not shutil.which(program)]
    if packages:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for argv in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", *argv], check=True, env=env, stdout=subprocess.DEVNULL)
        if shutil.which("systemctl"):
            subprocess.run(["systemctl", "disable", "--now", "docker-registry"], check=False, capture_output=True)


def up() -> None:
    """Start it anew, empty."""
    down()
    install()
    FOLDER.mkdir(mode=0o700)
    name = ["-subj", "/CN=lab registry", "-addext", f"subjectAltName=IP:{ADDRESS}"]
    files = ["-keyout", str(FOLDER / "ca.key"), "-out", str(FOLDER / "ca.crt")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *name, *files],
        check=True,
        capture_output=True,
    )
    password = secrets.token_urlsafe(24)
    token = FOLDER / "token"
    token.touch(mode=0o600)
    token.write_text(password + "\n")
    hashed = subprocess.run(
        ["htpasswd", "-niB", USER], input=password, check=True, capture_output=True, text=True
    ).stdout
    (FOLDER / "htpasswd").write_text(hashed)
    (FOLDER / "config.yml").write_text(CONFIG)
    with (FOLDER / "log").open("w") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(FOLDER / "config.yml")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (FOLDER / "pid").write_text(str(process.pid))
    for _ in range(100):
        try:
            urllib.request.urlopen(f"https://{ADDRESS}:{PORT}/v2/", timeout=2)
        except urllib.error.HTTPError:
            break
        except urllib.error.URLError as error:
            # It answers with a certificate of its own making; that it answers is all that is asked here.
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                break
        time.sleep(0.1)
    else:
        raise SystemExit(f"docker-registry does not answer; its log:\n{(FOLDER / 'log').read_text()[-2000:]}")
    print(f"{ADDRESS}:{PORT}")


def down() -> None:
    """End it and remove its folder."""
    pid = FOLDER / "pid"
    if pid.exists():
        number = int(pid.read_text())
        command = Path(f"/proc/{number}/cmdline")
        if command.exists() and b"docker-registry" in command.read_bytes():
            os.kill(number, signal.SIGTERM)
    shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    {"up": up, "down": down}[sys.argv[1]]()
