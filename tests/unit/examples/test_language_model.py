# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

import language_model
import numpy as np


def test_windows_and_the_words_that_follow():
    inputs, labels = language_model.make_windows(np.arange(65))
    assert inputs.shape == labels.shape == (3, language_model.WINDOW)
    np.testing.assert_array_equal(inputs.ravel(), np.arange(60))
    np.testing.assert_array_equal(labels, inputs + 1)
