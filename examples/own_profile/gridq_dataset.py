"""Data sets as a kind of capability: a stage that reads one goes to a machine where it lies.

Machines name a folder of CSV files in their seats file (`[dataset]`, `folder = "/data"`). A graph says
`{"op": "Stage", "id": "dataset_rows", "config": {"name": "orders"}}`: it waits in the queue `dataset:orders`.
"""

import csv
from pathlib import Path

from pydantic import BaseModel

from gridq import Profile
from gridq.errors import InvalidField, StageError
from gridq.protocol import queue_names
from gridq.protocol.models import Demand, ProbeReport, SeatOffer

ROWS = "dataset:rows"


class Datasets(BaseModel):
    """What a seat tells the grid of itself."""

    names: list[str]


class DatasetProfile(Profile):
    kind = "dataset"
    Capability = Datasets

    def queues(self, capability):  # every queue that such a seat serves
        return [queue_names.make_queue_name(self.kind, name) for name in capability.names]

    def demand(self, effect):  # the queue that an effect of a stage needs; None: it is another profile's
        if effect.effect != "Dataset":
            return None
        name = effect.fields.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidField("A Dataset effect names no data set", {"path": "name", "expected": "a text"})
        return Demand(queue=queue_names.make_queue_name(self.kind, name))

    def matches(self, demand, capability):
        return demand.queue in self.queues(capability)

    def probe(self, config):  # what this machine has, or why it has nothing
        folder = Path(config.get("folder", "datasets"))
        names = sorted(path.stem for path in folder.glob("*.csv"))
        if not names:
            return ProbeReport(missing=[f"No CSV file is in {folder}"])
        settings = {"folder": str(folder)}  # stays on the machine
        return ProbeReport(
            found=[SeatOffer(name="datasets", kind=self.kind, capability={"names": names}, config=settings)]
        )

    def open(self, capability, config):  # in the seat's worker, before its first stage
        self.folder = Path(config["folder"])

    def stages(self):  # the stages that come with it
        effects = [{"effect": "Dataset", "name": {"$config": "name"}}]
        types = {"input": {"kind": "Any"}, "output": {"kind": "Any"}}
        return [{"name": "dataset_rows", "implementation": ROWS, "effects": effects, **types}]

    def run(self, stage, value, context):  # one stage: its input in, its output out
        if stage.implementation != ROWS:
            raise StageError("There is no such stage", {"path": stage.path, "expected": ROWS})
        name = stage.effects[0].fields["name"]
        with (self.folder / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))
