"""Accuracy of predictors, and of what improves it."""
