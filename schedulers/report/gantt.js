// Timeline of the devices under one policy. Too many bars are blended: each pixel has the mean
// colour of its jobs, with the fraction of allocated device time as opacity.

const MAX_SINGLE_BARS = 8000;  // drawn separately
const ROW = 12, BOTTOM = 26, TOP = 3;  // pixels
const PAUSED = 0.3;  // opacity

class Gantt {
  constructor(parent, page, run) {
    Object.assign(this, { page, run });
    this.element = document.createElement("div");
    this.element.className = "gantt";
    this.element.innerHTML = `<h3 hidden>${escapeHtml(run.name)}</h3><div class="layers">
      <canvas tabindex="0" role="application" aria-label="Timeline of the devices under ${escapeHtml(run.name)}; arrow keys pan, + and - zoom"></canvas>
      <canvas aria-hidden="true"></canvas><div class="hint"><span>click here or hold Ctrl to zoom with the wheel</span></div></div>`;
    parent.append(this.element);
    this.title = this.element.querySelector("h3");
    [this.canvas, this.over] = this.element.querySelectorAll("canvas");
    const hint = this.element.querySelector(".hint");
    let hiding;
    const onIgnoredWheel = () => {
      hint.classList.add("shown");
      clearTimeout(hiding);
      hiding = setTimeout(() => hint.classList.remove("shown"), 1300);
    };
    navigate(this.canvas, page.view, { withDevices: true, onIgnoredWheel });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => page.hideTip());
  }

  height(pixels) {
    for (const canvas of [this.canvas, this.over]) canvas.style.height = `${pixels}px`;
  }

  get inside() {
    return {
      width: this.canvas.clientWidth - MARGIN.left - MARGIN.right,
      height: this.canvas.clientHeight - TOP - BOTTOM,
    };
  }

  // Pixels of a second and of a device.
  scales() {
    const { view } = this.page, { width, height } = this.inside;
    return [width / (view.t1 - view.t0), height / (view.d1 - view.d0)];
  }

  visible() {
    const { run, page: { view } } = this, found = [];
    for (let i = 0; i < run.start.length && run.start[i] < view.t1; i++) {
      if (run.end[i] > view.t0 && run.device[i] < view.d1 && run.device[i] + run.devices[i] > view.d0) found.push(i);
    }
    const paused = (i) => run.endedBy[i] & 1;  // drawn below the jobs that run in their place
    return [...found.filter(paused), ...found.filter((i) => !paused(i))];
  }

  draw() {
    const { page } = this, { theme, view } = page;
    const [context, width, height] = fitCanvas(this.canvas);
    const inside = this.inside;
    if (inside.width < 10) return;
    context.fillStyle = theme.idle;
    context.fillRect(MARGIN.left, TOP, inside.width, inside.height);
    this.drawSeparators(context, inside);
    timeAxis(context, theme, view, width, TOP, height - BOTTOM);
    context.save();
    context.beginPath();
    context.rect(MARGIN.left, TOP, inside.width, inside.height);
    context.clip();
    const found = this.visible();
    this.isBlended = found.length > MAX_SINGLE_BARS;
    if (this.isBlended) this.drawBlended(context, found); else this.drawBars(context, found);
    this.drawDown(context);
    context.restore();
    this.drawNodes(context, inside);
    this.mark(null);
  }

  drawBlended(context, found) {
    const { run, page } = this, { view, theme } = page, { width, height } = this.inside;
    const columns = Math.round(width), lines = Math.round(height);
    const [perTime, perDevice] = [columns / (view.t1 - view.t0), lines / (view.d1 - view.d0)];
    const { classes, colours } = page.colouring(run);
    const rgb = colours.map((c) => theme.rgb(c));
    const cells = new Float32Array(columns * lines * 4);
    for (const i of found) {
      const x0 = Math.max((run.start[i] - view.t0) * perTime, 0);
      const x1 = Math.min((run.end[i] - view.t0) * perTime, columns);
      const part = run.share[i] / 1000;
      const [r, g, b] = rgb[classes[run.job[i]]];
      const strength = run.endedBy[i] & 1 ? PAUSED : 1;
      const parts = part < 1 ? run.devices[i] : 1;  // on shared devices, one piece on each
      const tall = part < 1 ? part : run.devices[i];
      for (let k = 0; k < parts; k++) {
        const from = (run.device[i] + k + run.above[i] / 1000 - view.d0) * perDevice;
        const y0 = Math.max(from, 0), y1 = Math.min(from + tall * perDevice, lines);
        const firstX = Math.floor(x0), lastX = Math.min(Math.ceil(x1), columns);
        for (let y = Math.floor(y0); y < y1; y++) {
          const high = (Math.min(y1, y + 1) - Math.max(y0, y)) * strength;
          let at = (y * columns + firstX) * 4;
          for (let x = firstX; x < lastX; x++, at += 4) {
            const weight = high * (Math.min(x1, x + 1) - Math.max(x0, x));
            cells[at] += weight * r;
            cells[at + 1] += weight * g;
            cells[at + 2] += weight * b;
            cells[at + 3] += weight;
          }
        }
      }
    }
    const image = new ImageData(columns, lines), pixels = image.data;
    for (let at = 0; at < cells.length; at += 4) {
      const weight = cells[at + 3];
      if (weight <= 0) continue;
      pixels[at] = cells[at] / weight;
      pixels[at + 1] = cells[at + 1] / weight;
      pixels[at + 2] = cells[at + 2] / weight;
      pixels[at + 3] = Math.min(weight, 1) * 255;
    }
    const layer = new OffscreenCanvas(columns, lines);
    layer.getContext("2d").putImageData(image, 0, 0);
    context.drawImage(layer, MARGIN.left, TOP, width, height);
  }

  drawBars(context, found) {
    const { run, page } = this, { theme } = page;
    const { classes, colours } = page.colouring(run);
    const [, row] = this.scales();
    const gap = row >= 5 ? 1 : 0;
    for (const i of found) {
      const [x, y, w, h] = this.box(i);
      context.globalAlpha = run.endedBy[i] & 1 ? PAUSED : 1;
      context.fillStyle = colours[classes[run.job[i]]];
      const pieces = run.share[i] < 1000 ? run.devices[i] : 1;
      for (let k = 0; k < pieces; k++) {
        context.fillRect(x, y + k * row, w > 4 ? w - 1 : w, Math.max(h - gap, 0.5));
      }
      const why = page.about.ends[run.endedBy[i] >> 1];
      if (w > 5 && why in EDGES) {
        context.globalAlpha = 1;
        context.fillStyle = theme[EDGES[why]];
        context.fillRect(x + w - 3, y, 2, Math.max(h - gap, 0.5));
      }
    }
    context.globalAlpha = 1;
    this.drawNames(context, found);
  }

  drawNames(context, found) {
    const { run, page } = this, { jobs } = page, { width, height } = this.inside;
    context.font = FONT;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = "#0e1319";
    for (const i of found) {
      const [x, y, w, h] = this.box(i);
      const left = Math.max(x, MARGIN.left), right = Math.min(x + w, MARGIN.left + width);
      const top = Math.max(y, TOP), tall = Math.min(y + h, TOP + height) - top;
      if (tall < ROW || right - left < 30 || run.endedBy[i] & 1) continue;
      const model = page.about.models[jobs.model[run.job[i]]];
      const lines = [jobs.short(run.job[i])];
      if (model && tall >= 2.4 * ROW) lines.push(model);
      lines[0] = truncate(context, lines[0], right - left - 9);
      if (!lines[0]) continue;
      lines.forEach((line, k) => {
        const middle = top + tall / 2 + (k - (lines.length - 1) / 2) * (ROW + 1);
        context.fillText(k ? truncate(context, line, right - left - 9, true) : line, left + 4, middle);
      });
    }
  }

  drawDown(context) {
    const { run: { down }, page } = this, { view, theme, about } = page;
    const [perTime, row] = this.scales();
    context.fillStyle = hatching(context, theme);
    context.strokeStyle = theme.down;
    for (let i = 0; i < down.node.length; i++) {
      const y = TOP + (page.firstDevice[down.node[i]] - view.d0) * row;
      const x = MARGIN.left + (down.start[i] - view.t0) * perTime;
      const [w, h] = [Math.max((down.end[i] - down.start[i]) * perTime, 1), about.nodes[down.node[i]][1] * row];
      context.fillRect(x, y, w, h);
      if (w > 3 && h > 3) context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
  }

  // Draws lines between nodes, below the bars: a gang on several nodes is one bar.
  drawSeparators(context, inside) {
    const { view, theme, about } = this.page, row = inside.height / (view.d1 - view.d0);
    if ((view.devices / about.nodes.length) * row < 5) return;
    context.fillStyle = theme.paper;
    for (const first of this.page.firstDevice) {
      if (first > view.d0 && first < view.d1) {
        context.fillRect(MARGIN.left, Math.round(TOP + (first - view.d0) * row) - 1, inside.width, 1);
      }
    }
  }

  // Draws names of as many nodes as fit, and of devices if rows are high enough.
  drawNodes(context, inside) {
    const { page } = this, { view, theme, about } = page;
    const row = inside.height / (view.d1 - view.d0);
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const average = (view.devices / about.nodes.length) * row;
    const each = Math.max(1, Math.ceil(16 / average));
    for (let n = 0; n < about.nodes.length; n++) {
      const [name, devices] = about.nodes[n];
      const first = page.firstDevice[n];
      if (first > view.d1 || first + devices < view.d0) continue;
      const y = TOP + (first - view.d0) * row;
      context.fillStyle = theme.muted;
      if (row >= 13) {
        for (let d = 0; d < devices; d++) {
          const middle = y + (d + 0.5) * row;
          if (middle > TOP + 4 && middle < TOP + inside.height - 3) {
            context.fillText(truncateStart(context, `${name}/${d}`), MARGIN.left - 7, middle);
          }
        }
      } else if (n % each === 0) {
        const top = Math.max(y, TOP), bottom = Math.min(y + devices * row, TOP + inside.height);
        const middle = Math.max((top + bottom) / 2, TOP + 5);
        if (bottom - top >= Math.min(9, 0.99 * devices * row)) context.fillText(truncateStart(context, name), MARGIN.left - 7, middle);
      }
    }
  }

  box(i) {
    const { run, page: { view } } = this;
    const [perTime, row] = this.scales();
    const shared = run.share[i] < 1000;
    return [
      MARGIN.left + (run.start[i] - view.t0) * perTime,
      TOP + (run.device[i] + run.above[i] / 1000 - view.d0) * row,
      Math.max((run.end[i] - run.start[i]) * perTime, 0.6),
      (shared ? run.share[i] / 1000 : run.devices[i]) * row,
    ];
  }

  // Draws outlines around all bars of a job, and a line for its waiting time before them.
  mark(job) {
    const [context] = fitCanvas(this.over);
    if (job === null) return;
    const { run, page: { theme, jobs, view } } = this, { width, height } = this.inside;
    const [perTime, row] = this.scales();
    context.beginPath();
    context.rect(MARGIN.left, TOP, width, height);
    context.clip();
    context.strokeStyle = theme.ink;
    context.lineWidth = 2;
    let first = null;
    for (let i = 0; i < run.job.length; i++) {
      if (run.job[i] !== job) continue;
      first ??= i;
      const [x, y, w, h] = this.box(i);
      for (let k = 0; k < (run.share[i] < 1000 ? run.devices[i] : 1); k++) {
        context.strokeRect(x, y + k * row, Math.max(w - 1, 1), Math.max(h - 1, 1));
      }
    }
    if (first === null) return;
    const [x, y, , h] = this.box(first), middle = y + Math.min(h, row) / 2;
    const from = MARGIN.left + (jobs.submit[job] - view.t0) * perTime;
    context.setLineDash([4, 3]);
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(from, middle);
    context.lineTo(x, middle);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(from, middle - 5);
    context.lineTo(from, middle + 5);
    context.stroke();
  }

  point(event) {
    const { page, run } = this, { view } = page, inside = this.inside;
    const [perTime, row] = this.scales();
    const time = view.t0 + (event.offsetX - MARGIN.left) / perTime;
    const place = view.d0 + (event.offsetY - TOP) / row;
    if (event.buttons || time < view.t0 || time > view.t1 || place < view.d0 || place >= view.d1 ||
        event.offsetY > TOP + inside.height) return page.hideTip();
    const device = Math.floor(place), near = 1.5 / perTime;
    const onDevice = `${page.deviceName(device)} <span class="muted">${escapeHtml(page.about.nodes[page.nodeOf[device]][2])}</span>`;
    const here = new Set();
    let best = null;
    for (let i = 0; i < run.start.length && run.start[i] <= time + near; i++) {
      if (run.end[i] < time - near || device < run.device[i] || device >= run.device[i] + run.devices[i]) continue;
      const high = (place - device) * 1000 - run.above[i];
      here.add(run.job[i]);
      const off = Math.max(run.start[i] - time, time - run.end[i], 0) * perTime + (high < 0 || high > run.share[i] ? 5 : 0);
      if (best === null || off <= best.off) best = { i, off };
    }
    const { down } = run;
    for (let i = 0; i < down.node.length; i++) {
      if (down.node[i] === page.nodeOf[device] && down.start[i] <= time && time < down.end[i]) {
        this.mark(null);
        return page.showTip(event, `<b>${escapeHtml(page.about.nodes[down.node[i]][0])} is down</b>${rows([
          ["from", formatTime(down.start[i])], ["until", formatTime(down.end[i])], ["for", formatSpan(down.end[i] - down.start[i])]])}`);
      }
    }
    if (best === null) {
      this.mark(null);
      return page.showTip(event, `<b>idle</b>${rows([["device", onDevice], ["at", formatTime(time, 1 / perTime)]])}`);
    }
    if (here.size > 3) {
      this.mark(null);
      return page.showTip(event, `<b>${formatCount(here.size)} jobs</b>${rows([
        ["device", onDevice], ["within", formatSpan(2 * near)], ["around", formatTime(time, 1 / perTime)]])}<span class="muted">zoom in to see each job</span>`);
    }
    const job = run.job[best.i];
    this.mark(job);
    return page.showTip(event, this.about(job, best.i, onDevice));
  }

  about(job, i, onDevice) {
    const { page, run } = this, { jobs, about } = page;
    const model = about.models[jobs.model[job]], user = about.users[jobs.user[job]];
    const phase = about.phases[run.phase[job]];
    const ends = {
      preempt: "preempted", resize: "resized", migrate: "migrated", pause: "paused", resume: "resumed",
      overflow: "out of memory", lost: "node failed", log: "running at the end of the log",
    };
    const facts = [["policy", escapeHtml(run.name)]];
    if (model) facts.push(["model", escapeHtml(model)]);
    if (user) facts.push(["user", escapeHtml(user)]);
    facts.push(["devices", `${jobs.gpus[job]}${run.share[i] < 1000 ? `, ${run.share[i] / 10} % of each` : ""}`]);
    facts.push(["on", onDevice], ["submitted", formatTime(jobs.submit[job])], ["started", formatTime(run.firstStart[job])]);
    facts.push(["waited", formatSpan(waitingTime(run, jobs, job))]);
    facts.push([run.endedBy[i] & 1 ? "this pause" : "this run", formatSpan(run.end[i] - run.start[i])]);
    if (run.runCount[job] > 1) facts.push(["in total", `${formatSpan(run.allocatedTime[job])}, ${run.runCount[job]} times`]);
    const why = about.ends[run.endedBy[i] >> 1];
    if (why in ends) facts.push(["ended by", ends[why]]);
    if (run.phase[job] === FINISHED) facts.push(["finished", formatTime(run.lastEnd[job])], ["JCT", formatSpan(run.lastEnd[job] - jobs.submit[job])]);
    else facts.push(["final state", phase]);
    return `<b>${escapeHtml(jobs.ids[job])}</b>${rows(facts)}`;
  }
}

// Theme colours of a bar's right edge, by the reason for its end.
const EDGES = { preempt: "ink", migrate: "ink", pause: "ink", overflow: "lost", lost: "lost" };

function hatching(context, theme) {
  const tile = new OffscreenCanvas(6, 6), pen = tile.getContext("2d");
  pen.fillStyle = theme.paper;
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = theme.down;
  pen.lineWidth = 1.6;
  pen.beginPath();
  for (const at of [-6, 0, 6]) {
    pen.moveTo(at, 6);
    pen.lineTo(at + 6, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

// Shortens a text to a width: keeps its end, which distinguishes names, or its beginning.
function truncate(context, text, width, beginning = false) {
  if (context.measureText(text).width <= width) return text;
  for (let length = Math.min(text.length - 1, Math.floor(width / 4)); length >= 3; length--) {
    const candidate = beginning ? `${text.slice(0, length)}…` : `…${text.slice(-length)}`;
    if (context.measureText(candidate).width <= width) return candidate;
  }
  return "";
}

function truncateStart(context, text) {
  return truncate(context, text, MARGIN.left - 10);
}
