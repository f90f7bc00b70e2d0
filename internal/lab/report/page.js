// Draws the panels of the page's JSON data with uPlot. What is shown was decided when the page was written; charts.go
// describes the data.
(() => {
  const read = (page) => JSON.parse(page.getElementById("data").textContent).panels;
  let panels = read(document);
  let shown = new AbortController(); // ends when the panels are replaced
  const narrow = 480; // pixels below which names stand above their rows
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const font = (weight) => weight + " 12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";

  // The same spelling as package sheet.
  const rounded = (v) => (Math.abs(v) < 100 ? Number(v.toPrecision(3)) : Math.round(v));
  const number = (v) => rounded(v).toLocaleString("en-US", Math.abs(v) < 100 ? { maximumSignificantDigits: 3 } : {});
  const times = [["ns", 1e9, 1000], ["µs", 1e6, 1000], ["ms", 1e3, 1000], ["s", 1, 180], ["min", 1 / 60, 120], ["h", 1 / 3600, Infinity]];
  const seconds = (v) => {
    if (v === 0) return "0 s";
    for (const [name, per, next] of times) {
      const n = rounded(v * per);
      if (n < next) return number(n) + " " + name;
      if (v * per < next) v = n / per;
    }
  };
  const percentile = (v) => (100 * (1 - 10 ** -v)).toFixed(Math.max(0, Math.round(v) - 2)) + " %";
  const formats = {
    number,
    count: (v) => number(Math.floor(v)),
    seconds,
    percentile,
    time: seconds,
    rate: (v) => number(v) + "/s",
    share: (v) => (v < 1 && number(v * 100) === "100" ? "> 99.9 %" : number(v * 100) + " %"),
    percent: (v) => number(v) + " %",
    ratio: (v) => number(v) + " x",
  };

  // Time axes get round times, percentile axes p0, p50, p90, p99 and so on, logarithmic axes 1, 2, 5 in every power of
  // ten, or fewer if the range is wide.
  const timeSteps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const percentiles = (u, i, min, max) => [0, Math.log10(2), 1, 2, 3, 4, 5, 6].filter((v) => v <= max + 1e-9 && !(v < 1 && v > 0 && u.width < narrow));
  const logTicks = (low, high) => {
    const mantissas = high / low > 2e4 ? [1] : high / low > 500 ? [1, 3] : [1, 2, 5];
    const ticks = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) ticks.push(...mantissas.map((m) => Number(m + "e" + e)));
    return ticks;
  };
  const logSplits = (u, i, min, max) => logTicks(min, max).filter((v) => v >= min * (1 - 1e-9) && v <= max * (1 + 1e-9));

  const axis = (spec, size, grid) => ({
    stroke: css("soft"),
    font: font(400),
    label: grid ? undefined : spec.title,
    labelFont: font(600),
    labelSize: spec.title && !grid ? 18 : 0,
    size,
    gap: 4,
    grid: { stroke: css("grid"), width: 1, show: grid },
    ticks: { stroke: css("grid"), width: 1, size: 4 },
    splits: spec.unit === "percentile" ? percentiles : spec.log ? logSplits : undefined,
    filter: (u, ticks) => ticks,
    incrs: { time: timeSteps, count: timeSteps }[spec.unit],
    values: (u, ticks) => ticks.map((v) => formats[spec.unit](v)),
  });

  // extent makes room for the data and for values that must be seen as well.
  const extent = (log, also) => (u, min, max) => {
    const low = Math.min(min ?? Infinity, ...also);
    const high = Math.max(max ?? -Infinity, log ? low * 1.5 : low, ...also);
    if (!isFinite(low)) return log ? [1e-3, 1] : [0, 1];
    if (log) return [logTicks(low, high).findLast((v) => v <= low * (1 + 1e-9)), logTicks(low, high).find((v) => v >= high * (1 - 1e-9))];
    return [0, high > 0 ? high * 1.06 : 1];
  };

  // restoring runs a hook that draws and puts the styles back, which uPlot relies on.
  const restoring = (hook) => (u, i) => {
    u.ctx.save();
    hook(u, i);
    u.ctx.restore();
  };

  const setFont = (ctx, weight) => (ctx.font = font(weight).replace("12px", 12 * devicePixelRatio + "px"));

  // text writes words and returns their width.
  const text = (ctx, words, x, y, color, weight, align) => {
    ctx.fillStyle = color;
    setFont(ctx, weight);
    ctx.textAlign = align;
    ctx.textBaseline = "middle";
    ctx.fillText(words, x, y);
    return ctx.measureText(words).width;
  };

  const segment = (ctx, x0, y0, x1, y1, color, width, dash) => {
    ctx.strokeStyle = color;
    ctx.lineWidth = width * devicePixelRatio;
    ctx.setLineDash((dash || []).map((v) => v * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(x0, y0);
    ctx.lineTo(x1, y1);
    ctx.stroke();
    ctx.setLineDash([]);
  };

  // stack adds up the values of areas, in place, and returns the bands between them.
  const stack = (data, series) => {
    const bands = [];
    let below = 0;
    series.forEach((s, i) => {
      if (s.style !== "stack" && s.style !== "pale") return;
      const base = data[below];
      data[i + 1] = data[i + 1].map((v, k) => {
        const under = below ? base[k] : null;
        return v == null && under == null ? null : (under ?? 0) + Math.max(0, v ?? 0);
      });
      if (below) bands.push({ series: [i + 1, below], fill: fill(s) });
      below = i + 1;
    });
    return bands;
  };
  const fill = (s) => css(s.color) + (s.style === "pale" ? "66" : "cc");

  // alone are the values with a gap on both sides, which a line would not show.
  const alone = (values) => {
    const known = values.map((v, i) => [v, i]).filter(([v]) => v !== undefined);
    return known.filter(([v], k) => v != null && known[k - 1]?.[0] == null && known[k + 1]?.[0] == null).map(([, i]) => i);
  };

  const lineSeries = (spec, raw, unit) => {
    const area = spec.style === "stack" || spec.style === "pale";
    const bars = spec.style === "bars";
    const color = css(spec.color);
    const bounds = new Set(spec.at_least);
    return {
      label: spec.name,
      stroke: color,
      width: area || spec.style === "dots" ? 0 : spec.style && spec.style !== "steps" ? 1.25 : 2,
      dash: spec.style === "dashed" ? [5, 4] : undefined,
      fill: bars ? color : area ? fill(spec) : undefined,
      paths: { bars: uPlot.paths.bars({ size: [1, 40] }), steps: uPlot.paths.stepped({ align: 1 }), dots: () => null }[spec.style],
      points: spec.dots || area || bars ? { show: false } : { show: true, size: 4, fill: color, filter: () => alone(raw) },
      value: (u, v, i, k) => (k == null ? "" : raw[k] == null ? "-" : (bounds.has(u.data[0][k]) ? "≥ " : "") + formats[unit](raw[k])),
    };
  };

  // drawDots draws a dot for each value of a line with dots, and a triangle for each lower bound of any line.
  const drawDots = (u, spec, xs, ys) => {
    const bounds = new Set(spec.at_least);
    if (!spec.dots && !bounds.size) return;
    const ctx = u.ctx;
    ctx.setLineDash([]);
    const hollow = new Map(spec.x.map((x, k) => [x, spec.hollow?.[k]]));
    xs.forEach((x, k) => {
      if (ys[k] == null || !(spec.dots || bounds.has(x))) return;
      const at = [u.valToPos(x, "x", true), u.valToPos(ys[k], "y", true)];
      ctx.beginPath();
      if (bounds.has(x)) {
        [[-4, 3], [0, -5], [4, 3]].forEach(([dx, dy]) => ctx.lineTo(at[0] + dx * devicePixelRatio, at[1] + dy * devicePixelRatio));
        ctx.closePath();
      } else if (spec.shape === "diamond") {
        [[-5, 0], [0, -5], [5, 0], [0, 5]].forEach(([dx, dy]) => ctx.lineTo(at[0] + dx * devicePixelRatio, at[1] + dy * devicePixelRatio));
        ctx.closePath();
      } else ctx.arc(...at, 3.5 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fillStyle = hollow.get(x) ? css("card") : css(spec.color);
      ctx.strokeStyle = hollow.get(x) ? css(spec.color) : css("card");
      ctx.lineWidth = (hollow.get(x) ? 2 : 1) * devicePixelRatio;
      ctx.fill();
      ctx.stroke();
    });
  };

  // drawSpans shades ranges of x, at least a stripe of two pixels, and names them.
  const drawSpans = (u, chart) => {
    const { left, top, width, height } = u.bbox;
    const ratio = devicePixelRatio;
    (chart.spans || []).forEach((s, i) => {
      const from = Math.max(left, u.valToPos(s.from, "x", true));
      const to = Math.min(left + width, u.valToPos(s.to, "x", true));
      if (to < left || from > left + width) return;
      u.ctx.globalAlpha = 0.2;
      u.ctx.fillStyle = css(s.color);
      u.ctx.fillRect(from, top, Math.max(to - from, 2 * ratio), height);
      u.ctx.globalAlpha = 1;
      if (!s.label) return;
      const right = from > left + width / 2;
      text(u.ctx, s.label, right ? to - 3 * ratio : from + 3 * ratio, top + (8 + 14 * i) * ratio, css(s.color), 600, right ? "right" : "left");
    });
  };

  const drawMarks = (u, chart) => {
    const { left, top, width, height } = u.bbox;
    const ratio = devicePixelRatio;
    let free = -Infinity; // labels that would overlap are left out
    (chart.starts || []).forEach((m) => {
      const x = u.valToPos(m.at, "x", true);
      segment(u.ctx, x, top, x, top + height, css("rule"), 1, [2, 3]);
      if (!m.label || x < free) return;
      free = x + text(u.ctx, m.label, x + ratio, top - 7 * ratio, css("soft"), 400, "left") + 6 * ratio;
    });
    (chart.limits || []).forEach((m) => {
      const y = u.valToPos(m.at, "y", true);
      segment(u.ctx, left, y, left + width, y, css("bad"), 1.25, [7, 4]);
      text(u.ctx, m.label, left + 4 * ratio, y - 7 * ratio, css("bad"), 600, "left");
    });
  };

  const lineChart = (chart, width, syncKey) => {
    const specs = chart.tables.flatMap((t) => t.series.map((s) => ({ ...s, x: t.x })));
    const data = uPlot.join(chart.tables.map((t) => [t.x, ...t.series.map((s) => s.y)]));
    const raw = data.slice();
    const bands = stack(data, specs);
    specs.forEach((s, i) => s.band && bands.push({ series: [i + 1, i], fill: css("h4") + "26" }));
    specs.forEach((s, i) => {
      const hidden = (v) => v <= 0 && (chart.y.log || s.style === "bars"); // a logarithmic axis has no 0, and a bar of 0 no height
      if (raw[i + 1].some(hidden)) data[i + 1] = data[i + 1].map((v) => (hidden(v) ? null : v));
    });
    const limits = (chart.limits || []).map((m) => m.at);
    const xs = data[0];
    const x = { time: false, distr: chart.x.log ? 3 : 1 };
    if (chart.x.max) x.range = [chart.x.min || 0, chart.x.max];
    else if (chart.x.unit === "percentile") x.range = [0, Math.max(1, xs[xs.length - 1])];
    else if (chart.x.log) x.range = () => [xs[0] / 1.1, xs[xs.length - 1] * 1.1];
    else x.range = () => [0, xs[xs.length - 1] * 1.03];
    return {
      data,
      options: {
        width,
        height: chart.height + (chart.x.title ? 18 : 0),
        padding: [chart.starts && chart.starts[0].label ? 18 : 8, 24, 0, 0],
        cursor: { sync: syncKey ? { key: syncKey } : undefined, drag: { x: false, y: false }, y: false, points: { size: 6 } },
        legend: {
          markers: {
            width: (u, i) => (specs[i - 1].style === "dashed" ? 2 : 0),
            dash: "dashed",
            stroke: (u, i) => css(specs[i - 1].color),
            fill: (u, i) => ({ dashed: "transparent", pale: fill(specs[i - 1]) })[specs[i - 1].style] ?? css(specs[i - 1].color),
          },
        },
        scales: { x, y: { distr: chart.y.log ? 3 : 1, range: extent(chart.y.log, limits) } },
        axes: [axis(chart.x, chart.x.title ? 26 : 22, false), axis(chart.y, 62, true)],
        bands,
        series: [{ label: "at", value: (u, v) => (v == null ? "" : formats[chart.x.unit](v)) }].concat(
          specs.map((s, i) => lineSeries(s, raw[i + 1], chart.y.unit)),
        ),
        hooks: {
          drawClear: [restoring((u) => drawSpans(u, chart))],
          drawSeries: [restoring((u, i) => drawDots(u, specs[i - 1], xs, data[i]))],
          draw: [restoring((u) => drawMarks(u, chart))],
        },
      },
    };
  };

  // ratioTicks are round ratios on an axis of logarithms: 1, 2, 5 in every power of ten, or even steps around 1.
  const ratioTicks = (u, i, min, max) => {
    const low = Math.exp(min);
    const high = Math.exp(max);
    const ticks = [];
    if (high / low > 4) {
      ticks.push(...logTicks(low, high));
    } else {
      const rough = (high - low) / 6;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
      for (let k = Math.ceil(low / step); k * step <= high; k++) ticks.push(k * step);
    }
    return ticks.map(Math.log).filter((v) => v >= min && v <= max);
  };

  // rowChart has a row for each name: uPlot's x axis stands upright and counts the rows. Ratios are drawn by logarithm.
  const rowChart = (chart, width, note) => {
    const rows = chart.rows;
    const small = width < narrow;
    const ratios = chart.y.log;
    const place = ratios ? Math.log : (v) => v;
    const ends = rows.flatMap((r) => [r.value, r.low, r.high]).filter((v) => v != null && (!ratios || v > 0)).map(place);
    const low = ratios ? Math.min(...ends, -0.1) : 0;
    const high = Math.max(...ends, ratios ? 0.1 : 0) || 1;
    const measure = document.createElement("canvas").getContext("2d");
    const longest = (words, weight) => {
      measure.font = font(weight);
      return Math.ceil(Math.max(...words.map((w) => measure.measureText(w).width)));
    };
    const names = small ? 16 : Math.min(280, longest(rows.map((r) => r.name), 400) + 16);
    const words = small && ratios ? 14 : longest(rows.map((r) => r.text), 600) + 20;
    const values = { ...axis(chart.y, 24, true), space: 80 };
    if (ratios) {
      values.splits = ratioTicks;
      values.values = (u, ticks) => ticks.map((v) => formats.ratio(Math.exp(v)));
    }
    return {
      data: [rows.map((r, i) => i), rows.map((r) => place(r.value))],
      options: {
        width,
        height: rows.length * (small ? 54 : ratios ? 28 : 36) + 36,
        padding: [8, words, 0, names],
        cursor: { drag: { x: false, y: false }, x: false, y: false, points: { show: false } },
        legend: { show: false },
        scales: {
          x: { time: false, ori: 1, dir: -1, range: [-0.5, rows.length - 0.5] },
          y: { ori: 0, dir: 1, range: [low - (ratios ? (high - low) * 0.04 : 0), high + (high - low) * 0.04] },
        },
        axes: [{ show: false, side: 3 }, { ...values, side: 2 }],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: {
          draw: [restoring((u) => rows.forEach((row, i) => drawRow(u, row, i, place, small)))],
          setCursor: [(u) => (note.textContent = u.cursor.idx == null ? "" : rows[u.cursor.idx].note)],
        },
      },
    };
  };

  const drawRow = (u, row, i, place, small) => {
    const ctx = u.ctx;
    const r = devicePixelRatio;
    const at = (v) => u.valToPos(place(v), "y", true);
    const color = css(row.color);
    const ratios = place === Math.log;
    const middle = u.valToPos(i, "x", true) + (small ? 9 * r : 0);
    const left = u.bbox.left;
    const right = left + u.bbox.width;
    if (i === 0 && ratios) segment(ctx, at(1), u.bbox.top, at(1), u.bbox.top + u.bbox.height, css("soft"), 1);
    if (small) text(ctx, ratios ? row.name + ": " + row.text : row.name, left, middle - 20 * r, css("text"), 400, "left");
    else text(ctx, row.name, left - 8 * r, middle, css("text"), 400, "right");
    if (ratios) {
      ctx.fillStyle = color;
      ctx.fillRect(at(row.value) - 4 * r, middle - 4 * r, 8 * r, 8 * r);
    } else {
      const half = 11 * r;
      ctx.globalAlpha = row.hollow ? 0.25 : row.pale ? 0.45 : 1;
      ctx.fillStyle = color;
      ctx.fillRect(left, middle - half, Math.max(r, at(row.value) - left), 2 * half);
      ctx.globalAlpha = 1;
      if (row.hollow) {
        ctx.setLineDash([4 * r, 3 * r]);
        ctx.strokeStyle = color;
        ctx.lineWidth = 1.5 * r;
        ctx.strokeRect(left, middle - half, at(row.value) - left, 2 * half);
        ctx.setLineDash([]);
      }
    }
    const stroke = ratios ? color : css("text");
    if (row.low != null) {
      segment(ctx, at(row.low), middle, at(row.high), middle, stroke, ratios ? 1.75 : 1.25);
      if (!ratios || row.interval) [row.low, row.high].forEach((v) => segment(ctx, at(v), middle - 4 * r, at(v), middle + 4 * r, stroke, 1.25));
    }
    const end = ratios ? right : Math.max(at(row.value), at(row.high ?? row.value));
    if (!small || !ratios) text(ctx, row.text, end + 8 * r, middle, ratios ? color : css("text"), 600, "left");
  };

  // mount draws a panel's charts and draws them again when its width or the colors change.
  const mount = (element) => {
    const index = Number(element.dataset.panel);
    const box = element.appendChild(document.createElement("div"));
    let drawn = [];
    let width = 0;
    const draw = () => {
      drawn.forEach((u) => u.destroy());
      drawn = [];
      box.replaceChildren();
      if (!width) return;
      const all = panels[index].charts;
      all.forEach((chart) => {
        const holder = box.appendChild(document.createElement("div"));
        holder.className = "chart";
        holder.setAttribute("role", "group");
        holder.setAttribute("aria-label", chart.title);
        if (chart.rows) {
          const note = document.createElement("p");
          const { data, options } = rowChart(chart, width, note);
          drawn.push(new uPlot(options, data, holder));
          note.className = "note fine";
          holder.append(note);
          return;
        }
        const title = holder.appendChild(document.createElement("h3"));
        title.textContent = chart.y.title;
        const { data, options } = lineChart(chart, width, all.length > 1 ? "panel" + index : "");
        drawn.push(new uPlot(options, data, holder));
      });
    };
    new ResizeObserver(() => {
      if (box.clientWidth === width) return;
      width = box.clientWidth;
      requestAnimationFrame(draw);
    }).observe(box);
    const { signal } = shown;
    ["(prefers-color-scheme: dark)", "print"].forEach((query) => matchMedia(query).addEventListener("change", draw, { signal }));
    signal.addEventListener("abort", () => drawn.forEach((u) => u.destroy()));
  };
  const show = () => document.querySelectorAll("[data-panel]").forEach(mount);
  show();

  // refresh replaces the content by that of the same page a second later, until the run has ended.
  const refresh = async () => {
    let next;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      next = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      document.title = "ended: " + document.title;
      return;
    }
    shown.abort();
    shown = new AbortController();
    panels = read(next);
    document.title = next.title;
    document.querySelector("main").replaceWith(next.querySelector("main"));
    show();
    if ("live" in next.documentElement.dataset) setTimeout(refresh, 1000);
  };
  if ("live" in document.documentElement.dataset) setTimeout(refresh, 1000);
})();
