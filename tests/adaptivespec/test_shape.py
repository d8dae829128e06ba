import pytest

from adaptivespec.shape import TreeShape


def test_a_shape_reads_and_writes_as_a_triplet() -> None:
    shape = TreeShape.of([3, 4, 4])
    assert (shape.num_steps, shape.topk, shape.num_draft_tokens) == (3, 4, 4)
    assert TreeShape.of(shape.as_list()) == shape
    assert str(shape) == "3,4,4"


@pytest.mark.parametrize(
    ("triplet", "kv_slots", "chain"), [([3, 1, 4], 4, True), ([3, 4, 4], 12, False), ([1, 2, 3], 3, False)]
)
def test_kv_slots_cover_drafting_and_verifying(triplet: list[int], kv_slots: int, chain: bool) -> None:
    shape = TreeShape.of(triplet)
    assert (shape.kv_slots, shape.is_chain) == (kv_slots, chain)


@pytest.mark.parametrize(
    ("triplet", "names"),
    [
        ([3, 1, 8], "num_steps + 1 = 4"),
        (
            [2, 1, 2],
            "num_steps + 1 = 3; so it verifies 1 of 2 drafts, tau is at most 2",
        ),  # R015; SGLang makes it (2,1,3)
        ([2, 2, 8], "between 2 and 7"),  # 2 + 4 nodes and the root
        ([3, 4, 1], "between 2"),
        ([0, 1, 1], "num_steps=0"),
        ([3, 1.5, 4], "topk=1.5"),
        ([3, 1], "num_steps, topk, num_draft_tokens"),
        ("314", "'314'"),
    ],
)
def test_an_impossible_shape_is_refused_by_name(triplet: list[int], names: str) -> None:
    with pytest.raises(ValueError, match=r"tree shape|chain") as caught:
        TreeShape.of(triplet)
    assert names in str(caught.value)


def test_the_largest_tree_of_a_shape_is_allowed() -> None:
    assert TreeShape(2, 2, 7).num_draft_tokens == 7
