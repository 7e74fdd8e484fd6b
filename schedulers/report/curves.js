// Curves over time, and distributions on a logarithmic time axis.

const CURVE = { top: 8, bottom: 26 };

class Curves {
  // `lines`: list of {name, colour, steps, dashed}; `limit`: end of the value axis (default: the
  // largest visible value); `ticks`: its marks (default: round values); `format`: formats a value.
  constructor(id, page, { lines, limit, ticks, format }) {
    Object.assign(this, { page, lines, limit, ticks, format, canvas: document.getElementById(id) });
    navigate(this.canvas, page.view, { withDevices: false });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => page.hideTip());
  }

  draw(at = null) {
    const { page, lines } = this, { theme, view } = page;
    const [context, width, height] = fitCanvas(this.canvas);
    const inside = width - MARGIN.left - MARGIN.right, tall = height - CURVE.top - CURVE.bottom;
    if (inside < 10) return;
    const columns = Math.round(inside);
    const values = lines.map(({ steps }) => means(steps, view, columns));
    const limit = this.limit ?? Math.max(4, ...values.map((line) => line.reduce((a, b) => Math.max(a, b), 0))) * 1.04;
    const y = (value) => CURVE.top + tall * (1 - value / limit);
    timeAxis(context, theme, view, width, CURVE.top, height - CURVE.bottom);
    valueAxis(context, theme, this.ticks ?? numberTicks(limit), y, this.format, width);
    context.lineJoin = "round";
    lines.forEach(({ colour, dashed }, i) => {
      context.strokeStyle = theme[colour];
      context.setLineDash(dashed ? [6, 4] : []);
      context.lineWidth = dashed ? 1.3 : 1.6;
      context.beginPath();
      values[i].forEach((value, x) => context[x ? "lineTo" : "moveTo"](MARGIN.left + x + 0.5, y(value)));
      context.stroke();
    });
    context.setLineDash([]);
    if (at !== null) cross(context, theme, at, CURVE.top, height - CURVE.bottom);
  }

  point(event) {
    const { view } = this.page, inside = this.canvas.clientWidth - MARGIN.left - MARGIN.right;
    const part = (event.offsetX - MARGIN.left) / inside;
    if (part < 0 || part > 1 || event.buttons) {
      this.draw();
      return this.page.hideTip();
    }
    const step = (view.t1 - view.t0) / inside, time = view.t0 + part * (view.t1 - view.t0);
    this.draw(event.offsetX);
    const entries = this.lines.map(({ name, steps, colour, dashed }) => [
      `<span class="swatch ${dashed ? "up" : colour}"></span>${escapeHtml(name)}`,
      this.format(steps.mean(time - step / 2, time + step / 2), true)]);
    return this.page.showTip(event, `<b>${formatTime(time, step)}</b>${rows(entries)}`);
  }
}

// Means over each visible pixel column, up to the end of the function.
function means(steps, view, columns) {
  const step = (view.t1 - view.t0) / columns, values = [];
  for (let x = 0; x < columns && view.t0 + x * step < steps.end; x++) {
    const from = view.t0 + x * step;
    values.push(steps.mean(from, Math.min(from + step, steps.end)));
  }
  return values;
}

class Distribution {
  constructor(id, page, lines) {
    Object.assign(this, { page, lines, canvas: document.getElementById(id) });
    const all = lines.flatMap(({ curve }) => [...curve.at]).filter((s) => s > 0);
    const [least, greatest] = [Math.min(...all, 1e9), Math.max(...all, 1)];
    this.low = Math.log(Math.max(Math.min(least, greatest / 10), 1));
    this.high = Math.log(Math.max(greatest, Math.exp(this.low) * 10));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => page.hideTip());
  }

  get geometry() {
    return { left: 52, right: 18, width: this.canvas.clientWidth - 70, tall: this.canvas.clientHeight - CURVE.top - CURVE.bottom };
  }

  draw(at = null) {
    const { page: { theme }, low, high } = this;
    const [context, width, height] = fitCanvas(this.canvas);
    const { left, right, width: inside, tall } = this.geometry;
    const x = (seconds) => left + (inside * (Math.log(Math.max(seconds, 1e-9)) - low)) / (high - low);
    const y = (part) => CURVE.top + tall * (1 - part);
    valueAxis(context, theme, [0, 0.25, 0.5, 0.75, 0.9, 1], y, (v) => `${Math.round(100 * v)} %`, width, left, right);
    context.textAlign = "center";
    context.textBaseline = "top";
    let freeFrom = 0;
    for (const [seconds, name] of logMarks(low, high)) {
      const at = Math.round(x(seconds)) + 0.5, half = context.measureText(name).width / 2;
      if (at < left - 1 || at > width - right + 1) continue;
      context.strokeStyle = theme.line;
      context.beginPath();
      context.moveTo(at, CURVE.top);
      context.lineTo(at, CURVE.top + tall + 4);
      context.stroke();
      context.fillStyle = theme.muted;
      if (at - half < freeFrom) continue;
      context.fillText(name, at, height - CURVE.bottom + 7);
      freeFrom = at + half + 8;
    }
    context.save();
    context.beginPath();
    context.rect(left, 0, inside + right, height);
    context.clip();
    context.lineWidth = 1.8;
    context.lineJoin = "round";
    for (const { curve, colour } of this.lines) {
      if (!curve.at.length) continue;
      context.strokeStyle = theme[colour];
      context.beginPath();
      context.moveTo(Math.max(x(curve.at[0]), left), y(curve.at[0] < Math.exp(low) ? fractionWithin(curve, Math.exp(low)) : 0));
      for (let i = 0; i < curve.at.length; i++) {
        if (x(curve.at[i]) >= left) context.lineTo(x(curve.at[i]), y(curve.value[i]));
      }
      context.lineTo(left + inside + right, y(1));
      context.stroke();
    }
    context.restore();
    if (at !== null) cross(context, theme, at, CURVE.top, height - CURVE.bottom);
  }

  point(event) {
    const { left, width } = this.geometry, part = (event.offsetX - left) / width;
    if (part < 0 || part > 1) {
      this.draw();
      return this.page.hideTip();
    }
    const seconds = Math.exp(this.low + part * (this.high - this.low));
    this.draw(event.offsetX);
    const entries = this.lines.map(({ name, curve, colour }) => [
      `<span class="swatch ${colour}"></span>${escapeHtml(name)}`, `${(100 * fractionWithin(curve, seconds)).toFixed(1)} %`]);
    return this.page.showTip(event, `<b>within ${formatSpan(seconds)}</b>${rows(entries)}`);
  }
}

function fractionWithin(curve, seconds) {
  let part = 0;
  for (let i = 0; i < curve.at.length && curve.at[i] <= seconds; i++) part = curve.value[i];
  return part;
}

function valueAxis(context, theme, ticks, y, format, width, left = MARGIN.left, right = MARGIN.right) {
  context.font = FONT;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.lineWidth = 1;
  for (const tick of ticks) {
    const at = Math.round(y(tick)) + 0.5;
    context.strokeStyle = theme.line;
    context.beginPath();
    context.moveTo(left, at);
    context.lineTo(width - right, at);
    context.stroke();
    context.fillStyle = theme.muted;
    context.fillText(format(tick), left - 7, at);
  }
}

function cross(context, theme, x, top, bottom) {
  context.strokeStyle = theme.muted;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(Math.round(x) + 0.5, top);
  context.lineTo(Math.round(x) + 0.5, bottom);
  context.stroke();
}
