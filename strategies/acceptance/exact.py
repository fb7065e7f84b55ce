"""Accept a token if and only if it equals the target's own keyed choice.

Lossless in the strongest sense: the text is that of the target alone, token for
token, because nothing else is ever committed (coupling without communication,
arXiv:2408.07978).
"""

from strategies.acceptance import Rows, TargetView, Verdict


class Exact:
    """Follow the target's choices as long as some draft foresaw them."""

    lossy = False

    def judge(self, rows: Rows, view: TargetView) -> Verdict:
        path: list[int] = []
        row = 0
        while True:
            token = view.choice(row)
            matches = [i for i in rows.children(row) if rows.tokens[i] == token]
            if not matches:
                return Verdict(tuple(path), token)
            row = matches[0]
            path.append(row)
