"""Checkpoints from which running engines load weights: folders of safetensors, and tensors that a
trainer hands over in Python.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.errors import ConfigError, WeightsError
from agentrt.files import expanded, read_json

if TYPE_CHECKING:
    from torch import Tensor


Shapes = Mapping[str, tuple[int, ...]]
_PATTERN = "*.safetensors"
_INDEX = "*.safetensors.index.json"
_A_FOLDER = "use a folder with the .safetensors files of the whole model"
_OPTIONAL = ("lm_head.weight", "rotary_emb.inv_freq")
"""Ends of the names of tensors that a checkpoint may have or leave out: a tied output head, and
values that models compute themselves.
"""
_SHARD_BYTES = 1 << 30
_MEMORY = Path("/dev/shm")
"""A folder in memory, on Linux."""
_KEPT = 2
"""Number of versions whose tensors are kept: the latest, and the version before it, to which
engines go back if an update fails.
"""


def check_checkpoint(folder: str, own: Path | None) -> str:
    """Check that a checkpoint is complete and fits the model. Return its fingerprint (`mark_of`).

    ``own`` is the folder of the model's own files; None if it is not known. If ``own`` is None or
    has no readable safetensors, the checkpoint is not compared with the model. Raises
    `WeightsError` if files are missing or damaged, or if names or shapes of tensors differ from the
    model's own.
    """
    mark = mark_of(folder)
    shapes = _shapes(expanded(folder))
    own_shapes = {} if own is None else _own_shapes(own)
    if not own_shapes:
        return mark
    for name, shape in own_shapes.items():
        if name not in shapes and not name.endswith(_OPTIONAL):
            raise _misfit(folder, f"tensor {name!r} is missing")
        if (other := shapes.get(name, shape)) != shape:
            raise _misfit(
                folder, f"tensor {name!r} has the shape {[*other]}, and the model's has {[*shape]}"
            )
    for name in shapes:
        if name not in own_shapes and not name.endswith(_OPTIONAL):
            raise _misfit(folder, f"tensor {name!r} is unknown to the model")
    return mark


def mark_of(folder: str) -> str:
    """Return a fingerprint of a checkpoint's files: a hash of their names, sizes and times of
    change. It changes when the files are replaced.

    Raises `WeightsError` for a folder without a checkpoint.
    """
    path = expanded(folder)
    if not os.path.isdir(path):  # noqa: PTH112 - False also for a path that is too long
        raise WeightsError(
            f"weights {folder!r}: no such folder on the engine's machine; {_A_FOLDER}"
        )
    files = sorted(path.glob(_PATTERN))
    if not files:
        raise WeightsError(f"weights {folder!r}: the folder has no .safetensors file; {_A_FOLDER}")
    digest = blake2b(digest_size=16)
    for file in files:
        try:
            status = file.stat()
        except OSError as error:  # for example a symbolic link to a file that does not exist
            raise WeightsError(
                f"weights {folder!r}: {file.name} cannot be read: {error}; {_A_FOLDER}"
            ) from error
        digest.update(f"{file.name}/{status.st_size}/{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def own_folder(model: str, revision: str | None = None) -> Path | None:
    """Return the folder of a model's files on this machine. Return None if there is no such folder,
    or if the hub's package is not installed. ``revision`` is the revision of a model of the hub.
    """
    path = expanded(model)
    if os.path.isdir(path):  # noqa: PTH112 - False also for a path that is too long
        return path
    try:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(model, "config.json", revision=revision)
    except (ImportError, ValueError):
        return None
    return Path(config).parent if isinstance(config, str) else None


def _misfit(folder: str, why: str) -> WeightsError:
    return WeightsError(
        f"weights {folder!r} do not fit the model: {why}; use a checkpoint of the same model"
    )


def _own_shapes(folder: Path) -> Shapes:
    """Return the shapes of a model's own tensors; empty if it has no readable safetensors."""
    try:
        return _shapes(folder)
    except WeightsError:
        return {}


