"""`headwater serve --console`: a process that begins and ends with the server, with the server's TLS."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from psycopg import conninfo

from tests.e2e.conftest import Headwater


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Headwater]:
    cert, key = map(str, certificate)
    data = tmp_path_factory.mktemp("served") / "data"
    running = Headwater(data, "--console", "localhost:0", "--tls-cert", cert, "--tls-key", key).start()
    yield running
    running.stop()


def _url(server: Headwater) -> str:
    (*_, found) = re.findall(r"console is served[^\n]*?url=(\S+)", server.log)
    return str(found)


def _process(server: Headwater) -> psutil.Process:
    assert server.process is not None
    (found,) = (p for p in psutil.Process(server.process.pid).children() if "server.console" in " ".join(p.cmdline()))
    return found


def _asked(url: str, certificate: Path, body: Any = None) -> Any:
    context = ssl.create_default_context(cafile=str(certificate))
    headers = {"Origin": url.rstrip("/").removesuffix("/api/login"), "Content-Type": "application/json"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=60, context=context)


def test_with_tls_the_cookie_is_secure(served: Headwater, certificate: tuple[Path, Path]) -> None:
    url = _url(served)
    assert url.startswith("https://localhost:")
    login = conninfo.conninfo_to_dict(served.dsn())
    body = {"user": login["user"], "password": login["password"], "database": "postgres"}
    with _asked(f"{url}api/login", certificate[0], body) as answer:
        name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name.startswith("__Host-headwater-")
    assert {"HttpOnly", "Path=/", "SameSite=strict", "Secure"} <= set(attributes)
    with pytest.raises(OSError):
        urllib.request.urlopen(url.replace("https", "http"), timeout=60)


def test_it_has_nothing_of_the_servers_environment(served: Headwater) -> None:
    assert not [name for name in _process(served).environ() if name.startswith(("HEADWATER", "PG"))]


def test_it_is_started_again_at_the_same_address(
    served: Headwater, certificate: tuple[Path, Path], eventually: Callable[..., Any]
) -> None:
    first = _process(served)
    first.kill()
    eventually(lambda: "console is served again" in served.log)
    assert _process(served).pid != first.pid
    with _asked(_url(served), certificate[0]) as answer:
        assert answer.status == 200


def test_it_ends_with_the_server_however_that_ends(served: Headwater, eventually: Callable[..., Any]) -> None:
    console = _process(served)
    assert served.stop() == 0
    assert not console.is_running()
    served.start()
    console = _process(served)
    served.kill()
    eventually(lambda: not console.is_running())


def _refused(*options: str) -> str:
    command = [sys.executable, "-m", "server", "serve", "--spark", "off", "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert ended.returncode != 0
    return ended.stderr


def test_address_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "Invalid value for '--console'" in _refused("--data", str(tmp_path / "data"), "--console", "here")
