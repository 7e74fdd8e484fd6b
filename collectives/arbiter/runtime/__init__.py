"""Parts of a running arbiter: state, steps of the controller, switches and planning."""
