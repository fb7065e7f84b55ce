"""Starting and ending: what is refused, what answers while the model loads, who is let in."""

import json
import signal
import socket

import pytest
import web
from test_cli import one_line
from typer.testing import CliRunner

from bench import processes
from bench.pair import DRAFT
from drafter_mlx.__main__ import app
from drafter_mlx.http.server import MAX_BODY

NOWHERE = "tcp://127.0.0.1:9"
KEY = "a-long-random-key"


@pytest.fixture(scope="module")
def keyed():
    """A server with a key and no verifier, as soon as its port answers."""
    with processes.front(NOWHERE, DRAFT, ["--api-key", KEY], until="listening") as running:
        yield running


@pytest.fixture(scope="module")
def local():
    """A server on loopback without a key."""
    with processes.front(NOWHERE, DRAFT, until="listening") as running:
        yield running


def ask(running, path="/v1/models", body=None, method=None, **headers):
    """Status and error of an answer, or the answer."""
    status, text = web.ask(running.url, path, body, method, **headers)
    known = json.loads(text)
    return status, known.get("error", known)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "give an --api-key, or add --insecure"),
        (["--api-key", ""], "--api-key is empty"),
        (["--chat-template", "/nowhere"], "cannot read --chat-template /nowhere"),
        (["--drafting", "magic"], "no drafting strategy is called 'magic'"),
        (["--host", "192.0.2.1", "--insecure"], "cannot listen on 192.0.2.1:"),
    ],
)
def test_a_bad_flag_is_named(flags, said):
    command = ["serve", "--verifier", NOWHERE, "--model", "/nowhere", "--port", "0", *flags]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert said in one_line(done.stderr)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ["serve", "--verifier", NOWHERE, "--model", str(DRAFT), "--port", port]
        done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "choose another --port" in one_line(done.stderr)


def test_a_model_that_cannot_be_loaded_ends_the_server():
    command = ["serve", "--verifier", NOWHERE, "--model", "/nowhere/model", "--port", "0"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "cannot load the draft '/nowhere/model'" in one_line(done.stderr)


def test_the_port_answers_while_the_model_loads():
    with processes.front(NOWHERE, DRAFT, until="listening") as running:
        status, error = ask(running, "/health")
        assert (status, error["message"]) == (503, "Loading model")
        assert (error["code"], error["type"]) == (503, "unavailable_error")
        status, error = ask(running, "/v1/completions", b"{}")
        assert (status, error["message"]) == (503, "Loading model")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_even_while_it_loads(number, capfd):
    with processes.front(NOWHERE, DRAFT, until="listening") as running:
        running.process.send_signal(number)
        assert running.process.wait(60) == 0
    assert "Traceback" not in capfd.readouterr().err


def test_without_the_key_only_health_answers(keyed):
    assert ask(keyed, "/health")[0] == 503
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {KEY}é"}):
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nowhere"):
            status, error = ask(keyed, path, **headers)
            assert (status, error["type"], error["code"]) == (
                401, "authentication_error", "invalid_api_key",
            )  # fmt: skip
    assert ask(keyed, Authorization=f"Bearer {KEY}")[0] == 200
    assert ask(keyed, Authorization=f"Bearer {KEY}", Host="my.name", Origin="http://x.y")[0] == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080"])
def test_this_machine_is_let_in(host, local):
    assert ask(local, Host=host)[0] == 200
    assert ask(local, Host=host, Origin="http://localhost:3000")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example",
                                  "localhost.evil.example", "192.0.2.1", "[", ""])  # fmt: skip
def test_pages_of_other_sites_are_not(host, local):
    status, error = ask(local, Host=host)
    assert (status, error["code"]) == (403, "foreign_host")
    status, error = ask(local, Origin=f"http://{host}")
    assert (status, error["code"]) == (403, "foreign_origin")
    assert ask(local, Origin="null")[0] == 403


def test_unknown_paths_methods_and_bodies_get_the_same_error_body(local):
    for path, method, status in (
        ("/nowhere", "GET", 404), ("/health/", "GET", 404), ("/v1/models/", "GET", 404),
        ("/v1/models/other", "GET", 404), ("/v1/completions", "GET", 405),
        ("/health", "DELETE", 405),
    ):  # fmt: skip
        got, error = ask(local, path, method=method)
        assert got == status, path
        assert error["type"] == "invalid_request_error"
        assert set(error) == {"message", "type", "param", "code"}


def test_a_body_over_the_limit_is_413():
    with processes.front(NOWHERE, DRAFT, until="listening") as running:
        while ask(running, "/tokenize", b"{}")[0] == 503:
            pass
        for size in (MAX_BODY + 1, 2 * MAX_BODY):
            status, error = ask(running, "/tokenize", b" " * size)
            assert (status, error["code"]) == (413, "body_too_large")
        status, error = ask(running, "/tokenize", b'{"prompt": "a"}')
        assert status == 200
