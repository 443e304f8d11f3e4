"""Run a stage and write where its CPU time goes, by step.

    python benchmarks/_profile_stage.py RESULT MODULE --recipe=... [the stage's options]

A thread looks every few milliseconds at what the others do, and counts the CPU time since it last
looked to the step that it finds; so a long call into C counts as long as it took. With one worker
all of a stage is in one process.
"""

import json
import os
import re
import runpy
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

_LOOK_SECONDS = 0.004
_NUM_OTHERS = 8

_IMPORTS = "start-up and imports"

# The innermost frame that a pattern fits decides; of two patterns, the first.
_STEPS = [
    (_IMPORTS, r"^runpy:|code_version:"),
    ("normalise", r"tokenizer:(.*normal|_beyond)|cleaning:.*(normal|repair)|mojibake|^ftfy"),
    ("encode", r"^sentencepiece|word_table|tokenizer:(_?encode|_digit|_pieces_of)"),
    ("digests", r"storage:sha256|manifest:(check_shard|shard_of|digest_of)|^hashlib:file_digest"),
    (
        "read",
        r"^pipelines\.readers|arrow_files:(read|open)|source_files:|clean_unit:(_records|_cut)",
    ),
    (
        "hash",
        r"content_hash|deduplication:|near_duplicates:|repeated_documents:|seeds:|_signatures",
    ),
    ("language", r"pipelines\.language|^pycld2|langdetect"),
    ("rules", r"^pipelines\.(cleaning|decontamination|quality)"),
    ("split", r"^pipelines\.sentences|^sentencex"),
    ("pairs", r"^pipelines\.segment_pairs|^pipelines\.\w*pairs"),
    ("masks", r"^albert_core\.contract\.masking"),
    ("TFRecord", r"^pipelines\.tf"),
    ("shuffle", r"shuffl|make_examples:_(by_shard|write_shard|read_batches)|spill"),
    ("Arrow write", r"arrow_files:write|storage:(open_atomic|write_bytes)"),
    ("tables", r"clean_unit:"),
    ("Beam", r"^apache_beam|^grpc"),
]
_COMPILED = [(step, re.compile(pattern)) for step, pattern in _STEPS]
_WAITING = re.compile(r"^(threading|queue|selectors|socket|subprocess|concurrent\.futures)")
_PROJECT = re.compile(r"^(pipelines|albert_core|__main__)\b")


class Sampler:
    """CPU seconds by step, and by function where no step is known."""

    def __init__(self) -> None:
        self.steps: defaultdict[str, float] = defaultdict(float)
        self.others: defaultdict[str, float] = defaultdict(float)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.process_time()
        while not self._over.wait(_LOOK_SECONDS):
            now = time.process_time()
            self._count(now - before)
            before = now

    def _count(self, seconds: float) -> None:
        me = threading.get_ident()
        frames = sys._current_frames()  # noqa: SLF001  (its documentation names no other)
        stacks = [_names(frame) for t, frame in frames.items() if t != me]
        busy = [stack for stack in stacks if not _WAITING.match(stack[0])]
        for stack in busy:
            step = _step_of(stack)
            self.steps[step] += seconds / len(busy)
            if step == "other":
                where = next((name for name in stack if _PROJECT.match(name)), stack[0])
                self.others[where] += seconds / len(busy)
        if not busy:
            self.steps["other"] += seconds


def _names(frame: FrameType | None) -> list[str]:
    """Return ``module:function`` of each frame, innermost first."""
    names = []
    while frame is not None:
        names.append(f"{_module_of(frame)}:{frame.f_code.co_name}")
        frame = frame.f_back
    return names


def _module_of(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    if name == "__main__" and (spec := frame.f_globals.get("__spec__")):
        return str(spec.name)
    return name


def _step_of(stack: list[str]) -> str:
    if any(name.startswith("importlib._bootstrap") for name in stack):
        return _IMPORTS
    for name in stack:
        for step, pattern in _COMPILED:
            if pattern.search(name):
                return step
    return "other"


def main() -> None:
    """Run the stage named by the arguments."""
    result, module, *options = sys.argv[1:]
    sampler = Sampler()

    end_process = os._exit

    def finish(status: int) -> None:
        sampler.stop()
        content = {
            "steps": dict(sampler.steps),
            "others": dict(sorted(sampler.others.items(), key=lambda item: -item[1])[:_NUM_OTHERS]),
        }
        Path(result).write_text(json.dumps(content))
        end_process(status)

    os._exit = finish  # with which every stage ends
    sys.argv = [module, *options]
    sys.path[0] = str(Path.cwd())  # as `python -m` does
    sampler.start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
