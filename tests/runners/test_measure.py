import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.measure import measure, validity


def line(tokens: int, seconds: float, steps: int | None, **more: object) -> dict:
    return {
        "output_tokens": tokens, "latency_s": seconds, "verify_steps": steps, "prompt_tokens": 10, "finish_reason": "stop",
        "adaptivespec": None, "started_at": "2026-01-01T00:00:00.000+00:00", "server": "first", **more,
    }  # fmt: skip


def grade(correct: bool, ungradable: bool = False, paper: bool | None = None) -> dict:
    return {"correct": correct, "ungradable": ungradable, "paper_correct": paper}


def test_metrics_by_hand() -> None:
    lines = [line(100, 2.0, 40), line(50, 1.0, 20, finish_reason="length")]
    metrics = measure(lines, [grade(True, paper=False), grade(False, ungradable=True, paper=False)], 4, 1)
    assert metrics["throughput_tok_s"] == 50
    assert metrics["tau"] == 150 / 60
    assert metrics["committed_per_step"] == 148 / 60
    assert metrics["accuracy"] == 0.25  # items without an output stay in the denominator
    assert metrics["accuracy_paper"] == 0
    assert (metrics["n_failed"], metrics["n_ungradable"], metrics["n_truncated"]) == (2, 1, 1)


def test_the_token_of_every_prefill_is_no_step_s() -> None:
    lines = [line(100, 2.0, 40, num_retractions=2), line(50, 1.0, 20)]  # the second as written before they were stored
    assert measure(lines, [grade(True)] * 2, 2, 1)["committed_per_step"] == (97 + 49) / 60


def test_vanilla_has_no_tau() -> None:
    metrics = measure([line(10, 1.0, None)], [grade(True)], 1, 1)
    assert metrics["tau"] is None
    assert metrics["accuracy_paper"] is None


def test_overlapping_requests_count_wall_time() -> None:
    lines = [line(100, 2.0, None), line(100, 2.0, None, started_at="2026-01-01T00:00:00.500+00:00")]
    assert measure(lines, [grade(True)] * 2, 2, 2)["throughput_tok_s"] == pytest.approx(200 / 2.5)


def test_a_pause_between_two_servers_is_no_wall_time() -> None:
    """A kill and a resume an hour later: what each server took counts, in whatever order the lines come."""
    resumed = [
        line(100, 2.0, None, server="second", started_at=f"2026-01-01T01:00:0{second}.000+00:00") for second in (1, 0)
    ]
    lines = [resumed[0], line(100, 2.0, None), resumed[1]]
    assert measure(lines, [grade(True)] * 3, 3, 2)["request_s"] == pytest.approx(2.0 + 3.0)


def test_r030_time_per_token_counts_tokens_not_chunks() -> None:
    """Five chunks of three tokens, 9 ms apart; outputs are not streamed, so there is nothing else to divide by."""
    assert 1000 / measure([line(15, 0.045, 5)], [grade(True)], 1, 1)["throughput_tok_s"] == pytest.approx(3.0)


@given(
    st.lists(st.tuples(st.integers(1, 4096), st.floats(1e-3, 1e3), st.integers(1, 8)), min_size=1),
)
def test_r031_the_fastest_request_is_at_least_as_fast_as_the_cell(requests: list[tuple[int, float, int]]) -> None:
    lines = [line(tokens, seconds, -(-tokens // per_step)) for tokens, seconds, per_step in requests]
    speeds = [measure([one], [grade(True)], 1, 1)["throughput_tok_s"] for one in lines]
    mean = measure(lines, [grade(True)] * len(lines), len(lines), 1)["throughput_tok_s"]
    assert min(speeds) * (1 - 1e-9) <= mean <= max(speeds) * (1 + 1e-9)


def test_r033_throughput_is_end_to_end_prefill_included() -> None:
    """100 tokens in 5 s, the first after 3 s: 20 tok/s end to end (docs/tables.md); decoding alone is not reported."""
    assert measure([line(100, 5.0, None)], [grade(True)], 1, 1)["throughput_tok_s"] == 20


def test_shapes_and_promotions_add_up() -> None:
    totals = [
        {"promotions": 2, "steps_per_shape": {"3,4,4": 5}},
        {"promotions": 1, "steps_per_shape": {"3,4,4": 1, "7,1,8": 2}},
    ]
    metrics = measure([line(9, 1.0, 5, adaptivespec=total) for total in totals], [grade(True)] * 2, 2, 1)
    assert metrics["promotions"] == 3
    assert metrics["steps_per_shape"] == {"3,4,4": 6, "7,1,8": 2}


def test_truncation_is_flagged_and_no_acceptance_is_fatal() -> None:
    cut = measure([line(10, 1.0, 5, finish_reason="length")], [grade(True)], 1, 1)
    assert [flag["code"] for flag in validity(cut)["flags"]] == ["TRUNCATED"]
    assert validity(cut)["valid"]
    dead = measure([line(10, 1.0, 9)], [grade(True)], 1, 1)
    assert not validity(dead)["valid"]
