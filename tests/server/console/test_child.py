"""What keeps the console's process from starting is said, with what to do about it."""

from __future__ import annotations

import importlib.util
import socket
from typing import Any

import pytest

from server.console.child import ConsoleProcess
from server.console.config import ConsoleConfig
from server.postgres.data_directory import StartupError


def _console(port: int, **options: Any) -> ConsoleProcess:
    return ConsoleProcess(ConsoleConfig("127.0.0.1", port, "127.0.0.1", 1, "postgres", **options))


async def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError) as error:
            await _console(port).start()
    assert error.value.message == f"could not listen for the console on 127.0.0.1 port {port}: Address already in use"
    assert error.value.hint == "Choose another address with --console (port 0 takes any free one)."


async def test_process_that_does_not_start_leaves_nothing() -> None:
    console = _console(0, tls_cert="/nowhere", tls_key="/nowhere")
    with pytest.raises(StartupError):
        await console.start()
    assert console._process is None
    await console.stop()


async def test_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(StartupError) as error:
        await _console(0).start()
    assert error.value.message == "--console needs what is not installed: uvicorn"
    assert error.value.hint == "Install what it needs: pip install 'headwater[console]'"
