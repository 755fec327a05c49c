"""MIG profiles: independent figures of public logs, and partitions that a GPU can hold."""

from __future__ import annotations

import pytest

from planner.catalog import check_partition, get_gpu, list_gpus, mig_profiles, slice_name
from planner.errors import InputError


def test_slice_of_an_h200_is_what_its_users_see() -> None:
    # 16.0 GiB usable and 16 of 132 SMs as users report; 600 GB/s is an eighth of the card's 4.8 TB/s
    found = get_gpu("H200-SXM-141GB-MIG-1g.18gb")
    assert (found.total_gib, found.mem_bw_gb_s) == (16.0, 600.0)
    assert found.bf16_tflops == pytest.approx(989 * 16 / 132)
    assert found.aic_system is None
    assert found.tdp_w is None
    assert found.compute_capability == 9.0


def test_slices_are_found_by_alias_of_their_gpu_and_in_any_case() -> None:
    assert get_gpu("h100-mig-2G.20GB").name == "H100-SXM5-80GB-MIG-2g.20gb"


@pytest.mark.parametrize(("gpu", "count"), [("A100-SXM4-80GB", 5), ("H200-SXM-141GB", 5), ("B200-SXM", 5), ("L40S", 0)])
def test_profiles_by_gpu(gpu, count) -> None:
    found = mig_profiles(gpu)
    assert len(found) == count
    for profile in found:
        whole, part = get_gpu(gpu), get_gpu(slice_name(gpu, profile.profile))
        assert part.total_gib < whole.total_gib * (profile.memory_share + 0.01)
        assert profile.max_instances * profile.fraction <= 1
        assert profile.max_instances * profile.memory_share <= 1
        assert profile.source


def test_every_profile_belongs_to_a_gpu_of_the_catalogue() -> None:
    names = {gpu.name for gpu in list_gpus()}
    assert {p.gpu for gpu in names for p in mig_profiles(gpu)} <= names
    assert not any("MIG" in name for name in names)


def test_partition_must_fit_the_gpu() -> None:
    check_partition("H100-SXM5-80GB", ["3g.40gb", "2g.20gb", "2g.20gb"])
    with pytest.raises(InputError, match="more compute slices"):
        check_partition("H100-SXM5-80GB", ["4g.40gb", "4g.40gb"])
    with pytest.raises(InputError, match="more memory"):
        check_partition("H100-SXM5-80GB", ["1g.20gb"] * 5)
    with pytest.raises(InputError, match=r"no such MIG profile.*1g\.10gb"):
        get_gpu("H100-SXM5-80GB-MIG-1g.5gb")
