"""One forward pass over the live rows of a batch: guidance, caches and the positions to predict.

Rows may be in different blocks. A pass in which some rows refresh their cache and others do not is two calls of a model
that does not pack rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.kv import KVCache, StoragePool
from unmask.engine import reuse
from unmask.engine.canvas import Canvas
from unmask.engine.drift import Drift
from unmask.engine.window import Window, span_positions
from unmask.errors import UnmaskError
from unmask.models.base import MaskedLM, Prediction, packs, prepares, tells_states
from unmask.models.transfer import on_device
from unmask.settings import Settings


class Forward:
    """Asks the model for the logits of every row's block, or of every position when the policy needs them."""

    def __init__(
        self,
        model: MaskedLM,
        canvases: list[Canvas],
        settings: Settings,
        pool: StoragePool,
        *,
        needs: frozenset[str],
        attention_layers: range | None,
        rows: int = 0,
    ) -> None:
        """Room in a cache is made for `rows`, and for the canvases if these are more."""
        self.model = model
        self.settings = settings
        self.pool = pool
        self.whole = "sequence_logits" in needs
        self.shadow = "shadow" in needs
        self.attention_layers = attention_layers
        self._packs = packs(model) and not (self.shadow or attention_layers)
        self._guided, self._unguided, self._drift = None, None, None
        self._places = list(range(len(canvases)))  # where each row lies in a cache
        rows = max(rows, len(canvases))
        if settings.cache != "none":
            self._guided = self._cache(canvases, rows)
            self._unguided = self._cache(canvases, rows) if settings.cfg_scale else None
            if settings.tolerated_drift is not None:
                self._drift = Drift(settings.tolerated_drift)

    def _cache(self, canvases: list[Canvas], rows: int) -> KVCache:
        longest = max((len(canvas.tokens) for canvas in canvases), default=0)
        return KVCache.over(self.pool.borrow(rows, longest), len(canvases), self.model.device)

    @property
    def joins(self) -> bool:
        """Whether rows may be added: how far others have drifted is told of a batch that stays as it was."""
        return self._drift is None

    @property
    def longest(self) -> int | None:
        """How long an added row may be; None: as long as the model can."""
        caches = [cache for cache in (self._guided, self._unguided) if cache is not None]
        return min((cache.storage.length for cache in caches), default=None)

    def join(self, count: int) -> None:
        """Give so many new rows, behind the others, the places that are free."""
        taken = set(self._places)
        free = [place for place in range(len(taken) + count) if place not in taken][:count]
        self._places += free
        in_order = self._places == list(range(len(self._places)))
        added = on_device(free, self.model.device)
        self._guided, self._unguided = (
            None if cache is None else cache.joined_by(added, in_order=in_order)
            for cache in (self._guided, self._unguided)
        )

    def keep(self, rows: Int[Tensor, " r"], staying: list[int]) -> None:
        """Forget every row but these, told twice: to the device and to the host."""
        self._places = [self._places[row] for row in staying]
        self._guided, self._unguided = (
            None if cache is None else cache.only(rows) for cache in (self._guided, self._unguided)
        )
        if self._drift is not None:
            self._drift.keep(rows)

    def close(self, *, usable: bool = True) -> None:
        """Give back what was borrowed, if anybody can use it again."""
        for cache in (self._guided, self._unguided):
            if cache is not None and usable:
                self.pool.give_back(cache.storage)
        self._guided, self._unguided, self._drift = None, None, None

    def __call__(
        self, window: Window, tokens: Int[Tensor, "b n"], holes: Bool[Tensor, "b n"], *, refresh: bool = True
    ) -> tuple[Prediction, Bool[Tensor, " b"] | None]:
        """The prediction, and which rows have drifted too far from their last refresh, where that is asked for.

        Without `refresh` no row gets one, whatever its canvas says.
        """
        prediction, drifted = self._predict(window, tokens, self._guided, guided=True, refresh=refresh)
        scale = self.settings.cfg_scale
        prediction = replace(prediction, states=None)  # large, and of no use any more
        if scale == 0.0:
            return prediction, drifted
        unguided_tokens = tokens.masked_fill(~holes, self.model.spec.mask_id)
        unguided = self._predict(window, unguided_tokens, self._unguided, guided=False, refresh=refresh)[0].logits
        return replace(prediction, logits=unguided + (scale + 1.0) * (prediction.logits - unguided)), drifted

    def prepare(self, window: Window, tokens: Int[Tensor, "b n"]) -> Callable[[], Prediction] | None:
        """The next pass of rows that stay in their blocks, ready to begin; None where it cannot be prepared."""
        plain = not (self.settings.cfg_scale or self.whole or self.shadow or self.attention_layers or self._drift)
        if not plain or not prepares(self.model):
            return None
        ready: Any = self.model.prepare  # ty: ignore[missing-attribute]
        if self._guided is None:
            return ready(tokens, lengths=self._lengths(window, tokens), at=window.at)
        queries = self._queries(window.canvases, window, False)
        return ready(tokens, lengths=window.length, at=window.at, cache=self._guided, queries=queries)

    def _lengths(
        self, window: Window, tokens: Int[Tensor, "b n"], rows: list[int] | None = None
    ) -> Int[Tensor, " r"] | None:
        """Of these rows (None: all) for a pass over whole canvases; None when none of them is padded."""
        canvases = window.canvases if rows is None else [window.canvases[row] for row in rows]
        found = [len(canvas.tokens) for canvas in canvases]
        if all(length == tokens.shape[1] for length in found):
            return None
        if self._packs:
            return torch.tensor(found)
        return window.length if rows is None else on_device(found, tokens.device)

    def _predict(
        self, window: Window, tokens: Int[Tensor, "b n"], cache: KVCache | None, *, guided: bool, refresh: bool
    ) -> tuple[Prediction, Bool[Tensor, " b"] | None]:
        if cache is None:
            prediction = self.model.predict(
                tokens,
                lengths=self._lengths(window, tokens),
                at=None if self.whole else window.at,
                attention_layers=self.attention_layers if guided else None,
                shadow=window.at if self.shadow and guided else None,
            )
            return prediction, None
        drift = self._drift if guided else None
        asked = drift is not None and tells_states(self.model)
        predict = partial(self.model.predict, states=True) if asked else self.model.predict
        refreshing = [refresh and reuse.is_refresh(canvas, self.settings) for canvas in window.canvases]
        if all(refreshing) or not any(refreshing):
            queries = None if refreshing[0] else self._queries(window.canvases, window, refresh)
            lengths = self._lengths(window, tokens) if refreshing[0] else window.length
            prediction = predict(tokens, lengths=lengths, at=window.at, cache=cache, queries=queries)
            if drift is None:
                return prediction, None
            return prediction, self._drifted(drift, self._states_of(prediction), queries, window, tokens, None)
        return self._predict_mixed(predict, window, tokens, cache, refreshing, drift)

    def _predict_mixed(
        self,
        predict: Callable[..., Prediction],
        window: Window,
        tokens: Int[Tensor, "b n"],
        cache: KVCache,
        refreshing: list[bool],
        drift: Drift | None,
    ) -> tuple[Prediction, Bool[Tensor, " b"] | None]:
        """`_predict` where some rows refresh: one call of a model that packs them, else two."""
        chosen = [[row for row, flag in enumerate(refreshing) if flag is wanted] for wanted in (True, False)]
        if self._packs:
            spans = self._spans(window.canvases, may_begin=True)
            for row in chosen[0]:
                spans[row] = (0, len(window.canvases[row].tokens))
            spread = span_positions(spans, torch.device("cpu"))
            prediction = predict(tokens, lengths=window.length, at=window.at, cache=cache, queries=spread)
            if drift is None:
                return prediction, None
            states, renewed = self._states_of(prediction), on_device(chosen[0], tokens.device)
            moved = self._drifted(drift, states, on_device(spread, tokens.device), window, tokens, None)
            moved[renewed] = self._drifted(drift, states[renewed], None, window, tokens, renewed)
            return prediction, moved
        # Everything that must be copied to the device is, before the first of the two calls keeps it busy.
        parts = [on_device(rows, tokens.device) for rows in chosen]
        lengths = self._lengths(window, tokens, chosen[0]), window.length[parts[1]]
        queries = None, self._queries([window.canvases[row] for row in chosen[1]], window, True)
        logits, drifted = [], []
        for rows, length, asked in zip(parts, lengths, queries, strict=True):
            own = {"lengths": length, "at": window.at[rows], "cache": cache.only(rows), "queries": asked}
            prediction = predict(tokens[rows], **own)
            logits.append(prediction.logits)
            if drift is not None:
                drifted.append(self._drifted(drift, self._states_of(prediction), asked, window, tokens, rows))
        order = torch.cat(parts).argsort()
        return Prediction(logits=torch.cat(logits)[order]), torch.cat(drifted)[order] if drifted else None

    def _drifted(
        self,
        drift: Drift,
        states: Float[Tensor, "r q w"],
        queries: Int[Tensor, "r q"] | None,
        window: Window,
        tokens: Int[Tensor, "b n"],
        rows: Int[Tensor, " r"] | None,
    ) -> Bool[Tensor, " r"]:
        """Which of these rows (None: all), of which these states were computed, have drifted too far."""
        if queries is None:
            return drift.renew(states, rows)
        masked = window.columns(tokens == self.model.spec.mask_id) & window.inside
        at, masked = (values if rows is None else values[rows] for values in (window.at, masked))
        return drift.exceeded(states, queries, at, masked, rows)

    def _states_of(self, prediction: Prediction) -> Float[Tensor, "r q w"]:
        if prediction.states is None:
            name = self.model.spec.name
            raise UnmaskError(f"refresh={self.settings.refresh!r} needs a model that tells its states; {name} does not")
        return prediction.states

    def _queries(self, canvases: list[Canvas], window: Window, may_begin: bool) -> Int[Tensor, "b q"]:
        """The positions to recompute; a shorter row repeats its last one, which writes what already stands there."""
        spans = self._spans(canvases, may_begin=may_begin)
        return window.at if spans == window.spans else span_positions(spans, window.at.device)

    def _spans(self, canvases: list[Canvas], *, may_begin: bool) -> list[tuple[int, int]]:
        """From where to where rows that do not refresh are recomputed."""
        settings, shifted = self.settings, self.model.spec.shifted
        return [
            reuse.recomputed_span(canvas, settings, shifted=shifted, begins=may_begin and canvas.block_step == 0)
            for canvas in canvases
        ]
