"""A model cannot be fetched, or is not here yet."""

from __future__ import annotations

from gridq.errors.base import GridError


class ModelPullError(GridError):
    """A model could not be downloaded. What was downloaded so far is used by the next try."""

    code = "model.pull"
    remedy = "Read `reason` and pull the model again."


class ModelReferenceInvalid(ModelPullError):
    """The name of a model is not a valid reference."""

    code = "model.reference"
    remedy = (
        "Write `hf:org/repo`, `hf:org/repo:quant`, `file:/path`, `https://…`, or a name in `[[gpu.models]]`."
    )


class ModelNotFound(ModelPullError):
    """The repository, its revision, the quantization, the file or the name of a model does not exist."""

    code = "model.not_found"
    remedy = "Use what `expected` lists; `gridq models search` finds repositories."


class ModelGated(ModelPullError):
    """The repository asks its users to accept terms or to log in, and your token does not have access."""

    code = "model.gated"
    remedy = "Accept the terms on the repository's page, then set HF_TOKEN to a token of that account."


class HubUnreachable(ModelPullError):
    """The hub or the server of a model's file cannot be reached, or this machine is set to work offline."""

    code = "model.unreachable"
    remedy = "Check the network, the proxy and HF_ENDPOINT; unset HF_HUB_OFFLINE."


class DiskFull(ModelPullError):
    """The disk has no room for a model's file and the space that must stay free."""

    code = "model.disk_full"
    remedy = "Free the space that `reason` names, with `gridq models rm`; or move the cache with HF_HOME."


class ModelTooLarge(ModelPullError):
    """The model is larger than the limit that the owner has set for the cache or for pulls on request."""

    code = "model.too_large"
    remedy = "Choose a smaller quantization, or raise the limit in `[gpu]` of the seats file."


class DigestMismatch(ModelPullError):
    """A downloaded file does not have the SHA-256 that its source states. It was removed."""

    code = "model.digest"
    remedy = "Pull the model again. If that fails too, do not trust the source, and check the disk."


class ModelInUse(ModelPullError):
    """The model is loaded, or is being pulled."""

    code = "model.in_use"
    remedy = "Wait for the pull, or unload the model with `gridq unload`, then try again."


class ModelLoading(GridError):
    """The model is in the catalogue and not on the machine yet: a seat is downloading it.

    `details["loading"]` has `state`, `machine`, `progress` (0 to 1) and, once it can be estimated, `eta` in
    seconds.
    """

    code = "model.loading"
    remedy = "Nothing: send the request again after `retry_after`."
