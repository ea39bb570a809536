"""Data sets as a kind of capability: a stage that reads a data set runs on a machine that has it.

A machine names a folder of CSV files in its seats file (`[dataset]`, `folder = "/data"`). The stage
`{"op": "Stage", "id": "dataset_rows", "config": {"name": "orders"}}` of a graph waits in the queue
`dataset:orders`.
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
    """The capability that a seat advertises."""

    names: list[str]


class DatasetProfile(Profile):
    kind = "dataset"
    Capability = Datasets

    def queues(self, capability):  # the queues that such a seat serves
        return [queue_names.make_queue_name(self.kind, name) for name in capability.names]

    def demand(self, effect):  # the queue that an effect needs; None: another profile's
        if effect.effect != "Dataset":
            return None
        name = effect.fields.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidField("A Dataset effect needs a name", {"path": "name", "expected": "a text"})
        return Demand(queue=queue_names.make_queue_name(self.kind, name))

    def matches(self, demand, capability):
        return demand.queue in self.queues(capability)

    def probe(self, config):  # the seats of this machine, or why there are none
        folder = Path(config.get("folder", "datasets"))
        names = sorted(path.stem for path in folder.glob("*.csv"))
        if not names:
            return ProbeReport(missing=[f"{folder} has no CSV files"])
        settings = {"folder": str(folder)}  # stays on the machine
        return ProbeReport(
            found=[SeatOffer(name="datasets", kind=self.kind, capability={"names": names}, config=settings)]
        )

    def open(self, capability, config):  # in the seat's worker, before the first stage
        self.folder = Path(config["folder"])

    def stages(self):  # the stages that come with it
        effects = [{"effect": "Dataset", "name": {"$config": "name"}}]
        types = {"input": {"kind": "Any"}, "output": {"kind": "Any"}}
        return [{"name": "dataset_rows", "implementation": ROWS, "effects": effects, **types}]

    def run(self, stage, value, context):  # runs one stage and returns its output
        if stage.implementation != ROWS:
            raise StageError("The dataset profile has no such stage", {"path": stage.path, "expected": ROWS})
        name = stage.effects[0].fields["name"]
        with (self.folder / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))
