"""The documentation is a site in which every link and anchor leads somewhere (`mkdocs.yml`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.structure.figures import ROOT


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},  # of what will be maintained years from now
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    functions = (tmp_path / "reference" / "functions.html").read_text()
    assert all(f'id="{name}"' in functions for name in ("create_stream_table", "dlq_replay", "register_post"))
    assert "is not supported in IMMEDIATE mode" in (tmp_path / "reference" / "errors.html").read_text()
    assert "pg_trickle.enabled" in (tmp_path / "reference" / "settings.html").read_text()
