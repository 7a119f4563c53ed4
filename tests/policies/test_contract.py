"""What holds for every policy, ours or installed, whatever its rule."""

import json
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest
import torch
from policies.rows import assert_same, drive, make_rows, view_of
from torch.utils._python_dispatch import TorchDispatchMode

from unmask import policies
from unmask.errors import UnmaskError
from unmask.policies import with_progress
from unmask.types import Decision, StepView

VARIANTS = [
    ("fixed", {"passes": 3}),
    ("fixed", {"schedule": "dream"}),
    ("random", {"schedule": "dream"}),
    ("entropy", {"schedule": "dream", "tokens_per_pass": 2}),
    ("factor", {"reference_quirks": True}),
    ("eb", {"gamma": 1.0, "order": "confidence"}),
    ("eb", {"gamma": 1.0, "order": "margin"}),
    ("klass", {"convention": "dream", "kl": 0.1}),
    ("klass", {"passes": 2, "history": 1}),
    ("dawn", {"conflict_with": "union", "tau_sink": 0.2}),
    ("dapd", {"variant": "direct", "tau_max": 0.9}),
    ("wino", {"draft_threshold": 0.1}),
    ("hierarchical", {"remask_threshold": 0.4}),
    ("certainty_prior", {"passes": 3, "sigma": 2.0}),
    ("p2", {"passes": 3}),
    ("saber", {"least": 1}),
    ("remask", {"doubt": "replaced"}),
    ("remask", {"doubt": "unsteady", "limit": 0.1}),
    ("mean_field", {"iterations": 1, "interaction": "uniform", "fallback": "confidence"}),
]
EVERY = [(name, {}) for name in policies.names()] + VARIANTS
every_policy = pytest.mark.parametrize(
    "policy",
    [policies.get(name, **params) for name, params in EVERY],
    ids=["-".join([name, *map(str, params.values())]) for name, params in EVERY],
)


