"""The advisory before a verify width: figures, mixed batches, recommendation; nothing for stock."""

from __future__ import annotations

import pytest
from sparkpair.advisory import advisory

from tests.planning import plan


@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("structured", ["stock", "uniform"])
def test_a_width_is_advised_against_with_figures(width: int, structured: str) -> None:
    lines = advisory(plan(verify_tokens=width, structured_width=structured))
    text = " ".join(lines)
    assert f"verify_tokens={width} is not the recommended setting" in text
    for figure in ("-37.8 %", "-36.9 %", "+21.6 %", "+7.3 %"):
        assert figure in text
    assert ("keep the full width" in text) == (structured == "stock")
    assert "rollback.yml" in text


@pytest.mark.parametrize("values", [{}, {"dflash_tokens": 3}, {"spec_method": "mtp"}, {"spec_method": "none"}])
def test_nothing_is_advised_without_a_width(values: dict[str, object]) -> None:
    assert advisory(plan(verify_tokens=0, **values)) == []
