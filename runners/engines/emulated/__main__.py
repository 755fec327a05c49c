"""Run an emulated engine: ``python -m runners.engines.emulated --spec FILE --served-name NAME --host H --port N``."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from planner.errors import InputError
from runners.engines.emulated import startup
from runners.engines.emulated.api import Api
from runners.engines.emulated.engine import EmulatedEngine
from runners.engines.emulated.http import serve
from runners.engines.emulated.metrics import EngineMetrics
from runners.engines.emulated.spec import EmulationSpec, parse_spec


async def run(spec: EmulationSpec, served_name: str, host: str, port: int) -> int:
    """Bind, load, serve until SIGTERM; returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if not spec.faults.ignore_sigterm:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, stop.set)
    engine = EmulatedEngine(spec, EngineMetrics(spec.acts_as, served_name, spec.limits))
    api = Api(engine, served_name)
    try:
        server = await serve(host, port, api.handle)
    except OSError as error:
        startup.say(f"ERROR OSError: [Errno {error.errno}] {error.strerror}: {host}:{port}")
        return 1
    loading = loop.create_task(startup.load(spec))
    stopping = loop.create_task(stop.wait())
    await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not stop.is_set():
        engine.warm_up()
        running = loop.create_task(engine.run())
        api.ready = True
        startup.say("INFO:     Application startup complete.")
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        running.cancel()
    loading.cancel()
    server.close()
    startup.say("INFO:     Finished server process")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="runners.engines.emulated", description=__doc__)
    parser.add_argument("--spec", required=True, type=Path)
    parser.add_argument("--served-name", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", required=True, type=int)
    options = parser.parse_args(arguments)
    try:
        spec = parse_spec(json.loads(options.spec.read_text(encoding="utf-8")))
    except (OSError, ValueError, InputError) as error:
        startup.say(f"ERROR the emulation cannot be read: {error}")
        return 2
    startup.announce(spec)
    if spec.faults.exit_at_once:
        startup.say("ERROR RuntimeError: emulated fault at start")
        return spec.faults.exit_code
    if spec.faults.leave_child:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if spec.faults.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    started = time.monotonic()
    code = asyncio.run(run(spec, options.served_name, options.host, options.port))
    startup.say(f"served for {time.monotonic() - started:.1f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
