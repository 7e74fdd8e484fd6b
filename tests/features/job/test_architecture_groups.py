"""Coarse architecture groups."""

import re

import pytest

from presage.features.job.architecture_groups import GROUPS, architecture_group
from presage.pipelines.importers.public_models.torchvision_models import CLASSIFIERS
from presage.pipelines.profiling.zoo import FAMILIES


def test_each_family_is_in_one_group():
    families = [family for group in GROUPS.values() for family in group]

    assert len(families) == len(set(families))


def test_close_relatives_share_a_group():
    assert architecture_group("resnetaa") == architecture_group("resnet") == "resnet"
    assert architecture_group("seresnext") != architecture_group("regnety")


def test_an_unknown_family_is_a_group_of_its_own():
    assert architecture_group("my_model") == "my_model"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_of_the_zoo_has_a_group(family):
    assert architecture_group(family) in GROUPS


@pytest.mark.parametrize("model", sorted(CLASSIFIERS))
def test_every_classifier_of_torchvision_has_a_group(model):
    assert architecture_group(re.sub(r"[\d_].*", "", model)) in GROUPS
