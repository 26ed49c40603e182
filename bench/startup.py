"""How long `headwater --help` takes, and `headwater serve` on existing data until it is ready.

    python bench/startup.py [--rounds 5]

Medians, with the CPU time of the command and of all that it starts and waits for, and beside them those of
`python -c pass`, since a loaded machine makes all of them longer.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HEADWATER = str(Path(sys.executable).with_name("headwater"))


def run(*command: str) -> float:
    """Seconds until the command has ended."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def serve(data: str) -> float:
    """Seconds until a server is ready, which is then stopped."""
    began = time.perf_counter()
    command = [HEADWATER, "serve", "--data", data, "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        took = time.perf_counter() - began
        server.send_signal(signal.SIGTERM)
    if not line.startswith("ready:"):
        raise RuntimeError(f"the server did not start: {line}")
    return took


def measured(what: str, once: Callable[[], float], rounds: int) -> None:
    before = os.times()
    seconds = statistics.median(once() for _ in range(rounds))
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{what:<24} {seconds:6.2f} s {used / rounds:6.2f} CPU s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as data:
        serve(data)  # makes the data
        run(HEADWATER, "--help")
        measured("python -c pass", lambda: run(sys.executable, "-c", "pass"), rounds)
        measured("headwater --help", lambda: run(HEADWATER, "--help"), rounds)
        measured("serve until ready, stop", lambda: serve(data), rounds)


if __name__ == "__main__":
    main()
