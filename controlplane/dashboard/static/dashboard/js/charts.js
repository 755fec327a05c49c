/* Draws the figures that the server built, and recolours them when the theme changes. */
(() => {
  const config = {
    displaylogo: false,
    responsive: true,
    displayModeBar: "hover",
    modeBarButtonsToRemove: [
      "zoom2d", "pan2d", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d",
    ],
  };
  const root = document.documentElement;

  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  const recolour = (value, map) => {
    if (typeof value === "string") return map[value] ?? value;
    if (Array.isArray(value)) return value.map((item) => recolour(item, map));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, recolour(item, map)]));
    }
    return value;
  };

  const draw = (plot, asDark) => {
    const source = document.getElementById(plot.dataset.source);
    if (!source || !window.Plotly) return;
    const { figure, dark } = JSON.parse(source.textContent);
    const coloured = recolour(figure, asDark ? dark : {});
    plot.querySelector(".no-script")?.remove();
    coloured.layout.autosize = true;
    coloured.layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: "#8d9ba9", activecolor: "#8d9ba9" };
    Plotly.react(plot, coloured.data, coloured.layout, {
      ...config,
      toImageButtonOptions: { filename: plot.dataset.name, scale: 2 },
    });
  };

  const drawAll = (scope, asDark = isDark()) => {
    for (const plot of scope.querySelectorAll(".plot[data-source]")) draw(plot, asDark);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-chart-view]");
    if (!button) return;
    const chart = button.closest(".chart");
    const table = button.dataset.chartView === "table";
    chart.querySelector(".plot").hidden = table;
    chart.querySelector(".chart-table").hidden = !table;
    for (const other of button.parentElement.querySelectorAll("[data-chart-view]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    if (!table) window.Plotly?.Plots.resize(chart.querySelector(".plot"));
  });

  document.addEventListener("DOMContentLoaded", () => drawAll(document));
  document.addEventListener("themechange", (event) => drawAll(document, event.detail.dark));
  document.addEventListener("htmx:afterSwap", (event) => drawAll(event.detail.target.parentElement ?? document));
})();
