"""Training jobs: identity, framework version, memory components, and many jobs as arrays."""
