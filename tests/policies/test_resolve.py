import pytest

from unmask import policies
from unmask.errors import UnknownName, UnmaskError


def test_a_name_stands_for_the_preset_of_the_family():
    assert policies.resolve("mean_field", "dream") == policies.MeanField(threshold=0.95)
    assert policies.resolve(None, "llada") == policies.MeanField(threshold=0.85)
    assert policies.resolve("klass", "llada", task="mbpp") == policies.preset("klass", "llada", "mbpp")


def test_an_object_is_used_as_it_is():
    policy = policies.MeanField(threshold=0.5)
    assert policies.resolve(policy, "dream") is policy


def test_parameters_change_fields_of_what_was_meant():
    assert policies.resolve("mean_field", "dream", parameters={"iterations": 4}) == policies.MeanField(
        threshold=0.95, iterations=4
    )
    assert policies.resolve(policies.Threshold(), "llada", parameters={"threshold": 0.5}).threshold == 0.5
    with pytest.raises(UnknownName, match="did you mean 'threshold'"):
        policies.resolve("mean_field", "llada", parameters={"treshold": 0.5})


def test_a_class_is_refused():
    with pytest.raises(UnmaskError, match="must be a name or a policy object"):
        policies.resolve(policies.MeanField, "llada")


def test_settings_are_the_callers_then_recommended_then_the_presets_then_ours():
    def block(policy, given=None, **options):
        return policies.resolve_settings(policies.get(policy), "llada", {"block_size": given}, **options).block_size

    assert block("threshold") == 32
    assert block("mean_field") == 20
    assert block("mean_field", recommended={"block_size": 128}) == 128
    assert block("mean_field", 8, recommended={"block_size": 128}) == 8
    assert policies.resolve_settings(policies.get("klass"), "dream", {}).temperature == 0.2
    assert policies.resolve_settings(policies.get("klass"), "dream", {"temperature": 0.0}).temperature == 0.0
    with pytest.raises(UnknownName, match="did you mean 'block_size'"):
        policies.resolve_settings(policies.get("klass"), "dream", {"blocksize": 3})
