// Builds the page and handles its controls.

const PALETTE = {
  // From small to large; distinguishable in both themes, with legible dark text.
  ordered: ["#5aa9e6", "#3fc1b0", "#8cc152", "#f0b429", "#f27f3d", "#e0608a"],
  users: ["#5aa9e6", "#f0b429", "#3fc1b0", "#e0608a", "#8cc152", "#f27f3d", "#a78bfa", "#9aa5b1"],
};
const WAITS = [[MINUTE, "< 1 min"], [10 * MINUTE, "< 10 min"], [HOUR, "< 1 h"], [6 * HOUR, "< 6 h"], [DAY, "< 1 d"], [Infinity, "1 d or more"]];

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const theme = {};
  for (const name of ["paper", "ink", "muted", "line", "down", "lost", "idle", "accent"]) theme[name] = style.getPropertyValue(`--${name}`).trim();
  for (let i = 0; i < 8; i++) theme[`policy${i}`] = style.getPropertyValue(`--policy${i}`).trim();
  theme.rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return theme;
}

class Page {
  constructor(about, arrays) {
    this.about = about;
    this.jobs = readJobs(about, arrays);
    this.runs = about.policies.map((_, i) => readPolicy(about, arrays, i, this.jobs));
    this.firstDevice = [];
    this.nodeOf = [];
    about.nodes.forEach(([, devices], node) => {
      this.firstDevice.push(this.nodeOf.length);
      for (let d = 0; d < devices; d++) this.nodeOf.push(node);
    });
    this.theme = readTheme();
    this.draw = onNextFrame(() => this.drawNow());
    this.view = new View(Math.max(about.end_s, 1), this.nodeOf.length, this.draw);
    this.tip = document.getElementById("tip");
    this.chosen = 0;
    this.colourings = {};  // cache of colouring()
    const parent = document.getElementById("gantts");
    this.gantts = this.runs.map((run) => new Gantt(parent, this, run));
    const lines = (name) => this.runs.map((run) => ({ name: run.name, steps: run[name], colour: `policy${run.number % 8}` }));
    const all = this.nodeOf.length;
    const percent = (value, fine) => `${((100 * value) / all).toFixed(fine ? 1 : 0)} %`;
    const quarters = [0, 0.25, 0.5, 0.75, 1].map((part) => part * all);
    const down = this.runs.some((run) => run.down.node.length);
    const longest = this.runs.reduce((a, b) => (b.up.end > a.up.end ? b : a));
    const up = { name: "up", steps: longest.up, colour: "muted", dashed: true };
    this.curves = [
      new Curves("busy", this, { lines: down ? [...lines("busy"), up] : lines("busy"), limit: all, ticks: quarters, format: percent }),
      new Curves("pending", this, { lines: lines("pending"), format: (v, fine) => (fine && v < 100 ? v.toFixed(1) : formatCount(v)) }),
    ];
    if (about.shared) this.curves.push(new Curves("allocated", this, { lines: lines("allocated"), limit: all, ticks: quarters, format: percent }));
    const spread = (name) => this.runs.map((run) => ({ name: run.name, curve: run[name], colour: `policy${run.number % 8}` }));
    this.distributions = [new Distribution("jcts", this, spread("jct")), new Distribution("waits", this, spread("wait"))];
    const has = { down, shared: about.shared };
    for (const element of document.querySelectorAll("[data-when]")) element.hidden = !has[element.dataset.when];
    this.listen();
    this.choose(0);
  }

