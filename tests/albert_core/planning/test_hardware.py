import pytest

from albert_core.planning.run_plan import (
    HARDWARE,
    Utilisation,
    find_hardware,
    hardware_called,
    processor_name,
)
from albert_core.stage.errors import ConfigError


def test_a_utilisation_is_linear_in_the_logarithm_of_the_width() -> None:
    share = Utilisation(by_hidden_size=((64, 0.1), (256, 0.3)), basis="assumed", source="here")
    widths = (16, 64, 128, 256, 4096)
    assert [share.at(width) for width in widths] == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.3])


def test_every_device_has_plausible_figures_with_their_sources_and_names_of_its_own() -> None:
    for hardware in HARDWARE.values():
        assert hardware.peak_tflops["bfloat16"] > hardware.peak_tflops["float32"] > 0
        assert hardware.price_source
        for share in hardware.utilisation.values():
            widths, shares = zip(*share.by_hidden_size, strict=True)
            assert list(widths) == sorted(set(widths))
            assert all(0 < each < 1 for each in shares)
            assert share.source
    names = [name for hardware in HARDWARE.values() for name in hardware.device_names]
    assert len(names) == len(set(names))
    assert hardware_called("NVIDIA A100-SXM4-40GB") is find_hardware("a100-40")
    assert hardware_called("A device of tomorrow") is None


def test_an_unknown_device_is_refused_and_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"no hardware 'h300'; there is h200, .*--peak-tflops"):
        find_hardware("h300")


def test_your_own_figures_replace_the_known_ones() -> None:
    known = find_hardware("l4")
    assert known.with_given() == known
    own = known.with_given(100.0, 10.0, utilisation=0.25, price_per_hour=2.0)
    assert (own.peak_tflops["bfloat16"], own.peak_basis) == (100.0, "given")
    assert own.memory_gib == 10.0
    assert [own.utilisation["bfloat16"].at(width) for width in (1, 768, 9999)] == [0.25] * 3
    assert own.utilisation["float32"].basis == "given"
    assert (own.usd_per_hour, own.price_basis) == (2.0, "given")


def test_the_processor_is_named_with_a_number_of_cores() -> None:
    _, cores = processor_name().rsplit(", ", 1)
    assert int(cores.removesuffix(" cores")) >= 1
