import subprocess
import sys
from pathlib import Path

import psutil

PROJECT = Path(__file__).parents[2]
WORK = "print('at work', flush=True); import time; time.sleep(600)"


def test_a_contestant_ends_with_a_benchmark_that_is_killed() -> None:
    command = [sys.executable, "-c", f"from benchmarks.harness import alone; alone(exec, {WORK!r})"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        assert benchmark.stdout.readline() == "at work\n"
        children = psutil.Process(benchmark.pid).children(recursive=True)
        benchmark.kill()
    _, alive = psutil.wait_procs(children, timeout=20)
    for each in alive:
        each.kill()
    assert not alive
