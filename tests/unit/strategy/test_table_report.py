# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from tfdear.strategy import table_report


def test_tables_have_the_names_of_their_layers():
    paths = ["m/words/embeddings", "m/tied/embeddings", "m/tied/reverse_embeddings", "table"]
    assert table_report.names_of(paths) == ["words", "tied", "tied/reverse_embeddings", "table"]


def test_layers_of_one_name_have_paths():
    paths = ["m/encoder/words/embeddings", "m/decoder/words/embeddings", "m/x/embeddings"]
    assert table_report.names_of(paths) == [*paths[:2], "x"]
