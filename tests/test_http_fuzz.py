"""Whatever is sent, the server answers as its own document says, and lives."""

import json
from importlib.metadata import version

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from web import ask

from bench import processes
from bench.pair import DRAFT, TARGET
from drafter_mlx.http import openapi

EXAMPLES = 25
"""Of each operation."""
DOCUMENT = openapi.document(version("draftbus"))
schema = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def small() -> str:
    """A server whose texts are short, so that many can be made."""
    with (
        processes.verifier(TARGET, ["--max-model-len", "16"], threads=1) as verifier,
        processes.front(verifier.address, DRAFT) as running,
    ):
        yield running.url


def test_the_document_is_served(small):
    assert json.loads(ask(small, "/openapi.json")[1]) == DOCUMENT


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True,
          suppress_health_check=list(HealthCheck))  # fmt: skip
def test_it_answers_as_documented(case, small):
    answer = case.call(base_url=small, timeout=60)
    # What a schema cannot say: ids end with the vocabulary, a template has its own rules.
    case.validate_response(answer, excluded_checks=[positive_data_acceptance])
    if answer.status_code >= 500:
        assert answer.status_code == 503
    assert ask(small, "/health")[0] == 200
