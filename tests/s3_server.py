"""An S3 server (moto) in a process of its own, and the environment that leads to it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import boto3
import pytest

START_SECONDS = 90


@dataclass(frozen=True)
class S3Server:
    """A running one."""

    options: dict[str, str]
    """By which programs find it, as variables of the environment are called."""
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return self.options["AWS_ENDPOINT_URL"]

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """What is started meanwhile finds it."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.options.items():
                patch.setenv(name, value)
            patch.setenv("AWS_DEFAULT_REGION", self.options["AWS_REGION"])
            yield


@contextmanager
def s3_server(bucket: str) -> Iterator[S3Server]:
    """One with an empty bucket, in a process of its own: deltalake does not let go of the GIL while it waits."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        options = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        running = S3Server(options, process)
        _wait_for(running.url)
        boto3.client(
            "s3",
            endpoint_url=running.url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        ).create_bucket(Bucket=bucket)
        yield running
    finally:
        process.kill()
        process.wait()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
