"""The drafter's HTTP front: OpenAI's interface on top of a `Desk`."""