class NoHostSync(TorchDispatchMode):
    """Refuses the operations that make the host wait for the device, or whose shape depends on the data."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "item", "is_nonzero", "equal", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indexed_by_bool = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        assert name not in self.FORBIDDEN, f"host synchronisation by {name}"
        assert not indexed_by_bool, "boolean indexing"
        return func(*args, **(kwargs or {}))


@every_policy
def test_a_policy_is_a_frozen_dataclass_with_nothing_but_its_parameters(policy):
    assert is_dataclass(policy)
    assert not hasattr(policy, "__dict__")
    assert hash(policy) == hash(replace(policy))
    with pytest.raises(FrozenInstanceError):
        setattr(policy, fields(policy)[0].name, 1)
    with pytest.raises(TypeError):
        type(policy)(0.5)
    assert policy.needs <= {"sequence_logits", "attention", "shadow", "uniform"}
    assert isinstance(policy.remasks, bool)


@every_policy
def test_a_policy_survives_the_round_trip_through_json(policy):
    described = json.loads(json.dumps(policies.describe(policy)))
    assert described["name"] in policies.names()
    assert policies.get(**described) == policy


@every_policy
def test_a_policy_never_commits_a_closed_position_and_never_reads_it(policy):
    if policy.remasks and "shadow" not in policy.needs:
        return  # it must look at what it may take back
    for seed in range(3):
        rows, others = make_rows(seed), make_rows(seed)
        for row in (*rows, *others):
            start, end = row.spans[0]
            row.tokens[start], row.tokens[end - 1] = 2, 3
        with_nan, state = policy.select(view := view_of(rows))
        without, other_state = policy.select(view_of(others, closed=0.5))
        assert_same(with_nan, without)
        assert not (with_nan.commit & ~view.masked).any()
        assert not with_progress(with_nan, view.masked)[~view.masked].any()
        if with_nan.remask is not None:
            assert not (with_nan.remask & (view.masked | (view.tokens < 0))).any()
        assert (state is None) == (other_state is None)


@every_policy
def test_a_policy_leaves_its_inputs_alone_and_repeats_itself(policy):
    rows = make_rows(1)
    _, state = policy.select(view_of(rows))
    view = replace(view_of(rows), step=torch.ones(len(rows), dtype=torch.long))
    tensors = {field.name: getattr(view, field.name) for field in fields(view)}
    copies = {name: value.clone() for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    state_copies = {} if state is None else {f.name: getattr(state, f.name).clone() for f in fields(state)}
    first, _ = policy.select(view, state)
    second, _ = policy.select(view, state)
    assert_same(first, second)
    for name, copy in copies.items():
        torch.testing.assert_close(tensors[name], copy, rtol=0, atol=0, equal_nan=True)
    for name, copy in state_copies.items():
        assert torch.equal(getattr(state, name), copy)


@every_policy
def test_every_row_finishes_within_bounds(policy):
    for seed in range(2):
        rows = make_rows(seed)
        for row, passes in zip(rows, drive(policy, rows), strict=True):
            assert row.finished
            written = sorted(position for one in passes for position in one.commit)
            opened = [position for one in passes for position in one.remask]
            assert policy.remasks or not opened
            assert len(written) == row.total + len(opened)
            assert len(passes) <= row.total * (3 if policy.remasks else 1)


@every_policy
def test_a_batch_decides_row_for_row_as_each_row_alone(policy):
    for seed in range(2):
        together = drive(policy, make_rows(seed))
        for place, passes in enumerate(together):
            alone = drive(policy, [make_rows(seed)[place]])[0]
            assert [(one.commit, one.remask) for one in passes] == [(one.commit, one.remask) for one in alone]
            for one, other in zip(passes, alone, strict=True):
                assert one.state.keys() == other.state.keys()
                for name, value in one.state.items():
                    torch.testing.assert_close(value, other.state[name])


@every_policy
def test_equal_positions_are_committed_from_the_lowest_index(policy):
    masked = torch.tensor([[False, True, True, False, True, True, True]])
    logits = torch.zeros(1, 7, 5)
    logits[..., 2] = 1.0
    state = None
    for step in range(4):
        view = StepView(
            logits=logits,
            masked=masked,
            tokens=torch.full((1, 7), 2),
            step=torch.tensor([step]),
            uniform=torch.full((1, 7), 0.5),
            sequence_logits=logits,
            attention=torch.full((1, 7, 7), 1 / 7),
            shadow_logits=logits,
        )
        decision, state = policy.select(view, state)
        commit = with_progress(decision, masked)[0].tolist()
        open_columns = [column for column, open_ in enumerate(masked[0].tolist()) if open_]
        chosen = [column for column, flag in enumerate(commit) if flag]
        if policies.name_of(policy) == "hierarchical":
            open_columns = [1, 4]  # the first of each run
        assert chosen == open_columns[: len(chosen)]


@every_policy
def test_a_row_without_open_positions_is_left_alone(policy):
    view = view_of(make_rows(0))
    masked = view.masked.clone()
    masked[1] = False
    decision, _ = policy.select(replace(view, masked=masked))
    assert not with_progress(decision, masked)[1].any()
    assert decision.remask is None or not decision.remask[1].any()


@every_policy
def test_a_position_whose_token_is_ruled_out_comes_last(policy):
    masked, state, order = torch.ones(1, 6, dtype=torch.bool), None, []
    likeliest = torch.full((1, 6, 5), 0.0)
    likeliest[..., 2] = 9.0
    likeliest[:, [1, 3], 0] = 8.0  # without its token, the position would look as certain as the others
    seen = likeliest.clone()
    seen[:, [1, 3], 2] = -torch.inf
    while masked.any():
        view = StepView(
            logits=seen,
            masked=masked,
            proposed=likeliest.argmax(-1),
            tokens=torch.where(masked, 4, 2),
            step=torch.tensor([len(order)]),
            uniform=torch.linspace(0.1, 0.9, 6)[None],
            sequence_logits=likeliest,
            attention=torch.eye(6)[None],
            shadow_logits=likeliest,
        )
        decision, state = policy.select(view, state)
        commit = with_progress(decision, masked)
        order.append(commit[0].nonzero().flatten().tolist())
        if decision.tokens is not None:
            assert (decision.tokens[masked] == 2).all()
        masked = masked & ~commit
    last_free = max(place for place, chosen in enumerate(order) if set(chosen) & {0, 2, 4, 5})
    first_ruled_out = min(place for place, chosen in enumerate(order) if set(chosen) & {1, 3})
    assert last_free <= first_ruled_out
    at_once = getattr(policy, "passes", None) or getattr(policy, "schedule", "even") == "dream"
    assert at_once or last_free < first_ruled_out


@every_policy
def test_no_policy_waits_for_the_device(policy):
    rows = make_rows(2)
    first, second = view_of(rows), replace(view_of(rows), step=torch.ones(len(rows), dtype=torch.long))
    with NoHostSync():
        decision, state = policy.select(first)
        with_progress(decision, first.masked)
        policy.select(second, state)


@every_policy
def test_a_missing_need_is_named_and_missing_noise_is_drawn(policy):
    view = view_of(make_rows(0))
    absent = {"sequence_logits": "sequence_logits", "attention": "attention", "shadow": "shadow_logits"}
    for need in policy.needs - {"uniform"}:
        with pytest.raises(ValueError, match=f"needs {absent[need]}"):
            policy.select(replace(view, **{absent[need]: None}))
    bare = replace(view, uniform=None, **{name: None for need, name in absent.items() if need not in policy.needs})
    policy.select(bare)


@every_policy
def test_half_precision_logits_are_fine_in_either_dtype(policy):
    view = view_of(make_rows(0))
    floats = ("logits", "sequence_logits", "attention", "shadow_logits")
    half = {name: getattr(view, name).bfloat16() for name in floats}
    for exact in (False, True):
        decision, _ = policy.select(replace(view, **half, exact_dtype=exact))
        assert (
            with_progress(decision, view.masked)
            .any(-1)
            .logical_or(decision.wait if decision.wait is not None else torch.tensor(False))
            .all()
        )


@every_policy
def test_half_precision_logits_are_scored_as_what_they_are_in_float32(policy):
    state, wide_state = None, None
    for seed in range(3):
        view = view_of(make_rows(seed))
        logits = {name: getattr(view, name).bfloat16() for name in ("logits", "sequence_logits", "shadow_logits")}
        half = replace(view, **logits, model_dtype=torch.bfloat16)
        wide = replace(half, **{name: value.float() for name, value in logits.items()})
        decision, state = policy.select(half, state)
        expected, wide_state = policy.select(wide, wide_state)
        for name in ("commit", "score", "remask", "wait", "tokens", "intensity", "overlap"):
            one, other = getattr(decision, name), getattr(expected, name)
            assert (one is None) == (other is None)
            assert one is None or (one.dtype == other.dtype and torch.equal(one, other)), name


@every_policy
def test_a_misspelt_parameter_is_answered_with_a_near_match(policy):
    name, field = policies.name_of(policy), fields(policy)[0].name
    with pytest.raises(UnmaskError) as error:
        policies.get(name, **{field + "s": 1})
    assert str(error.value).startswith(f"unknown parameter of {name} '{field}s'; did you mean '{field}'?")
    assert "\n" not in str(error.value)


def test_progress_in_a_block_without_columns_is_no_progress():
    empty = torch.zeros(2, 0, dtype=torch.bool)
    assert with_progress(Decision(commit=empty, score=torch.zeros(2, 0)), empty).shape == (2, 0)


@pytest.mark.parametrize("name", ["fixed", "threshold", "margin", "entropy", "eb", "local_leap", "mean_field"])
@pytest.mark.parametrize("vocab", [5, 16, 20])
def test_equal_distributions_with_different_peaks_tie_to_the_lowest_position(name, vocab):
    policy = policies.get(name)
    for first in range(vocab):
        for second in range(vocab):
            logits = torch.zeros(1, 2, vocab)
            logits[0, 0, first] = logits[0, 1, second] = 1.3
            view = StepView(logits=logits, masked=torch.ones(1, 2, dtype=torch.bool))
            decision, _ = policy.select(view, None)
            assert with_progress(decision, view.masked)[0, 0]
