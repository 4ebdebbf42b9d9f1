"""PyTorch state: a model and its optimizer taken apart into blocks, and filled again, on any number of ranks.

Every rank hands over what it holds, so that it restarts from its own node's memory. Each tensor is stored once, and so
is each piece of a tensor that is spread over ranks (a `DTensor`, as `fully_shard` makes them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.domain.wire import Part
from mainspring.session.blocks import Block, dtype_named
from mainspring.session.restore import Region, Restored
from mainspring.session.session import Session

MODEL = "model"
OPTIMIZER = "optimizer"
SETTINGS = "optimizer/settings"  # JSON: what an optimizer keeps beside tensors, its groups' settings above all.
_WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Piece:
    """What this rank has of a tensor.

    Args:
        local: Its numbers here.
        global_shape: Shape of the whole tensor.
        start: Index of the first element here.
        replicas: The ranks that have the same piece; none when all ranks have the whole.
    """

    local: torch.Tensor
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    replicas: tuple[int, ...] = ()


def blocks_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, session: Session) -> tuple[Block, ...]:
    """Returns this rank's blocks of a model's parameters and buffers, and of its optimizer's state.

    Tensors in host memory are not copied; others are. Of ranks that have the same, the one with the fewest bytes so far
    stores it, which every rank works out alike.

    Args:
        model: The model; `DistributedDataParallel` around it is looked through.
        optimizer: Its optimizer, if it is to be saved.
        session: The rank's session.

    Raises:
        InvalidInput: A tensor is sparse, quantized or spread in an unusual way, or a setting is not plain.
    """
    found = [(f"{MODEL}/{name}", _piece(name, value), Part.WEIGHTS) for name, value in _whole(model).items()]
    if optimizer is not None:
        names, saved = _names(model, optimizer), optimizer.state_dict()
        tensors: dict[str, list[str]] = {}
        plain: dict[str, dict[str, Any]] = {}
        for number, values in saved["state"].items():
            for key, value in values.items():
                path = f"{OPTIMIZER}/{names[number]}/{key}"
                if isinstance(value, torch.Tensor):
                    tensors.setdefault(names[number], []).append(key)
                    found.append((path, _piece(path, value), Part.OPTIMIZER))
                else:
                    plain.setdefault(names[number], {})[key] = _plain(path, value)
        groups = [
            {key: _plain(key, value) for key, value in group.items() if key != "params"}
            for group in saved["param_groups"]
        ]
        settings = json.dumps({"groups": groups, "state": plain, "tensors": tensors}).encode()
        found.append(
            (SETTINGS, _piece(SETTINGS, torch.frombuffer(bytearray(settings), dtype=torch.uint8)), Part.OPTIMIZER)
        )
    savers = _savers([piece for _, piece, _ in found], session.world_size)
    return tuple(
        Block(
            path=path,
            data=_numbers(piece.local),
            global_shape=piece.global_shape,
            start=piece.start,
            once=saver == session.rank,
            elsewhere=any(rank not in session.local_ranks for rank in piece.replicas or range(session.world_size)),
            part=part,
        )
        for (path, piece, part), saver in zip(found, savers, strict=True)
        if piece.local.numel() or not piece.replicas  # Where a tensor has fewer rows than ranks, some have none.
    )


def load(restored: Restored, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Fills a model, and its optimizer if given, with restored state, each tensor where it lives.

    Args:
        restored: What `Session.restore` gave.
        model: Built as it was when saved, for any number of ranks.
        optimizer: Built as it was when saved; without one, only the weights are read.

    Raises:
        InvalidInput: A tensor was saved with another shape or dtype, or the optimizer has other groups.
        NotFound: A tensor was not saved.
        DamagedData: What was saved does not hold together.
        Unavailable: It cannot be had.
    """
    weights = _whole(model)
    pieces = {f"{MODEL}/{name}": _piece(name, tensor) for name, tensor in weights.items()}
    names: Mapping[int, str] = {}
    likes: dict[str, torch.Tensor] = {}
    settings: Mapping[str, Any] = {}
    if optimizer is not None:
        names, settings = _names(model, optimizer), _read(restored.array(SETTINGS))
        likes = {names[number]: parameter for number, parameter in enumerate(_parameters(optimizer))}
        for name, like in likes.items():
            for key in settings["tensors"].get(name, ()):
                path = f"{OPTIMIZER}/{name}/{key}"
                pieces[path] = _piece_like(path, like, restored)
    arrays = restored.arrays([_region(path, piece, restored) for path, piece in pieces.items()])
    found = {path: _tensor(array) for path, array in zip(pieces, arrays, strict=True)}
    with torch.no_grad():
        for path in list(found):
            if path.startswith(f"{MODEL}/"):
                pieces[path].local.copy_(found.pop(path))
    _unwrapped(model).load_state_dict(weights)  # For modules whose `state_dict` gives copies.
    if optimizer is not None:
        state: dict[int, dict[str, Any]] = {}
        for number, name in names.items():
            paths = {key: f"{OPTIMIZER}/{name}/{key}" for key in settings["tensors"].get(name, ())}
            state[number] = {key: _spread(found[path], likes[name], pieces[path]) for key, path in paths.items()}
            state[number] |= settings["state"].get(name, {})
        _fill(optimizer, state, settings["groups"])


