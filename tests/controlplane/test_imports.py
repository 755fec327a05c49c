"""Files that somebody else wrote: taken wholly or not at all, with the place of each fault."""

from __future__ import annotations

import csv
import io
import zipfile
from typing import Any

import openpyxl
import pytest
from django.core.exceptions import PermissionDenied, ValidationError

from controlplane.core.models import ChangeLog, SiteRole, User
from controlplane.core.tables import TableError
from controlplane.inventory import services
from controlplane.inventory.models import Node, NodeType, Price, Site

pytestmark = pytest.mark.django_db

PRICES = "gpu_model,valid_from,basis,usd_per_gpu_hour,source\n"
HEADER = "name,site,node_type,state,failure_domain,allowed_engines\n"


def load(actor: User, table: str, text: str | bytes, name: str = "file.csv", **extra: Any) -> Any:
    content = text.encode() if isinstance(text, str) else text
    return services.import_table(actor=actor, table=table, name=name, content=content, **extra)


def test_nodes_come_with_their_gpus(operator: User, site: Site, node_type: NodeType) -> None:
    report = load(operator, "nodes", HEADER + "a1,test-site,8xh100,active,r1,vllm\nA 2,test-site,8xh100,planned,,\n")
    assert (report.created, report.updated) == (2, 0)
    node = Node.objects.get(slug="a-2")
    assert node.gpus.count() == 8
    assert Node.objects.get(slug="a1").allowed_engines == ["vllm"]
    assert node.allowed_engines == ["vllm", "tensorrt_llm"]
    assert ChangeLog.objects.filter(model="inventory.Node", actor=operator).count() == 2
    again = load(
        operator, "nodes", HEADER + "a1,test-site,8xh100,maintenance,r1,vllm\nA 2,test-site,8xh100,planned,,\n"
    )
    assert (again.created, again.updated, again.unchanged) == (0, 1, 1)


def test_dry_run_changes_nothing(operator: User, site: Site, node_type: NodeType) -> None:
    assert load(operator, "nodes", HEADER + "a1,test-site,8xh100,active,,\n", dry_run=True).created == 1
    assert not Node.objects.exists()


def test_one_wrong_row_refuses_the_file_and_names_every_fault(operator: User, site: Site, node_type: NodeType) -> None:
    text = HEADER + (
        "ok,test-site,8xh100,active,,\n"
        "b,nowhere,8xh100,active,,\n"
        "c,test-site,8xh100,lost,,\n"
        "d,test-site,8xh100,active,,sglang\n"
    )
    with pytest.raises(TableError) as error:
        load(operator, "nodes", text)
    faults = {(item.row, item.field): item for item in error.value.problems}
    assert set(faults) == {(3, "site"), (4, "state"), (5, "allowed_engines")}
    assert faults[(3, "site")].value == "nowhere"
    assert "known: test-site" in faults[(3, "site")].message
    assert "Row 3, site ('nowhere')" in str(faults[(3, "site")])
    assert not Node.objects.exists()


@pytest.mark.parametrize(
    ("table", "text", "row", "field", "words"),
    [
        ("sites", "name,usd_per_kwh\nX,-1\n", 2, "usd_per_kwh", "greater than or equal to 0"),
        ("sites", "name,usd_per_kwh\nX,NaN\n", 2, "usd_per_kwh", "finite"),
        ("sites", "name,usd_per_kwh\nX,12 ct\n", 2, "usd_per_kwh", "no unit"),
        ("node-types", "name,gpu_model,gpus\nX,H100-SXM5-80GB,8 GPUs\n", 2, "gpus", "whole number"),
        ("node-types", "name,gpu_model,gpus\nX,H100-SXM5-80GB,1e999\n", 2, "gpus", "whole number"),
        ("sites", "name,colour\nX,red\n", 0, "", "Unknown column 'colour'"),
        ("sites", "name,name\nX,Y\n", 1, "name", "twice"),
        ("sites", "name,pue\nX\n", 2, "", "1 cells, the header 2"),
        ("sites", "name\nX\nX\n", 0, "", "Rows 2 and 3 are the same"),
        ("sites", "name,\nX,1\n", 1, "", "no name"),
        ("node-types", "name,gpu_model,gpus,network_gb_s\nX,H100-SXM5-80GB,8,inf\n", 2, "network_gb_s", "finite"),
        ("node-types", "name,gpu_model,gpus,network_gb_s\nX,H100-SXM5-80GB,8,50 GB/s\n", 2, "network_gb_s", "no unit"),
        ("node-types", "name,gpu_model,gpus\nX,H900,8\n", 2, "gpu_model", "known: H100-SXM5-80GB"),
        ("prices", PRICES + "H100-SXM5-80GB,yesterday,rental,1,s\n", 2, "valid_from", "date"),
        ("prices", PRICES + "H100-SXM5-80GB,2026-05-01,rental,1,\n", 2, "source", "blank"),
        ("prices", PRICES + "H100-SXM5-80GB,2026-05-01,gift,1,s\n", 2, "basis", "not a valid choice"),
    ],
)  # fmt: skip
def test_hostile_cells(
    operator: User, node_type: NodeType, table: str, text: str, row: int, field: str, words: str
) -> None:
    before = (Site.objects.count(), NodeType.objects.count(), Price.objects.count())
    with pytest.raises(TableError) as error:
        load(operator, table, text)
    first = error.value.problems[0]
    assert first.row == row
    if field:
        assert first.field == field
    assert words in first.message
    assert (Site.objects.count(), NodeType.objects.count(), Price.objects.count()) == before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"", "empty"),
        ("x.csv", b"name\n", "no rows"),
        ("x.csv", b"\xff\xfe\x00n", "not UTF-8"),
        ("x.csv", b"name\nA\x00B\n", "NUL"),
        ("x.csv", b'name\n"open quote\n', "not valid CSV"),
        ("x.txt", b"name\nX\n", "neither .csv nor .xlsx"),
        ("x.xlsx", b"PK\x03\x04 not really", "no readable XLSX"),
        ("x.csv", b"name\n" + b"x" * 30_000 + b"\n", "20,000 characters"),
        ("x.csv", b",".join(b"c%d" % i for i in range(200)) + b"\n1\n", "200 columns"),
    ],
)
def test_hostile_files(operator: User, name: str, content: bytes, words: str) -> None:
    with pytest.raises(TableError, match=words):
        load(operator, "sites", content, name)


