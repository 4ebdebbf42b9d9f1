"""What the smallest VLA must send over each axis of a mesh in a step, in bytes a chip: by formula, not by its program.

All its numbers are float32, and all its arrays are split along `data`. To gather or to scatter S bytes over n chips
costs each of them S (n - 1) / n, written `over(n, S)`; to give all of them a sum costs twice that.

data: A block's weights are gathered for the forward pass and again for the backward pass, which computes the block
    once more; their gradients are scattered. All others are gathered once. Of the embedding only the batch's words are
    looked up: all chips' words are summed, and their gradients gathered; the first is scattered at once.
replica: The gradients of a chip's share of all weights are summed.
tensor: Each stream of a block sums its tokens after attention and after the MLP, and again after attention where the
    block is computed once more; their gradients before both. Gemma's one head of keys serves all chips, so that its
    gradients and its values' are summed. Its words are looked up in a split embedding.
sequence: A block's keys and values are gathered forwards and once more; their gradients are scattered in the encoder,
    and summed in Gemma, which cuts them by stream first. The gradients of all weights that split tokens meet are
    summed: of all but the state's, which is one token. The prefix is put together and taken apart, patches once.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.train.models.arrays import flattened
from mainspring.train.recipe import MeshRecipe
from mainspring.train.state.sharding import make_mesh
from mainspring.train.steps.state import abstract_state

from .layouts_of_mesh import LAYOUTS, ROWS, SIGNATURE, recipe_of, recipe_with

MESHES: Mapping[str, Mapping[str, int]] = {
    "fsdp": {"replica": 1, "data": 8, "sequence": 1, "tensor": 1},
    "tensor": {"replica": 1, "data": 4, "sequence": 1, "tensor": 2},
    "sequence": {"replica": 1, "data": 4, "sequence": 2, "tensor": 1},
    "replica": {"replica": 2, "data": 4, "sequence": 1, "tensor": 1},
    "fsdp, words": {"replica": 1, "data": 8, "sequence": 1, "tensor": 1},
}
LAYERS = 2  # Of the encoder, and of Gemma and the expert.
PATCHES, WORDS, CHUNK = 16, 4, 5  # Tokens: the chunk's is the state and 4 actions.
PATCH_DIM, TOKEN_DIM, KEY_DIM = 48, 64, 16
NUMBER = 4  # Bytes.


def words_sent(mesh: Mapping[str, int]) -> dict[str, float]:
    """Returns what the language model of `layouts_of_mesh` must send over `data` alone: never its table of words.

    Words that are looked up are summed where they belong, and their gradients gathered. For each share of the
    vocabulary all tokens are gathered, and again, and their gradients scattered; with them go a maximum, a sum and a
    word's own logit a token, and some numbers more in the backward pass.
    """
    data = mesh["data"]
    recipe = recipe_of("one device, words")
    arrays = flattened(abstract_state(recipe, SIGNATURE, make_mesh(MeshRecipe())).weights)
    sizes = {path: array.size * NUMBER for path, array in arrays.items()}
    blocks = sum(size for path, size in sizes.items() if path.startswith("blocks/"))
    tokens = ROWS * 2 * 48  # Two parts of 48.
    numbers = 2 + 2 * 3 + 2 * 2 + 6  # Ids; three sums forwards, two again; what they are gathered and scattered by.
    return {"data": over(data, 3 * blocks + 2 * sizes["norm/scale"] + tokens * NUMBER * (5 * TOKEN_DIM + numbers))}


def over(count: int, size: float) -> float:
    return size * (count - 1) / count


def least_sent(mesh: Mapping[str, int]) -> dict[str, float]:
    replica, data, sequence, tensor = mesh.values()
    recipe = recipe_with(LAYOUTS["one device"])
    arrays = flattened(abstract_state(recipe, SIGNATURE, make_mesh(MeshRecipe())).weights)
    sizes = {path: array.size * NUMBER for path, array in arrays.items()}
    split = ("query", "key", "value", "out", "gate", "up", "down", "widen", "narrow", "embedding")
    if tensor > 1:  # Gemma's keys have one head, which all have.
        whole = {path for path in sizes if path.endswith(("blocks/key", "blocks/value"))}
        cut = {path for path in sizes if any(name in path.split("/") for name in split) and "narrow/bias" not in path}
        cut -= whole | {path for path in cut if path.endswith("out/bias")}
        sizes = {path: size / tensor if path in cut else size for path, size in sizes.items()}
    blocks = sum(size for path, size in sizes.items() if "/blocks/" in path)
    embedding = sizes["language/embedding"]
    others = sum(sizes.values()) - blocks - embedding
    rows = ROWS // replica // data  # Of a chip.
    words = rows * data * WORDS * TOKEN_DIM * NUMBER
    sent = {
        "replica": 2 * over(replica, (blocks + others + embedding) / data),
        "data": over(data, 3 * blocks + 2 * others + 3 * words / tensor),
    }
    patches = rows * PATCHES * PATCH_DIM * NUMBER
    prefix, all_tokens = PATCHES + WORDS, PATCHES + WORDS + CHUNK
    keys = 2 * rows * KEY_DIM * NUMBER  # And values, of a token.
    tokens = rows * TOKEN_DIM * NUMBER
    sums = LAYERS * (5 * (patches + all_tokens * tokens) + all_tokens * keys)
    sent["tensor"] = 2 * over(tensor, sums + words / data)
    state = sum(size for path, size in sizes.items() if path.startswith("state/"))
    gathered = LAYERS * (3 * 2 * patches + 2 * prefix * keys + 2 * all_tokens * keys)
    summed = 2 * (blocks + others + embedding - state) / data
    sent["sequence"] = over(sequence, gathered + summed + patches + 2 * prefix * tokens / sequence)
    return {axis: count for axis, count in sent.items() if count}
