"""Settings from environment variables."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Literal, Self

import pytest
from pydantic import Field, ValidationError, model_validator

from albert_core.config import FinetuningSettings, TrainingSettings
from albert_core.stage import errors, servers, settings


class Oven(settings.Settings):
    """Settings with one of each: a number in a range, a word, a flag."""

    degrees: float = Field(ge=30, le=300)
    dish: str = "bread"
    fan: bool = False


class Kitchen(settings.Settings):
    """Settings in settings, and a rule between them."""

    oven: Oven
    num_cooks: int = 1
    num_guests: Annotated[int, Field(le=9)] | Literal["many"] = "many"

    @model_validator(mode="after")
    def _somebody_cooks(self) -> Self:
        if self.num_cooks < 1:
            raise ValueError(f"num_cooks {self.num_cooks} is nobody")
        return self


def test_a_default_stands_in_and_a_whole_number_may_be_given_for_a_float() -> None:
    kitchen = Kitchen.read({"oven": {"degrees": 220}}, "my.toml")
    assert kitchen == Kitchen(oven=Oven(degrees=220.0, dish="bread", fan=False), num_cooks=1)


def test_a_misspelt_setting_is_refused_by_its_path() -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Kitchen.read({"oven": {"degrees": 220.0, "dsh": "cake"}}, "my.toml")
    assert str(caught.value) == ("my.toml: unknown setting 'oven.dsh'; did you mean 'oven.dish'?")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ["setting 'oven' is missing"]),
        ({"oven": {"degrees": "220"}}, ["oven.degrees: Input should be a valid number, got '220'"]),
        (
            {"oven": {"degrees": 99.0, "fan": 1}},
            ["oven.fan: Input should be a valid boolean, got 1"],
        ),
        ({"oven": {"degrees": 99.0}, "num_cooks": 1.5}, ["num_cooks: Input should be a valid int"]),
        ({"oven": {"degrees": 99.0}, "num_cooks": 0}, ["the settings: num_cooks 0 is nobody"]),
        (
            {"oven": {"degrees": 99.0}, "num_guests": 12},
            ["num_guests: Input should be less than or equal to 9, or 'many', got 12"],
        ),
        (
            {"oven": {"degrees": 15.0, "dsh": "cake"}, "num_cooks": "two"},
            [
                "oven.degrees: Input should be greater than or equal to 30",
                "oven.dsh",
                "num_cooks: Input should",
            ],
        ),
    ],
)
def test_each_mistake_is_a_line_that_says_where_it_is_and_what_was_expected(
    values: dict[str, object], expected: list[str]
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Kitchen.read(values, "my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml: ")
    for line, part in zip(message.splitlines(), expected, strict=True):
        assert part in line


def test_settings_cannot_be_changed() -> None:
    oven = Oven(degrees=220.0)
    with pytest.raises(ValidationError, match="frozen"):
        oven.degrees = 250.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ("/absolute/work", "/absolute/work/mlflow.db"),
        ("work", "{cwd}/work/mlflow.db"),
        ("s3://bucket/work", "{cwd}/mlflow.db"),
    ],
)
def test_runs_are_kept_in_the_work_folder_or_here_if_that_is_in_a_store(
    work: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(servers.TRACKING_URI, raising=False)
    monkeypatch.chdir(tmp_path)
    assert servers.tracking_uri(work) == f"sqlite:///{expected.format(cwd=tmp_path)}"


def test_the_server_that_the_environment_names_comes_first_and_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(servers.TRACKING_URI, "https://ann:parole@mlflow.example.org")
    assert servers.tracking_uri("work") == "https://ann:parole@mlflow.example.org"
    assert servers.shown_tracking_uri("work") == "https://***@mlflow.example.org"


def test_there_are_as_many_workers_as_the_environment_says_or_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "16")
    assert settings.worker_count() == 16
    for text in ("0", "1.5", "²", ""):
        monkeypatch.setenv("ALBERT_WORKERS", text)
        with pytest.raises(errors.ConfigError, match=r"ALBERT_WORKERS=.* must be a whole number"):
            settings.worker_count()
    monkeypatch.delenv("ALBERT_WORKERS")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5})
    assert settings.worker_count() == 3


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
    monkeypatch.delenv(settings.TRAINING_PROCESSES, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert settings.visible_devices() == devices
    assert settings.training_processes(batch_size=32) == ranks
    assert settings.training_processes(batch_size=1) == 1
    monkeypatch.setenv(settings.TRAINING_PROCESSES, "3")
    assert settings.training_processes(batch_size=1) == 3


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
    assert settings.visible_devices() == ["0", "1"]
    assert TrainingSettings.read({"precision": "auto"}, "here").precision == precision
    monkeypatch.setattr(settings, "find_spec", lambda name: name == "triton")
    monkeypatch.setattr("sysconfig.get_path", lambda _: tmp_path)
    assert TrainingSettings().compile is False  # Triton cannot build without Python's headers
    (tmp_path / "Python.h").touch()
    assert TrainingSettings().compile is (precision == "bfloat16")
    decided = TrainingSettings.read({"compile": "auto"}, "here")
    assert decided.model_dump()["compile"] is (precision == "bfloat16")
    assert TrainingSettings(compile=False).compile is False
    monkeypatch.setattr("ctypes.CDLL", lambda name: load(str(tmp_path / "no-driver" / name)))
    assert settings.visible_devices() == []
    assert TrainingSettings().compile is False


@pytest.mark.parametrize(
    ("flags", "precision"), [("avx2 avx512f", "float32"), ("avx512f avx512_bf16", "bfloat16")]
)
def test_the_processor_decides_an_automatic_precision_where_there_is_no_gpu(
    flags: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(settings, "_CPU_INFO", tmp_path / "cpuinfo")
    settings._CPU_INFO.write_text(f"flags\t\t: fpu {flags} sse2\n")
    for section in (TrainingSettings, FinetuningSettings):
        assert section.read({"precision": "auto"}, "here").model_dump()["precision"] == precision
    with pytest.raises(errors.ConfigError, match=r"training: precision: .*'float32' or 'bfloat16'"):
        TrainingSettings.read({"precision": "float16"}, "training")
