"""Which positions of each row a pass computes, as models read it; and what models say they can do."""

import pytest
import torch
from doubles import tiny_config

from unmask.cache.base import PassPlan, RowPlan
from unmask.models.base import Capabilities, Prediction, capabilities_of
from unmask.models.checkpoint.loading import load_model
from unmask.models.random_weights import random_model
from unmask.models.transformer import Transformer

CPU = torch.device("cpu")


def plan_of(*rows):
    """Of rows (first position, end, keys seen)."""
    return PassPlan(tuple(RowPlan(span=(first, end), visible=seen) for first, end, seen in rows), CPU)


def test_a_plan_of_whole_rows():
    plan = PassPlan.whole([5, 2], CPU)
    assert plan.self_contained
    assert plan.spans == [(0, 5), (0, 2)]
    assert plan.sizes == plan.seen == [5, 2]
    assert plan.padded == 10
    assert plan.positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 1, 1, 1]]
    assert plan.visible.tolist() == [5, 2]


def test_a_plan_of_parts_of_rows():
    plan = plan_of((4, 8, 12), (2, 4, 9), (9, 10, 10))
    assert not plan.self_contained
    assert plan.sizes == [4, 2, 1]
    assert plan.padded == 12
    assert plan.positions.tolist() == [[4, 5, 6, 7], [2, 3, 3, 3], [9, 9, 9, 9]]
    assert plan.visible.tolist() == [12, 9, 10]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0, 4, 4)], True),
        ([(0, 4, 4), (0, 9, 9)], True),
        ([(0, 4, 8)], False),  # the rest is seen, but not computed
        ([(1, 4, 4)], False),
        ([(0, 4, 4), (1, 4, 4)], False),
    ],
)
def test_a_plan_is_self_contained_if_every_row_computes_all_that_it_sees(rows, expected):
    assert plan_of(*rows).self_contained == expected


def test_tensors_of_a_plan_are_made_once_and_only_if_asked_for():
    plan = plan_of((1, 3, 4))
    assert plan.sizes == [2]
    assert not {"positions", "visible"} & vars(plan).keys()
    assert plan.positions is plan.positions
    assert plan.visible is plan.visible


class Own:
    """A model of another class that states its capabilities."""

    capabilities = Capabilities(states=True)
    device, dtype = CPU, torch.float32

    def __init__(self):
        self.spec = random_model(tiny_config("llada")).spec

    def predict(self, tokens, **options):
        return Prediction(logits=tokens[..., None].float())


class Silent(Own):
    def predict(self, tokens, **options):
        return super().predict(tokens, **options)


class Speaking(Silent):
    capabilities = Capabilities(attention=True)

    def predict(self, tokens, **options):
        return super().predict(tokens, **options)


class Renamed(Own):
    """Changes nothing about `predict`, and says nothing about it."""


class Limited(Own):
    """Changes nothing about `predict`, and takes back what the base says about it."""

    capabilities = Capabilities()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Own, Capabilities(states=True)),
        (Silent, Capabilities()),
        (Speaking, Capabilities(attention=True)),
        (Renamed, Capabilities(states=True)),
        (Limited, Capabilities()),
    ],
)
def test_a_class_with_its_own_predict_starts_from_nothing(kind, expected):
    assert capabilities_of(kind()) == expected


def test_what_our_models_can_do():
    model = random_model(tiny_config("llada"))
    assert capabilities_of(model) == Capabilities(attention=True, shadow=True, states=True)
    toy = load_model("toy", device="cpu").model
    assert capabilities_of(toy) == Capabilities(attention=True, shadow=True)

    class Overriding(Transformer):
        def predict(self, tokens, **options):
            return super().predict(tokens, **options)

    assert capabilities_of(Overriding(model.shape, model.spec)) == Capabilities()
