"""Pretrained release: training on public tables, and the networks to fine-tune from."""
