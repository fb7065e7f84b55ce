"""Drafting strategies: whole sequences of what they decide on small trees."""

from dataclasses import dataclass, field

import pytest

from strategies.costs import Costs
from strategies.drafting import Drafting, Observation, Options, Outcome, Step
from strategies.drafting.adaptive import Adaptive
from strategies.drafting.beam import Beam
from strategies.drafting.fixed import Fixed
from strategies.drafting.multi import Multi
from strategies.drafting.pipelined import Pipelined
from strategies.drafting.tree import FLOOR, PUSH_FLOOR, Tree, worthwhile
from strategies.tree import DraftTree

END = 99


@dataclass
class Drafter:
    """The drafter's loop without models: the n-th position past the prompt guesses `says[n]`."""

    strategy: Drafting
    room: int = 8
    says: tuple[int, ...] = tuple(range(20, 60))
    tree: DraftTree = field(default_factory=lambda: DraftTree([1, 2], 100))
    unpushed: int = 0
    chances: tuple[float, ...] = (0.5, 0.25, 0.125)
    """Of children by their rank."""
    costs: dict[int, float] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    pass_s: float = 0.0

    def plan(self) -> Step | None:
        in_flight = len(self.tree) - self.unpushed
        return self.strategy.plan(
            Observation(self.tree, self.room, frozenset([END]), self.unpushed, in_flight,
                        Costs(self.costs), self.pass_s, 0.0, self.outcomes)
        )  # fmt: skip

    def step(self) -> tuple[tuple[int, ...], int, bool] | None:
        """Positions of the expanded nodes, children of each, and whether all was pushed."""
        step = self.plan()
        if step is None:
            return None
        for guess in step.known:
            node = guess.node
            for token in guess.tokens:
                assert not node.child(token)
                node = self.tree.add(node, token, guess.confidence)
                self.unpushed += 1
        for node in step.expand:
            assert not node.children
            for rank in range(step.children):
                token = self.says[node.position - 1] + 100 * rank
                self.tree.add(node, token, self.chances[rank])
                self.unpushed += 1
        self.unpushed *= not step.push
        return tuple(node.position for node in step.expand), step.children, step.push

    def steps(self) -> list[tuple[tuple[int, ...], int, bool]]:
        """All steps until the strategy waits."""
        return list(iter(self.step, None))


def fixed(length: int, **situation: object) -> Drafter:
    return Drafter(Fixed(Options(num_draft_tokens=length)), **situation)


def test_fixed_pushes_exactly_k_at_once_and_then_waits() -> None:
    drafter = fixed(3)
    assert drafter.steps() == [((1,), 1, False), ((2,), 1, False), ((3,), 1, True)]
    assert len(drafter.tree) == 3
    assert drafter.plan() is None


def test_fixed_with_k_of_1_pushes_each_token() -> None:
    assert fixed(1).steps() == [((1,), 1, True)]


def test_fixed_drafts_again_after_the_verdict() -> None:
    drafter = fixed(2)
    drafter.steps()
    drafter.tree.advance([20])
    assert drafter.steps() == []  # 21 is still in flight
    drafter.tree.advance([77])
    assert drafter.steps() == [((3,), 1, False), ((4,), 1, True)]


def test_fixed_pushes_a_shorter_chain_at_an_end_token() -> None:
    drafter = fixed(4, says=(20, END, 22, 23))
    assert drafter.steps() == [((1,), 1, False), ((2,), 1, False), ((), 1, True)]
    assert drafter.unpushed == 0


def test_fixed_pushes_a_shorter_chain_when_room_ends() -> None:
    assert fixed(4, room=2).steps() == [((1,), 1, False), ((2,), 1, False), ((), 1, True)]


def test_pipelined_pushes_each_token_while_others_are_in_flight() -> None:
    drafter = Drafter(Pipelined(Options()), room=4)
    assert drafter.steps() == [((position,), 1, True) for position in (1, 2, 3, 4)]
    drafter.tree.advance([20, 21])
    assert drafter.steps() == [((5,), 1, True), ((6,), 1, True)]


def test_pipelined_starts_again_from_a_correction() -> None:
    drafter = Drafter(Pipelined(Options()), room=2)
    drafter.steps()
    drafter.tree.advance([77])
    assert drafter.steps() == [((2,), 1, True), ((3,), 1, True)]


def names(drafter: Drafter, step: Step | None) -> list[list[int]]:
    """The paths of what a step expands, as tokens from the root down."""
    assert step is not None
    return [[node.token for node in expanded.path()] for expanded in step.expand]


def grown(*steps: int, **situation: object) -> Drafter:
    """A tree drafter of 8 nodes a step at most, after steps of so many nodes each."""
    options = Options(branches=2, step_nodes=8)
    drafter = Drafter(Tree(options), chances=(0.5, 0.25), **situation)
    for count in steps:
        planned = drafter.plan()
        assert planned is not None and len(planned.expand) == count
        drafter.step()
    return drafter


