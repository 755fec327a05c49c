/* What can be read off a rendered page against WCAG 2.2 AA; returns one line for each thing found wrong. */
() => {
  const found = [];
  const all = (selector, scope = document) => [...scope.querySelectorAll(selector)];
  const outer = (node) => node.cloneNode(false).outerHTML.replace(/\s+/g, " ").slice(0, 160);
  const wrong = (rule, node, more = "") => found.push(`${rule}: ${outer(node)}${more && ` ${more}`}`);
  const shown = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length > 0;

  /* Text that is read out for a node: labels, else what stands in it. */
  const named = (ids) => ids.trim().split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
  const inside = (node) =>
    [...node.childNodes]
      .map((child) => {
        if (child.nodeType === Node.TEXT_NODE) return child.textContent;
        if (child.nodeType !== Node.ELEMENT_NODE || child.getAttribute("aria-hidden") === "true") return "";
        return child.getAttribute("aria-label") ?? child.getAttribute("alt") ?? inside(child);
      })
      .join(" ")
      .trim();
  const name = (node) =>
    named(node.getAttribute("aria-labelledby") ?? "") || (node.getAttribute("aria-label") ?? "").trim() ||
    [...(node.labels ?? [])].map(inside).join(" ").trim() || inside(node) || (node.getAttribute("title") ?? "").trim();

  /* The document */
  if (!document.documentElement.lang) wrong("language of the page is missing", document.documentElement);
  if (/user-scalable=no|maximum-scale/.test(document.querySelector("meta[name=viewport]")?.content ?? "")) {
    wrong("zoom is barred", document.querySelector("meta[name=viewport]"));
  }
  if (all("main").length !== 1) found.push(`${all("main").length} main landmarks`);
  if (all("h1").filter(shown).length !== 1) found.push(`${all("h1").filter(shown).length} headings of level 1`);
  let level = 0;
  for (const heading of all("h1, h2, h3, h4, h5, h6").filter(shown)) {
    const own = Number(heading.localName[1]);
    if (own > level + 1) wrong(`heading skips from level ${level}`, heading, heading.textContent.trim());
    level = own;
  }
  const landmarks = all("nav, aside, [role=region], [role=navigation]").filter(shown);
  const seen = new Map();
  for (const mark of landmarks) {
    const key = `${mark.getAttribute("role") ?? mark.localName} ${name(mark).slice(0, 80)}`;
    if (mark.localName === "nav" && !mark.hasAttribute("aria-label") && landmarks.filter((m) => m.localName === "nav").length > 1) {
      wrong("one of several navigations has no name", mark);
    } else if (seen.has(key) && mark.hasAttribute("aria-label")) wrong("two landmarks have one name", mark);
    seen.set(key, mark);
  }

  /* Ids and what refers to them */
  const ids = new Set();
  for (const node of all("[id]")) {
    if (ids.has(node.id)) wrong("id stands twice", node);
    ids.add(node.id);
  }
  for (const attribute of ["aria-labelledby", "aria-describedby", "aria-controls", "popovertarget", "for", "list"]) {
    for (const node of all(`[${attribute}]`)) {
      for (const id of node.getAttribute(attribute).trim().split(/\s+/)) {
        if (!document.getElementById(id)) wrong(`${attribute} points at nothing`, node);
      }
    }
  }

  /* Names */
  const controls = "a[href], button, summary, input:not([type=hidden]), select, textarea, [tabindex]:not([tabindex='-1'])";
  for (const node of all(controls).filter(shown)) {
    if (!name(node)) wrong("control has no name", node);
    if (node.tabIndex > 0) wrong("order of the tab key is forced", node);
    if (node.closest("[aria-hidden=true]")) wrong("control is hidden from readers", node);
  }
  for (const node of all("img, svg[role=img], [role=img]").filter(shown)) {
    if (!node.getAttribute("aria-label") && !node.getAttribute("alt") && !node.getAttribute("aria-labelledby")) wrong("picture has no words", node);
  }
  for (const node of all("svg:not([role]):not([aria-hidden])").filter((svg) => shown(svg) && !svg.closest("[role=img], [aria-hidden=true]") && svg.id !== "js-plotly-tester")) {
    wrong("drawing is neither named nor hidden", node);
  }
  for (const node of all("div[aria-label]:not([role]), span[aria-label]:not([role]), p[aria-label]:not([role]), i[aria-label]:not([role]), pre[aria-label]:not([role])")) {
    wrong("name on a node without a role", node);
  }
  for (const node of all("[aria-invalid=true]")) {
    if (!node.getAttribute("aria-describedby")) wrong("error is not tied to its field", node);
  }

  /* Structure */
  for (const node of all("ul > :not(li, template, script), ol > :not(li, template, script)")) wrong("list holds something else", node);
  for (const node of all("dl > :not(dt, dd, div)")) wrong("list of facts holds something else", node);
  for (const node of all("th").filter(shown)) {
    if (!node.hasAttribute("scope")) wrong("heading of a table without scope", node, node.textContent.trim());
    if (!inside(node) && !node.querySelector("input")) wrong("heading of a table is empty", node);
  }
  for (const node of all("main *").filter(shown)) {
    const style = getComputedStyle(node);
    const scrolls = /auto|scroll/.test(style.overflowX) && node.scrollWidth > node.clientWidth + 1;
    const down = /auto|scroll/.test(style.overflowY) && node.scrollHeight > node.clientHeight + 1;
    if ((scrolls || down) && node.tabIndex < 0 && !node.querySelector(controls)) wrong("scrolls, but not by keys", node);
  }

  /* Pointer targets of 24 px, or as much room around them; links in a sentence are free. */
  const targets = all("a[href], button, summary, input:not([type=hidden]), select").filter((node) => shown(node) && !node.matches(".skip"));
  const centre = (box) => [box.left + box.width / 2, box.top + box.height / 2];
  const boxes = targets.map((node) => node.getBoundingClientRect());
  targets.forEach((node, at) => {
    const box = boxes[at];
    if (box.width >= 24 && box.height >= 24) return;
    if (getComputedStyle(node).display === "inline" || node.closest("label")) return;
    const [x, y] = centre(box);
    const near = boxes.findIndex((other, index) => {
      if (index === at || node.contains(targets[index]) || targets[index].contains(node)) return false;
      const [dx, dy] = [Math.max(other.left - x, 0, x - other.right), Math.max(other.top - y, 0, y - other.bottom)];
      return Math.hypot(dx, dy) < 12;
    });
    if (near >= 0) wrong("target is smaller than 24 px", node, `${Math.round(box.width)} x ${Math.round(box.height)}`);
  });

  /* Contrast of every text that can be seen, charts too */
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (colour) => {
    if (!known.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(colour, [r, g, b, a / 255]);
    }
    return known.get(colour);
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((value, i) => value * a + under[i] * (1 - a));
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((under, layer) => over(layer, under), rgba(getComputedStyle(document.body).backgroundColor).slice(0, 3));
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const told = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.textContent.trim() || node.closest("script, style, template, .visually-hidden, .skip, [disabled], option, title") || !shown(node)) continue;
    const style = getComputedStyle(node);
    const svg = node instanceof SVGElement;
    const under = ground(node);
    let faded = 1;
    for (let at = node; at; at = at.parentElement) faded *= Number(getComputedStyle(at).opacity);
    if (faded === 0) continue;
    const ink = rgba(svg ? style.fill : style.color);
    const [high, low] = [light(over([ink[0], ink[1], ink[2], ink[3] * faded], under)), light(under)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const key = `${svg ? style.fill : style.color} ${under} ${needed}`;
    if (ratio < needed && !told.has(key)) {
      told.add(key);
      wrong(`contrast ${ratio.toFixed(2)}`, node, text.textContent.trim().slice(0, 40));
    }
  }
  return found;
};
