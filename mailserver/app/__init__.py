"""The daemon: settings, wiring, start and stop, logs, the control socket."""