def _fill(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]], saved: list[dict[str, Any]]) -> None:
    """Gives an optimizer its state and its groups' settings, each number in the precision it was saved in."""
    groups = optimizer.state_dict()["param_groups"]
    if len(saved) != len(groups):
        raise InvalidInput(
            "restore an optimizer", got=f"{len(groups)} groups of parameters", wanted=f"{len(saved)}, as saved"
        )
    for group, values in zip(groups, saved, strict=True):
        for key, value in values.items():
            before = group.get(key)
            if isinstance(before, torch.Tensor):
                value = torch.full_like(before, value)
            group[key] = tuple(value) if isinstance(before, tuple) else value
    optimizer.load_state_dict({"state": {key: value for key, value in state.items() if value}, "param_groups": groups})
    for parameter, values in zip(_parameters(optimizer), state.values(), strict=True):
        kept = optimizer.state[parameter]
        for key, value in values.items():  # PyTorch casts moments to their parameter's type: 32 bits become 16.
            if isinstance(value, torch.Tensor) and kept[key].dtype != value.dtype:
                kept[key] = value.to(kept[key].device)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns an optimizer's parameters, in the order its state numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def _whole(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = _unwrapped(model).state_dict()
    return state


def _names(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[int, str]:
    """Returns the name of each parameter by its number in the optimizer's state."""
    known = {id(parameter): name for name, parameter in _unwrapped(model).named_parameters()}
    return {number: known.get(id(one), f"parameter-{number}") for number, one in enumerate(_parameters(optimizer))}


def _savers(pieces: list[_Piece], world_size: int) -> list[int]:
    """Returns which rank stores each piece. Rests on what all ranks know alike, so that they agree."""
    bytes_by_rank = [0] * world_size
    savers, spread = [], 0
    for piece in pieces:
        if piece.replicas:
            savers.append(piece.replicas[spread % len(piece.replicas)])
            spread += 1
        else:
            savers.append(bytes_by_rank.index(min(bytes_by_rank)))
            bytes_by_rank[savers[-1]] += piece.local.nbytes
    return savers


def _piece(path: str, tensor: Any) -> _Piece:
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_quantized:
        raise InvalidInput("save a tensor", on=path, got=str(type(tensor)), wanted="a dense tensor of plain numbers")
    tensor = tensor.detach()
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return _Piece(local=tensor, global_shape=shape, start=(0,) * tensor.ndim)
    mesh, placements = tensor.device_mesh, tensor.placements
    if any(type(placement) not in (Shard, Replicate) for placement in placements):
        raise InvalidInput("save a tensor", on=path, got=str(placements), wanted="shards and replicas")
    _, start = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise InvalidInput("save a tensor", on=path, got="a mesh without this rank", wanted="one that has it")
    same = tuple(
        at if isinstance(placement, Shard) else slice(None)
        for at, placement in zip(coordinate, placements, strict=True)
    )
    return _Piece(
        local=tensor.to_local(),
        global_shape=shape,
        start=tuple(start),
        replicas=tuple(sorted(mesh.mesh[same].flatten().tolist())),
    )


def _piece_like(path: str, like: torch.Tensor, restored: Restored) -> _Piece:
    """Returns what this rank has of optimizer state: spread as its parameter is where it has that one's shape."""
    spec = restored.spec(path)
    piece = _piece(path, like)
    whole = spec.global_shape != piece.global_shape
    shape = spec.global_shape if whole else piece.local.shape
    return _Piece(
        local=torch.empty(shape, dtype=_torch_dtype(spec.dtype), device="meta"),
        global_shape=spec.global_shape,
        start=(0,) * len(shape) if whole else piece.start,
        replicas=() if whole else piece.replicas,
    )


def _region(path: str, piece: _Piece, restored: Restored) -> Region:
    spec = restored.spec(path)
    wanted = (piece.global_shape, str(piece.local.dtype).removeprefix("torch."))
    if (spec.global_shape, spec.dtype.name) != wanted:
        raise InvalidInput(
            "restore a tensor", on=path, got=f"{spec.dtype.name} {spec.global_shape}", wanted=f"{wanted[1]} {wanted[0]}"
        )
    return Region(path=path, start=piece.start, shape=tuple(piece.local.shape))


def _spread(tensor: torch.Tensor, like: torch.Tensor, piece: _Piece) -> torch.Tensor:
    if not isinstance(like, DTensor) or not piece.replicas:
        return tensor
    return DTensor.from_local(
        tensor.to(like.to_local().device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _numbers(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        return np.asarray(tensor.numpy())
    except TypeError:  # NumPy itself has none of the small float types.
        return np.asarray(tensor.view(_WIDTHS[tensor.itemsize]).numpy()).view(dtype_named(name))


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.itemsize}" if array.itemsize > 1 else "u1")).view(
        _torch_dtype(array.dtype)
    )


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise InvalidInput("restore a tensor", got=f"dtype {dtype.name}", wanted="one that PyTorch has")
    return found


def _plain(path: str, value: object) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (tuple, list)):
        return [_plain(path, item) for item in value]
    if not isinstance(value, (bool, int, float, str, type(None))):
        raise InvalidInput("save an optimizer", on=path, got=str(type(value)), wanted="numbers and words")
    return value


def _read(array: NDArray[np.uint8]) -> Mapping[str, Any]:
    try:
        settings = json.loads(array.tobytes())
        groups, tensors, state = settings["groups"], settings["tensors"], settings["state"]
        assert all(isinstance(part, dict) for part in (*groups, tensors, state, *state.values()))
        assert all(isinstance(keys, list) for keys in tensors.values())
    except (ValueError, TypeError, KeyError, AssertionError) as error:
        raise DamagedData("restore an optimizer", on=SETTINGS, got=str(error), wanted="JSON of settings") from error
    return {"groups": groups, "tensors": tensors, "state": state}
