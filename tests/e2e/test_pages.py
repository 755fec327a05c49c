"""The pages in a real browser: no console errors, no policy violations, no overflow, in both themes at three widths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from controlplane.workloads.models import Workload
from tests.controlplane import fleet_fixture
from tests.controlplane.test_unit_plans import store_curves, turn_into_units
from tests.e2e.pages import Open, paths

WIDTHS = (390, 1024, 1600)
THEMES = ("light", "dark")

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_every_page_is_quiet_and_fits_in_both_themes_at_three_widths(open_page: Open, sample: dict[str, Any]) -> None:
    page = open_page()
    for path in paths(sample):
        page.said.clear()  # type: ignore[attr-defined]
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        if page.locator(".plot[data-source]").count():
            expect(page.locator(".plot .main-svg").first).to_be_attached()
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            for theme in THEMES:
                page.emulate_media(color_scheme=theme)
                over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert over <= 0, f"{path} is {over} px too wide at {width} px"
        assert page.said == [], path  # type: ignore[attr-defined]


def test_a_mix_and_each_engine_alone_are_drawn_and_read(open_page: Open, sample: dict[str, Any]) -> None:
    page = open_page()
    page.goto(f"/plans/{sample['plan'].pk}/")
    alone = page.locator("#engines-alone")
    expect(alone.get_by_role("row")).to_have_count(4)
    expect(alone.locator("svg.bar").first).to_have_attribute("aria-label", re.compile(r"vLLM on \d+ GPUs"))
    page.goto(f"/plans/{sample['plan'].pk}/workloads/code-completion/")
    mix = page.locator("#mix")
    expect(mix.get_by_role("img", name=re.compile("of the requests"))).to_be_visible()
    colours = mix.locator("svg.bar rect").evaluate_all("found => found.map(one => getComputedStyle(one).fill)")
    assert len(set(colours)) == 2
    mix.get_by_text("What would flip it").click()
    expect(mix.get_by_text("Against vLLM alone")).to_be_visible()
    assert page.said == []  # type: ignore[attr-defined]


def test_a_figure_opens_to_its_arithmetic_by_key_and_closes(open_page: Open, sample: dict[str, Any]) -> None:
    page = open_page()
    page.goto(f"/plans/{sample['plan'].pk}/")
    figure = page.locator("a.how[href*='figure=cost']").first
    figure.focus()
    page.keyboard.press("Enter")
    box = page.locator("#how:popover-open")
    expect(box).to_contain_text("bill of a month / million output tokens")
    page.keyboard.press("Escape")
    expect(box).to_have_count(0)
    expect(figure).to_be_focused()
    assert page.said == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("theme", THEMES)
def test_a_burst_is_drawn_in_both_pools_of_a_unit(open_page: Open, sample: dict[str, Any], theme: str) -> None:
    plan = sample["plan"]
    turn_into_units(plan, "code-completion")
    chosen = store_curves(plan, "code-completion")
    page = open_page(1600, theme)
    page.goto(f"/plans/{plan.pk}/candidate/?id={quote(chosen)}")
    page.get_by_text("The inside of both pools in a burst").click()
    plots = [page.locator(f".plot[data-name='timeline-{pool}']") for pool in ("prefill", "decode")]
    for plot, lines in zip(plots, (3, 4), strict=True):
        expect(plot.locator(".scatterlayer path.js-line")).to_have_count(lines)
        expect(plot).to_have_attribute("aria-label", re.compile("KV cache in use 0 to 40 %"))
    boxes = [plot.bounding_box() for plot in plots]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=2), "side by side"
    assert [plot.locator(".xtick text").all_text_contents() for plot in plots] == [["0", "10", "20", "30", "40"]] * 2
    assert page.said == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_open_quietly_at_each_width(open_page: Open, sample: dict[str, Any], width: int) -> None:
    page = open_page(width, "dark")
    for path in ("/", "/fleet/", f"/plans/{sample['plan'].pk}/"):
        page.goto(path)
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, path
    assert page.said == []  # type: ignore[attr-defined]


def test_text_has_enough_contrast_in_both_themes(open_page: Open) -> None:
    """AA for the text tokens on each surface, as the browser resolves them."""
    ratios_of = """() => {
      const probe = document.createElement('i');
      document.body.append(probe);
      const rgb = (name) => {
        probe.style.color = `var(--${name})`;
        return getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number);
      };
      const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
      const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
      const ratio = (a, b) => {
        const [high, low] = [light(rgb(a)), light(rgb(b))].sort((p, q) => q - p);
        return (high + 0.05) / (low + 0.05);
      };
      const states = ['ok', 'attention', 'failed'];
      const texts = ['text', 'text-2', 'text-3', 'accent', 'vllm-text', 'tensorrt-llm-text', ...states];
      const found = { 'on-accent on accent': ratio('on-accent', 'accent') };
      for (const text of texts)
        for (const ground of ['surface', 'bg']) found[`${text} on ${ground}`] = ratio(text, ground);
      for (const state of states) found[`text on ${state}-soft`] = ratio('text', `${state}-soft`);
      return found;
    }"""
    for theme in THEMES:
        ratios = open_page(1024, theme).evaluate(ratios_of)
        low = {name: round(value, 2) for name, value in ratios.items() if value < 4.5}
        assert not low, f"{theme}: {low}"


def test_theme_switch_is_remembered_and_recolours_charts(open_page: Open, sample: dict[str, Any]) -> None:
    page = open_page(1600, "light")
    page.goto(f"/plans/{sample['plan'].pk}/")
    tick = page.locator(".plot .ytick text").first
    before = tick.evaluate("node => getComputedStyle(node).fill")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.locator(".rail").get_by_role("button", name="Theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.wait_for_timeout(200)
    assert tick.evaluate("node => getComputedStyle(node).fill") != before
    assert requests == []
    page.goto("/fleet/")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_evidence_mark_opens_the_arithmetic(open_page: Open, sample: dict[str, Any]) -> None:
    page = open_page()
    page.goto(f"/plans/{sample['plan'].pk}/")
    page.get_by_role("button", name="Silicon: how this number is known").first.click()
    box = page.locator(".popover:popover-open")
    expect(box).to_contain_text("Composed of operator times measured on this GPU")
    expect(box).to_contain_text("8.60 req/s within the SLO")
    page.keyboard.press("Escape")
    expect(box).to_have_count(0)


def test_gpu_map_by_pointer_and_by_keys(open_page: Open) -> None:
    page = open_page()
    page.goto("/fleet/")
    page.locator("#n-fra-h100-01").click()
    panel = page.locator("#pinned")
    expect(panel).to_contain_text("fra-h100-01")
    expect(panel).to_contain_text("code-completion")
    expect(page.locator("#n-fra-h100-01")).to_have_attribute("aria-current", "true")
    page.locator("#n-fra-h100-01").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#n-fra-h100-02")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#n-fra-l40s-02")).to_be_focused()
    page.keyboard.press("Enter")
    expect(panel).to_contain_text("fra-l40s-02")


def test_chart_shows_its_table_and_gives_csv(open_page: Open, sample: dict[str, Any]) -> None:
    page = open_page()
    page.goto(f"/plans/{sample['plan'].pk}/workloads/code-completion/")
    chart = page.locator(".chart").first
    chart.get_by_role("button", name="Table").click()
    expect(chart.locator("tbody tr")).to_have_count(5)
    expect(chart.locator(".plot")).to_be_hidden()
    with page.expect_download() as download:
        chart.get_by_role("button", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == "Engine,GPU,Parallelism,Precision,Interactivity (tok/s/user),Throughput (tok/s/GPU),Evidence"
    assert len(lines) == 6


def test_lengths_are_drawn_while_typing_and_the_workload_is_stored(open_page: Open) -> None:
    page = open_page()
    page.goto("/workloads/new/")
    page.locator("#id_name").fill("Evening chat")
    page.locator("#id_model_ref").fill("Qwen/Qwen3-32B")
    page.locator("#id_rate_per_s").fill("3")
    page.locator("#id_input_kind").select_option("normal")
    page.locator("#id_input_a").fill("1200")
    page.locator("#id_input_b").fill("400")
    expect(page.locator("#drawn")).to_contain_text(re.compile("Median 1,[12]"), timeout=5000)
    page.locator("#slo-rows select").first.select_option("ttft")
    page.locator("#slo-rows input[type=number]").first.fill("800")
    page.get_by_role("button", name="One more").click()
    expect(page.locator("#slo-rows .slo-row")).to_have_count(2)
    page.get_by_role("button", name="Store").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Evening chat")
    expect(page.locator(".toast")).to_contain_text("Evening chat is stored.")
    stored = Workload.objects.get(name="Evening chat")
    assert stored.input_tokens == {"kind": "normal", "mean": 1200.0, "sd": 400.0}
    assert [t.limit_ms for t in stored.slo_targets.all()] == [800.0]
    assert page.said == []  # type: ignore[attr-defined]


def test_memory_answers_while_typing(open_page: Open) -> None:
    page = open_page()
    page.goto("/memory/")
    expect(page.locator("#answer")).to_contain_text("Fits with")
    page.locator("#id_gpu").select_option("A10")
    expect(page.locator("#answer")).to_contain_text("Does not fit.")
    page.locator("#id_gpu").select_option("H200-SXM-141GB")
    expect(page.locator("#answer")).to_contain_text("Fits with")
    assert page.said == []  # type: ignore[attr-defined]


def test_a_plan_is_asked_for_and_watched(open_page: Open) -> None:
    page = open_page()
    page.goto("/plans/new/")
    page.locator("#id_name").fill("Oslo alone")
    page.get_by_label("Oslo").check()
    page.get_by_role("button", name="Store and compute").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Oslo alone #1")
    expect(page.locator(".progress")).to_contain_text("Queued")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".progress")).to_contain_text("Cancelled")
    assert page.said == []  # type: ignore[attr-defined]


def test_a_viewer_has_no_buttons_that_change_things(open_page: Open, sample: dict[str, Any]) -> None:
    fleet_fixture.make_user("eve", "viewer")
    page = open_page(user="eve")
    page.goto(f"/plans/{sample['other'].pk}/")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    page.goto("/plans/new/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")


def test_pages_work_on_a_phone(open_page: Open) -> None:
    page = open_page(390)
    page.locator(".topbar summary").click()
    page.locator(".topbar").get_by_role("link", name="Plans").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Plans")
