// Live updates of the overview: one stream of events, two charts. Its values are only ever set as text, except for
// the list of problems, which the server has rendered and escaped.
(() => {
  "use strict";
  const live = document.getElementById("live"), text = document.getElementById("live-text");
  const points = [];
  const KEPT = 4000;
  let range = 300, charts = [], source = null, again = 0;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => value >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : value >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : String(+value.toPrecision(4));
  const shown = (self, value) => value == null ? "–" : short(value);

  const made = (id, series) => {
    const place = document.getElementById(id), line = colour("--line"), ink = colour("--muted");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    place.replaceChildren();
    return new uPlot({
      width: place.clientWidth, height: 215, padding: [8, 8, 0, 0], cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (u, low, high) => [0, Math.max(high * 1.1, 1)] } },
      series: [{ value: (u, at) => at == null ? "–" : duemqClock(at * 1000, true) }, ...series.map(([label, name, dash]) => ({ label, stroke: colour(name), width: 1.8, dash, spanGaps: false, value: shown, points: { show: false } }))],
      axes: [{ ...axis, space: 70, values: (u, marks) => marks.map((at) => duemqClock(at * 1000, range <= 300)) }, { ...axis, size: 52, values: (u, marks) => marks.map(short) }],
    }, [[], ...series.map(() => [])], place);
  };

  const draw = () => {
    if (!charts.length || document.hidden) return;
    const last = points.length ? points[points.length - 1][0] / 1000 : Date.now() / 1000;
    const some = points.filter((point) => point[0] / 1000 >= last - range);
    const at = some.map((point) => point[0] / 1000);
    const column = (index) => some.map((point) => point[index]);
    charts[0].setData([at, column(1), column(2)], false);
    charts[1].setData([at, column(4), column(5), column(6)], false);
    for (const chart of charts) chart.batch(() => { chart.setScale("x", { min: Math.max(last - range, Math.min(at[0] ?? last, last - 30)), max: last }); });
  };

  const begin = () => {
    if (!document.getElementById("rates")) return; // a key for some topics sees no totals
    charts.forEach((chart) => chart.destroy());
    charts = [
      made("rates", [["In", "--blue"], ["Out", "--green", [6, 3]]]),
      made("lateness", [["Median", "--green"], ["p99", "--amber", [6, 3]], ["Highest, at most", "--red", [2, 3]]]),
    ];
    draw();
  };

  const take = (event) => {
    const news = JSON.parse(event.data);
    for (const point of news.points) if (!points.length || point[0] > points[points.length - 1][0]) points.push(point);
    if (points.length > KEPT) points.splice(0, points.length - KEPT);
    for (const place of document.querySelectorAll("[data-live]")) {
      const value = news.values[place.dataset.live];
      if (place.textContent !== value) place.textContent = value;
    }
    const problems = document.getElementById("problems");
    if (problems.dataset.last !== news.problems) { problems.dataset.last = news.problems; problems.innerHTML = news.problems; }
    news.horizon.forEach((one, index) => {
      document.querySelector(`[data-bar="${index}"]`).setAttribute("width", `${one.percent}%`);
      document.querySelector(`[data-count="${index}"]`).textContent = one.count;
      const due = document.querySelector(`[data-due="${index}"]`);
      due.search = `status=scheduled&${one.query}`;
    });
    draw();
  };

  const say = (state, words) => { if (live.dataset.state !== state) { live.dataset.state = state; text.textContent = words; } };

  const open = () => {
    clearTimeout(again);
    source?.close();
    source = new EventSource(live.dataset.url);
    source.onopen = () => say("on", "live");
    source.onmessage = take;
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return; // it reconnects automatically, as at the end of each minute
      say("off", "not live: the server does not answer");
      again = setTimeout(open, 10_000);
    };
  };

  for (const button of document.querySelectorAll("[data-range]")) {
    button.addEventListener("click", () => {
      range = Number(button.dataset.range);
      for (const one of document.querySelectorAll("[data-range]")) one.setAttribute("aria-pressed", String(one === button));
      draw();
    });
  }
  for (const bar of document.querySelectorAll(".range")) bar.hidden = false;
  // A hidden page needs no stream.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) { open(); draw(); return; }
    clearTimeout(again);
    source?.close();
    say("off", "paused");
  });
  addEventListener("pagehide", () => source?.close());
  document.addEventListener("theme", begin);
  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => charts.forEach((chart) => chart.setSize({ width: chart.root.parentElement.clientWidth, height: 215 })), 100); });
  begin();
  open();
})();
