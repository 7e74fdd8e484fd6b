"""Tests of deploy/: images, compose file, Kubernetes manifests and the release program."""
