"""Comparison of a controller's scheduling view with one that is built from scratch."""

from copy import copy, deepcopy


def view_content(core, now_s):
    """Return what policies see of the available nodes, by names; None without a view."""
    view = core.view(now_s)
    if view is None:
        return None
    devices = range(view.cluster.devices)
    names = {one: f"{view.node_of(one)}/{view.number_in_node(one)}" for one in devices}
    ledger = view.ledger
    up = [one for one in devices if view.has_node(view.node_of(one))]
    jobs = {
        job_id: (
            ledger.status(job_id).phase,
            sorted((names[one.device], one[1:]) for one in ledger.status(job_id).allocations),
            job.kinds, job.priority, job.min_gpus, job.max_gpus,
        )
        for job_id, job in ledger.jobs.items()
    }  # fmt: skip
    free = {
        names[one]: (int(ledger.capacity.compute_milli[one]), ledger.jobs_on(one)) for one in up
    }
    withdrawn = {names[one]: view.withdrawn[one] for one in up if one in view.withdrawn}
    history = {one: [*spans] for one, spans in ledger.outages.outages.items()}
    idle = {names[one] for one in devices if ledger.idle.is_idle(one)}
    assert idle <= {names[one] for one in up}
    queue = {job.job_id for job in ledger.pending}
    return jobs, free, withdrawn, history, idle, queue, view.unschedulable, view.unplaced


def rebuilt_content(core, now_s):
    """Return the same of a view that is built now."""
    other = copy(core)
    other.state = deepcopy(core.state)
    other.discard_decision()  # and the view with it
    return view_content(other, now_s)
