"""What recording costs, as ratios to peers that are measured in the same run."""

import hot_path
import whole_run


def test_a_recorded_call_is_at_least_seven_times_cheaper_than_a_span() -> None:
    results = hot_path.measure()
    assert results["span_over_update"] >= 7
    assert results["span_over_attend"] >= 7


def test_recording_to_a_file_hardly_slows_a_run_down() -> None:
    """The demo model is the worst case. The bound leaves room for a busy machine, not for a slow hook."""
    best = whole_run.measure()
    assert best["file"] / best["untraced"] < 1.25
