from pathlib import Path

import pytest

from albert_core.planning.hardware import (
    HARDWARE,
    Utilisation,
    find_hardware,
    hardware_called,
    processor_name,
)
from albert_core.stage.errors import ConfigError


def test_a_utilisation_lies_on_a_line_over_the_logarithm_of_the_width() -> None:
    share = Utilisation(by_hidden_size=((64, 0.1), (256, 0.3)), basis="assumed", source="here")
    widths = (16, 64, 128, 256, 4096)
    assert [share.at(width) for width in widths] == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.3])


@pytest.mark.parametrize("name", HARDWARE)
def test_every_device_has_plausible_figures_with_their_sources(name: str) -> None:
    hardware = HARDWARE[name]
    assert hardware.peak_tflops["bfloat16"] > hardware.peak_tflops["float32"] > 0
    assert hardware.price.source
    for share in hardware.utilisation.values():
        widths, shares = zip(*share.by_hidden_size, strict=True)
        assert list(widths) == sorted(set(widths))
        assert all(0 < each < 1 for each in shares)
        assert share.source


def test_a_device_is_found_by_the_name_that_torch_gives_it() -> None:
    assert hardware_called("NVIDIA H200") is HARDWARE["h200"]
    assert hardware_called("NVIDIA A100-SXM4-40GB") is HARDWARE["a100-40"]
    assert hardware_called("A device of tomorrow") is None


def test_no_two_devices_answer_to_one_name() -> None:
    names = [name for hardware in HARDWARE.values() for name in hardware.device_names]
    assert len(names) == len(set(names))


def test_an_unknown_device_is_refused_and_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"no hardware 'h300'; there is h200, .*--peak-tflops"):
        find_hardware("h300")


def test_ones_own_figures_take_the_place_of_the_known_ones() -> None:
    known = find_hardware("l4")
    assert known.with_given(None, None, None, None) == known
    own = known.with_given(peak_tflops=100.0, memory_gib=10.0, utilisation=0.25, usd_per_hour=2.0)
    assert (own.peak_tflops["bfloat16"], own.peak_basis) == (100.0, "given")
    assert own.memory_gib == 10.0
    assert [own.utilisation["bfloat16"].at(width) for width in (1, 768, 9999)] == [0.25] * 3
    assert (own.utilisation["float32"].basis, own.price.basis) == ("given", "given")
    assert own.price.usd_per_hour == 2.0


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux names processors there")
def test_the_processor_has_a_name_and_a_number_of_cores() -> None:
    name, cores = processor_name().rsplit(", ", 1)
    assert name
    assert int(cores.removesuffix(" cores")) >= 1
