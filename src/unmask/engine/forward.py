"""One forward pass over the live rows of a batch: guidance, caches and the positions to predict.

Rows may be in different blocks. A pass in which some rows refresh their cache and others do not is two calls of the
model.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.cache.kv import KVCache
from unmask.engine import reuse
from unmask.engine.canvas import Canvas
from unmask.engine.window import Window, span_positions
from unmask.models.base import MaskedLM, Prediction
from unmask.settings import Settings


class Forward:
    """Asks the model for the logits of every row's block, or of every position when the policy needs them."""

    def __init__(
        self, model: MaskedLM, settings: Settings, *, needs: frozenset[str], attention_layers: range | None
    ) -> None:
        self.model = model
        self.settings = settings
        self.whole = "sequence_logits" in needs
        self.shadow = "shadow" in needs
        self.attention_layers = attention_layers
        self._caches = [KVCache(), KVCache()] if settings.cache != "none" else [None, None]  # guided, unguided

    def keep(self, rows: Int[Tensor, " r"]) -> None:
        """Forget every row but these."""
        for cache in self._caches:
            if cache is not None:
                cache.keep(rows)

    def __call__(self, window: Window, tokens: Int[Tensor, "b n"], given: Bool[Tensor, "b n"]) -> Prediction:
        prediction = self._predict(window, tokens, self._caches[0], extras=True)
        scale = self.settings.cfg_scale
        if scale == 0.0:
            return prediction
        unguided_tokens = tokens.masked_fill(given, self.model.spec.mask_id)
        unguided = self._predict(window, unguided_tokens, self._caches[1], extras=False).logits
        return replace(prediction, logits=unguided + (scale + 1.0) * (prediction.logits - unguided))

    def _predict(
        self, window: Window, tokens: Int[Tensor, "b n"], cache: KVCache | None, *, extras: bool
    ) -> Prediction:
        full = all(len(canvas.tokens) == tokens.shape[1] for canvas in window.canvases)
        lengths = None if full else window.length
        if cache is None:
            return self.model.predict(
                tokens,
                lengths=lengths,
                at=None if self.whole else window.at,
                attention_layers=self.attention_layers if extras else None,
                shadow=window.at if self.shadow and extras else None,
            )
        refreshing = [reuse.is_refresh(canvas, self.settings) for canvas in window.canvases]
        if all(refreshing):
            return self.model.predict(tokens, lengths=lengths, at=window.at, cache=cache)
        if not any(refreshing):
            queries = self._queries(window.canvases, tokens.device)
            return self.model.predict(tokens, lengths=lengths, at=window.at, cache=cache, queries=queries)
        parts, order = [], []
        for refresh in (True, False):
            chosen = [row for row, flag in enumerate(refreshing) if flag is refresh]
            rows = torch.tensor(chosen, device=tokens.device)
            queries = None if refresh else self._queries([window.canvases[row] for row in chosen], tokens.device)
            part = self.model.predict(
                tokens[rows],
                lengths=None if lengths is None else lengths[rows],
                at=window.at[rows],
                cache=cache.only(rows),
                queries=queries,
            )
            parts.append(part.logits)
            order += chosen
        back = torch.tensor(order, device=tokens.device).argsort()
        return Prediction(logits=torch.cat(parts)[back])

    def _queries(self, canvases: list[Canvas], device: torch.device) -> Int[Tensor, "b q"]:
        """The positions to recompute; a shorter row repeats its last one, which writes what already stands there."""
        shifted = self.model.spec.shifted
        spans = [reuse.recomputed_span(canvas, self.settings, shifted=shifted) for canvas in canvases]
        return span_positions(spans, device)
