"""The vision-language-action policy: a language model that sees, and an action expert that attends to what it read.

Images and prompt are the prefix: all of it sees all of it. The expert's tokens (for pi0 the state, then the noisy
actions) see the prefix and themselves, and the prefix never sees them. So in sampling the prefix is read once, and its
keys and values serve every Euler step.
Source: Black et al., "pi0", 2024; Physical Intelligence, "pi0.5", 2025; the conventions of their `openpi`.

States and actions are normalised here, and flow time runs as everywhere in `train`: 0 is noise, 1 is an action.
The papers' weights know the time that runs the other way; `velocity` alone turns it around.

Legend of shape suffixes:
    B batch   V camera view   H row   W column   C channel   P prefix token   Q expert token   T action of the chunk
    S state   A action   D features of a token
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.arrays import (
    Arrays,
    Weights,
    dense,
    drawn,
    fresh_layer,
    normal_rows,
    over_devices,
    split_rows,
)
from mainspring.train.models.attention import block_causal
from mainspring.train.models.gemma import embed, fresh_gemma
from mainspring.train.models.images import with_varied_images
from mainspring.train.models.matching import Guidance, encode_time, flowed, velocity_error
from mainspring.train.models.model import Model, sum_of_valid
from mainspring.train.models.shapes import Signature, VlaKind, VlaRecipe
from mainspring.train.models.siglip import encode_image, fresh_siglip
from mainspring.train.models.transformer import Cache, decode, fresh_blocks, layers_of, unstacked

TIME_PERIOD_MIN, TIME_PERIOD_MAX = 4e-3, 4.0  # Source: openpi, `pi0.py`.
TIME_ALPHA = 1.5
TIME_LEAST = 0.001  # Source: openpi, `pi0.py`.
_WORDS_KEY = 3  # Beside those of noise, time and images, which are as they were without it.


def vla_model(policy: VlaRecipe) -> Model:
    """Returns the policy as the trainer knows it. A fresh one's velocity is zero everywhere.

    Args:
        policy: The policy's shape.
    """
    return Model(
        initial_weights=partial(_initial_weights, policy),
        loss=partial(_loss, policy),
        sample=partial(_sample, policy),
        guided=True,
    )


def _initial_weights(policy: VlaRecipe, key: jax.Array, signature: Signature) -> Weights:
    check_width(policy, signature)
    return drawn(key, fresh_vla(policy))


def check_width(policy: VlaRecipe, signature: Signature) -> None:
    """Checks that a policy is wide enough for the data.

    Args:
        policy: The policy's shape.
        signature: The data's dimensions.

    Raises:
        InvalidInput: It has fewer dimensions.
    """
    most = max(signature.state_dim, signature.action_dim)
    if most > policy.action_dim:
        raise InvalidInput(
            "fit a robot into a policy",
            got=f"{signature.state_dim} state and {signature.action_dim} action dimensions",
            wanted=f"at most {policy.action_dim}",
            next_step=f"set policy.action_dim to {most}",
        )


def _loss(policy: VlaRecipe, weights: Weights, batch: Arrays, keys_B: jax.Array) -> jax.Array:
    noise_keys, time_keys, image_keys = split_rows(keys_B, 3)
    batch = with_varied_words(with_varied_images(batch, policy.image, image_keys), policy, keys_B)
    batch = {**batch, **{name: _widened(batch[name], policy.action_dim) for name in ("state", "actions")}}
    noise_BTA, time_B = normal_rows(noise_keys, batch["actions"]), draw_time(time_keys)
    return sum_of_valid(flow_error(weights, policy, batch, noise_BTA, time_B), batch["valid"])


def with_varied_words(batch: Arrays, policy: VlaRecipe, keys_B: jax.Array) -> Arrays:
    """Returns a batch in whose prompts some words are left out, and others stand in place of some.

    What begins a prompt and the line that ends it stay.

    Args:
        batch: `prompt` [B,P] and `prompt_valid` [B,P], or neither where all rows have the policy's own.
        policy: Says how many.
        keys_B: Of each row.
    """
    if not policy.prompt_noise or "prompt" not in batch:
        return batch
    prompt_BP, valid_BP = batch["prompt"], batch["prompt_valid"]
    within = valid_BP & jnp.roll(valid_BP, -1, axis=1).at[:, -1].set(False) & (jnp.arange(valid_BP.shape[1]) > 0)

    def drawn(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        chance_key, word_key = jax.random.split(jax.random.fold_in(key, _WORDS_KEY))
        shape = (valid_BP.shape[1],)
        return jax.random.uniform(chance_key, shape), jax.random.randint(word_key, shape, 2, policy.language.vocabulary)

    chance_BP, other_BP = jax.vmap(drawn)(keys_B)
    left_out_BP = within & (chance_BP < policy.prompt_noise / 2)
    replaced_BP = within & ~left_out_BP & (chance_BP < policy.prompt_noise)
    return {
        **batch,
        "prompt": jnp.where(replaced_BP, other_BP, prompt_BP),
        "prompt_valid": valid_BP & ~left_out_BP,
    }


def draw_time(keys_B: jax.Array) -> jax.Array:
    """Returns a flow time to learn at for each key, [B]: more of them near noise, none at the action itself.

    Source: Black et al., "pi0", 2024, appendix B; by the inverse of the distribution function of Beta(1.5, 1).
    """
    papers_time_B = jax.vmap(jax.random.uniform)(keys_B) ** (1 / TIME_ALPHA)
    return 1.0 - (papers_time_B * (1.0 - TIME_LEAST) + TIME_LEAST)


def _sample(
    policy: VlaRecipe, weights: Weights, batch: Arrays, keys_B: jax.Array, guidance: Guidance | None
) -> jax.Array:
    state_BA = _widened(batch["state"], policy.action_dim)
    noise_BTA = normal_rows(keys_B, jnp.zeros((len(state_BA), policy.horizon, policy.action_dim)))
    if guidance is not None:
        guidance = guidance._replace(chunk_BTA=_widened(guidance.chunk_BTA, policy.action_dim))
    return flow_from(weights, policy, {**batch, "state": state_BA}, noise_BTA, guidance)


def _widened(x: jax.Array, dimensions: int) -> jax.Array:
    """Returns `x` with zeros in the dimensions that the robot does not have."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, dimensions - x.shape[-1])])


