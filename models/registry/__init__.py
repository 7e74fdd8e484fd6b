"""Model registry on MLflow: versions, aliases, promotion journal and lineage."""
