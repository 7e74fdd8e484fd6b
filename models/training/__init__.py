"""Training: targets, folds, fitting, baselines and fine-tuning."""
