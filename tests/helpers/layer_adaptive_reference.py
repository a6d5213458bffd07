# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""LARS and LAMB in NumPy and float64, from their formulas."""

import numpy as np


def lars(
    weights,
    gradients_of_step,
    *,
    learning_rate,
    momentum=0.9,
    nesterov=False,
    trust_coefficient=0.001,
    decays,
    epsilon=0.0,
    adapts,
):
    """The weights after one step per list of gradients; decays and `adapts` by variable."""
    weights = [np.asarray(w, np.float64) for w in weights]
    buffers = [np.zeros_like(w) for w in weights]
    for gradients in gradients_of_step:
        for i, gradient in enumerate(gradients):
            w, g = weights[i], np.asarray(gradient, np.float64)
            weight_norm, gradient_norm = np.linalg.norm(w), np.linalg.norm(g)
            ratio = 1.0
            if adapts[i] and weight_norm > 0 and gradient_norm > 0:
                below = gradient_norm + decays[i] * weight_norm + epsilon
                ratio = trust_coefficient * weight_norm / below
            step = learning_rate * ratio * (g + decays[i] * w)
            buffers[i] = momentum * buffers[i] + step
            weights[i] = w - (momentum * buffers[i] + step if nesterov else buffers[i])
    return weights


def lamb(
    weights,
    gradients_of_step,
    *,
    learning_rate,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-7,
    decays,
    adapts,
):
    """The weights after one step per list of gradients; decays and `adapts` by variable."""
    weights = [np.asarray(w, np.float64) for w in weights]
    means = [np.zeros_like(w) for w in weights]
    squares = [np.zeros_like(w) for w in weights]
    for t, gradients in enumerate(gradients_of_step, 1):
        for i, gradient in enumerate(gradients):
            w, g = weights[i], np.asarray(gradient, np.float64)
            means[i] = beta_1 * means[i] + (1 - beta_1) * g
            squares[i] = beta_2 * squares[i] + (1 - beta_2) * g**2
            update = means[i] / (1 - beta_1**t) / (np.sqrt(squares[i] / (1 - beta_2**t)) + epsilon)
            update = update + decays[i] * w
            weight_norm, update_norm = np.linalg.norm(w), np.linalg.norm(update)
            ratio = 1.0
            if adapts[i] and weight_norm > 0 and update_norm > 0:
                ratio = weight_norm / update_norm
            weights[i] = w - learning_rate * ratio * update
    return weights
