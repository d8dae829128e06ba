"""Planted faults: each makes the pipeline refuse the cell or the ratio, or flag it; the unspoiled study passes clean."""

import copy
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from analysis.arms import Missing, Study
from analysis.compare import differences
from analysis.summary import summary
from tests.analysis.synthetic import END, MACHINE, Cell, Item, Spec, write_cell

ITEMS = [Item(latency_s=1.0 + place / 10, tokens=61, steps=30) for place in range(10)]
ARMS = ("vanilla", "eagle3", "dynamic", "lossy", "combined")
SPECS = {method: Spec(method, ITEMS, trace=method in ("dynamic", "lossy", "combined")) for method in ARMS}


def study_with(tmp_path, method: str, mutate: Callable[[Cell], None] | None = None, **changes) -> Study:
    for name, spec in SPECS.items():
        changed = spec.with_(**changes) if name == method else spec
        write_cell(tmp_path, changed, mutate if name == method else None)
    return Study.load(tmp_path)


def reasons(study: Study) -> str:
    return "; ".join(problem.reason for problem in study.problems)


def test_the_unspoiled_study_is_clean(tmp_path) -> None:
    study = study_with(tmp_path, "")
    assert study.problems == ()
    assert len(study.arms) == len(ARMS)
    assert [flag for arm in study.arms for flag in arm.flags] == []
    assert not any(isinstance(study.speedup(arm), Missing) for arm in study.arms if arm.record.algorithm)
    assert not any(isinstance(study.recovery(arm), Missing) for arm in study.arms if arm.record.rule == "margin")


def swapped_labels(cell: Cell) -> None:
    cell.record["cell"]["method"]["name"] = "dynamic"


def swapped_folder(cell: Cell) -> None:
    cell.folder = "vanilla-smollm2_135m-demo-000000000000"


def stale_cell(cell: Cell) -> None:
    cell.record["cell"]["benchmark"]["max_new_tokens"] = 2048


def dropped_items(cell: Cell) -> None:
    del cell.lines[3:5], cell.grades[3:5]


def dropped_grades(cell: Cell) -> None:
    del cell.grades[0]


def doubled_item(cell: Cell) -> None:
    cell.lines[1] = copy.deepcopy(cell.lines[0])


def wrong_denominator(cell: Cell) -> None:
    cell.grades[0]["correct"] = False
    cell.record["metrics"]["accuracy"] = 9 / 9


def wrong_throughput(cell: Cell) -> None:
    cell.record["metrics"]["throughput_tok_s"] *= 1.01


def adaptive_off(cell: Cell) -> None:
    for line in cell.lines:
        line["adaptivespec"]["steps_per_shape"] = {"3,4,4": 30}


def plugin_off(cell: Cell) -> None:
    for line in cell.lines:
        line["adaptivespec"] = line["trace"] = None


def other_rule(cell: Cell) -> None:
    cell.lines[2]["adaptivespec"].update(rule="strict", note="temperature above 0")


def no_promotion(cell: Cell) -> None:
    for line in cell.lines:
        line["adaptivespec"]["promotions"] = 0


def speculation_off(cell: Cell) -> None:
    for line in cell.lines:
        line["verify_steps"] = 0


def tau_one(cell: Cell) -> None:
    for line in cell.lines:
        line["verify_steps"] = line["output_tokens"] - 1
    cell.record["metrics"].update(verify_steps=600, tau=610 / 600)


def bonus_twice(cell: Cell) -> None:
    for line in cell.lines:
        line["adaptivespec"]["committed"] += line["adaptivespec"]["steps"]


def impossible_acceptance(cell: Cell) -> None:
    """Two of three steps lost from the count: more tokens a step than the tree is deep."""
    for line in cell.lines:
        line["verify_steps"] //= 3
        line["accept_histogram"] = [0, 0, 0, 0, 0, line["verify_steps"]]
    cell.record["metrics"].update(verify_steps=100, tau=610 / 100)


def counter_backwards(cell: Cell) -> None:
    cell.lines[4]["adaptivespec"]["accepted"] = -3


def trace_lost(cell: Cell) -> None:
    cell.lines[4]["trace"].pop()


def overlapping_requests(cell: Cell) -> None:
    for line in cell.lines:
        line["started_at"] = cell.lines[0]["started_at"]


def after_end(cell: Cell) -> None:
    cell.lines[0]["output_ids"][10] = END


def retokenised(cell: Cell) -> None:
    cell.lines[0]["output_ids"].insert(0, 1)


def vanilla_speculates(cell: Cell) -> None:
    for line in cell.lines:
        line["verify_steps"] = 30


def lost_outputs(cell: Cell) -> None:
    cell.lines.clear()


