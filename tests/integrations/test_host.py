"""What adapters rely on, for every policy that needs only logits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from unmask import policies
from unmask.errors import UnmaskError
from unmask.integrations.host import Block, advance, allowed

pytestmark = pytest.mark.usefixtures("users_policies")

MASK = 11
LOGITS_ONLY = [name for name in policies.names() if not policies.needs_of(policies.get(name))]


def block(rows=4, width=6, *, seed=0, **more):
    """Random blocks: the first row is full, the last one open, and the mask token is likely."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, 12, generator=generator) * 3
    logits[..., MASK] += 4
    tokens = torch.randint(0, 10, (rows, width), generator=generator)
    masked = torch.rand(rows, width, generator=generator) < 0.6
    masked[0], masked[-1] = False, True
    return Block(logits=logits, tokens=tokens.masked_fill(masked, MASK), masked=masked, mask_id=MASK, **more)


@pytest.mark.parametrize("name", LOGITS_ONLY)
@given(seed=st.integers(0, 2**31))
def test_every_open_row_commits_and_nothing_else_changes(name, seed):
    before = block(seed=seed)
    logits, tokens = before.logits.clone(), before.tokens.clone()
    done = advance(policies.get(name), before)
    assert torch.equal(done.commit.any(-1), before.masked.any(-1))
    assert not (done.commit & ~before.masked).any()
    assert torch.equal(done.tokens == MASK, before.masked & ~done.commit)  # the mask token is never committed
    assert torch.equal(done.tokens[~done.commit], before.tokens[~done.commit])
    assert torch.equal(done.tokens[done.commit], done.proposed[done.commit])
    assert torch.equal(before.logits, logits)
    assert torch.equal(before.tokens, tokens)


@pytest.mark.parametrize("name", LOGITS_ONLY)
def test_a_row_does_not_depend_on_the_others_or_on_what_stands_at_closed_positions(name):
    before = block(rows=6)
    together = advance(policies.get(name), before)
    noise = torch.where(before.masked[..., None], before.logits, torch.nan)
    assert torch.equal(advance(policies.get(name), replace(before, logits=noise)).tokens, together.tokens)
    for row in range(6):
        alone = advance(policies.get(name), before.rows(torch.tensor([row])))
        assert torch.equal(alone.tokens[0], together.tokens[row])


def test_ties_go_to_the_first_position_and_the_first_token():
    even = Block(logits=torch.zeros(1, 3, 5), tokens=torch.full((1, 3), 4), masked=torch.ones(1, 3).bool(), mask_id=4)
    assert advance(policies.get("threshold"), even).tokens.tolist() == [[0, 4, 4]]


@pytest.mark.parametrize("name", ["threshold", "eb", "cumulative", "factor", "local_leap", "fixed"])
def test_the_device_is_asked_nothing(name):
    before = block()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:  # a number read from a tensor is an error here
        values = {key: fake.from_tensor(getattr(before, key)) for key in ("logits", "tokens", "masked")}
        assert advance(policies.get(name), replace(before, **values)).tokens.shape == (4, 6)


@pytest.mark.parametrize("name", ["idle", "hesitant", "steady"])
@pytest.mark.parametrize("limit", [6, 7, 15])
def test_a_block_is_full_after_as_many_passes_as_the_host_has(name, limit):
    now, state = block(limit=limit), None
    given = ~now.masked
    for step in range(limit):
        now = replace(now, given=given, step=torch.full((4,), step))
        done = advance(policies.get(name), now, state)
        state = done.state
        now = replace(now, tokens=done.tokens, masked=done.tokens == MASK)
        assert not (done.remask & given).any()
    assert not now.masked.any()


def test_a_full_block_is_not_opened_again():
    tokens = torch.tensor([[1, 2, 3, 4, MASK, MASK], [1, 2, 3, 4, 5, 6]])
    now = replace(block(rows=2), tokens=tokens, masked=tokens == MASK, step=torch.ones(2).long())
    now = replace(now, given=torch.zeros(2, 6).bool())
    assert advance(policies.get("hesitant"), now).remask.any(-1).tolist() == [True, False]
    assert advance(policies.get("hesitant"), replace(now, given=None)).remask.any(-1).tolist() == [False, False]


@pytest.mark.parametrize("name", [name for name in policies.names() if name not in LOGITS_ONLY])
def test_a_policy_that_needs_more_than_logits_is_refused_with_the_way_out(name):
    with pytest.raises(UnmaskError, match=f"the policy {name} needs .*, which the host does not give; `unmask serve`"):
        allowed(policies.get(name), "the host")
    assert allowed(policies.get("eb"), "the host") == policies.get("eb")