class Prefix(NamedTuple):
    """Images and prompt, as the language model takes them."""

    token_BPD: jax.Array
    valid_BP: jax.Array


class ReadPrefix(NamedTuple):
    """What the language model has kept of a prefix: all that an expert needs to attend to it."""

    cache: Cache | tuple[Cache, ...]
    valid_BP: jax.Array


class ExpertTokens(NamedTuple):
    """What the expert takes; its norms' condition where they are adaptive."""

    token_BQD: jax.Array
    condition_BD: jax.Array | None


def fresh_vla(policy: VlaRecipe) -> Weights:
    """Returns the policy's weights to be. The velocity starts at zero everywhere."""
    width, adaptive = policy.expert_width, policy.kind is VlaKind.PI05
    weights: Weights = {
        "language": fresh_gemma(policy.language),
        "expert": fresh_blocks(policy.expert, condition=width if adaptive else 0),
        "action_in": fresh_layer(policy.action_dim, width),
        "time_in": fresh_layer(width if adaptive else 2 * width, width),
        "time_out": fresh_layer(width, width),
        "action_out": fresh_layer(width, policy.action_dim, scale=0.0),
    }
    if policy.image is not None:
        weights["image"] = fresh_siglip(policy.image, policy.language.width)
    if not adaptive:
        weights["state"] = fresh_layer(policy.action_dim, width)
    return weights


