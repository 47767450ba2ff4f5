"""AdamW and its learning rate. Moments are f32 whatever the compute dtype.

The learning rate is a function of the step in the training state and of nothing else, so a resumed run goes on with
the rate the unbroken one would have had.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tpuctl.nn.params import ParamTree
from tpuctl.plan.train_schema import OptimPlan


def learning_rate_schedule(optim: OptimPlan, *, steps: int) -> optax.Schedule:
    """Learning rate of step ``k``, counted from 0.

    Warm-up is linear and reaches the peak at step ``warmup_steps - 1``; no step is lost to a rate of 0. ``cosine``
    and ``linear`` then fall to ``final_ratio`` of the peak over ``decay_steps`` and stay there; ``wsd`` holds the
    peak and falls linearly over the last ``decay_steps`` of ``steps``.
    """
    peak, warmup = optim.learning_rate, optim.warmup_steps
    decay = max(optim.decay_steps, 1)
    fall = optax.linear_schedule(peak, peak * optim.final_ratio, decay)
    after: dict[str, optax.Schedule] = {
        "constant": optax.constant_schedule(peak),
        "linear": fall,
        "cosine": optax.cosine_decay_schedule(peak, decay, alpha=optim.final_ratio),
        "wsd": optax.join_schedules([optax.constant_schedule(peak), fall], [max(steps - warmup - decay, 0)]),
    }
    if warmup == 0:
        return after[optim.schedule]
    rise = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([rise, after[optim.schedule]], [warmup])


def adamw(optim: OptimPlan, axes: ParamTree) -> optax.GradientTransformation:
    """AdamW's direction (Loshchilov & Hutter 2019), yet to be multiplied by the negative learning rate.

    Norms, biases and embeddings do not decay: a scale has no business at 0, and the rows of rare tokens and
    positions, which get no gradient for many steps, would only shrink.
    """
    decays = jax.tree.map(_decays, axes, is_leaf=lambda node: isinstance(node, tuple))
    return optax.chain(
        optax.scale_by_adam(b1=optim.beta1, b2=optim.beta2, eps=optim.epsilon, mu_dtype=jnp.float32),
        optax.add_decayed_weights(optim.weight_decay, mask=decays),
    )


def clip_factor(norm: jax.Array, clip_norm: float | None) -> Any:
    """What to multiply gradients of this global norm by, so that it is at most ``clip_norm``."""
    if clip_norm is None:
        return 1.0
    return jnp.minimum(1.0, clip_norm / jnp.maximum(norm, 1e-12))


def _decays(axes: tuple[str, ...]) -> bool:
    matrix = "embed" in axes or "expert_embed" in axes
    return "rank" in axes or (matrix and axes[0] not in ("vocab", "position"))
