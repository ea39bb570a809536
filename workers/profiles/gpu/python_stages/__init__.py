"""Python stages on a seat's device: each in a process of its own, within the memory that it reserved.

In: a Python stage with the effect `Gpu`, its input, its StageContext.
Out: its output, with the seconds that it held the device as its usage.
Imported by: profile, seat_report.
"""

__all__ = ["running"]
