"""What Presage and a cluster's users call things in Kubernetes."""

from __future__ import annotations

GATE = "presage.dev/gang"  # scheduling gate of a pod that waits for its gang's plan

# A gang, as sigs.k8s.io/scheduler-plugins defines it.
POD_GROUP_GROUP = "scheduling.x-k8s.io"
POD_GROUP_VERSION = "v1alpha1"
POD_GROUP_PLURAL = "podgroups"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"  # of a pod: the name of its PodGroup

# Annotations.
JOB = "presage.dev/job"  # the features of a pod's job, as `presage features --json` prints them
PLAN = "presage.dev/plan"  # where the members of a gang are to be
DEVICES = "presage.dev/devices"  # the devices of its node that a pod is to have
ROLLED_BACK = "presage.dev/rolled-back"  # that a plan was taken back, and why
CLASS = "presage.dev/class"  # what a job is forecast as
