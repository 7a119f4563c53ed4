"""Attention maps and shadow predictions, against Llama layers with the mask written out in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from references import CLOSE, as_llama, canvas, loaded, whole
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.models.transformer import Transformer

pytestmark = pytest.mark.usefixtures("no_grad")

MakeFolder = Callable[..., Path]


@pytest.mark.parametrize("layers", [range(2), range(1, 2)])
def test_attention_maps_equal_those_of_eager_attention(make_llada: MakeFolder, layers: range) -> None:
    folder = make_llada(n_kv_heads=2)
    model, tokens = loaded(folder), canvas(2, 11)
    reference = as_llama(folder, model, attn_implementation="eager")
    nothing_hidden = torch.zeros(2, 1, 11, 11)
    maps = reference(tokens, attention_mask=nothing_hidden, use_cache=False, output_attentions=True).attentions
    expected = torch.stack([maps[layer].mean(1) for layer in layers]).mean(0)
    prediction = model.predict(tokens, attention_layers=layers)
    torch.testing.assert_close(prediction.attention, expected, **CLOSE)
    assert torch.equal(prediction.logits, model.predict(tokens).logits)


def test_attention_rows_sum_to_one_and_padding_has_none(model: Transformer) -> None:
    tokens = canvas(2, 10)
    attention = model.predict(tokens, plan=whole(10, 6), attention_layers=range(2)).attention
    assert attention is not None
    assert attention.dtype == torch.float32
    torch.testing.assert_close(attention.sum(-1), torch.tensor([[1.0] * 10, [1.0] * 6 + [0.0] * 4]))
    assert not attention[1, :, 6:].any()
    alone = model.predict(tokens[1:, :6], attention_layers=range(2)).attention
    torch.testing.assert_close(attention[1:, :6, :6], alone, **CLOSE)


def shadow_reference(folder: Path, model: Transformer, tokens: Tensor, shadow: list[int]) -> tuple[Tensor, Tensor]:
    """Main and shadow logits of one row from Llama layers with the mask and the positions written out."""
    length, total = tokens.shape[1], tokens.shape[1] + len(shadow)
    hidden = torch.zeros(total, total, dtype=torch.bool)
    hidden[:length, length:] = True
    for column, position in enumerate(shadow):
        hidden[length + column, position] = True
    mask = torch.zeros(1, 1, total, total).masked_fill(hidden, torch.finfo(torch.float32).min)
    longer = torch.cat([tokens, torch.full((1, len(shadow)), model.spec.mask_id)], dim=1)
    positions = torch.tensor([[*range(length), *shadow]])
    reference = as_llama(folder, model)
    logits = reference(longer, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return logits[:, :length], logits[:, length:]


def test_shadows_see_everything_but_their_own_token(llada_folder: Path, llada: Transformer) -> None:
    tokens, shadow = canvas(1, 12), [5, 6, 7, 8]
    main, shadows = shadow_reference(llada_folder, llada, tokens, shadow)
    prediction = llada.predict(tokens, shadow=torch.tensor([shadow]))
    torch.testing.assert_close(prediction.logits, main, **CLOSE)
    torch.testing.assert_close(prediction.shadow_logits, shadows, **CLOSE)
    torch.testing.assert_close(prediction.logits, llada.predict(tokens).logits, **CLOSE)


def test_shadows_of_ragged_rows_equal_those_of_the_rows_alone(llada_folder: Path, llada: Transformer) -> None:
    tokens = canvas(2, 12)
    shadow = torch.tensor([[6, 7, 8, 9], [4, 5, 5, 5]])  # the second row is padded with its last position
    prediction = llada.predict(tokens, plan=whole(12, 8), at=shadow, shadow=shadow)
    assert prediction.shadow_logits is not None
    assert prediction.shadow_logits.isfinite().all()
    for row, (length, positions) in enumerate([(12, [6, 7, 8, 9]), (8, [4, 5])]):
        main, shadows = shadow_reference(llada_folder, llada, tokens[row : row + 1, :length], positions)
        torch.testing.assert_close(prediction.logits[row, : len(positions)], main[0, positions], **CLOSE)
        torch.testing.assert_close(prediction.shadow_logits[row, : len(positions)], shadows[0], **CLOSE)


def test_a_shadow_does_not_depend_on_the_token_it_stands_for(llada: Transformer) -> None:
    tokens = canvas(1, 9)
    # Other positions see token 4 in the first layer and pass it on in the second: only one layer hides it for good.
    shallow = Transformer(replace(llada.shape, n_layers=1), llada.spec).eval()
    before = shallow.predict(tokens, shadow=torch.tensor([[4]])).shadow_logits
    tokens[:, 4] = 1
    assert torch.equal(shallow.predict(tokens, shadow=torch.tensor([[4]])).shadow_logits, before)


def test_a_shifted_family_has_no_shadows(dream: Transformer) -> None:
    with pytest.raises(UnmaskError, match=r"^dream predicts a position from the one before it"):
        dream.predict(canvas(1, 4), shadow=torch.tensor([[1]]))
