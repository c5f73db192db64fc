"""A verdict that says it looks at no rows is not asked of them, so it must not; and one that looks at ticks says so."""

from __future__ import annotations

import pytest

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Verdict
from ammeter.wire import columns
from tests.agent.stream_builder import warm
from tests.agent.stream_judgement import views, whole
from tests.agent.streams import BROKEN

WITHOUT_ROWS = [verdict for verdict in verdicts.STREAM_VERDICTS if not verdict.rows]
WITHOUT_CLOCK = [verdict for verdict in verdicts.STREAM_VERDICTS if not verdict.clock]


@pytest.mark.parametrize("verdict", WITHOUT_ROWS, ids=lambda verdict: verdict.id)
def test_rows_change_nothing_in_it(verdict: Verdict) -> None:
    (view,) = views(warm(40).frames)
    rows = view.rows(0, len(view))
    assert len(rows) > 0
    assert (verdict.state(), None) == verdict.judge(verdict.state(), rows)
    heard, _ = verdict.judge(verdict.state(), view)
    assert heard == verdict.judge(heard, rows)[0]


@pytest.mark.parametrize("alive", [True, False, None])
@pytest.mark.parametrize("verdict", WITHOUT_CLOCK, ids=lambda verdict: verdict.id)
def test_ticks_change_nothing_in_it(verdict: Verdict, alive: bool | None) -> None:
    for make in (warm, *BROKEN.values()):
        (view,) = whole(make)
        after, _ = verdict.judge(verdict.state(), view)
        last = int(view.times[-1]) if len(view) else 0
        tick = columns.view(view.schema, (), tick=columns.Tick(last + 10**13, alive, last))
        for state in (verdict.state(), after):
            assert (state, None) == verdict.judge(state, tick), make