def check_prompt(policy: VlaRecipe, batch: Arrays) -> None:
    """Checks that a batch brings the prompts that a policy needs.

    Args:
        policy: The policy's shape.
        batch: As for `embed_prefix`.

    Raises:
        InvalidInput: `prompt` came without `prompt_valid` or the other way round; or neither came, to a policy that
            knows its state from the prompt alone.
    """
    given = [name for name in ("prompt", "prompt_valid") if name in batch]
    if len(given) == 1:
        raise InvalidInput("read a prompt", got=f"{given[0]} alone", wanted="both prompt [B,P] and prompt_valid [B,P]")
    if not given and policy.kind is VlaKind.PI05:
        raise InvalidInput(
            "tell a pi05 policy the robot's state",
            got="a batch without prompts",
            wanted="prompt and prompt_valid, as `prompts.Tokenizer` makes them of a task and a normalised state",
            next_step="set data.tokenizer, or use a policy of kind pi0",
        )


def embed_prefix(weights: Weights, policy: VlaRecipe, batch: Arrays) -> Prefix:
    """Returns the prefix of a batch: the tokens of all views, then those of the prompt.

    Args:
        weights: As `fresh_vla` says.
        policy: The policy's shape.
        batch: `state` [B,A]; `images` [B,V,H,W,C], brightness 0 to 255, where the policy has eyes, and with them
            `image_valid` [B,V] where a view may be missing; `prompt` [B,P] and `prompt_valid` [B,P] where the prompt
            is not the recipe's, as for pi0.5 always.

    Raises:
        InvalidInput: As for `check_prompt`.
    """
    check_prompt(policy, batch)
    count, numbers = len(batch["state"]), policy.compute.numbers
    tokens, valids = [], []
    if policy.image is not None:
        images = batch["images"]
        views = images.shape[1]
        image_BTD = encode_image(
            weights["image"], policy.image, images.reshape(count * views, *images.shape[2:]), policy.compute
        )
        tokens.append(over_devices(image_BTD.reshape(count, views * policy.image.tokens, -1)))
        valid_BV = batch.get("image_valid", jnp.ones((count, views), bool))
        valids.append(jnp.repeat(valid_BV, policy.image.tokens, axis=1))
    own = jnp.arange(policy.prompt_length) < len(policy.prompt)
    prompt = jnp.asarray(policy.prompt + (0,) * (policy.prompt_length - len(policy.prompt)))
    tokens.append(over_devices(embed(weights["language"], batch.get("prompt", jnp.tile(prompt, (count, 1))), numbers)))
    valids.append(batch.get("prompt_valid", jnp.tile(own, (count, 1))))
    return Prefix(jnp.concatenate(tokens, axis=1), jnp.concatenate(valids, axis=1))


def read_prefix(weights: Weights, policy: VlaRecipe, batch: Arrays) -> ReadPrefix:
    """Returns what the expert needs of a batch's prefix, for `velocity`.

    Args:
        weights: As `fresh_vla` says.
        policy: The policy's shape.
        batch: As for `embed_prefix`.
    """
    prefix = embed_prefix(weights, policy, batch)
    valid = prefix.valid_BP
    _, cache = decode(
        [weights["language"]],
        [prefix.token_BPD],
        position_BT=jnp.cumsum(valid, axis=1) - 1,
        sight=block_causal(valid, [False] * valid.shape[1]),
        conditions=[None],
        compute=policy.compute,
    )
    return ReadPrefix(cache, valid)


def velocity(
    weights: Weights,
    policy: VlaRecipe,
    seen: Prefix | ReadPrefix,
    state_BA: jax.Array,
    noisy_BTA: jax.Array,
    time_B: jax.Array,
) -> jax.Array:
    """Returns the velocity that carries the noisy chunk towards an action, [B,T,A].

    Args:
        weights: As `fresh_vla` says.
        policy: The policy's shape.
        seen: The prefix, to be read in the same pass, or what was kept of it.
        state_BA: The state, normalised.
        noisy_BTA: The chunk at that flow time, normalised.
        time_B: Flow time, 0 to 1.
    """
    papers_time_B = 1.0 - time_B
    token_BQD, condition_BD = _expert_tokens(weights, policy, state_BA, noisy_BTA, papers_time_B)
    prefix, count = seen.valid_BP.shape[1], token_BQD.shape[1]
    # The state, where it is a token, begins a block; so do the actions.
    starts = [False] * prefix + [True] * (count - policy.horizon + 1) + [False] * (policy.horizon - 1)
    valid_BT = jnp.concatenate([seen.valid_BP, jnp.ones(token_BQD.shape[:2], bool)], axis=1)
    sight, position = block_causal(valid_BT, starts), jnp.cumsum(valid_BT, axis=1) - 1
    stacks, streams, conditions = [weights["expert"]], [token_BQD], [condition_BD]
    cache = None
    match seen:
        case Prefix():
            stacks, streams = [weights["language"], *stacks], [seen.token_BPD, *streams]
            conditions = [None, *conditions]
        case ReadPrefix():
            sight, position, cache = sight.of_queries(prefix), position[:, prefix:], seen.cache
    streams, _ = decode(
        stacks,
        streams,
        position_BT=position,
        sight=sight,
        conditions=conditions,
        compute=policy.compute,
        cache=cache,
    )
    action_BTD = streams[-1][:, -policy.horizon :].astype(jnp.float32)
    return -dense(weights["action_out"], action_BTD)


