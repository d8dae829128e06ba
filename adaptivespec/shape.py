"""The shape of one draft tree: the paper's (nsteps, top-k, ndt), section 4.1 and Table 7.

python -c "from adaptivespec.shape import TreeShape; print(TreeShape(3, 4, 4))"
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class TreeShape:
    """`num_steps` drafting steps of `topk` branches each, of which `num_draft_tokens` nodes are verified.

    `num_draft_tokens` counts the root, as SGLang's flag of that name does: (3, 1, 4) is a root and three drafts.

    Raises:
        ValueError: if the drafted tree cannot hold the nodes to verify.
    """

    num_steps: int
    topk: int
    num_draft_tokens: int

    def __post_init__(self) -> None:
        for name in ("num_steps", "topk", "num_draft_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} of a tree shape: expected an integer of at least 1")
        nodes = self.topk + (self.num_steps - 1) * self.topk**2
        if self.topk == 1 and self.num_draft_tokens != self.num_steps + 1:
            too_few = f"; so it verifies {self.max_accepted} of {self.num_steps} drafts, tau is at most {self.max_accepted + 1}"
            raise ValueError(
                f"chain {self}: num_draft_tokens must be num_steps + 1 = {self.num_steps + 1}"
                + (too_few if self.num_draft_tokens <= self.num_steps else "")
            )
        if not 1 <= self.num_draft_tokens - 1 <= nodes:
            raise ValueError(
                f"tree shape {self}: num_draft_tokens must be between 2 and {nodes + 1}, the root and the "
                f"{nodes} nodes that {self.num_steps} steps of top-{self.topk} draft"
            )

    @classmethod
    def of(cls, triplet: object) -> "TreeShape":
        """From `[num_steps, topk, num_draft_tokens]`, as configs write it."""
        if isinstance(triplet, str) or not isinstance(triplet, Sequence) or len(triplet) != 3:
            raise ValueError(f"tree shape {triplet!r}: expected [num_steps, topk, num_draft_tokens], as [3, 1, 4]")
        return cls(*triplet)

    @property
    def is_chain(self) -> bool:
        """One branch per step."""
        return self.topk == 1

    @property
    def max_accepted(self) -> int:
        """Most drafts that one step can accept: as deep as it drafts, and no more than it verifies."""
        return min(self.num_steps, self.num_draft_tokens - 1)

    @property
    def kv_slots(self) -> int:
        """KV slots that one step may write: the drafted branches, or the verified nodes if those are more."""
        return max(self.num_steps * self.topk, self.num_draft_tokens)

    def as_list(self) -> list[int]:
        """`[num_steps, topk, num_draft_tokens]`, as records and configs write it."""
        return [self.num_steps, self.topk, self.num_draft_tokens]

    def __str__(self) -> str:
        return f"{self.num_steps},{self.topk},{self.num_draft_tokens}"
