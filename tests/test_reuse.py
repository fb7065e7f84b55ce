"""A text that goes on where an earlier one ended reads only what is new, and says the same."""

import json
import subprocess

import numpy as np
import pytest
from fakes import PEER, VOCAB, Verifier, hello, opening

from bench import processes
from bench.pair import DRAFT
from bus.messages import Limits, Sampling
from drafter_mlx.config import Config
from drafter_mlx.model import load
from drafter_mlx.readings import MOST, Readings
from strategies.tree import DraftTree
from verifier_cuda.slots import Slots

OTHER = b"other"

# Slots -------------------------------------------------------------------------------


def test_a_slot_goes_to_the_text_that_shares_most_with_what_it_holds() -> None:
    slots = Slots(3)
    taken = [slots.take(PEER, [1])[0] for _ in range(3)]
    assert sorted(taken) == [0, 1, 2] and slots.take(PEER, [1]) is None
    slots.give(taken[0], PEER, [1, 2])
    slots.give(taken[1], PEER, [1, 2, 3, 4])
    slots.give(taken[2], PEER, [9])
    assert slots.take(PEER, [1, 2, 3, 7, 8]) == (taken[1], 3)
    assert slots.take(PEER, [1, 2, 3, 7, 8]) == (taken[0], 2), "all that it holds"


def test_what_is_shared_with_nobody_overwrites_the_empty_and_then_the_oldest_slot() -> None:
    slots = Slots(3)
    first, second = slots.take(PEER, [1])[0], slots.take(PEER, [2])[0]
    slots.give(first, PEER, [1])
    slots.give(second, PEER, [2])
    assert slots.take(PEER, [7])[0] not in (first, second)
    assert [slots.take(PEER, [7])[0] for _ in range(2)] == [first, second]


def test_a_common_beginning_alone_takes_nobody_elses_turn() -> None:
    slots = Slots(2)
    first = slots.take(PEER, [1])[0]
    slots.give(first, PEER, [1, 2, 3, 4, 5])
    other, shared = slots.take(PEER, [1, 2, 9, 9])
    assert (other, shared) == (1 - first, 0), "less than half of what is held"
    assert slots.take(PEER, [1, 2, 9, 9]) == (first, 2), "unless there is no other"


def test_nobody_gets_what_another_left_nor_what_the_gone_left() -> None:
    slots = Slots(1)
    slots.give(slots.take(PEER, [1, 2])[0], PEER, [1, 2])
    assert slots.take(OTHER, [1, 2]) == (0, 0)
    slots.give(0, PEER, [1, 2])
    slots.forget(PEER)
    assert slots.take(PEER, [1, 2]) == (0, 0)


# At the verifier ---------------------------------------------------------------------


def reading(verifier: Verifier, number: int, peer: bytes = PEER) -> int:
    """Prompt tokens that a session reads before it decodes."""
    return verifier.session(number, peer).unread


def served(sessions: int = 3) -> Verifier:
    verifier = Verifier(limits=Limits(sessions, 64, 32, 5000))
    for peer in (PEER, OTHER):
        verifier.say(hello(), peer=peer)
    return verifier


def test_the_next_turn_of_a_chat_reads_only_what_is_new() -> None:
    verifier = served()
    verifier.say(opening([3, 1, 4, 1], 1, max_tokens=20, ignore_eos=True))
    said = verifier.finish(1)
    turn = opening([3, 1, 4, 1, *said, 8, 9], 2, max_tokens=20, ignore_eos=True)
    verifier.say(turn)
    # All but the last said token, which was never fed, and the two new ones, less the tip.
    assert reading(verifier, 2) == 2
    reused = [r.message.timings.reused for r in verifier.step(1.0) + verifier.step(2.0)]
    assert verifier.finish(2) == verifier.plain(turn)[0]
    assert sum(reused) == 4 + 20 - 1