def mixed_graders(cell: Cell) -> None:
    cell.grades[0]["grader_version"] = "0"


def strict_promotes(cell: Cell) -> None:
    cell.lines[0]["adaptivespec"]["promotions"] = 2


FATAL = [
    ("combined", swapped_labels, "STALE"),
    ("eagle3", swapped_folder, "STALE"),
    ("eagle3", stale_cell, "STALE"),
    ("eagle3", dropped_items, "ITEMS"),
    ("eagle3", doubled_item, "ITEMS"),
    ("eagle3", dropped_grades, "UNGRADED"),
    ("eagle3", mixed_graders, "GRADERS"),
    ("eagle3", wrong_denominator, "METRICS"),
    ("eagle3", wrong_throughput, "METRICS"),
    ("dynamic", adaptive_off, "ONE_SHAPE"),
    ("combined", adaptive_off, "ONE_SHAPE"),
    ("combined", plugin_off, "PLUGIN_OFF"),
    ("lossy", other_rule, "RULE"),
    ("lossy", no_promotion, "NO_PROMOTION"),
    ("dynamic", strict_promotes, "PROMOTED_STRICT"),
    ("eagle3", speculation_off, "SPECULATION_OFF"),
    ("eagle3", tau_one, "NO_ACCEPTANCE"),
    ("combined", bonus_twice, "COUNTERS"),
    ("eagle3", impossible_acceptance, "ACCEPT_RATE"),
    ("combined", counter_backwards, "COUNTERS"),
    ("combined", trace_lost, "COUNTERS"),
    ("eagle3", overlapping_requests, "COUNTERS"),
    ("eagle3", after_end, "AFTER_END"),
    ("eagle3", retokenised, "COUNTERS"),
    ("vanilla", vanilla_speculates, "SPECULATING_VANILLA"),
    ("vanilla", lost_outputs, "NO_OUTPUTS"),
]


@pytest.mark.parametrize(
    ("method", "mutate", "code"), FATAL, ids=[f"{mutate.__name__}-{method}" for method, mutate, _ in FATAL]
)
def test_a_spoiled_cell_has_no_row_and_says_why(
    tmp_path, method: str, mutate: Callable[[Cell], None], code: str
) -> None:
    study = study_with(tmp_path, method, mutate)
    assert code in reasons(study)
    assert len(study.arms) == len(ARMS) - 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"machine": {**MACHINE, "gpu": ["NVIDIA H100"]}}, "machine.gpu"),
        ({"machine": {**MACHINE, "hostname_sha256": "bb" * 8}}, "machine.hostname_sha256"),
        ({"machine": {**MACHINE, "driver": "1"}}, "machine.driver"),
        ({"provenance": {"torch_build": "cu130"}}, "torch_build"),
        ({"provenance": {"packages": {"sglang": "0.5.23", "torch": "2.12.0"}}}, "package.torch"),
        ({"engine": {"tp_size": 2}}, "engine.tp_size"),
        ({"engine": {"dtype": "float32"}}, "engine.dtype"),
        ({"engine": {"attention_backend": "fa3"}}, "engine.attention_backend"),
        ({"engine": {"cuda_graph": True}}, "engine.cuda_graph"),
        ({"engine": {"sglang": "0.5.22"}}, "engine.sglang"),
        ({"engine": {"name": "hf"}}, "engine.name"),  # R002: another engine
        ({"engine": {"radix_cache": True}}, "engine.radix_cache"),
        ({"engine": {"overlap_schedule": True}}, "engine.overlap_schedule"),
        ({"engine": {"warmup": 0}}, "engine.warmup"),
        ({"limit": 10}, "benchmark.limit"),
        ({"protocol": "paper"}, "benchmark.protocol"),
        ({"seed": 1}, "seed"),
        ({"device": "cuda"}, "engine.device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_baseline_measured_otherwise_is_refused_by_name(tmp_path, changes, field: str) -> None:
    """R002 (engine), R003 (CUDA graphs), R048 (cache), R054 (TP differs), and whatever else could explain a ratio."""
    study = study_with(tmp_path, "vanilla", **changes)
    eagle3 = next(arm for arm in study.arms if arm.record.method == "eagle3")
    figure = study.speedup(eagle3)
    assert isinstance(figure, Missing)
    assert f"not comparable ({field}: " in figure.reason
    assert " against " in figure.reason


def test_other_prompts_are_refused(tmp_path) -> None:
    a, b = (write_cell(tmp_path, Spec(method, ITEMS)) for method in ("vanilla", "eagle3"))
    records = {record.record.cell_id: record.record for arm in Study.load(tmp_path).arms for record in arm.cells}
    assert differences(records[a], records[b]) == []
    records[b].cell["benchmark"]["prompts_sha256"] = "other"  # type: ignore[index]
    assert differences(records[a], records[b]) == ["benchmark.prompts_sha256: pp against other"]


def unpaired(cell: Cell) -> None:
    for line, grade in zip(cell.lines, cell.grades, strict=True):
        line["item"] = grade["item"] = f"other/{line['index']}"


def other_prompt(cell: Cell) -> None:
    cell.lines[2]["prompt_sha256"] = "ff" * 32


@pytest.mark.parametrize("mutate", [unpaired, other_prompt])
def test_unpaired_items_make_no_ratio(tmp_path, mutate: Callable[[Cell], None]) -> None:
    study = study_with(tmp_path, "eagle3", mutate)
    by_method = {arm.record.method: arm for arm in study.arms}
    for figure in (study.speedup(by_method["eagle3"]), study.recovery(by_method["lossy"])):
        assert isinstance(figure, Missing)
        assert "items" in figure.reason


def test_arms_graded_by_different_versions_make_no_recovery(tmp_path) -> None:
    def regraded(cell: Cell) -> None:
        for grade in cell.grades:
            grade["grader_version"] = "2"

    study = study_with(tmp_path, "lossy", regraded)
    lossy = next(arm for arm in study.arms if arm.record.method == "lossy")
    figure = study.recovery(lossy)
    assert isinstance(figure, Missing)
    assert "different versions" in figure.reason
    assert figure.remedy == f"python -m evaluators.regrade {tmp_path}"


def test_pass_bodies_graded_right_are_flagged(tmp_path) -> None:
    def legacy(cell: Cell) -> None:
        for grade in cell.grades[:2]:
            grade["extracted"] = "def double(x):\n    pass\n"

    study = study_with(tmp_path, "eagle3", legacy)
    assert "EMPTY_PROGRAM" in reasons(study)


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([Item(tokens=61, steps=30, finish="length")] * 2 + ITEMS[2:], "TRUNCATED"),
        ([Item(tokens=61, steps=30, latency_s=3.0)] + [Item(tokens=61, steps=30)] * 9, "COLD_START"),
        ([Item(tokens=61, steps=30, machine={"others_cores": 1.5})] * 10, "BUSY"),
        ([Item(tokens=61, steps=30, machine={"gpu_throttled": True})] + [Item(tokens=61, steps=30)] * 9, "THROTTLED"),
    ],
)
def test_what_a_reader_must_know_is_flagged_and_keeps_its_row(tmp_path, items, code: str) -> None:
    study = study_with(tmp_path, "eagle3", items=items)
    eagle3 = next(arm for arm in study.arms if arm.record.method == "eagle3")
    assert code in {flag.code for flag in eagle3.flags}


