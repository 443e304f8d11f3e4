"""Two machines that share a work folder in S3: one makes the examples, the other trains."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.generated_text import write_source
from tests.s3_server import serve_s3
from tests.test_end_to_end import ALBERT, PROJECT, SMALLER


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_one_machine_refreshed_another_finds_done_and_trains_on(tmp_path: Path) -> None:
    options = [f"--set={name}={value}" for name, value in SMALLER.items()]
    options += ["--recipe=tiny", f"--source={write_source(tmp_path / 'source', 40)}"]
    output = {}
    with serve_s3("albert") as store:
        for command in ("refresh", "pretrain"):
            variables = {
                "ALBERT_WORK": "s3://albert/work",
                "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
                "PREFECT_API_URL": "",
                "PREFECT_HOME": str(tmp_path / command),
            }
            done = subprocess.run(
                [ALBERT, command, *options],
                cwd=PROJECT,
                env={**os.environ, **store, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert done.returncode == 0, done.stdout
            output[command] = done.stdout
    for stage in ("corpus", "vocab", "examples"):
        assert f"{stage}: done, wrote s3://albert/work/" in output["refresh"]
        assert f"done already, s3://albert/work/{stage}/" in output["pretrain"]
    assert "pretraining: done, wrote s3://albert/work/" in output["pretrain"]
    assert re.search(r"model +albert-tiny, version 1", output["pretrain"])
