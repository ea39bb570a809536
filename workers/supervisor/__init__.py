"""Run the programs of a grid on this machine: `gridq up`, `down`, `status`, `worker`.

In: settings, the names of seats.
Out: supervised processes, a run record and a control socket in the home folder.
Imported by: workers.demo, workers.cli.
"""

__all__ = ["control_socket", "down", "embedded_server", "grid_processes", "signals", "status", "up", "worker"]