@pytest.mark.parametrize(("n_cut", "flagged"), [(1, False), (2, True)])
def test_r096_r098_more_than_one_percent_cut_is_said_with_the_accuracy_of_both_parts(
    tmp_path, n_cut: int, flagged: bool
) -> None:
    cut = [Item(tokens=61, steps=30, finish="length", correct=False)] * n_cut
    write_cell(tmp_path, Spec("eagle3", [*cut, *[Item(tokens=61, steps=30)] * (100 - n_cut)]))
    (arm,) = Study.load(tmp_path).arms
    details = [flag.detail for flag in arm.flags if flag.code == "TRUNCATED"]
    said = "2/100 outputs hit the cap of 160; right: 0/2 of these, 98/98 of the complete ones"
    assert details == ([said] if flagged else [])
    assert any(note.startswith("TRUNCATED") for note in summary(Study.load(tmp_path)).notes) == flagged


def cached(*tokens: int) -> Callable[[Cell], None]:
    def mutate(cell: Cell) -> None:
        for line, count in zip(cell.lines, tokens, strict=False):
            line["cached_tokens"] = count

    return mutate


@pytest.mark.parametrize(
    ("radix_cache", "tokens", "clean"),
    [
        (False, [0] * 10, True),
        (False, [0] * 9 + [5], False),
        (True, [0, *[12] * 9], True),  # the chat template's head is everybody's
        (True, [0] * 9 + [19], False),  # of 20 prompt tokens: this prompt had been asked before
    ],
)
def test_r048_warm_and_cold_prompts_are_not_mixed_in_one_arm(
    tmp_path, radix_cache: bool, tokens: list[int], clean: bool
) -> None:
    write_cell(tmp_path, Spec("vanilla", ITEMS, engine={"radix_cache": radix_cache}), cached(*tokens))
    study = Study.load(tmp_path)
    assert ("WARM_CACHE" not in reasons(study)) == clean
    assert bool(study.arms) == clean


