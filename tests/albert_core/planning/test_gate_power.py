"""What the gate can find."""

from albert_core.planning.gate_power import power


def test_what_the_gate_can_find_is_said_before_the_run() -> None:
    assert "decides nothing" in power(1, {}, 0.95)
    said = power(3, {"a": 1000}, 0.95)
    assert said.startswith("with 3 seeds, and 1,000 of a in dev, the gate finds a gain of 3.7 poi")
    assert "1 point takes about 25 seeds and 18,548 examples of each task" in said
    assert "1 point takes about 9 seeds and 6,183" in power(3, dict.fromkeys("abc", 1000), 0.95)
