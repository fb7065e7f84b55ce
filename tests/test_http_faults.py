"""Hang-ups, full queues, verifiers that come and go, and what a scripted one makes visible."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import openai
import pytest
from openai import OpenAI
from scripted import MODEL, ScriptedVerifier, Story
from test_http_text import TOKENIZER
from web import ask, connect, wait_health, wait_until

from bench import processes
from bench.pair import DRAFT

HI = {"model": MODEL, "prompt": "hi", "max_tokens": 50}
LONG = TOKENIZER.encode("one two three four five six seven eight")


@pytest.fixture(scope="module")
def shared():
    """A scripted verifier and the URL of a drafter for it: one text at a time, one waiting."""
    with ScriptedVerifier(lambda opened: Story([])) as verifier:
        flags = ["--max-concurrent", "1", "--max-queue", "1"]
        with processes.front(verifier.address, DRAFT, flags) as running:
            yield verifier, running.url


@pytest.fixture
def scripted(shared):
    """The same, with nothing left over from another test."""
    verifier, url = shared
    verifier.go.set()
    verifier.wait_for(lambda v: len(v.closed) == len(v.opened))
    verifier.opened.clear()
    verifier.closed.clear()
    return verifier, url


def client(url: str) -> OpenAI:
    """To be closed."""
    return OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=30)


@pytest.fixture
def api(scripted) -> Iterator[OpenAI]:
    with client(scripted[1]) as made:
        yield made


@pytest.fixture
def send(scripted) -> Iterator[Callable[[dict], http.client.HTTPConnection]]:
    """Sends a request whose answer nobody has read yet."""
    with ExitStack() as keep:

        def sent(body: dict) -> http.client.HTTPConnection:
            connection = keep.enter_context(closing(connect(scripted[1])))
            connection.request("POST", "/v1/completions", json.dumps(body))
            return connection

        yield sent


def each(ids: list[int], finish: str | None = "length") -> Story:
    """One token a Commit."""
    return Story([[token] for token in ids], finish)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_session(stream, scripted, send):
    verifier, _ = scripted
    verifier.story = lambda opened: each(LONG[:5], finish=None)
    connection = send({**HI, "stream": stream})
    verifier.wait_for(lambda v: v.opened)
    if stream:
        assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()
    verifier.wait_for(lambda v: v.closed == [v.opened[0].session])


def test_a_client_that_hangs_up_in_the_queue_is_never_worked_for(scripted, api, send):
    verifier, url = scripted
    verifier.go.clear()
    verifier.story = lambda opened: each(LONG)
    running = send(HI)
    verifier.wait_for(lambda v: v.opened)
    send({**HI, "seed": 99}).close()
    wait_metric(url, "num_requests_waiting", 0)
    verifier.go.set()
    assert running.getresponse().status == 200
    assert api.completions.create(**HI, seed=5).choices
    assert [opened.sampling.seed == 99 for opened in verifier.opened] == [False, False]


def test_a_full_queue_is_429_and_the_others_are_served(scripted, api, send):
    verifier, url = scripted
    verifier.go.clear()
    verifier.story = lambda opened: each(LONG)
    running = send(HI)
    verifier.wait_for(lambda v: v.opened)
    waiting = send(HI)
    wait_metric(url, "num_requests_waiting", 1)
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError) as caught:
            api.completions.create(**HI, stream=stream)
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.code == "queue_full"
    verifier.go.set()
    for connection in (running, waiting):
        answer = json.loads(connection.getresponse().read())
        assert answer["choices"][0]["text"] == "one two three four five six seven eight"


def wait_metric(url: str, name: str, value: int) -> None:
    """Until a gauge has this value."""
    wanted = f'draftbus:{name}{{model_name="{MODEL}"}} {value:.1f}'
    wait_until(lambda: wanted in ask(url, "/metrics")[1].splitlines())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stop", ["two three", [" three f", "four five"], "e s", "eight!"])
def test_a_stop_over_token_borders_never_leaks(stop, stream, scripted, api):
    verifier, _ = scripted
    verifier.story = lambda opened: each(LONG)
    whole = TOKENIZER.decode(LONG)
    stops = [stop] if isinstance(stop, str) else stop
    cut = min((whole.index(each) for each in stops if each in whole), default=len(whole))
    answer = api.completions.create(**HI, stop=stop, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        assert "".join(choice.text for choice in choices) == whole[:cut]
        reason = choices[-1].finish_reason
    else:
        assert answer.choices[0].text == whole[:cut]
        reason = answer.choices[0].finish_reason
    assert reason == ("length" if stop == "eight!" else "stop")


def test_a_stop_string_frees_the_rest_of_the_session(scripted, api):
    verifier, _ = scripted
    verifier.story = lambda opened: each(LONG, finish=None)
    answer = api.completions.create(**HI, stop="two three")
    assert answer.choices[0].text == "one "
    verifier.wait_for(lambda v: v.closed == [v.opened[0].session])


def test_a_character_over_several_tokens_is_streamed_whole(scripted, api):
    verifier, _ = scripted
    said = "é 你好 🙂"
    verifier.story = lambda opened: each(TOKENIZER.encode(said))
    texts = [chunk.choices[0].text for chunk in api.completions.create(**HI, stream=True)]
    assert "".join(texts) == said
    assert all("\ufffd" not in text for text in texts)
    verifier.story = lambda opened: each(TOKENIZER.encode("🙂")[:2])
    assert api.completions.create(**HI).choices[0].text == "\ufffd"


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("unknown_strategy", 400, "invalid_request_error"),
        ("prompt_too_long", 400, "invalid_request_error"),
        ("something_new", 503, "unavailable_error"),
    ],
)
def test_what_the_verifier_refuses_is_told_as_it_is(code, status, kind, scripted, api):
    verifier, _ = scripted
    verifier.story = lambda opened: Story([], error=(code, "because"))
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as caught:
            api.completions.create(**HI, stream=stream)
        assert (caught.value.status_code, caught.value.type) == (status, kind)
        assert "because" in caught.value.message
    verifier.opened.clear()  # there is nothing to close


def test_without_a_verifier_it_is_503_and_work_resumes_with_one():
    with ScriptedVerifier(lambda opened: each(LONG[:5], finish=None)) as first:
        flags = ["--deadline", "5"]
        with (
            processes.front(first.address, DRAFT, flags) as running,
            client(running.url) as api,
        ):
            stream = iter(api.completions.create(**HI, stream=True))
            text = "".join(next(stream).choices[0].text for _ in range(5))
            first.__exit__()
            wait_health(running.url, 503)
            with pytest.raises(openai.InternalServerError) as caught:
                api.completions.create(**HI)
            assert "no verifier" in caught.value.message
            assert caught.value.response.headers["retry-after"] == "1"
            with ScriptedVerifier(lambda opened: each(LONG), first.port, boot_id=2) as second:
                text += "".join(chunk.choices[0].text for chunk in stream)
                assert text == TOKENIZER.decode(LONG), "it went on without a gap or a repeat"
                assert tuple(second.opened[0].committed) == tuple(LONG[:5])
                wait_health(running.url, 200)
                verse = iter(api.completions.create(**HI, stream=True))
                second.go.clear()
                next(verse)
            with pytest.raises(openai.APIError, match="no verifier answers"):
                list(verse)
            with ScriptedVerifier(lambda opened: each(LONG), first.port, boot_id=3):
                wait_health(running.url, 200)
                assert api.completions.create(**HI).choices[0].text == TOKENIZER.decode(LONG)


def test_a_signal_lets_what_runs_finish_and_takes_nothing_new():
    with (
        ScriptedVerifier(lambda opened: each(LONG)) as verifier,
        processes.front(verifier.address, DRAFT) as running,
        client(running.url) as api,
    ):
        verifier.go.clear()
        stream = iter(api.completions.create(**HI, stream=True))
        text = next(stream).choices[0].text
        running.process.terminate()
        wait_health(running.url, 503)
        for _ in range(10):
            assert ask(running.url, "/health")[0] == 503, "it goes on answering"
            time.sleep(0.1)
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            api.completions.create(**HI)
        verifier.go.set()
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == TOKENIZER.decode(LONG)
        assert running.process.wait(60) == 0
