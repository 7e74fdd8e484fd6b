"""Neural networks of the predictors, as torch modules."""
