"""Simulator of AllReduce phases of jobs that share switches, to compare rules of sharing."""
