"""The operator graph of a torch job, traced on the meta device."""
