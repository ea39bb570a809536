"""The tests that every profile must pass, for authors of profiles."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from gridq.errors import GraphError, GridError, StageError
from gridq.graph.catalogue import StageSpec
from gridq.profiles.metric_keys import MAX_DETAILS_CHARACTERS, parse_metric
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Demand, Effect, Json, StageCall

__all__ = ["ProfileConformance"]


def _catch(act: Callable[[], object]) -> GridError | None:
    try:
        act()
    except GridError as error:
        return error
    return None


class ProfileConformance:
    """The tests that every profile must pass; subclass it in a pytest module and set its fields.

    `profile` is the class. `effects` pairs example effects with the queue that each must demand.
    `wrong_effects` are effects that must be rejected. `capabilities` are descriptions of seats as JSON, and
    `served` lists for each of them the effects, by index, that it must serve. The probe gets `probe_config`.

        class TestMine(ProfileConformance):
            profile = MyProfile
            effects = (({"effect": "Mine", "size": 3}, "mine:3"),)
            capabilities = ({"size": 4},)
            served = ((0,),)
    """

    profile: type[Profile]
    effects: ClassVar[Sequence[tuple[dict[str, Any], str]]] = ()
    wrong_effects: ClassVar[Sequence[dict[str, Any]]] = ()
    capabilities: ClassVar[Sequence[dict[str, Any]]] = ()
    served: ClassVar[Sequence[Sequence[int]]] = ()
    probe_config: ClassVar[Mapping[str, Json] | Sequence[Json]] = MappingProxyType({})
    probe_seconds: ClassVar[float] = 2.0

    def test_kind_is_a_queue_prefix(self) -> None:
        queue_names.check_queue_name(f"{self.profile.kind}:any")

    def test_constructed_without_arguments(self) -> None:
        assert self.profile().kind == self.profile.kind

    def test_demands(self) -> None:
        profile = self.profile()
        for fields, queue in self.effects:
            demand = profile.demand(Effect(**fields))
            assert demand is not None, fields
            assert demand.queue == queue
            queue_names.check_queue_name(demand.queue)
            assert Demand.model_validate_json(demand.model_dump_json()) == demand

    def test_demand_is_a_function_of_the_effect(self) -> None:
        for fields, _ in self.effects:
            assert self.profile().demand(Effect(**fields)) == self.profile().demand(Effect(**fields))

    def test_a_foreign_effect_is_left_to_others(self) -> None:
        assert self.profile().demand(Effect(effect="NoSuchEffectAnywhere")) is None

    def test_a_wrong_effect_is_a_graph_error_with_a_fix(self) -> None:
        for fields in self.wrong_effects:
            error = _catch(lambda fields=fields: self.profile().demand(Effect(**fields)))  # type: ignore[misc]
            assert isinstance(error, GraphError), fields
            assert error.path or error.expected, fields

    def test_queues(self) -> None:
        profile = self.profile()
        for example in self.capabilities:
            served = profile.queues(profile.Capability.model_validate(example))
            assert served, example
            assert len(served) == len(set(served))
            for queue in served:
                queue_names.check_queue_name(queue)

    def test_capabilities_survive_json(self) -> None:
        Capability = self.profile.Capability
        for example in self.capabilities:
            capability = Capability.model_validate(example)
            assert Capability.model_validate_json(capability.model_dump_json()) == capability

    def test_matching_agrees_with_queues(self) -> None:
        """A seat must match exactly the demands that the examples list."""
        profile = self.profile()
        assert len(self.served) == len(self.capabilities)
        for example, wanted in zip(self.capabilities, self.served, strict=True):
            capability = profile.Capability.model_validate(example)
            names = profile.queues(capability)
            for index, (fields, queue) in enumerate(self.effects):
                demand = profile.demand(Effect(**fields))
                assert demand is not None
                assert profile.matches(demand, capability) == (index in wanted), (example, fields)
                if index in wanted:
                    assert queue in names, (example, fields)

    def test_its_stages_can_be_read_and_are_its_own(self) -> None:
        for example in self.profile().stages():
            spec = StageSpec.from_json(example)
            assert spec.implementation.startswith(f"{self.profile.kind}:"), spec.name

    def test_probe_is_quick_and_says_what_it_missed(self) -> None:
        profile = self.profile()
        began = time.monotonic()
        report = profile.probe(self.probe_config)
        took = time.monotonic() - began
        assert took < self.probe_seconds * 2, "a probe may take two seconds (four on a busy machine)"
        names = [offer.name for offer in report.found]
        assert len(names) == len(set(names)), "seat names are unique on a machine"
        for offer in report.found:
            capability = profile.Capability.model_validate(offer.capability)
            assert profile.queues(capability)
        assert report.found or report.missing, "nothing was found, and no reason was given"
        assert all(sentence.strip() for sentence in report.missing)

    def test_unknown_implementation_is_the_stages_fault(self) -> None:
        profile = self.profile()
        call = StageCall(id="s", name="s", path="$", implementation=f"{profile.kind}:no_such_thing")
        error = _catch(lambda: profile.run(call, None, StageContext()))
        assert isinstance(error, StageError), "any other error would be tried again on another seat"
        assert error.expected or error.fix

    def test_metrics_and_health_do_not_block(self) -> None:
        profile = self.profile()
        assert all(isinstance(value, (int, float)) for value in profile.metrics().values())
        assert [key for key in profile.metrics() if parse_metric(key) is None] == []
        assert len(json.dumps(profile.details())) <= MAX_DETAILS_CHARACTERS
        assert isinstance(profile.health(), str)

    def test_close_is_repeatable(self) -> None:
        profile = self.profile()
        profile.close()
        profile.close()
