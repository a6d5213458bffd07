# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What compression holds back belongs to variables: models, phases and trainings of one script."""

import json
import pathlib

import numpy as np
import pytest
from ranks import Ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(300)]

_JOB = str(pathlib.Path(__file__).parent / "jobs" / "compressed_models_job.py")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Of two ranks, each on a node of its own."""
    directory = tmp_path_factory.mktemp("models")

    def environment(rank):
        return {"TFDEAR_NODE_RANK": str(rank)}

    with Ranks(2, _JOB, environment, (str(directory),)) as ranks:
        codes = ranks.wait(timeout=200)
        assert codes == [0, 0], [ranks.output(rank)[-4000:] for rank in range(2)]
    return [json.loads((directory / f"report_{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", ["alone", "second"])
def test_a_model_goes_on_with_its_own_residual(reports, case):
    for report in reports:
        found = report[case]
        for weights, expected in zip(found["weights"], found["expected"], strict=True):
            np.testing.assert_array_equal(weights, expected)
        assert found["weights"] == reports[0]["alone"]["weights"]


def test_loading_one_model_leaves_alone_what_another_holds_back(reports):
    for report in reports:
        assert report["second"]["first is kept"]
        assert report["second"]["first holds back"] > 0 == report["alone"]["first holds back"]


def test_parts_of_the_same_shapes_go_on_with_their_own(reports):
    for report in reports:
        assert report["resumed"] == report["whole"] == reports[0]["whole"]


def test_layers_that_train_now_and_then_lose_nothing(reports):
    for report in reports:
        for sparse, dense in zip(report["sparse"], report["dense"], strict=True):
            np.testing.assert_allclose(sparse, dense, rtol=1e-5, atol=1e-5)


def test_a_schedule_begins_anew_in_a_further_training(reports):
    for report in reports:
        first, second = report["densities"]
        assert first == second > 0


def test_a_schedule_needs_compression_at_once(reports):
    for report in reports:
        assert "without it" in report["error"]
