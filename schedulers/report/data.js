// What the page was written with: see packing.py and drawn.py.

async function unpack(text) {
  const letters = atob(text.trim());
  const zipped = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) zipped[i] = letters.charCodeAt(i);
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
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

// Numbers of which the differences were kept, times a factor.
function summed(steps, factor) {
  const values = new Float64Array(steps.length);
  let sum = 0;
  for (let i = 0; i < steps.length; i++) {
    sum += steps[i];
    values[i] = sum * factor;
  }
  return values;
}

// A step function, with its area up to each step: means over any span are two look-ups.
class Steps {
  constructor(at, value, end) {
    Object.assign(this, { at, value, end });
    this.area = new Float64Array(at.length);
    for (let i = 1; i < at.length; i++) {
      this.area[i] = this.area[i - 1] + value[i - 1] * (at[i] - at[i - 1]);
    }
  }

  place(time) {  // of the last step that is not after it, or -1
    let low = 0, high = this.at.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.at[middle] <= time) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  integral(time) {
    const i = this.place(time);
    return i < 0 ? 0 : this.area[i] + this.value[i] * (Math.min(time, this.end) - this.at[i]);
  }

  mean(from, until) {
    return (this.integral(until) - this.integral(from)) / (until - from);
  }
}

function readPolicy(about, arrays, number, jobs) {
  const of = (name) => arrays[`${number}.${name}`];
  const tick = about.tick_s;
  const start = summed(of("start"), tick);
  const end = start.map((s, i) => s + of("length")[i] * tick);
  const run = {
    name: about.policies[number], number, logEnd: about.ends_s[number], start, end,
    job: of("job"), device: of("device"), devices: of("devices"), share: of("share"),
    above: of("above"), endedBy: of("end"), phase: of("phase"),
    down: {
      node: of("down.node"), start: Float64Array.from(of("down.start"), (t) => t * tick),
      end: Float64Array.from(of("down.end"), (t) => t * tick),
    },
    jct: { at: of("jct.at_s"), value: of("jct.value") },
    wait: { at: of("wait.at_s"), value: of("wait.value") },
  };
  for (const name of ["busy", "held", "up", "pending"]) {
    run[name] = new Steps(of(`${name}.at_s`), of(`${name}.value`), run.logEnd);
  }
  // What each job held, in time: bars lie by their start, so a gang's bars of one stay are together
  // in the order in which one meets them.
  const count = jobs.submit.length;
  run.firstStart = new Float64Array(count).fill(NaN);
  run.lastEnd = new Float64Array(count).fill(NaN);
  run.heldFor = new Float64Array(count);
  run.stays = new Uint16Array(count);
  const lastStart = new Float64Array(count).fill(-1);
  for (let i = 0; i < start.length; i++) {
    const j = run.job[i];
    if (lastStart[j] === start[i]) continue;
    if (lastStart[j] < 0) run.firstStart[j] = start[i];
    lastStart[j] = start[i];
    run.lastEnd[j] = end[i];
    run.heldFor[j] += end[i] - start[i];
    run.stays[j]++;
  }
  return run;
}

// Time that a job waited until it was over, or until the log's end.
function waited(run, jobs, j) {
  const phase = run.phase[j];
  if (phase === REJECTED) return 0;
  return Math.max(0, (phase === STARVED ? run.logEnd : run.lastEnd[j]) - jobs.submit[j] - run.heldFor[j]);
}

const STARVED = 0, FINISHED = 1, FAILED = 2, REJECTED = 3;  // places in about.phases

function readJobs(about, arrays) {
  const ids = about.names.split("\n");
  let shared = ids[0] ?? "";
  for (const id of ids) {
    while (!id.startsWith(shared)) shared = shared.slice(0, -1);
  }
  shared = shared.replace(/[^_\-./:]*$/, "");  // whole words alone
  return {
    ids, short: (j) => ids[j].slice(shared.length) || ids[j],
    submit: summed(arrays.submit, about.tick_s), gpus: arrays.gpus, gang: arrays.gang,
    model: arrays.model, user: arrays.user,
  };
}
