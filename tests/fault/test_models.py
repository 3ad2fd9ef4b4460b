"""The campaign searches each larger configuration of each model."""

from __future__ import annotations

from importlib import import_module

from model.test_searches import MODELS

from fault.real.models import EXPLORERS, search_models


def test_a_search_that_is_cut_off_is_told_for_each_larger_configuration() -> None:
    found = search_models(limit=5)
    larger = [f"{each.name}, {name}: not searched to its end" for each in EXPLORERS for name in each.large]
    assert [violation.split("model: ")[-1] for violation in found.violations] == larger


def test_no_model_with_larger_configurations_is_left_out() -> None:
    every = [import_module(f"model.{name}.explore").EXPLORER for name in MODELS]
    assert {each.name for each in every if each.large} == {each.name for each in EXPLORERS}
