"""Nobody spins, nobody waits for ever, nobody keeps what others need. Times are arguments."""

from contextlib import closing

import mlx.core as mx
import mlx.nn as nn
import pytest
from fakes import hello, opening
from test_conversation import DEADLINE_S, Talk, welcome, welcomed
from test_registry import PEER, greeted

from bus import codec
from bus.errors import Code, Refused
from bus.messages import Commit, Error, Limits, Open, Ping, Pong, Sampling, Welcome
from bus.packed import MAX_TOKENS, Ids
from drafter_mlx.config import Config, Drafts
from drafter_mlx.conversation import GREET_EVERY_S, RTTS, Conversation
from drafter_mlx.daemon import Daemon
from drafter_mlx.session import Request, Session
from strategies import load
from strategies.costs import Costs
from strategies.drafting import Options


def test_a_drafter_without_a_verifier_sleeps_between_greetings():
    talk = Talk()
    talk.start()
    talk.tick(0.0)
    assert talk.inner.wake_in_s(0.1) == pytest.approx(GREET_EVERY_S - 0.1)


class Quiet:
    """A draft model of which only the vocabulary is asked."""

    class vocabulary:  # noqa: N801
        digest, size = bytes(32), 100

    def reading(self):
        return None

    def step_costs(self):
        return Costs()


def test_a_drafter_that_waits_for_its_verifier_sleeps(monkeypatch):
    daemon = Daemon(Config("tcp://127.0.0.1:9", "draft", deadline_s=1.0), Quiet())
    daemon.start(Request(Ids([1, 2]), Sampling()), Drafts(), lambda piece: None)
    waits, real = [], daemon._socket.wait
    monkeypatch.setattr(daemon._socket, "wait", lambda s: waits.append(s) or real(s))
    with closing(daemon):
        daemon.run(lambda: False)
    assert "tried for 1 s" in str(daemon.talk.failure)
    assert len(waits) < 50, "a loop that spins comes by many thousand times"


@pytest.mark.parametrize("limit", [64, 1 << 20])
def test_a_prompt_that_cannot_fit_fails_before_it_travels(limit):
    talk = Talk()
    drafting = load("drafting", "pipelined")(Options())
    length = min(limit, MAX_TOKENS)
    request = Request(Ids([1] * length), Sampling(max_tokens=4))
    talk.inner.start(Session(9, request, drafting, 8), talk.pieces.append, 0.0)
    talk.start(1)
    talk.tick(0.0)
    limits = Limits(2, limit, 64, 5000)
    sent = talk.hear(Welcome(1, "target", limits, ("exact",)))
    assert [message.session for message in sent if isinstance(message, Open)] == [1]
    assert isinstance(talk.inner.errors[9], Refused)
    assert f"at most {length - 1}: shorten it" in str(talk.inner.errors[9])


def test_a_session_without_room_is_not_drafted_for_until_it_has_some():
    talk = welcomed(1)
    talk.hear(Error(Code.OVERLOADED, "no room", 1))
    assert talk.inner.sessions == []
    talk.hear(Commit(1, 2, Ids([5])))
    assert [session.id for session in talk.inner.sessions] == [1]


def test_a_session_waits_for_room_as_long_as_another_one_moves():
    talk = welcomed(1, 2)
    for second in range(1, 15):
        talk.tick(second * DEADLINE_S / 5)
        talk.hear(Commit(1, 1 + second, Ids([5])), Error(Code.OVERLOADED, "no room", 2))
    assert talk.inner.errors == {}


@pytest.mark.parametrize(("lease_ms", "every_s"), [(600, 0.2), (60_000, 1.0)])
def test_a_drafter_pings_well_within_its_lease(lease_ms, every_s):
    talk = Conversation(hello(), "tcp://gpu:1", DEADLINE_S, 0.0)
    talk.handle(Welcome(1, "target", Limits(2, 64, 5, lease_ms), ("exact",)), 0.0)
    talk.tick(0.0)
    talk.tick(every_s - 0.01)
    assert [type(message) for message in talk.outbox] == [Ping]
    talk.tick(every_s)
    assert [type(message) for message in talk.outbox] == [Ping, Ping]


def test_a_peer_that_pings_but_reads_nothing_loses_its_slot():
    verifier = greeted()
    lease_s = verifier.registry.settings.limits.lease_ms / 1000
    verifier.say(opening((3,)))
    (reply,) = verifier.step()
    now = 0.0
    while now <= lease_s:
        verifier.registry.handle(PEER, Ping(0), now)
        for held in verifier.registry.held() or [reply]:
            verifier.registry.hold(held)
        verifier.registry.expire(now)
        assert verifier.registry.holding
        now += lease_s / 10
    verifier.registry.handle(PEER, Ping(0), now)
    verifier.registry.expire(now)
    assert not verifier.registry.holding
    (error,) = verifier.registry.handle(PEER, opening((3,)), now)
    assert error.message.code == Code.NOT_GREETED


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("broken", [slice(0, 9), slice(0, 4), slice(5, 9)])
def test_a_draft_model_that_says_nothing_sensible_still_drafts(value, broken):
    from drafter_mlx import model as draft_model

    class Broken(nn.Module):
        layers = ()

        def __call__(self, tokens, cache=None):
            logits = mx.full((1, tokens.shape[1], 9), 1.0)
            logits[..., broken] = float(value)
            return logits

    class Tokenizer:
        def get_vocab(self):
            return {str(number): number for number in range(9)}

    draft = draft_model.DraftModel(Broken(), Tokenizer())
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        request = Request(Ids([1, 2]), sampling)
        session = Session(1, request, load("drafting", "tree")(Options()), 8)
        step = session.plan()
        tree, reading = session.tree, draft.reading()
        found = draft.expand(reading, tree, step.expand, sampling, step.children)
        for message in session.expanded(step, found):
            assert codec.decode(codec.encode(message)).tokens == message.tokens
        assert session.tree.root.children


def test_a_welcome_is_needed_before_anything_is_drafted():
    talk = Talk()
    talk.start()
    assert talk.inner.sessions == []
    talk.tick(0.0)
    talk.hear(welcome())
    assert len(talk.inner.sessions) == 1


def test_of_several_greetings_it_is_not_known_which_was_answered() -> None:
    talk = Talk()
    talk.start()
    for now in (0.0, GREET_EVERY_S, 2 * GREET_EVERY_S):
        talk.tick(now)
    talk.now = 2 * GREET_EVERY_S + 0.001
    talk.hear(welcome())
    assert talk.inner.rtt_s is None, "it may have been the first that was answered so late"


def test_a_round_trip_is_as_long_as_the_shortest_of_the_last_answers() -> None:
    talk = Talk()
    session = talk.start()
    talk.tick(0.0)
    talk.now = 0.25
    talk.hear(welcome())
    assert talk.inner.rtt_s == session.rtt_s == 0.25, "from the greeting to its answer"
    talk.now = 2.0
    talk.hear(*[Pong(1_500_000, 0)] * (RTTS - 1))
    assert talk.inner.rtt_s == 0.25
    talk.hear(Pong(1_500_000, 0))
    assert talk.inner.rtt_s == session.rtt_s == talk.start(2).rtt_s == 0.5
