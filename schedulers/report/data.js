// Decodes the data of the page: see packing.py and page_data.py.

async function unpack(text) {
  const decoded = atob(text.trim());
  const compressed = new Uint8Array(decoded.length);
  for (let i = 0; i < decoded.length; i++) compressed[i] = decoded.charCodeAt(i);
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = await new Response(stream).arrayBuffer();
  const headerLength = new DataView(bytes).getUint32(0, true);
  const about = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, headerLength)));
  const types = {
    uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array,
    float32: Float32Array, float64: Float64Array,
  };
  const arrays = {};
  for (const [name, [type, offset, length]] of Object.entries(about.arrays)) {
    arrays[name] = new types[type](bytes, 4 + headerLength + offset, length);
  }
  return [about, arrays];
}

// Decodes delta-encoded numbers, times a factor.
function cumulativeSum(steps, factor) {
  const values = new Float64Array(steps.length);
  let sum = 0;
  for (let i = 0; i < steps.length; i++) {
    sum += steps[i];
    values[i] = sum * factor;
  }
  return values;
}

// Step function with cumulative areas, so that a mean over an interval needs two look-ups.
class Steps {
  constructor(at, value, end) {
    Object.assign(this, { at, value, end });
    this.area = new Float64Array(at.length);
    for (let i = 1; i < at.length; i++) {
      this.area[i] = this.area[i - 1] + value[i - 1] * (at[i] - at[i - 1]);
    }
  }

  // Index of the last step at or before a time, or -1.
  indexAt(time) {
    let low = 0, high = this.at.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.at[middle] <= time) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  integral(time) {
    const i = this.indexAt(time);
    return i < 0 ? 0 : this.area[i] + this.value[i] * (Math.min(time, this.end) - this.at[i]);
  }

  mean(from, until) {
    return (this.integral(until) - this.integral(from)) / (until - from);
  }
}

function readPolicy(about, arrays, number, jobs) {
  const column = (name) => arrays[`${number}.${name}`];
  const tick = about.tick_s;
  const start = cumulativeSum(column("start"), tick);
  const end = start.map((s, i) => s + column("length")[i] * tick);
  const run = {
    name: about.policies[number], number, logEnd: about.ends_s[number], start, end,
    job: column("job"), device: column("device"), devices: column("devices"), share: column("share"),
    above: column("above"), endedBy: column("end"), phase: column("phase"),
    down: {
      node: column("down.node"), start: Float64Array.from(column("down.start"), (t) => t * tick),
      end: Float64Array.from(column("down.end"), (t) => t * tick),
    },
    jct: { at: column("jct.at_s"), value: column("jct.value") },
    wait: { at: column("wait.at_s"), value: column("wait.value") },
  };
  for (const name of ["busy", "allocated", "up", "pending"]) {
    run[name] = new Steps(column(`${name}.at_s`), column(`${name}.value`), run.logEnd);
  }
  // Allocated time of each job. Bars are sorted by start, so the bars of one run of a gang are
  // consecutive for that job.
  const count = jobs.submit.length;
  run.firstStart = new Float64Array(count).fill(NaN);
  run.lastEnd = new Float64Array(count).fill(NaN);
  run.allocatedTime = new Float64Array(count);
  run.runCount = new Uint16Array(count);
  const lastStart = new Float64Array(count).fill(-1);
  for (let i = 0; i < start.length; i++) {
    const j = run.job[i];
    if (lastStart[j] === start[i]) continue;
    if (lastStart[j] < 0) run.firstStart[j] = start[i];
    lastStart[j] = start[i];
    run.lastEnd[j] = end[i];
    run.allocatedTime[j] += end[i] - start[i];
    run.runCount[j]++;
  }
  return run;
}

// Waiting time of a job, until its end or the end of the log.
function waitingTime(run, jobs, j) {
  const phase = run.phase[j];
  if (phase === REJECTED) return 0;
  return Math.max(0, (phase === STARVED ? run.logEnd : run.lastEnd[j]) - jobs.submit[j] - run.allocatedTime[j]);
}

const STARVED = 0, FINISHED = 1, FAILED = 2, REJECTED = 3;  // indices in about.phases

function readJobs(about, arrays) {
  const ids = about.names.split("\n");
  let shared = ids[0] ?? "";
  for (const id of ids) {
    while (!id.startsWith(shared)) shared = shared.slice(0, -1);
  }
  shared = shared.replace(/[^_\-./:]*$/, "");  // up to a separator
  return {
    ids, short: (j) => ids[j].slice(shared.length) || ids[j],
    submit: cumulativeSum(arrays.submit, about.tick_s), gpus: arrays.gpus, gang: arrays.gang,
    model: arrays.model, user: arrays.user,
  };
}