@pytest.mark.parametrize("branches", [1, 3])
def test_tree_asks_for_branches_children_of_the_likeliest_nodes(branches: int) -> None:
    drafter = Drafter(Tree(Options(branches=branches)), room=2)
    step = drafter.plan()
    assert step == Step((drafter.tree.root,), branches, floor=PUSH_FLOOR)
    drafter.step()
    assert len(drafter.tree) == branches
    assert names(drafter, drafter.plan())[0] == [20]


def test_tree_feeds_as_many_nodes_at_once_as_pays() -> None:
    flat = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3}
    drafter = grown(1, costs=flat)
    # Paths of 0.5 and 0.25: one gives 0.5 a second, both 0.75 / 1.1 = 0.68.
    assert names(drafter, drafter.plan()) == [[20], [120]]
    drafter.step()
    # Of 0.25, 0.125, 0.125 and 0.0625: 0.25, 0.341, 0.417, 0.433 a second.
    assert names(drafter, drafter.plan()) == [[20, 21], [20, 121], [120, 21], [120, 121]]
    dear = grown(1, costs={1: 1.0, 2: 1.6, 4: 3.2})
    assert names(dear, dear.plan()) == [[20]], "0.75 / 1.6 is less than 0.5"


@pytest.mark.parametrize(
    ("chances", "costs", "count"),
    [
        ([0.9], {1: 1.0}, 1),
        ([0.9, 0.9, 0.9], {1: 1.0}, 3),  # a cost in proportion: more at once is no worse
        ([0.9, 0.8], {1: 1.0, 2: 2.0}, 1),  # 0.9 and 0.85
        ([0.5, 0.4, 0.1], {1: 1.0, 2: 1.5, 3: 2.0}, 2),  # 0.5, 0.6, 0.5
        ([0.5, 0.1, 0.4], {1: 1.0, 2: 1.5, 3: 1.6}, 3),  # 0.5, 0.4, 0.625: beyond a dip
        ([0.5, 0.5], {}, 1),  # nothing is known: as if in proportion
    ],
)
def test_a_step_has_the_width_of_most_progress_a_second(
    chances: list[float], costs: dict[int, float], count: int
) -> None:
    assert worthwhile(chances, Costs(costs)) == count


def test_tree_drafts_on_where_the_text_most_likely_goes() -> None:
    drafter = grown(1, costs={1: 1.0})
    drafter.chances = (0.3, 0.2)
    drafter.strategy = Tree(Options(branches=2, step_nodes=1))
    order = []
    for _ in range(3):
        order += names(drafter, drafter.plan())
        drafter.step()
    # 0.5, then 0.25 of the sibling before the 0.15 and 0.1 below.
    assert order == [[20], [120], [20, 21]]


def test_tree_leaves_alone_what_is_hardly_ever_reached() -> None:
    drafter = Drafter(Tree(Options(branches=1)), chances=(0.4,), room=99, says=(20,) * 99)
    drafter.steps()
    lengths = len(drafter.tree.chain())
    assert 0.4 ** (lengths - 1) >= FLOOR > 0.4**lengths
    assert lengths == 5


def test_tree_begins_again_at_a_correction_and_goes_on_below_a_hedge() -> None:
    drafter = grown(1)
    drafter.tree.advance([77])
    assert drafter.plan() == Step((drafter.tree.root,), 2, floor=PUSH_FLOOR)
    hedged = grown(1)
    hedged.tree.advance([120])
    assert hedged.plan() == Step((hedged.tree.root,), 2, floor=PUSH_FLOOR)


def test_what_a_strategy_may_never_expand_it_does_not() -> None:
    drafter = grown(1, room=1)
    assert drafter.plan() is None, "no room below the first level"
    full = Drafter(Tree(Options(branches=2)), tree=DraftTree([1, 2], 2))
    full.step()
    assert full.plan() is None, "no room for nodes"
    ending = Drafter(Tree(Options(branches=2, step_nodes=1)), says=(END, 21, 22))
    ending.step()
    assert names(ending, ending.plan()) == [[END + 100]], "the hedge, and nothing after the end"


ALL = [
    Fixed(Options(num_draft_tokens=4)), Pipelined(Options()), Tree(Options(branches=2)),
    Multi(Options(num_draft_tokens=4, branches=2)), Beam(Options(num_draft_tokens=4, branches=2)),
    Adaptive(Options()),
]  # fmt: skip


@pytest.mark.parametrize("strategy", ALL)
def test_nothing_is_drafted_past_an_end_token(strategy: Drafting) -> None:
    drafter = Drafter(strategy, says=(20, END, *range(22, 60)))
    drafter.steps()
    assert [node.token for node in drafter.tree.chain()] == [20, END]
    assert not [node for node in drafter.tree.nodes() if node.token == END and node.children]


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("room", [-1, 0, 1, 2])
def test_nothing_is_drafted_beyond_room(strategy: Drafting, room: int) -> None:
    drafter = Drafter(strategy, room=room)
    drafter.steps()
    assert len(drafter.tree.chain()) == max(room, 0)
    assert drafter.unpushed == 0


@pytest.mark.parametrize("strategy", ALL)
def test_an_end_token_in_the_prompt_stops_nothing(strategy: Drafting) -> None:
    drafter = Drafter(strategy, tree=DraftTree([1, END], 100), room=1)
    drafter.steps()
    assert len(drafter.tree.chain()) == 1
