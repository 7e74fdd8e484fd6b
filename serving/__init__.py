"""Prediction in process and over gRPC: server, clients, codec and admission control."""
