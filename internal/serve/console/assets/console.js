// Live updates and charts. Pages can be read and forms can be sent without this script.
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // The server formats times in the viewer's zone, which only the browser knows.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  document.cookie = "spillway_zone=" + zone + "; path=/; max-age=31536000; SameSite=Lax";
  const told = "spillway_zone_told";
  if (document.documentElement.dataset.zone !== zone && document.cookie.includes("spillway_zone=") && sessionStorage.getItem(told) !== zone) {
    sessionStorage.setItem(told, zone); // once, in case the server does not know the zone
    if (!document.querySelector("form[data-typed]")) location.reload();
  }

  // A check box in the head of a table selects all of them.
  document.querySelectorAll("[data-all]").forEach((all) => {
    all.hidden = false;
    all.addEventListener("change", () => document.querySelectorAll(`input[name="${all.dataset.all}"]`).forEach((one) => (one.checked = all.checked)));
  });

  // A form that was changed asks before it is left.
  document.querySelectorAll("form[data-guard]").forEach((form) => {
    let changed = false;
    form.addEventListener("input", () => (changed = true));
    form.addEventListener("submit", () => (changed = false));
    addEventListener("beforeunload", (event) => changed && event.preventDefault());
  });

  // A variant more: a copy of the empty row.
  document.querySelectorAll("[data-add-row]").forEach((button) =>
    button.addEventListener("click", (event) => {
      event.preventDefault();
      const row = document.querySelector("template[data-row]").content.cloneNode(true);
      const first = row.querySelector("input");
      button.before(row);
      first.focus();
    }),
  );

  // What htmx sent and the server refused.
  const failed = document.getElementById("failed");
  const tell = (text) => {
    failed.textContent = text;
    failed.hidden = !text;
  };
  document.addEventListener("htmx:responseError", (event) => tell(event.detail.xhr.responseText));
  document.addEventListener("htmx:sendError", () => tell("The process does not answer. Nothing has changed."));
  document.addEventListener("htmx:afterSwap", () => tell(""));

  const clock = (at, whole) => new Date(at * 1000).toLocaleTimeString("en-GB", whole ? { hour: "2-digit", minute: "2-digit" } : {});
  const day = (at) => new Date(at * 1000).toLocaleDateString("en-CA") + " " + clock(at, true);
  const number = (v) => (v == null ? "–" : v >= 100 ? Math.round(v).toLocaleString("en-US") : String(Number(v.toPrecision(3))));
  const seconds = (v) => (v == null ? "–" : v >= 1 ? number(v) + " s" : v >= 1e-3 ? number(v * 1e3) + " ms" : number(v * 1e6) + " µs");

  // draw returns a chart of lines over time; names and rows may change later. log: for times.
  const draw = (box, names, rows, spell, log) => {
    const axis = { stroke: css("soft"), grid: { stroke: css("grid"), width: 1 }, ticks: { stroke: css("grid") }, font: "12px system-ui, sans-serif" };
    return new uPlot(
      {
        width: box.clientWidth || 300,
        height: 180,
        cursor: { y: false },
        scales: { x: { time: true }, y: { distr: log ? 3 : 1, range: log ? undefined : (u, low, high) => [0, Math.max(high || 0, 1) * 1.06] } },
        axes: [{ ...axis, values: (u, ticks, i, space, step) => ticks.map((t) => (step >= 86400 ? day(t).slice(0, 10) : clock(t, step >= 60))) }, { ...axis, size: 62, values: (u, ticks) => ticks.map((v) => (v == null ? "" : spell(v))) }],
        series: [
          { label: "Time", value: (u, v) => (v == null ? "" : rows[0][1] - rows[0][0] >= 3600 ? day(v) : clock(v)) },
          ...names.map((name, i) => ({ label: name, stroke: css("h" + (i % 8)), width: 1.5, dash: i >= 8 ? [6, 4] : undefined, value: (u, v) => spell(v), points: { show: rows[0].length < 3 } })),
        ],
      },
      rows,
      box,
    );
  };

  // redrawn keeps charts as wide as their boxes and in the colors of the theme.
  const redrawn = (boxes, redraw) => {
    let width = 0;
    new ResizeObserver(() => {
      if (boxes[0].clientWidth === width) return;
      width = boxes[0].clientWidth;
      requestAnimationFrame(redraw);
    }).observe(boxes[0]);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  };

  // A chart whose data is in the page.
  document.querySelectorAll("[data-series]").forEach((box) => {
    const { times, series } = JSON.parse(box.dataset.series);
    if (!times) return;
    let chart;
    redrawn([box], () => {
      chart?.destroy();
      chart = draw(box, series.map((s) => s.name), [times, ...series.map((s) => s.values)], number);
    });
  });

  const live = document.querySelector("[data-live]");
  if (!live) return;
  const lost = document.getElementById("lost");

  // The requests of each route: a map from times to [requests, errors, p99] for each step.
  const shown = 8; // routes in a chart, those with the most requests
  let step = 1;
  let data = new Map();
  const boxes = [...live.querySelectorAll("[data-chart]")];
  let charts = [];
  let drawnNames = "";
  const merge = (traffic) => {
    const from = Math.round(Date.parse(traffic.from) / 1000);
    traffic.routes.forEach((route) => {
      if (!data.has(route.route)) data.set(route.route, new Map());
      const slots = data.get(route.route);
      route.requests.forEach((n, i) => slots.set(from + i * traffic.step_seconds, [n / traffic.step_seconds, route.errors[i] / traffic.step_seconds, route.p99_seconds[i]]));
      const oldest = from + (route.requests.length - 1) * traffic.step_seconds - (traffic.step_seconds === 1 ? 300 : 3600);
      [...slots.keys()].forEach((at) => at < oldest && slots.delete(at));
    });
  };
  const paint = (again) => {
    const sums = [...data].map(([name, slots]) => [name, [...slots.values()].reduce((sum, slot) => sum + slot[0], 0)]);
    const names = sums.sort((a, b) => b[1] - a[1]).slice(0, shown).map(([name]) => name).sort();
    const times = [...new Set(names.flatMap((name) => [...data.get(name).keys()]))].sort((a, b) => a - b);
    if (times.length > 1) times.pop(); // the last one is not over yet
    boxes.forEach((box, k) => {
      const rows = [times, ...names.map((name) => times.map((at) => data.get(name).get(at)?.[k] ?? (k < 2 ? 0 : null)))];
      if (!again && charts[k] && drawnNames === names.join("\n")) return charts[k].setData(rows);
      charts[k]?.destroy();
      box.replaceChildren();
      charts[k] = draw(box, names, rows, k === 2 ? seconds : number, k === 2);
    });
    drawnNames = names.join("\n");
  };
  const load = async () => {
    const answer = await fetch(live.querySelector("[data-traffic]").dataset.traffic + "?step_seconds=" + step);
    if (!answer.ok) return;
    data = new Map();
    merge(await answer.json());
    paint(false);
  };
  redrawn(boxes, () => paint(true));
  live.querySelectorAll("[data-step]").forEach((button) => {
    button.parentElement.hidden = false;
    button.addEventListener("click", () => {
      step = Number(button.dataset.step);
      live.querySelectorAll("[data-step]").forEach((one) => one.setAttribute("aria-pressed", one === button));
      load();
    });
  });

  // One event stream per tab, and none while the tab is hidden: a browser opens six connections to a host.
  let events;
  let ticks = 0;
  const follow = () => {
    events?.close();
    events = undefined;
    if (document.hidden) return;
    load();
    events = new EventSource(live.dataset.live);
    events.onmessage = (event) => {
      lost.hidden = true;
      const { process, pieces, traffic } = JSON.parse(event.data);
      if (String(process) !== live.dataset.process) return location.reload();
      Object.entries(pieces).forEach(([name, html]) => {
        const piece = live.querySelector(`[data-piece="${name}"]`);
        if (piece.contains(document.activeElement)) return; // nothing moves under the keyboard
        const open = [...piece.querySelectorAll("details")].map((one) => one.open);
        piece.innerHTML = html;
        piece.querySelectorAll("details").forEach((one, i) => i in open && (one.open = open[i]));
      });
      ticks++;
      if (step === 1) {
        merge(traffic);
        paint(false);
      } else if (ticks % 10 === 0) load();
    };
    events.onerror = () => {
      lost.hidden = false;
      if (events?.readyState === EventSource.CLOSED) setTimeout(() => fetch("/console/", { method: "HEAD" }).then((a) => (a.redirected ? location.reload() : follow()), follow), 3000);
    };
  };
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => events?.close());
  follow();
})();

// Campaigns: keys that move the one whose row has the focus, and the explanation for a user, which needs no other page.
(() => {
  const list = document.getElementById("list");
  list?.addEventListener("keydown", (event) => {
    const direction = event.altKey && { ArrowUp: "up", ArrowDown: "down" }[event.key];
    const row = event.target.closest("tr");
    const button = direction && row?.querySelector(`button[id^="${direction}-"]`);
    if (!button) return;
    event.preventDefault();
    const at = event.target.id || row.querySelector("td a").getAttribute("href");
    list.addEventListener("htmx:afterSwap", () => (document.getElementById(at) || list.querySelector(`a[href="${at}"]`))?.focus(), { once: true });
    button.click();
  });
  document.querySelector("form[data-try]")?.addEventListener("submit", (event) => {
    event.preventDefault();
    event.target.dispatchEvent(new Event("input"));
  });
})();