def begins(*seconds: float) -> Callable[[Cell], None]:
    """Have the items begin at these seconds, on one server."""

    def mutate(cell: Cell) -> None:
        first = datetime.fromisoformat(cell.lines[0]["started_at"])
        for line, second in zip(cell.lines, seconds, strict=True):
            line["started_at"] = (first + timedelta(seconds=second)).isoformat(timespec="milliseconds")

    return mutate


@pytest.mark.parametrize(
    ("seconds", "clean"),
    [
        ([0, 1, 2, 3], True),
        ([0, 3, 1, 2], True),  # item 1 failed, and was answered after the others
        ([0, 0.96, 2, 3], True),  # clocks are rounded
        ([0, 2.5, 1, 2], False),  # the retry began while the last was being answered
    ],
)
def test_a_retried_item_is_out_of_order_and_no_overlap(tmp_path, seconds: list[float], clean: bool) -> None:
    write_cell(tmp_path, Spec("eagle3", [Item(latency_s=1.0)] * 4), begins(*seconds))
    study = Study.load(tmp_path)
    assert ("requests overlap at concurrency 1 (1 times)" in reasons(study)) != clean
    assert bool(study.arms) == clean


@pytest.mark.parametrize(("clock", "differs"), [(1980.0, False), (1700.0, True)])
def test_r042_an_arm_at_another_clock_than_its_baseline_says_so(tmp_path, clock: float, differs: bool) -> None:
    def at(clock: float) -> list[Item]:
        return [Item(tokens=61, steps=30, machine={"gpu_clock_mhz": clock})] * 10

    write_cell(tmp_path, Spec("vanilla", at(1980.0)))
    write_cell(tmp_path, Spec("eagle3", at(clock)))
    eagle3 = next(arm for arm in Study.load(tmp_path).arms if arm.record.method == "eagle3")
    assert ("CLOCKS_DIFFER" in {flag.code for flag in eagle3.flags}) == differs


def test_a_trace_that_did_not_arrive_is_said(tmp_path) -> None:
    def untraced(cell: Cell) -> None:
        for line in cell.lines:
            line["trace"] = None

    study = study_with(tmp_path, "lossy", untraced)
    assert "TRACE_MISSING" in {flag.code for arm in study.arms for flag in arm.flags}


def test_r049_sampling_that_changes_nothing_is_flagged(tmp_path) -> None:
    for seed in range(5):
        write_cell(tmp_path, Spec("eagle3", ITEMS, seed=seed, engine={"temperature": 0.7}))
    arms = Study.load(tmp_path).arms
    assert all("SAMPLING_INACTIVE" in {flag.code for flag in arm.flags} for arm in arms)


def test_greedy_seeds_may_be_identical(tmp_path) -> None:
    for seed in range(2):
        write_cell(tmp_path, Spec("eagle3", ITEMS, seed=seed))
    assert not any(arm.flags for arm in Study.load(tmp_path).arms)


def test_r022_tokens_after_the_end_are_not_counted(tmp_path) -> None:
    """A step [d1, d2, EOS, d4, d5, bonus] commits three tokens; counting six does not fit the output's ids."""
    three = Item(ids=(10, 11, 12, END), steps=1)
    write_cell(tmp_path, Spec("combined", [three] * 6))
    assert not Study.load(tmp_path).problems

    def six(cell: Cell) -> None:
        for line in cell.lines:
            line["adaptivespec"]["committed"] = 6

    write_cell(tmp_path / "six", Spec("combined", [three] * 6), six)
    assert "COUNTERS 1 + num_retractions + committed is not output_tokens" in reasons(Study.load(tmp_path / "six"))


def test_a_retracted_request_keeps_its_row_and_its_prefills_are_no_steps(tmp_path) -> None:
    write_cell(tmp_path, Spec("combined", [Item(tokens=61, steps=29, retractions=2), *ITEMS[1:]]))
    study = Study.load(tmp_path)
    assert not study.problems
    assert study.arms[0].committed_per_step == study.arms[0].record.metrics["committed_per_step"] == 598 / 299


@pytest.mark.parametrize("retractions", [0, 1])
def test_a_line_from_before_retractions_were_stored_has_none(tmp_path, retractions: int) -> None:
    def older(cell: Cell) -> None:
        for line in cell.lines:
            del line["num_retractions"]

    write_cell(tmp_path, Spec("combined", [Item(retractions=retractions)] * 10), older)
    assert ("COUNTERS" in reasons(Study.load(tmp_path))) == (retractions > 0)


def test_a_cut_line_is_named(tmp_path) -> None:
    cell_id = write_cell(tmp_path, SPECS["eagle3"])
    path = tmp_path / cell_id / "generations.jsonl"
    path.write_text(path.read_text()[:-30])
    assert "line 10" in reasons(Study.load(tmp_path))
