# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The examples of examples/nlp, a few steps on the text that every Python has."""

import json
import math
import pathlib
import re

import pytest
import ranks

pytestmark = [pytest.mark.integration, pytest.mark.multi_process]

NLP = pathlib.Path(__file__).resolve().parents[2] / "examples" / "nlp"
# Only ends a job that hangs: on a machine with nothing else to do each takes a quarter of a minute.
DEADLINE = 240.0
# Rows of the table, and what is measured: its number must be one of a model that works.
EXAMPLES = {
    "language_model.py": ("perplexity, held out", "of the words' frequencies"),
    "transformer.py": ("perplexity, held out", "of the pieces' frequencies"),
    "gnmt.py": ("perplexity, held out", "of the pieces' frequencies"),
    "bert_pretraining.py": ("loss of guesses, held out", "of the pieces' frequencies"),
}


def run(script: str, *arguments: str, **options: str) -> list[str]:
    """Runs a script on two ranks for five steps, and returns what each printed."""
    arguments = ("--text", "fallback", "--steps", "5", *arguments)
    # Nothing is to be found that was prepared here.
    variables = {"TFDEAR_TEXT": "/nowhere", "PYTHONPATH": str(NLP.parents[1]), **options}
    results = ranks.run_ranks(2, NLP / script, variables, DEADLINE, arguments)
    assert [code for code, _ in results] == [0, 0], "\n".join(text[-4000:] for _, text in results)
    return [text for _, text in results]


def value(text: str, row: str) -> float:
    (number,) = re.findall(rf"^{row} +([\d.]+)", text, re.MULTILINE)
    return float(number)


# With the oldest versions one for each change, all of them before a release.
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(s, marks=() if s == "bert_pretraining.py" else pytest.mark.newest_only)
        for s in EXAMPLES
    ],
)
def test_five_steps(script):
    arguments = ("--translate", "2") if script in ("transformer.py", "gnmt.py") else ()
    chief, other = run(script, *arguments)
    measured, guessed = (value(chief, row) for row in EXAMPLES[script])
    # Five steps teach little; but a loss of nothing, or of chance alone, would be a mistake.
    assert math.isfinite(measured) and 0.1 * guessed < measured < 20 * guessed
    assert re.search(r"^training +5 steps ", chief, re.MULTILINE)
    assert "training" not in other, "Only rank 0 prints."
    if arguments:
        assert 0 <= value(chief, "BLEU") <= 100


@pytest.mark.newest_only
@pytest.mark.parametrize(
    "script", ["language_model.py", pytest.param("gnmt.py", marks=pytest.mark.long)]
)
def test_the_exchange_of_tables_changes_no_loss(script, tmp_path):
    def train(exchange):
        path = tmp_path / exchange
        run(script, "--curve", str(path), TFDEAR_EMBEDDINGS=exchange)
        curve = json.loads(path.read_text())
        return curve["losses"], curve["bytes_sent"]

    (divided, sent), (gathered, gathered_sent) = map(train, ["all_to_all", "all_gather"])
    assert len(divided) == 5 and divided == gathered
    assert sent != gathered_sent  # Two exchanges.


def test_what_is_not_prepared_is_said():
    ((code, text),) = ranks.run_ranks(
        1, NLP / "language_model.py", {"TFDEAR_TEXT": "/nowhere"}, DEADLINE
    )
    assert code != 0 and "make text" in text and "--text fallback" in text