def _shapes(folder: Path) -> Shapes:
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in _files(folder):
        try:
            with safe_open(file, framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118  (it is not a mapping)
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise WeightsError(
                f"weights {str(folder)!r}: {file.name} is damaged or incomplete ({error}); write "
                "the checkpoint to a new folder, and update when it is complete"
            ) from error
    return shapes


def _files(folder: Path) -> list[Path]:
    """Return the safetensors of a checkpoint. Raises `WeightsError` if its index cannot be read, or
    names a file that is missing.
    """
    files = sorted(folder.glob(_PATTERN))
    for index in folder.glob(_INDEX):
        try:
            named = {folder / name for name in read_json(index)["weight_map"].values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(
                f"weights {str(folder)!r}: {index.name} cannot be read: {error}; {_A_FOLDER}"
            ) from error
        if missing := sorted(path.name for path in named - {*files}):
            raise WeightsError(
                f"weights {str(folder)!r}: {missing[0]} is missing, which {index.name} names; "
                f"{_A_FOLDER}"
            )
    return files


class TensorStore:
    """Folders, in memory if possible, in which engines find tensors that were handed over in
    Python. The tensors of the last `_KEPT` versions stay until `close`, for engines that start
    again.
    """

    def __init__(self) -> None:
        self._root: Path | None = None
        self._folders: list[Path] = []

    def save(self, tensors: Any, version: int) -> str:
        """Write named tensors, and return their folder. Call this method in a thread, because
        writing takes time.

        ``tensors`` is a mapping of names to torch tensors, or an iterable of (name, tensor) pairs.
        The names are the same as in the model's checkpoint and in ``state_dict()`` of transformers.
        Raises `ConfigError` for other values, and `WeightsError` if the tensors cannot be written,
        for example because there is not enough space.
        """
        from safetensors import SafetensorError

        memory = _MEMORY if _MEMORY.is_dir() else None
        folder: Path | None = None
        try:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="agentrt-weights-", dir=memory))
            folder = Path(tempfile.mkdtemp(prefix=f"{version}-", dir=self._root))
            _write(_pairs(tensors), folder)
        except BaseException as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if not isinstance(error, OSError | SafetensorError):
                raise
            place = folder or self._root or memory or tempfile.gettempdir()
            raise WeightsError(
                f"the tensors of version {version} could not be written to {place}: {error}; make "
                "room, or save them to a folder and pass its path"
            ) from error
        self._folders.append(folder)
        return str(folder)

    def keep(self, folder: str) -> None:
        """Note that engines have loaded ``folder``, and remove folders that are not needed any
        more.
        """
        self._folders = [path for path in self._folders if path.exists()]
        while len(self._folders) > _KEPT and str(self._folders[0]) != folder:
            shutil.rmtree(self._folders.pop(0), ignore_errors=True)

    def discard(self, folder: str) -> None:
        """Remove the tensors of an update that failed."""
        if Path(folder) in self._folders:
            self._folders.remove(Path(folder))
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all folders."""
        root, self._root, self._folders = self._root, None, []
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)


def _pairs(tensors: Any) -> Iterator[tuple[str, Tensor]]:
    import torch

    try:
        pairs = tensors.items() if isinstance(tensors, Mapping) else iter(tensors)
        for name, tensor in pairs:
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise TypeError(f"({type(name).__name__}, {type(tensor).__name__})")
            yield name, tensor
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "weights must be the path of a folder, a mapping of names to torch tensors, or an "
            f"iterable of (name, tensor) pairs: {error}"
        ) from error


def _write(tensors: Iterator[tuple[str, Tensor]], folder: Path) -> None:
    from safetensors.torch import save_file

    shard: dict[str, Tensor] = {}
    size = shards = 0

    def flush() -> None:
        nonlocal shard, size, shards
        if shard:
            save_file(shard, folder / f"model-{shards:05}.safetensors", metadata={"format": "pt"})
            shard, size, shards = {}, 0, shards + 1

    for name, tensor in tensors:
        # A copy, because safetensors refuses tensors that share memory, such as tied weights.
        shard[name] = copied = tensor.detach().to("cpu", copy=True).contiguous()
        size += copied.nbytes
        if size >= _SHARD_BYTES:
            flush()
    flush()
