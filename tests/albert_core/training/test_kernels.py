"""What an update costs a GPU, as `benchmarks.counted_update` counts it: a budget."""

import pytest


@pytest.mark.filterwarnings("ignore")  # what torch.compile itself does
@pytest.mark.parametrize(
    ("compiled", "most_kernels", "most_gb"),
    [(False, 425, 42), pytest.param(True, 445, 28.5, marks=pytest.mark.long)],
)
def test_an_update_of_base_keeps_within_its_budget_and_waits_for_nothing(
    compiled: bool, most_kernels: int, most_gb: float
) -> None:
    pytest.importorskip("torch.nn.attention.varlen")
    from benchmarks.counted_update import WAITS, counted  # it loads torch's compiler

    update = counted("base-v2", compiled)
    assert not WAITS & (update.of_batch.number | update.of_optimizer.number).keys()
    assert update.of_batch.num_others <= most_kernels, update.of_batch.number
    assert update.of_batch.gb_of_others <= most_gb, update.of_batch.bytes
