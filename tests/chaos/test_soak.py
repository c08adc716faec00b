"""A soak test samples servers and processes, and judges each measurement."""

from chaos import page, soak


def test_a_few_seconds_of_a_soak_test_give_samples_and_verdicts(server_setting: str) -> None:
    """Whether anything is flat cannot be seen in seconds; that every part works can."""
    said: list[str] = []
    for seconds in (4, 16, 64):  # on a busy machine the first messages take their time
        result = soak.run(seconds, 1.0, server_setting, said.append)
        if result["changes_per_second"] > 0:
            break
    assert result["failures"] == []
    assert result["seconds"] == sorted(result["seconds"])
    assert set(result["measures"]) == set(soak.MEASURES)
    for one in result["measures"].values():
        assert len(one["values"]) == len(result["seconds"])
        assert max(one["values"]) > 0
    assert result["changes_per_second"] > 0
    assert said
    assert "state changes a second" in soak.summary(result)
    assert "| keys |" in page.soak_text(result)
    assert set(page.soak_plots(result)) == {"soak-memory.svg", "soak-counts.svg"}
