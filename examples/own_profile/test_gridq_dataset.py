"""gridq's conformance tests for profiles, run for this one."""

from gridq_dataset import DatasetProfile

from gridq.profiles.conformance import ProfileConformance


class TestDataset(ProfileConformance):
    profile = DatasetProfile
    effects = (({"effect": "Dataset", "name": "orders"}, "dataset:orders"),)
    wrong_effects = ({"effect": "Dataset"}, {"effect": "Dataset", "name": 3})
    capabilities = ({"names": ["orders", "stock"]}, {"names": ["stock"]})
    served = ((0,), ())
