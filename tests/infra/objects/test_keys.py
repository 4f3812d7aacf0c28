"""Which keys may be written or deleted, and where a listing may safely be taken up."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from infra.objects.bucket_listing import lower_start_after_for_path_order
from infra.objects.key_rules import find_keys_outside_xml, find_violated_rule, find_violated_rules

TRICKY = st.text(alphabet="a0./\\\0\x01 é\ud800-", max_size=6) | st.sampled_from(["x" * 1024, "x" * 1025, "é" * 600])


def by_path(key: str) -> list[str]:
    return key.split("/")


@given(st.lists(TRICKY, max_size=8))
def test_refusals_of_a_page_are_those_of_its_keys(keys: list[str]) -> None:
    """The quick look at a whole page never differs from the careful one at each key."""
    assert find_violated_rules(keys) == {key: reason for key in keys if (reason := find_violated_rule(key))}


@given(st.lists(st.text(alphabet="a\t\x01\x1f\ufffe\uffff é😀", max_size=4), max_size=8))
def test_not_in_xml_names_exactly_the_keys_with_such_characters(keys: list[str]) -> None:
    """Source: XML 1.0, section 2.2: no control characters but tab and line ends, no non-characters."""
    assert find_keys_outside_xml(keys) == [key for key in keys if set(key) & set("\x01\x1f\ufffe\uffff")]


@example("a", "/", "/x")
@settings(max_examples=500)
@given(
    st.sampled_from(["", "a/", "a"]),
    st.text(alphabet="a01-./é", max_size=5),
    st.text(alphabet="a01-./é", max_size=5),
)
def test_earlier_hides_no_key_in_the_order_of_bytes_or_of_paths(prefix: str, start: str, other: str) -> None:
    """Whichever order the store keeps, and though SeaweedFS skips a folder named by StartAfter, no key is lost."""
    start_after, key = prefix + start, prefix + other
    sent = lower_start_after_for_path_order(start_after, prefix)
    assert sent <= start_after
    if sent and key > start_after:
        assert key > sent
        assert by_path(key) > by_path(sent)
        assert not key.startswith(f"{sent}/")
