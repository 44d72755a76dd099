// Common parts of all pages: colours, times, lists that poll, selections, dialogs, phones. Pages work without it.
(() => {
  "use strict";
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id), dialog = $("dialog");

  // --- colours ---
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = $("theme");
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; theme.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`); };
  if (theme) {
    theme.hidden = false;
    nameTheme();
    theme.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("duemq-theme", root.dataset.theme); } catch { /* for this page only */ }
      nameTheme();
      document.dispatchEvent(new Event("theme"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { nameTheme(); document.dispatchEvent(new Event("theme")); });
  }

  // --- times: in UTC, in the zone of the browser, or relative, in tables, charts and fields ---
  const MODES = { utc: "UTC", local: "Local", relative: "Relative" };
  const UNITS = [[60_000, 1_000, "second"], [3_600_000, 60_000, "minute"], [172_800_000, 3_600_000, "hour"], [Infinity, 86_400_000, "day"]];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });
  const named = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" });
  const shifted = (ms) => ms - new Date(ms).getTimezoneOffset() * 60_000;
  const zoneAt = (ms) => mode === "utc" ? "UTC" : named.formatToParts(ms).find((part) => part.type === "timeZoneName").value;
  const stamp = (ms, zone) => new Date(zone === "utc" ? ms : shifted(ms)).toISOString().replace("T", " ").slice(0, -1);
  const relative = (ms) => {
    const left = ms - Date.now(), [, unit, name] = UNITS.find(([most]) => Math.abs(left) < most);
    return words.format(Math.round(left / unit), name);
  };
  let mode = "utc";
  try { mode = localStorage.getItem("duemq-time") in MODES ? localStorage.getItem("duemq-time") : mode; } catch { /* no storage */ }
  const setField = (field) => {
    const from = field.dataset.zone ?? "utc", to = mode === "utc" ? "utc" : "local";
    const text = field.dataset.zone ? field.value : field.defaultValue; // a browser may restore a time of another zone
    const at = Date.parse(from === "utc" ? `${text}Z` : text);
    field.dataset.zone = to;
    field.autocomplete = "off";
    if (!isNaN(at)) field.value = stamp(at, to).replace(" ", "T").slice(0, text.length);
    const hint = field.closest("label")?.querySelector("small");
    if (hint) hint.textContent = hint.textContent.replace(hint.dataset.zone ?? "UTC", hint.dataset.zone = zoneAt(Date.now()));
  };
  const showTimes = (within) => {
    for (const time of within.querySelectorAll("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      if (isNaN(at)) continue;
      const texts = { utc: `${stamp(at, "utc")} UTC`, local: `${stamp(at, "local")} ${named.formatToParts(at).at(-1).value}`, relative: relative(at) };
      if (time.textContent !== texts[mode]) time.textContent = texts[mode];
      delete texts[mode];
      time.title = Object.values(texts).join(", ");
    }
    for (const field of within.querySelectorAll('input[type="datetime-local"]')) setField(field);
  };
  document.addEventListener("formdata", (event) => {
    for (const field of event.target.querySelectorAll('input[type="datetime-local"][data-zone="local"]')) {
      if (field.name && field.value) event.formData.set(field.name, stamp(new Date(field.value).getTime(), "utc").replace(" ", "T").slice(0, field.value.length));
    }
  });
  globalThis.duemqClock = (ms, seconds) => {
    if (mode !== "relative") return stamp(ms, mode).slice(11, seconds ? 19 : 16);
    const ago = Math.max(Math.round((Date.now() - ms) / 1000), 0);
    return ago < 120 ? `\u2212${ago} s` : ago < 7200 ? `\u2212${Math.round(ago / 60)} min` : `\u2212${Math.round(ago / 3600)} h`;
  };
  const zone = $("zone");
  const nameZone = () => { zone.textContent = MODES[mode]; zone.setAttribute("aria-label", `Times are ${mode === "relative" ? "relative" : `in ${zoneAt(Date.now())}`}: change`); };
  if (zone) {
    zone.hidden = false;
    nameZone();
    zone.addEventListener("click", () => {
      const all = Object.keys(MODES);
      mode = all[(all.indexOf(mode) + 1) % all.length];
      try { localStorage.setItem("duemq-time", mode); } catch { /* for this page only */ }
      nameZone();
      showTimes(document);
      document.dispatchEvent(new Event("theme"));
    });
    setInterval(() => { if (mode === "relative" && !document.hidden) showTimes(document); }, 10_000);
  }

  // --- lists that poll, unless they are in use ---
  const isBusy = (list) => document.hidden || dialog?.open || list.dataset.grown || list.querySelector("input:checked")
    || list.contains(document.activeElement) || (getSelection().toString() && list.contains(getSelection().anchorNode));
  let turn = 0;
  setInterval(() => {
    turn += 1;
    for (const list of document.querySelectorAll("[data-poll]")) {
      if (turn % Number(list.dataset.poll) === 0 && !isBusy(list)) htmx.ajax("GET", location.pathname + location.search, { target: list, select: `#${list.getAttribute("id")}`, swap: "outerHTML" });
    }
  }, 1000);
  document.addEventListener("htmx:beforeSwap", (event) => {
    const list = event.detail.target;
    if (!list?.dataset?.poll) return;
    if (event.detail.xhr.status !== 200 || isBusy(list)) event.detail.shouldSwap = false;
    if (event.detail.xhr.status !== 200) list.dataset.stale = "1";
  });
  document.addEventListener("htmx:sendError", (event) => { if (event.detail.target?.dataset?.poll) event.detail.target.dataset.stale = "1"; });

  // --- selections ---
  const boxes = () => [...document.querySelectorAll('#rows input[name="id"]')];
  const all = $("all");
  const count = () => {
    const selected = boxes().filter((box) => box.checked).length;
    const bar = document.querySelector("#selection .toolbar");
    if (!bar) return;
    $("selected").textContent = selected ? `${selected.toLocaleString("en").replaceAll(",", "\u202f")} selected` : "None selected";
    for (const button of bar.querySelectorAll("button")) button.disabled = !selected;
    if (all) { all.checked = selected > 0 && selected === boxes().length; all.indeterminate = selected > 0 && !all.checked; }
  };
  if (all) {
    all.hidden = false;
    all.addEventListener("change", () => { for (const box of boxes()) box.checked = all.checked; count(); });
  }
  document.addEventListener("change", (event) => { if (event.target.matches('#rows input[name="id"]')) count(); });

  // --- dialogs ---
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "rows") event.detail.target.closest("[data-poll]")?.setAttribute("data-grown", "1");
    if (event.detail.target !== dialog) return;
    if (!dialog.open) dialog.showModal();
    (dialog.querySelector("input:not([type=hidden]), button") || dialog).focus();
  });
  dialog?.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) { event.preventDefault(); dialog.close(); }
  });
  document.addEventListener("htmx:afterSettle", () => { showTimes(document); nameCells(); count(); });

  // --- one press, one request ---
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    if (event.target.dataset.sent) { event.preventDefault(); return; }
    event.target.dataset.sent = "1";
  });
  addEventListener("pageshow", () => { for (const form of document.querySelectorAll("[data-sent]")) delete form.dataset.sent; count(); });

  // --- copying ---
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const root = JSON.parse(document.body.getAttribute("hx-headers"))["X-Console-Root"];
    const text = button.dataset.copy.replaceAll("{api}", new URL(`${root}..`, location).href.replace(/\/$/, ""));
    try { await navigator.clipboard.writeText(text); } catch { // not over plain HTTP
      const area = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text }));
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  });

  // --- narrow windows: rows are cards that name their cells, filters are hidden until opened ---
  const nameCells = () => {
    for (const table of document.querySelectorAll("table.list")) {
      const names = [...table.querySelectorAll("thead th")].map((th) => th.textContent.trim());
      for (const row of table.tBodies[0]?.rows ?? []) [...row.cells].forEach((cell, at) => { cell.dataset.label = names[at] ?? ""; });
    }
  };
  if (matchMedia("(max-width: 52rem)").matches) for (const filters of document.querySelectorAll("form.filters details")) filters.open = false;
  for (const form of document.querySelectorAll("form.filters[role=search]:not(:has(.search))")) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet collapse", textContent: "Filter" });
    const show = (is) => { form.classList.toggle("collapsed", !is); button.setAttribute("aria-expanded", String(Boolean(is))); };
    button.addEventListener("click", () => show(form.classList.contains("collapsed")));
    form.prepend(button);
    show([...form.elements].some((one) => one.ariaInvalid) || document.querySelector(".notice.bad"));
  }

  // --- the menu of narrow windows ---
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") document.querySelector("details.menu[open]")?.removeAttribute("open"); });

  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
  showTimes(document);
  nameCells();
  count();
})();