def _expert_tokens(
    weights: Weights, policy: VlaRecipe, state_BA: jax.Array, noisy_BTA: jax.Array, papers_time_B: jax.Array
) -> ExpertTokens:
    numbers = policy.compute.numbers.value
    alone = policy.kind is VlaKind.PI05  # With the state before them, actions are no whole parts of their tokens.
    action_BTD = over_devices(dense(weights["action_in"], noisy_BTA), whole_tokens=not alone)
    time_BD = encode_time(papers_time_B, policy.expert_width, period_min=TIME_PERIOD_MIN, period_max=TIME_PERIOD_MAX)
    match policy.kind:
        case VlaKind.PI05:
            condition_BD = jax.nn.silu(dense(weights["time_out"], jax.nn.silu(dense(weights["time_in"], time_BD))))
            return ExpertTokens(action_BTD.astype(numbers), condition_BD.astype(numbers))
        case VlaKind.PI0:
            time_BTD = jnp.broadcast_to(time_BD[:, None, :], action_BTD.shape)
            both = jnp.concatenate([action_BTD, time_BTD], axis=-1)
            mixed_BTD = dense(weights["time_out"], jax.nn.silu(dense(weights["time_in"], both)))
            mixed_BTD = over_devices(mixed_BTD, whole_tokens=True)
            state_B1D = over_devices(dense(weights["state"], state_BA)[:, None, :], whole_tokens=True)
            return ExpertTokens(jnp.concatenate([state_B1D, mixed_BTD], axis=1).astype(numbers), None)


def flow_error(
    weights: Weights, policy: VlaRecipe, batch: Arrays, noise_BTA: jax.Array, time_B: jax.Array
) -> jax.Array:
    """Returns the mean squared error of the velocity at each step of the chunk, [B,T].

    Args:
        weights: As `fresh_vla` says.
        policy: The policy's shape.
        batch: As for `embed_prefix`, and `actions` [B,T,A]; states and actions of the model's dimensions.
        noise_BTA: Where the flow begins.
        time_B: Flow time, 0 to 1.
    """
    moving = partial(velocity, weights, policy, embed_prefix(weights, policy, batch), batch["state"])
    return velocity_error(moving, batch["actions"], noise_BTA, time_B)


def flow_from(
    weights: Weights, policy: VlaRecipe, batch: Arrays, noise_BTA: jax.Array, guidance: Guidance | None = None
) -> jax.Array:
    """Returns the chunks that given noise flows to, [B,T,A], by `flow_steps` Euler steps; the prefix is read once.

    Args:
        weights: As `fresh_vla` says.
        policy: The policy's shape.
        batch: As for `embed_prefix`; states of the model's dimensions.
        noise_BTA: Where the flow begins.
        guidance: What the chunks are to go on from, None for nothing.
    """
    seen = read_prefix(weights, policy, batch)
    seen = ReadPrefix(layers_of(seen.cache), seen.valid_BP)
    weights = {**weights, "expert": unstacked(weights["expert"])}
    return flowed(partial(velocity, weights, policy, seen, batch["state"]), noise_BTA, policy.flow_steps, guidance)
