"""Make the Python environment that everything else runs in, and say plainly what is wrong when it cannot be made.

Standard library only, and a syntax that old interpreters still read: this file runs before the environment exists.
Usage: ``python3 controlplane/bootstrap.py runtime|dev``.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys

OLDEST, NEWEST = (3, 11), (3, 13)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
LOCKS = {"runtime": "requirements.lock", "dev": "requirements-dev.lock"}

NO_NETWORK = re.compile(
    r"NewConnectionError|Name or service not known|Temporary failure in name resolution|Network is unreachable"
    r"|ConnectTimeoutError|ProxyError|Connection refused|No route to host|Could not find a version"
    r"|No matching distribution"
)


def main():
    """Create or update ``.venv``; exit with one sentence on stderr when that is not possible."""
    profile = sys.argv[1] if len(sys.argv) > 1 else "runtime"
    if profile not in LOCKS:
        fail(f"Unknown profile {profile!r}: use runtime or dev.")
    lock = os.path.join(ROOT, LOCKS[profile])
    if is_current(profile, lock) or (profile == "runtime" and is_current("dev", os.path.join(ROOT, LOCKS["dev"]))):
        say("Python environment: ready")
        return
    use_supported_python()
    if not os.access(ROOT, os.W_OK):
        fail(f"The directory {ROOT} cannot be written. Copy Tonnage to a directory of yours and run it there.")
    make_venv()
    install(lock)
    with open(stamp(profile), "w") as file:
        file.write(digest(lock))
    say("Python environment: ready")


def use_supported_python():
    """Go on with the first interpreter on PATH that Tonnage supports, when this one is not."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        candidate = shutil.which(f"python3.{minor}")
        if candidate and subprocess.call([candidate, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(candidate, [candidate, *sys.argv])  # noqa: S606
    fail(
        "Tonnage needs Python {}.{} to {}.{}; this is {}.{} ({}). Install one of them, for instance: "
        "apt-get install python3 python3-venv.".format(*OLDEST, *NEWEST, *sys.version_info[:2], sys.executable)
    )


def make_venv():
    """Create the virtual environment; Debian ships the module apart, so say which package it is in."""
    if os.path.exists(os.path.join(VENV, "bin", "pip")):
        return
    say(f"Python environment: creating {os.path.relpath(VENV, ROOT)}")
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], capture_output=True, text=True)
    if done.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        if "ensurepip" in done.stdout + done.stderr:
            fail("Python lacks its venv module. Install it, on Debian: apt-get install python3-venv.")
        fail("The virtual environment could not be made: " + last_line(done.stdout + done.stderr))


def install(lock):
    """Install the locked packages with their hashes, counting them as they come."""
    with open(lock) as file:
        total = sum(1 for line in file if re.match(r"^[a-z0-9][\w.-]*==", line, re.IGNORECASE))
    command = [os.path.join(VENV, "bin", "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--require-hashes", "--progress-bar", "off", "-r", lock]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen = 0
    tail: list = []
    for line in process.stdout or ():
        tail = [*tail[-60:], line.rstrip()]
        found = re.match(r"(?:Collecting|Requirement already satisfied: )\s*([^\s=<>;\[]+)", line)
        if found:
            seen += 1
            progress(f"Python environment: package {seen} of about {max(total, seen)} ({found.group(1)})")
        elif line.startswith("Installing collected packages"):
            progress(f"Python environment: unpacking {seen} packages")
    if process.wait() != 0:
        end_progress()
        explain_failure("\n".join(tail))
    end_progress()


def explain_failure(output):
    """Turn pip's last lines into one sentence and leave."""
    if "No space left" in output:
        fail("The disk is full: the environment needs about 2 GB. Free some and run the command again.")
    if "DO NOT MATCH THE HASHES" in output:
        fail("A downloaded package does not match its hash in the lock; it was not installed. " + last_line(output))
    if NO_NETWORK.search(output):
        fail(
            "A package could not be had: " + last_line(output) + "\nIs the package index reachable? Without a network, "
            "copy the wheels to a folder and set PIP_FIND_LINKS to it and PIP_NO_INDEX=1 (docs/air-gap.md)."
        )
    fail("The packages could not be installed: " + last_line(output))


def is_current(profile, lock):
    """Whether the environment was last made from exactly this lock."""
    try:
        with open(stamp(profile)) as file:
            return file.read() == digest(lock)
    except OSError:
        return False


def stamp(profile):
    """Path of the file that remembers the lock which the environment was made from."""
    return os.path.join(VENV, ".tonnage-" + profile)


def digest(path):
    """SHA-256 of a file, as hex."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def last_line(output):
    """The last line that says something, pip's own advice left out."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "[notice]" not in line]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no output"])[-1]


def say(text):
    """Print a line at once."""
    print(text, flush=True)


def progress(text):
    """Overwrite the line on a terminal; elsewhere stay silent but for the start of each stage."""
    if sys.stdout.isatty():
        print("\r\033[K" + text[:110], end="", flush=True)
    elif " 1 of " in text or "unpacking" in text:
        say(text)


def end_progress():
    """Leave the overwritten line."""
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)


def fail(sentence):
    """Leave with one sentence and no traceback."""
    end_progress()
    print("tonnage: " + sentence, file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("Stopped; run the command again to go on.")
