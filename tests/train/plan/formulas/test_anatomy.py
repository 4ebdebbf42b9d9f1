"""What a plan says a policy is made of is what the policy is made of."""

import jax
import pytest

from mainspring.train.models.arrays import flattened
from mainspring.train.models.shapes import Signature
from mainspring.train.plan.formulas.anatomy import anatomy_of
from mainspring.train.policy import model_of
from mainspring.train.recipe import RECIPES, recipe_named

EYES = Signature(state_dim=14, action_dim=14, image_views=2, image_height=96, image_width=128)


@pytest.mark.parametrize("name", RECIPES)
def test_anatomy_of_every_recipe_has_the_arrays_of_its_model(name: str) -> None:
    policy = recipe_named(name).policy
    made = jax.eval_shape(lambda key: model_of(policy).initial_weights(key, EYES), jax.random.key(0))
    assert anatomy_of(policy, EYES).weights == {path: leaf.shape for path, leaf in flattened(made).items()}


@pytest.mark.parametrize("name", RECIPES)
def test_anatomy_of_every_recipe_says_of_each_matrix_what_it_is_for(name: str) -> None:
    found = anatomy_of(recipe_named(name).policy, EYES)
    stacked = tuple(where for stack in found.stacks for where in stack.where)
    matrices = {path for path, shape in found.weights.items() if len(shape) > 1 and not path.startswith(stacked)}
    added = {"image/position", "seen_position", "query", "style_encoder/class"}
    assert matrices - added == {*found.uses, *found.looked_up}


def test_anatomy_of_pi0_has_its_published_parameters() -> None:
    eyes = Signature(state_dim=32, action_dim=32, image_views=3, image_height=224, image_width=224)
    assert anatomy_of(recipe_named("pi0").policy, eyes).parameters == 3_238_048_528
