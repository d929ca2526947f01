"""Makes the checkout's Python environment: one virtual environment with everything that requirements.txt pins.

Runs with the system's Python and the standard library only. Re-runnable.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NoReturn

OLDEST = (3, 11)
NEWEST = (3, 13)
CHECKOUT = Path(__file__).resolve().parents[1]
REQUIREMENTS = "requirements.txt"


def fail(message: str) -> NoReturn:
    """End with a message for the operator."""
    print(f"bootstrap: {message}", file=sys.stderr)
    raise SystemExit(1)


def ensure_venv_module() -> None:
    """Debian ships ensurepip apart from Python; install it where that is possible, else say what is missing."""
    try:
        import ensurepip  # noqa: F401, PLC0415 - only to see whether it is there
    except ImportError:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            fail(f"this Python has no ensurepip: install {package} (or run this as root on Debian or Ubuntu)")
        print(f"installing {package}", flush=True)
        subprocess.run(["apt-get", "update", "-q"], check=False, stdout=subprocess.DEVNULL)
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        if subprocess.run(["apt-get", "install", "-y", "-q", package], check=False, env=env).returncode:
            fail(f"apt-get could not install {package}; its output above says why")


def main() -> None:
    """Create the environment when it is missing, and install what is pinned."""
    folder = CHECKOUT / sys.argv[1]
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        found = ".".join(map(str, sys.version_info[:3]))
        fail(f"python3 is {found}; ansible-core 2.19 on the controller needs 3.11, 3.12 or 3.13")
    ensure_venv_module()
    python = folder / "bin" / "python"
    if not python.exists() or subprocess.run([str(python), "-c", "import pip"], check=False).returncode:
        print(f"making {folder.name}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
    print(f"installing {REQUIREMENTS} (a minute or two the first time)", flush=True)
    argv = [str(python), "-m", "pip", "install", "--progress-bar", "off", "--quiet", "-r", REQUIREMENTS]
    if subprocess.run(argv, cwd=CHECKOUT, check=False).returncode:
        fail(f"pip could not install {REQUIREMENTS}; see its output above. Mend it and run this again")


if __name__ == "__main__":
    main()
