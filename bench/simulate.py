"""The pipeline on a virtual clock: what it would reach with given costs, network and α.

Both daemons' loops, their pure halves and the strategies are the real ones; models,
network and time are made up from a seed (`bench/virtual.py`, `bench/oracle.py`).
So a result is exact for its assumptions, and the same each time.
"""

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import strategies
from bench import limits
from bench.limits import Curve, Setting
from bench.oracle import VOCAB, Acceptance, Drawn, Text
from bench.outcome import Outcome, counted
from bench.virtual import Clock, Costs, DrafterLoop, Link, VerifierLoop, lossy
from bus import codec
from bus.messages import PROTOCOL, AnyMessage, Hello, Limits, Sampling
from bus.packed import Ids
from drafter_mlx.experience import Experience
from drafter_mlx.session import Request, Session
from strategies.costs import Costs as StepCosts
from strategies.drafting import Options
from strategies.noise import mix64
from verifier_cuda.registry import MAX_PEERS, Registry, Settings
from verifier_cuda.scheduler import MAX_WIDTH, Scheduler

LIMIT_S = 1e6
GUESSES = Drawn((0.7, 0.1, 0.05))
PASS_S = Curve.flat(0.030, 8, 0.001)
DRAFT_S = Curve.flat(0.003, 1, 0.0002)
DRAFT_WIDTHS = (1, 2, 4, 8, 16)
PASS_WIDTHS = (4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
"""What the daemons measure when they start; a pass up to the greatest width of one text."""
_TOKENIZER = bytes(32)


@dataclass(frozen=True)
class World:
    """Everything that a run depends on."""

    acceptance: Acceptance = GUESSES
    pass_s: Curve = PASS_S
    draft_s: Curve = DRAFT_S
    prefill_s: float = 0.030
    overhead_s: float = 0.0
    rtt_s: float = 0.010
    jitter_s: float = 0.0
    """Up to so much is added to each way at random."""
    loss: float = 0.0
    """Chance that a Draft is lost."""
    loss_rest: float = 0.0
    """Chance that any other message is lost; resuming repairs it."""
    drafters: int = 1
    verifiers: int = 1
    sessions: int = 1
    """Texts that each drafter works on at a time."""
    prompt: int = 16
    max_tokens: int = 256
    drafting: str = "tree"
    options: Options = field(default_factory=Options)
    max_width: int = MAX_WIDTH
    count_bytes: bool = False
    seed: int = 0
    lockstep: bool = False
    """The verifier waits for a draft before each pass: with `fixed` the textbook's loop."""

    @property
    def setting(self) -> Setting:
        """The same for the closed formulas."""
        texts = self.sessions * max(1, self.drafters // self.verifiers)
        alpha = self.acceptance.mean(self.options.branches)
        pass_s = self.pass_s.plus(self.overhead_s)
        return Setting(alpha, self.draft_s, pass_s, self.rtt_s, texts)

    def with_k(self, k: int) -> "World":
        """`fixed` with drafts of k tokens."""
        options = replace(self.options, num_draft_tokens=k, window=max(k, self.options.window))
        return replace(self, drafting="fixed", options=options)


def run(world: World) -> Outcome:
    """Run a world until all its texts are through."""
    began = time.perf_counter()
    clock = Clock()
    verifiers = [_verifier(world, clock, number) for number in range(world.verifiers)]
    drafters = [_drafter(world, clock, number) for number in range(world.drafters)]
    links = [_connect(world, drafter, verifiers[number % world.verifiers], number)
             for number, drafter in enumerate(drafters)]  # fmt: skip
    rng = random.Random(world.seed)
    for verifier in verifiers:
        verifier.start(verifier.run(), 0.0)
    for number, drafter in enumerate(drafters):  # so that they do not march in step
        drafter.start(drafter.run(), rng.random() * world.pass_s.at(1) if number else 0.0)
    left = list(drafters)

    def over() -> bool:
        while left and left[-1].done:
            left.pop()
        return not left

    with _rare_collections():
        clock.run(over, LIMIT_S)
    sent = sum(link.bytes for pair in links for link in pair) if world.count_bytes else None
    return counted(drafters, verifiers, clock, sent, time.perf_counter() - began)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Trees are cycles that live long: looking for garbage all the time takes a third of it."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


# What follows is where the real halves are made; their constructors are used nowhere else.


def _verifier(world: World, clock: Clock, number: int) -> VerifierLoop:
    peers = -(-world.drafters // world.verifiers)
    assert peers <= MAX_PEERS, f"a verifier takes {MAX_PEERS} drafters: use more verifiers"
    bounds = Limits(peers * world.sessions, world.prompt + world.max_tokens + 1, 512, 10_000)
    names = tuple(strategies.names("acceptance"))
    settings = Settings("target", number + 1, _TOKENIZER, VOCAB, frozenset(), bounds, names)
    registry = Registry(settings, strategies.make_acceptance)
    widths = [width for width in PASS_WIDTHS if width <= world.max_width]
    scheduler = Scheduler(registry, world.max_width, costs=_known(world.pass_s, widths))
    return VerifierLoop(clock, registry, scheduler, _costs(world))


def _drafter(world: World, clock: Clock, number: int) -> DrafterLoop:
    hello = Hello(PROTOCOL, "draft", _TOKENIZER, VOCAB)
    experience = Experience(step_costs=_known(world.draft_s, DRAFT_WIDTHS))
    drafter = DrafterLoop(clock, hello, _costs(world), world.acceptance, experience)
    for index in range(world.sessions):
        serial = number * world.sessions + index
        text = Text(world.seed << 24 | serial, world.prompt, world.max_tokens)
        drafting = strategies.load("drafting", world.drafting)(world.options)
        sampling = Sampling(world.max_tokens, ignore_eos=True)
        request = Request(Ids(text.prompt), sampling, lockstep=world.lockstep)
        window = world.options.window
        drafter.want(text, request, Session(index + 1, request, drafting, window, experience))
    return drafter


def _known(curve: Curve, widths: Sequence[int]) -> StepCosts:
    """What a daemon has measured when it starts."""
    return StepCosts({width: curve.at(width) for width in widths})


def _costs(world: World) -> Costs:
    return Costs(world.pass_s, world.draft_s, world.prefill_s, world.overhead_s)


def _connect(
    world: World, drafter: DrafterLoop, verifier: VerifierLoop, number: int
) -> tuple[Link, Link]:
    name, loss = b"%d" % number, lossy(world.loss, world.loss_rest)
    size = _size if world.count_bytes else _no_size
    up, down = (
        Link(to, name, world.rtt_s / 2, world.jitter_s, loss,
             random.Random(mix64(world.seed << 32 | 2 * number + way)), size)
        for way, to in enumerate((verifier, drafter))
    )  # fmt: skip
    drafter.link, verifier.links[name] = up, down
    return up, down


def _size(message: AnyMessage) -> int:
    return len(codec.encode(message))


def _no_size(message: AnyMessage) -> int:
    del message
    return 0


def best_fixed(world: World, most: int = limits.MAX_DRAFT) -> tuple[int, Outcome]:
    """The best draft length of `fixed`, by simulation, and what it comes to.

    Uphill from where the closed formula has its best.
    """
    tried: dict[int, Outcome] = {}

    def rate(k: int) -> float:
        if k not in tried:
            tried[k] = run(world.with_k(k))
        return tried[k].session_tokens_per_s

    k = min(most, limits.best(limits.synchronous, world.setting)[0])
    while True:
        around = [near for near in (k, k - 1, k + 1) if 1 <= near <= most]
        better = max(around, key=rate)
        if better == k:
            return k, tried[k]
        k = better
