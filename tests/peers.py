"""Drafters of a few lines on real sockets: one that knows nothing, and one that is hostile."""

import random
import time
from collections.abc import Callable

import zmq
from transformers import AutoTokenizer

from bench.pair import TARGET
from bus.messages import (
    PROTOCOL,
    AnyMessage,
    Commit,
    Draft,
    Hello,
    Open,
    Ping,
    Pong,
    Sampling,
    Welcome,
)
from bus.packed import Confidences, Ids, Parents
from bus.sockets import DrafterSocket
from bus.vocabulary import Vocabulary
from strategies.tree import DraftTree

VOCABULARY = Vocabulary.of(AutoTokenizer.from_pretrained(TARGET).get_vocab())
HELLO = Hello(PROTOCOL, "test", VOCABULARY.digest, VOCABULARY.size)
Guess = Callable[[DraftTree], Draft | None]


class Peer:
    """A connection of its own, so that every Peer is another drafter to the verifier."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self.socket = DrafterSocket(address, context=self._context)
        self.say(HELLO)
        self.expect(Welcome)

    def say(self, message: AnyMessage) -> None:
        until = time.monotonic() + 10
        while self.socket.send(message).name != "SENT":
            assert time.monotonic() < until, "the verifier does not take messages"
            time.sleep(0.01)

    def expect(self, kind: type, within_s: float = 20) -> AnyMessage:
        """The next message of `kind`; others are left out."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            self.socket.wait(0.1)
            for message in self.socket.drain():
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} came within {within_s} s")

    def complete(
        self,
        prompt: list[int],
        sampling: Sampling,
        guess: Guess,
        committed: tuple[int, ...] = (),
        at_most: int | None = None,
    ) -> list[int]:
        """Run one session to its end (or to `at_most` tokens), guessing after every Commit."""
        tree = DraftTree((*prompt, *committed), 64)
        self.say(Open(7, Ids(prompt), Ids(committed), sampling))
        finished = False
        until = time.monotonic() + 120
        while not finished and (at_most is None or tree.tip - len(prompt) < at_most):
            assert time.monotonic() < until, "the session did not end"
            if not self.socket.wait(0.5):
                self.say(Ping(0))  # silence would end the lease
            for message in self.socket.drain():
                if isinstance(message, Pong):
                    continue
                assert isinstance(message, Commit), message
                assert message.position == tree.tip, "a gap or a repeat on a healthy link"
                tree.advance(message.tokens)
                finished = message.finish is not None
                draft = None if finished else guess(tree)
                if draft is not None:
                    self.socket.send(draft)
        return tree.tokens[len(prompt) :]

    def close(self) -> None:
        """Leave without a word."""
        self.socket.close()
        self._context.term()


def silent(tree: DraftTree) -> None:
    """Drafts nothing."""


def random_guesses(seed: int) -> Guess:
    """Random trees under the tip, all with full confidence."""
    rng = random.Random(seed)

    def guess(tree: DraftTree) -> Draft:
        count = rng.randint(1, 12)
        return Draft(
            7,
            tree.tip,
            tree.root.digest,
            Ids(rng.randrange(VOCABULARY.size) for _ in range(count)),
            Confidences([1.0] * count),
            Parents(rng.randint(0, index) for index in range(count)),
        )

    return guess