def test_limits_of_size(operator: User, settings: Any) -> None:
    settings.IMPORT_MAX_BYTES = 1000
    with pytest.raises(TableError, match="limit is 0 MiB"):
        load(operator, "sites", "name\n" + "x\n" * 1000)
    settings.IMPORT_MAX_BYTES = 10**6
    settings.IMPORT_MAX_ROWS = 10
    with pytest.raises(TableError, match="more than 10 rows"):
        load(operator, "sites", "name\n" + "".join(f"s{i}\n" for i in range(20)))


def test_xlsx_bomb_is_refused_before_it_is_unpacked(operator: User) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b"0" * (120 * 2**20))
    with pytest.raises(TableError, match="unpacks to 120 MiB"):
        load(operator, "sites", held.getvalue(), "x.xlsx")


def test_xlsx_goes_in_and_comes_out(operator: User, h100: Any) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["name", "usd_per_kwh", "pue", "notes"])
    sheet.append(["Oslo", 0.05, 1.1, None])
    sheet.append([None, None, None, None])
    held = io.BytesIO()
    book.save(held)
    assert load(operator, "sites", held.getvalue(), "sites.xlsx").created == 1
    site = Site.objects.get(slug="oslo")
    assert (str(site.usd_per_kwh), str(site.pue)) == ("0.0500", "1.10")
    out = services.export_table(table="sites", form="xlsx")
    assert load(operator, "sites", out, "again.xlsx").unchanged == 1
    prices = services.export_table(table="prices")
    assert load(operator, "prices", prices, "prices.csv").unchanged == 1


@pytest.mark.parametrize("form", ["csv", "xlsx"])
def test_no_cell_is_a_formula_and_all_come_back(operator: User, form: str) -> None:
    notes = ['=HYPERLINK("http://x","y")', "+1+1", "-2+3", "@SUM(A1)", "'=1", "''-1", "'quoted'", "plain"]
    for number, text in enumerate(notes):
        services.save_item(actor=operator, record=Site(name=f"Site {number}", slug=f"s{number}", notes=text))
    out = services.export_table(table="sites", form=form)
    if form == "csv":
        cells = [row["notes"] for row in csv.DictReader(io.StringIO(out.decode()))]
    else:
        sheet = openpyxl.load_workbook(io.BytesIO(out)).active
        at = [cell.value for cell in sheet[1]].index("notes")
        cells = [row[at].value for row in sheet.iter_rows(min_row=2)]
        assert {row[at].data_type for row in sheet.iter_rows(min_row=2)} == {"s"}
    assert cells == [f"'{text}" if text.lstrip("'")[0] in "=+-@" else text for text in notes]
    assert load(operator, "sites", out, f"again.{form}").unchanged == len(notes)
    assert list(Site.objects.order_by("slug").values_list("notes", flat=True)) == notes


def test_a_control_character_is_refused_and_one_that_is_stored_breaks_no_file(operator: User, site: Site) -> None:
    with pytest.raises(ValidationError, match="control character U\\+0001"):
        services.save_item(actor=operator, record=Site(name="Odd \x01", slug="odd"))
    services.save_item(actor=operator, record=Site(name="Two lines", slug="two", notes="one\n\ttwo"))
    Site.objects.filter(pk=site.pk).update(notes="from before \x02")
    sheet = openpyxl.load_workbook(io.BytesIO(services.export_table(table="sites", form="xlsx"))).active
    assert "from before \ufffd" in [cell.value for row in sheet.iter_rows() for cell in row]


def test_semicolons_and_a_byte_order_mark_are_read(operator: User) -> None:
    assert load(operator, "sites", b"\xef\xbb\xbfname;pue\nBonn;1.2\n").created == 1


def test_who_may_import(viewer: User, operator: User, site: Site, node_type: NodeType) -> None:
    row = HEADER + "a1,test-site,8xh100,active,,\n"
    with pytest.raises(PermissionDenied):
        load(viewer, "nodes", row)
    SiteRole.objects.create(user=viewer, site=site, role="operator")
    assert load(viewer, "nodes", row).created == 1
