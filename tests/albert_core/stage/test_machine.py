"""What this machine has, and what its environment says of processes."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from albert_core.config import FinetuningSettings, TrainingSettings
from albert_core.stage import errors, machine


def test_there_are_as_many_workers_as_the_environment_says_or_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "16")
    assert machine.worker_count() == 16
    for text in ("0", "1.5", "²", ""):
        monkeypatch.setenv("ALBERT_WORKERS", text)
        with pytest.raises(errors.ConfigError, match=r"ALBERT_WORKERS=.* must be a whole number"):
            machine.worker_count()
    monkeypatch.delenv("ALBERT_WORKERS")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5})
    assert machine.worker_count() == 3


@pytest.mark.parametrize(
    ("visible", "devices", "ranks"),
    [
        ("0,1,2,3,4,5,6,7", ["0", "1", "2", "3", "4", "5", "6", "7"], 8),
        ("2,3", ["2", "3"], 2),
        ("GPU-8932f937,-1,0", ["GPU-8932f937"], 1),  # as CUDA reads it: what follows is hidden
        ("-1", [], 1),
        ("", [], 1),
    ],
)
def test_every_visible_device_trains_unless_the_environment_says_otherwise(
    visible: str, devices: list[str], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(machine.TRAINING_PROCESSES, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.visible_devices() == devices
    assert machine.training_processes(batch_size=32) == ranks
    assert machine.training_processes(batch_size=1) == 1
    monkeypatch.setenv(machine.TRAINING_PROCESSES, "3")
    assert machine.training_processes(batch_size=1) == 3


NVML_OF_TWO = """
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, long *device) { *device = number; return 0; }
int nvmlDeviceGetCudaComputeCapability(long device, int *major, int *minor)
{ *major = device ? OLDEST : 9; *minor = 0; return 0; }
"""


@pytest.mark.parametrize(("oldest", "precision"), [(7, "float32"), (8, "bfloat16")])
def test_without_a_variable_a_pod_with_gpus_2_and_5_has_devices_0_and_1(
    oldest: int, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA counts what the pod has from 0; the driver's library here is one of five functions."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    library, source = tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.c"
    source.write_text(NVML_OF_TWO)
    asked = ["-shared", "-fPIC", f"-DOLDEST={oldest}"]
    subprocess.run(["cc", *asked, "-o", library, source], check=True)
    load = ctypes.CDLL
    monkeypatch.setattr("ctypes.CDLL", lambda name: load(str(tmp_path / name)))
    assert machine.visible_devices() == ["0", "1"]
    assert TrainingSettings.read({"precision": "auto"}, "here").precision == precision
    monkeypatch.setattr(machine, "find_spec", lambda name: name == "triton")
    monkeypatch.setattr("sysconfig.get_path", lambda _: tmp_path)
    assert TrainingSettings().compile is False  # Triton cannot build without Python's headers
    (tmp_path / "Python.h").touch()
    assert TrainingSettings().compile is (precision == "bfloat16")
    decided = TrainingSettings.read({"compile": "auto"}, "here")
    assert decided.model_dump()["compile"] is (precision == "bfloat16")
    assert TrainingSettings(compile=False).compile is False
    monkeypatch.setattr("ctypes.CDLL", lambda name: load(str(tmp_path / "no-driver" / name)))
    assert machine.visible_devices() == []
    assert TrainingSettings().compile is False


@pytest.mark.parametrize(
    ("flags", "precision"), [("avx2 avx512f", "float32"), ("avx512f avx512_bf16", "bfloat16")]
)
def test_the_processor_decides_an_automatic_precision_where_there_is_no_gpu(
    flags: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    machine._CPU_INFO.write_text(f"flags\t\t: fpu {flags} sse2\n")
    for section in (TrainingSettings, FinetuningSettings):
        assert section.read({"precision": "auto"}, "here").model_dump()["precision"] == precision
    with pytest.raises(errors.ConfigError, match=r"training: precision: .*'float32' or 'bfloat16'"):
        TrainingSettings.read({"precision": "float16"}, "training")