  listen() {
    const { view } = this, on = (id, what, then) => document.getElementById(id)?.addEventListener(what, then);
    on("in", "click", () => view.zoomTime(0.5));
    on("out", "click", () => view.zoomTime(2));
    on("taller", "click", () => view.zoomDevices(0.5));
    on("shorter", "click", () => view.zoomDevices(2));
    on("reset", "click", () => view.show(view.all));
    on("all", "change", () => this.choose(this.chosen));
    on("colour", "change", () => this.draw());
    on("find", "keydown", (event) => event.key === "Enter" && this.find(event.target.value.trim()));
    if (this.about.users.every((user) => !user)) document.querySelector("#colour [value=user]").remove();
    const tabs = [...document.querySelectorAll("[role=tab]")];
    tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => this.choose(i));
      tab.addEventListener("keydown", (event) => {
        const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        const next = (to + tabs.length) % tabs.length;
        this.choose(next);
        tabs[next].focus();
      });
    });
    this.listenToOverview();
    new ResizeObserver(this.draw).observe(document.querySelector("main"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.theme = readTheme();
      this.draw();
    });
  }

  listenToOverview() {
    const { view } = this, canvas = document.getElementById("overview");
    const time = (event) => {
      const part = (event.offsetX - MARGIN.left) / (canvas.clientWidth - MARGIN.left - MARGIN.right);
      return Math.min(Math.max(part, 0), 1) * view.end;
    };
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = time(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = time(event);
      if (Math.abs(to - from) > view.end / 400) view.show({ t0: Math.min(from, to), t1: Math.max(from, to) });
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(time(event) - from) <= view.end / 400) {
        const half = (view.t1 - view.t0) / 2;
        view.show({ t0: from - half, t1: from + half });
      }
      from = null;
    });
    canvas.addEventListener("pointercancel", () => (from = null));
  }

  choose(number) {
    this.chosen = number;
    const all = document.getElementById("all")?.checked ?? false;
    document.querySelectorAll("[role=tab]").forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === number));
      tab.tabIndex = i === number ? 0 : -1;
    });
    const full = Math.min(Math.max(this.nodeOf.length * 22, 150), 620) + TOP + BOTTOM;
    this.gantts.forEach((gantt, i) => {
      gantt.element.hidden = !all && i !== number;
      gantt.title.hidden = !all;
      gantt.height(all ? Math.min(full, 300) : full);
    });
    this.draw();
  }

  // Returns the colour class of each job under a policy, with the colours and names of classes.
  colouring(run) {
    const by = document.getElementById("colour").value, key = `${by} ${by === "wait" ? run.number : ""}`;
    return (this.colourings[key] ??= this.computeColouring(by, run));
  }

  computeColouring(by, run) {
    const { jobs, about } = this, count = jobs.submit.length;
    if (by === "gang") return { classes: jobs.gang, colours: PALETTE.ordered, names: about.gangs.map((g) => `${g} device${g === "1" ? "" : "s"}`) };
    const classes = new Uint8Array(count);
    if (by === "wait") {
      for (let j = 0; j < count; j++) {
        const seconds = waitingTime(run, jobs, j);
        classes[j] = WAITS.findIndex(([limit]) => seconds < limit);
      }
      return { classes, colours: PALETTE.ordered, names: WAITS.map(([, name]) => `waited ${name}`) };
    }
    const classOf = new Map(about.top_users.map((user, i) => [user, i]));
    for (let j = 0; j < count; j++) classes[j] = classOf.get(jobs.user[j]) ?? PALETTE.users.length - 1;
    const names = about.top_users.map((user) => about.users[user] || "no user");
    if (about.users.length > names.length) names[PALETTE.users.length - 1] = "other users";
    return { classes, colours: PALETTE.users, names };
  }

  drawNow() {
    const { view } = this;
    for (const gantt of this.gantts) if (!gantt.element.hidden) gantt.draw();
    for (const curves of this.curves) curves.draw();
    for (const distribution of this.distributions) distribution.draw();
    this.drawOverview();
    this.drawLegend();
    const step = (view.t1 - view.t0) / 1000;
    const range = document.getElementById("range");
    range.textContent = `${formatTime(view.t0, step)} to ${formatTime(view.t1, step)} (${formatSpan(view.t1 - view.t0)}), ` +
      `${Math.round(view.d1 - view.d0).toLocaleString("en")} of ${view.devices.toLocaleString("en")} devices`;
    Object.assign(range.dataset, { from: view.t0, until: view.t1, first: view.d0, last: view.d1 });
    document.body.dataset.drawn = Number(document.body.dataset.drawn ?? 0) + 1;
  }

  drawOverview() {
    const { theme, view } = this, run = this.runs[this.chosen];
    const [context, width, height] = fitCanvas(document.getElementById("overview"));
    const inside = width - MARGIN.left - MARGIN.right, all = this.nodeOf.length;
    context.fillStyle = theme.idle;
    context.fillRect(MARGIN.left, 0, inside, height);
    context.fillStyle = theme[`policy${run.number % 8}`];
    context.globalAlpha = 0.55;
    for (let x = 0; x < inside; x++) {
      const part = run.busy.mean((x / inside) * view.end, ((x + 1) / inside) * view.end) / all;
      context.fillRect(MARGIN.left + x, height * (1 - part), 1, height * part);
    }
    context.globalAlpha = 1;
    const [x0, x1] = [view.t0, view.t1].map((t) => MARGIN.left + (t / view.end) * inside);
    context.fillStyle = `${theme.paper}b0`;
    context.fillRect(MARGIN.left, 0, x0 - MARGIN.left, height);
    context.fillRect(x1, 0, width - MARGIN.right - x1, height);
    context.strokeStyle = theme.ink;
    context.lineWidth = 1.5;
    context.strokeRect(x0 + 0.75, 0.75, Math.max(x1 - x0 - 1.5, 2), height - 1.5);
    context.fillStyle = theme.muted;
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText("all time", MARGIN.left - 7, height / 2);
  }

  drawLegend() {
    const { theme, about } = this, run = this.runs[this.chosen];
    const { colours, names, classes } = this.colouring(run);
    const used = new Set(classes), edges = new Set();
    for (const end of run.endedBy) edges.add(about.ends[end >> 1]);
    const items = names.map((name, i) => (used.has(i) ? `<li><span class="swatch" style="background:${colours[i]}"></span>${escapeHtml(name)}</li>` : ""));
    items.push(`<li><span class="swatch" style="background:${theme.idle};border:1px solid ${theme.line}"></span>idle</li>`);
    if (run.down.node.length) items.push('<li><span class="swatch hatched"></span>node is down</li>');
    const preempted = [["preempt", "preempted"], ["migrate", "migrated"], ["pause", "paused"]].filter(([end]) => edges.has(end));
    if (preempted.length) items.push(`<li><span class="swatch edge" style="background:${theme.ink}"></span>${preempted.map(([, name]) => name).join(", ")}</li>`);
    if (run.endedBy.some((end) => end & 1)) items.push(`<li><span class="swatch" style="background:${colours[0]};opacity:${PAUSED}"></span>pale: paused</li>`);
    const lost = [["lost", "node failed"], ["overflow", "out of memory"]].filter(([end]) => edges.has(end));
    if (lost.length) items.push(`<li><span class="swatch edge" style="background:${theme.lost}"></span>${lost.map(([, name]) => name).join(", ")}</li>`);
    document.getElementById("colours").innerHTML = items.join("");
  }

  // Shows the job with an id, or whose id has that ending.
  find(text) {
    const { jobs, view } = this, run = this.runs[this.chosen], message = document.getElementById("message");
    let job = jobs.ids.indexOf(text);
    if (job < 0 && text) job = jobs.ids.findIndex((id) => id.endsWith(text));
    if (job < 0 || Number.isNaN(run.firstStart[job])) {
      message.textContent = job < 0 ? `no job has the id ${text}` : `${jobs.ids[job]} never started`;
      return;
    }
    message.textContent = "";
    const from = run.firstStart[job], until = run.lastEnd[job], around = Math.max((until - from) * 0.3, 1);
    let [d0, d1] = [Infinity, 0];
    for (let i = 0; i < run.job.length; i++) {
      if (run.job[i] !== job) continue;
      d0 = Math.min(d0, run.device[i]);
      d1 = Math.max(d1, run.device[i] + run.devices[i]);
    }
    const more = Math.max(0, 24 - (d1 - d0)) / 2;
    view.show({ t0: from - around, t1: until + around, d0: d0 - more, d1: d1 + more });
    requestAnimationFrame(() => requestAnimationFrame(() => this.gantts[this.chosen].mark(job)));
  }

  showTip(event, html) {
    const { tip } = this;
    tip.innerHTML = html;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${Math.max(Math.min(event.clientY + 14, innerHeight - height - 6), 4)}px`;
  }

  hideTip() {
    this.tip.hidden = true;
    for (const gantt of this.gantts) if (!gantt.element.hidden) gantt.mark(null);
  }

  deviceName(device) {
    const node = this.nodeOf[device];
    return `${escapeHtml(this.about.nodes[node][0])}/${device - this.firstDevice[node]}`;
  }
}

const [about, arrays] = await unpack(document.getElementById("data").textContent);
new Page(about, arrays);