def test_a_turn_that_departs_reuses_what_it_shares() -> None:
    verifier = served()
    verifier.say(opening([3, 1, 4, 1], 1, max_tokens=12))
    said = verifier.finish(1)
    shared = [3, 1, 4, 1, *said[:6]]
    other = opening([*shared, (said[6] + 1) % VOCAB, 5, 5], 2, max_tokens=12)
    verifier.say(other)
    assert reading(verifier, 2) == 2
    assert verifier.finish(2) == verifier.plain(other)[0]


def test_the_same_prompt_again_reads_nothing() -> None:
    verifier = served(sessions=1)
    for number in (1, 2):
        verifier.say(opening([3, 1, 4, 1], number, max_tokens=12))
        assert reading(verifier, number) == (0 if number == 2 else 3)
        assert verifier.finish(number) == verifier.plain(opening([3, 1, 4, 1], max_tokens=12))[0]


def test_another_peer_reads_all_of_it() -> None:
    verifier = served()
    verifier.say(opening([3, 1, 4, 1], 1, max_tokens=12))
    verifier.finish(1)
    verifier.say(opening([3, 1, 4, 1], 1, max_tokens=12), peer=OTHER)
    assert reading(verifier, 1, OTHER) == 3


# At the drafter ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def draft():
    return load(Config("tcp://127.0.0.1:9", str(DRAFT)))


def guesses(draft, reading, tokens):
    tree = DraftTree(tokens, 32)
    assert draft.catch_up(reading, tree)
    return draft.expand(reading, tree, [tree.root], Sampling(), 3)[0], tree


def test_a_reading_is_gone_on_with_and_says_the_same(draft):
    old = Readings(draft.reading)
    first = old.take([5, 6, 7])
    _, tree = guesses(draft, first, [5, 6, 7, 8])
    node = tree.add(tree.root, 9, 1.0)
    draft.expand(first, tree, [node], Sampling(), 1)
    old.give(tree.tokens, first)
    for tokens in ([5, 6, 7, 8], [5, 6, 7, 8, 30, 31], [5, 6, 7, 41]):
        again = old.take(tokens)
        assert again is first and again.line <= len(tokens)
        got, tree = guesses(draft, again, tokens)
        wanted, _ = guesses(draft, draft.reading(), tokens)
        assert [token for token, _ in got] == [token for token, _ in wanted]
        np.testing.assert_allclose([c for _, c in got], [c for _, c in wanted], rtol=1e-4)
        old.give(tree.tokens, again)


def test_only_a_few_readings_are_kept_and_none_for_another_text(draft):
    old = Readings(draft.reading)
    held = [old.take([number]) for number in range(MOST + 1)]
    for number, one in enumerate(held):
        guesses(draft, one, [number + 1])
        old.give([number + 1], one)
    assert old.take([1]) is not held[0], "the oldest is gone"
    assert old.take([99]) not in held
    assert old.take([2]) is held[1]


# Through real processes --------------------------------------------------------------


def test_a_chat_through_real_daemons_says_how_much_was_reused(
    verifier, reference, prompts, tmp_path
):
    said = reference.continue_(prompts[2], Sampling(24))
    turn = [*prompts[2], *said, *prompts[3][:9]]
    rows = [{"prompt_ids": p, "max_tokens": 24} for p in (prompts[2], turn, prompts[4])]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = processes.complete_command(
        verifier, DRAFT, ["--prompts", str(source), "--out", str(out)]
    )
    subprocess.run(command, env=processes.environment(1), check=True, timeout=120)
    first, second, third = [json.loads(line) for line in out.read_text().splitlines()]
    assert first["token_ids"] == said
    assert second["token_ids"] == reference.continue_(turn, Sampling(24))
    assert first["timings"]["cache_n"] == 0
    assert second["timings"]["cache_n"] == len(prompts[2]) + 24 - 1
    assert third["timings"]["cache_n"] < 64
