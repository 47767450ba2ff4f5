"""The step as a chain of small programs, for XLA on CPU: into the layers, groups of layers, out of them.

There a scan over layers would copy each layer's weights before each product, and all layers one after the other take
minutes to compile. So a few layers are compiled, once for every number of tokens, and run for each group in turn; and
the drawing of tokens once for every number of rows. No jit here is of a size that grows with the depth of the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jax import Array

from tpuctl.engine.placement import layer_groups, stacked
from tpuctl.engine.sampling import Explained
from tpuctl.engine.step import Made, Step
from tpuctl.nn.params import ParamTree

_LAYER_INPUTS = ("positions", "layout", "adapters")
_ROW_INPUTS = ("slots", "sampling")


class Chain:
    """A ``Step`` over the weights that ``placement.in_groups`` makes. ``run`` and ``explain`` are the step's own."""

    def __init__(self, step: Step) -> None:
        self._groups = layer_groups(step.spec)
        self._enter = jax.jit(step.enter)
        self._layers = {group.spec: _layers_program(step, group.spec) for group in self._groups}
        self._leave = jax.jit(_leaving(step), donate_argnums=2)
        self._explain = jax.jit(_explaining(step))
        self._pick = jax.jit(lambda hidden, places: hidden[places])

    def run(self, params: ParamTree, state: dict[str, Array], inputs: dict[str, Any]) -> tuple[dict[str, Array], Made]:
        """See ``Step.run``. The state is donated."""
        pages, rest = state["pages"], {name: state[name] for name in ("last", "counts")}
        inputs = jax.device_put(inputs)
        x = self._enter(params["ends"], state["last"], inputs)
        given = {name: inputs[name] for name in _LAYER_INPUTS if name in inputs}
        for group, weights in zip(self._groups, params["groups"], strict=True):
            x, pages = self._layers[group.spec](weights, x, pages, given, group.first)
        hidden = x[0]
        drawn_from = self._pick(hidden, inputs["last"])
        rows = {name: inputs[name] for name in _ROW_INPUTS}
        rest, drawn, explained = self._leave(params["ends"], drawn_from, rest, rows)
        return rest | {"pages": pages}, Made(tokens=drawn, explained=explained, hidden=hidden)

    def explain(self, params: ParamTree, hidden: Array, places: Any, targets: Any) -> Explained:
        """Log probabilities of ``targets`` as predicted at tokens ``places`` of a step."""
        told: Explained = self._explain(params["ends"], self._pick(hidden, places), targets)
        return told


def _layers_program(step: Step, spec: Any) -> Any:
    some = replace(step, spec=spec, unroll=True)

    def layers(weights: ParamTree, x: Array, pages: Array, inputs: dict[str, Any], first: Array) -> tuple[Array, Array]:
        return some.layers({"layers": stacked(weights)}, x, pages, inputs, first)

    return jax.jit(layers, donate_argnums=(1, 2))


def _leaving(step: Step) -> Any:
    def leave(params: ParamTree, hidden: Array, state: dict[str, Array], inputs: dict[str, Any]) -> Any:
        return step.leave(params, step.finish(params, hidden), state, inputs)

    return leave


def _explaining(step: Step) -> Any:
    def explain(params: ParamTree, hidden: Array, targets: Array) -> Explained:
        return step.explain(params, step.finish(params, hidden), targets)

    return explain
